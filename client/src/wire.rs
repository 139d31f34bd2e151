//! What clients and servers say to one another.
//!
//! One set of types, two encodings: JSON in a WebSocket's text frames and in HTTP bodies, bincode in its binary
//! frames. A server answers a frame in the encoding of the request. docs/api.md is the reference.

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// A session's identity, as the server gave it out: unguessable, never used again.
pub type SessionId = uuid::Uuid;

/// A request on a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Chosen by the client, unique among its open requests on this connection; the answer carries it.
    pub id: u64,
    /// What is asked for.
    pub op: Op,
}

/// What a client can ask for.
///
/// `number` numbers a session's operations, in increasing order; an operation whose number is not greater than the
/// session's last one is a repetition and changes nothing. Without a number an operation is judged by the state alone:
/// an acquire finds the session's claim on the key again, a release compares the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Opens a session.
    OpenSession(OpenSession),
    /// Puts a session's deadline at a full time-to-live from now.
    KeepAlive {
        /// Which.
        session: SessionId,
    },
    /// Ends a session: all it holds is released, all it waits for is withdrawn.
    CloseSession {
        /// Which.
        session: SessionId,
    },
    /// Reads a session.
    ShowSession {
        /// Which.
        session: SessionId,
    },
    /// Takes a lock, or waits for it.
    Acquire {
        /// Of which key.
        key: String,
        /// How.
        #[serde(default)]
        options: Acquire,
        /// The operation's number in its session.
        #[serde(default)]
        number: Option<u64>,
    },
    /// Gives a lock back, if the session still holds it with this token.
    Release {
        /// Of which key.
        key: String,
        /// By whom, and which grant.
        grant: Release,
        /// The operation's number in its session.
        #[serde(default)]
        number: Option<u64>,
    },
    /// Drops the session's claim on the key, held or waiting, whichever it is by now.
    Withdraw {
        /// Of which key.
        key: String,
        /// Whose claim.
        session: SessionId,
        /// The operation's number in its session.
        #[serde(default)]
        number: Option<u64>,
    },
    /// Reads a lock.
    ShowLock {
        /// Of which key.
        key: String,
        /// How current the answer must be.
        #[serde(default)]
        consistency: Consistency,
    },
    /// Reads the held locks in the order of their keys, a page at a time.
    ListLocks(ListLocks),
    /// Reads the node's own view of the cluster.
    Status,
    /// Changes the cluster's members, one server at a time. Asked again, it changes nothing more.
    ChangeMembers(MemberChange),
    /// Lets the leader hand over to another voter.
    Transfer(Transfer),
}

/// A change of the cluster's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MemberChange {
    /// A new server is to learn the log. It counts for nothing yet.
    Add(AddMember),
    /// A learner that has caught up becomes a voter.
    Promote {
        /// Its node number.
        id: u16,
    },
    /// A member goes. Its number never comes back.
    Remove {
        /// Its node number.
        id: u16,
    },
    /// A member has lost its log, and comes back under its number, in the next generation. It learns first; if it
    /// was a voter, the leader promotes it when it has caught up.
    Replace(ReplaceMember),
}

/// The body of `POST /v1/members`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddMember {
    /// The new server's node number, which no member ever had.
    pub id: u16,
    /// `host:port` where the other nodes reach it.
    pub peer_addr: String,
    /// The number of its data directory, 16 hexadecimal digits: no other one is let in under its node number then. A server that
    /// joins by itself says it.
    #[serde(default)]
    pub incarnation: Option<String>,
}

/// A member that has lost its log. Without `id` the body of `POST /v1/members/{id}/replace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplaceMember {
    /// Its node number.
    pub id: u16,
    /// The generation of the directory that is lost.
    pub generation: u16,
    /// The cluster's number, 16 hexadecimal digits, as the lost directory says it: `cluster` in the status of its nodes.
    pub cluster: String,
    /// The number of the data directory that is lost, 16 hexadecimal digits. A leader that has met the member with another one
    /// refuses.
    pub lost_incarnation: String,
    /// The number of its new data directory, 16 hexadecimal digits.
    pub incarnation: String,
    /// `host:port` where the other nodes reach it, if that is another address than before.
    #[serde(default)]
    pub peer_addr: Option<String>,
}

/// The body of `POST /v1/leader/transfer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// To this voter; if it is not said, to the one that is most up to date.
    #[serde(default)]
    pub to: Option<u16>,
}

/// The body of `POST /v1/sessions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// Time-to-live in milliseconds, 100 to 86,400,000.
    #[serde(default = "default_ttl_ms")]
    pub ttl_ms: u64,
    /// A name to show to people, at most 256 bytes.
    #[serde(default)]
    pub owner: String,
}

/// The body of `POST /v1/locks/{key}/acquire`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acquire {
    /// The session that asks. Without one the acquire opens a session for itself, which ends with the release.
    #[serde(default)]
    pub session: Option<SessionId>,
    /// The time-to-live of the session that it opens for itself, in milliseconds, 100 to 86,400,000. Ignored with
    /// `session`.
    #[serde(default = "default_ttl_ms")]
    pub ttl_ms: u64,
    /// How long to wait in the queue, in milliseconds; 0 answers at once.
    #[serde(default)]
    pub wait_ms: u64,
    /// The owner of the session that it opens for itself, at most 256 bytes. Ignored with `session`.
    #[serde(default)]
    pub owner: String,
}

/// The body of `POST /v1/locks/{key}/release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The session that holds the lock.
    pub session: SessionId,
    /// The token of the grant that ends.
    pub token: u64,
}

/// The query of `GET /v1/locks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListLocks {
    /// Only keys that begin so.
    #[serde(default)]
    pub prefix: String,
    /// At most so many, 1 to 1,000; 100 if it is not said.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Only keys after this one: the last key of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// How current the answer must be.
    #[serde(default)]
    pub consistency: Consistency,
}

/// How current a read must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// It reflects everything that was answered before it was asked.
    #[default]
    Linearizable,
    /// Whatever the node that is asked has applied so far.
    Stale,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The request's id.
    pub id: u64,
    /// What came of it.
    pub result: Outcome,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Ok(Answer),
    /// It was not, or nobody can say.
    Error(Failure),
}

/// What a request that was done is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The session was opened, or its deadline was renewed.
    Session(SessionLease),
    /// The session was closed.
    SessionClosed,
    /// A session, read.
    SessionView(SessionView),
    /// The lock is held.
    Acquired(Acquired),
    /// The lock was given back. Also the answer to a repetition of a release.
    Released,
    /// The claim was dropped.
    Withdrawn,
    /// A lock, read.
    Lock(LockView),
    /// A page of locks.
    Locks(LockPage),
    /// A lock, as the node that was asked has it.
    StaleLock(Stale<LockView>),
    /// A page of locks, as the node that was asked has them.
    StaleLocks(Stale<LockPage>),
    /// The node's view of the cluster.
    Status(StatusView),
    /// The members after the change, which is committed.
    Members(MembersView),
    /// Another node leads now.
    Transferred(LeaderView),
}

/// A session and its time-to-live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionLease {
    /// The session.
    pub session: SessionId,
    /// Its time-to-live in milliseconds. The lease is good until the moment the request was sent plus this.
    pub ttl_ms: u64,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquired {
    /// The lock's key.
    pub key: String,
    /// The fencing token: greater than that of every earlier grant in the cluster.
    pub token: u64,
    /// The session that holds the lock.
    pub session: SessionId,
    /// The session's time-to-live in milliseconds.
    pub ttl_ms: u64,
}

/// A session, as `GET /v1/sessions/{id}` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// The session.
    pub session: SessionId,
    /// The name its opener gave.
    pub owner: String,
    /// Its time-to-live in milliseconds.
    pub ttl_ms: u64,
    /// Milliseconds of cluster time until it expires.
    pub expires_in_ms: u64,
    /// The keys it holds or waits for.
    pub keys: Vec<String>,
}

/// A lock, as `GET /v1/locks/{key}` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockView {
    /// The lock's key.
    pub key: String,
    /// Whether anybody holds it.
    pub held: bool,
    /// Who.
    pub holder: Option<HolderView>,
    /// Who waits for it, first come first.
    pub queue: Vec<WaiterView>,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// The name its opener gave.
    pub owner: String,
    /// Its session.
    pub session: SessionId,
    /// The grant's fencing token.
    pub token: u64,
    /// Milliseconds of cluster time until its session expires.
    pub expires_in_ms: u64,
}

/// A waiter of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaiterView {
    /// The name its opener gave.
    pub owner: String,
    /// Its session.
    pub session: SessionId,
}

/// What a node has without asking anybody ([`Consistency::Stale`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stale<T> {
    /// What it has.
    pub view: T,
    /// So many milliseconds ago the node last heard from the leader, or as a leader from a majority. What it shows may be older
    /// by the time that the message took. `None` if it has heard from nobody since it started.
    pub age_ms: Option<u64>,
}

/// A page of locks, in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockPage {
    /// The locks.
    pub locks: Vec<LockView>,
    /// Ask again with `after` at this key for the next page; `None` at the end.
    pub next_after: Option<String>,
}

/// What a node knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// The node that answers.
    pub node: u16,
    /// How often its server has come back without its data directory.
    #[serde(default)]
    pub generation: u16,
    /// The cluster's identity, 16 hexadecimal digits.
    pub cluster: String,
    /// `"leader"`, `"follower"`, `"candidate"` or `"pre_candidate"`.
    pub role: String,
    /// Its term.
    pub term: u64,
    /// The leader it knows of.
    pub leader: Option<LeaderView>,
    /// The last log index it knows to be committed.
    pub commit: u64,
    /// The last log index it has applied.
    pub applied: u64,
    /// Cluster time in milliseconds, as far as it knows.
    pub cluster_time_ms: u64,
    /// Sessions that are alive.
    pub sessions: u64,
    /// Locks that are held.
    pub locks: u64,
    /// Every member of the cluster, as far as the node that answers knows: the latest in its log.
    pub members: Vec<MemberView>,
    /// The newest snapshot on the answering node's disk, once it has one.
    pub snapshot: Option<SnapshotView>,
    /// Free space on the answering node's disk. Absent in what versions before it say.
    #[serde(default)]
    pub disk: DiskView,
}

/// Free space in the file system of a node's data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskView {
    /// How many bytes the node may still allocate, and what it has allocated for the next segment of its log; `None` if the
    /// system does not say.
    pub free_bytes: Option<u64>,
    /// The low-water mark: with less free, the node refuses new sessions and acquires as a leader ([`Code::NoSpace`]).
    pub low_water_bytes: u64,
    /// Whether it does.
    pub low: bool,
    /// What keeps the next segment of the log from being prepared, if anything does.
    pub obstacle: Option<String>,
}

/// The members of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersView {
    /// All of them, in the order of their numbers.
    pub members: Vec<MemberView>,
}

/// A snapshot: the state after one entry, in a file. Files of one entry are the same on every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotView {
    /// The last entry that it includes.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// The file's length.
    pub bytes: u64,
    /// SHA-256 of the file without its last 32 bytes, which are this hash, in hexadecimal.
    pub hash: String,
    /// Milliseconds of cluster time since that entry.
    pub age_ms: u64,
}

/// A leader and where it serves clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderView {
    /// Its node number.
    pub id: u16,
    /// `host:port` for clients; `None` while the node that answers has not yet heard it from the leader.
    pub client_addr: Option<String>,
}

/// A node of the cluster, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its node number.
    pub id: u16,
    /// How often the server of this number has come back without its data directory.
    #[serde(default)]
    pub generation: u16,
    /// Whether it votes; otherwise it only learns.
    pub voter: bool,
    /// Whether it learns only until it has caught up: it was a voter, and has come back without its data directory.
    #[serde(default)]
    pub returning: bool,
    /// `host:port` for nodes.
    pub peer_addr: String,
    /// `host:port` for clients, once known.
    pub client_addr: Option<String>,
    /// Whether the answering node has a connection from it.
    pub connected: bool,
    /// On a leader: the last index that it is known to have.
    pub matched: Option<u64>,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure.
    pub error: Code,
    /// A sentence for a person: what happened and what to do.
    pub message: String,
    /// With [`Code::Held`]: who holds the lock.
    pub holder: Option<HeldBy>,
    /// With [`Code::Held`]: how many wait for it.
    pub queue: Option<u64>,
    /// With [`Code::NotLeader`]: who leads.
    pub leader: Option<LeaderView>,
}

/// Who stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBy {
    /// The name its opener gave.
    pub owner: String,
    /// The grant's fencing token.
    pub token: u64,
}

/// The kinds of failure: `error` in every error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The lock is held and the request does not wait.
    Held,
    /// The wait ended without a grant.
    Timeout,
    /// The session does not hold the lock with that token.
    NotHolder,
    /// The session does not exist: it expired, was closed, or never was.
    NoSession,
    /// This very operation was done before, and what it got is gone by now.
    Gone,
    /// The waiting claim was dropped by another request, or because its connection went away.
    Withdrawn,
    /// The request cannot be understood or is out of bounds.
    Invalid,
    /// Nothing lives at this path.
    NotFound,
    /// The path takes another method.
    MethodNotAllowed,
    /// A limit is reached; the message says which.
    Limit,
    /// The node has too much to do right now.
    Overloaded,
    /// Another node leads. On a WebSocket the connection is closed after this answer.
    NotLeader,
    /// No leader is known.
    NoLeader,
    /// The leader lost its office before the outcome was known. Ask again; numbered operations are done once.
    LeadershipLost,
    /// The node is stopping.
    ShuttingDown,
    /// The request's body is over the limit; the message says which.
    TooLarge,
    /// The members cannot be changed at this moment; a moment later they can.
    TooEarly,
    /// The learner lacks too much of the log to become a voter.
    NotCaughtUp,
    /// There is no such member.
    NoMember,
    /// A server of this number was removed, and numbers do not come back; or a member has it.
    NumberTaken,
    /// Nobody would be left to vote.
    LastVoter,
    /// Too few of those who would vote then are connected: the cluster could decide nothing any more.
    NoMajority,
    /// The leadership was not handed over: the other node did not take it in time.
    NotTransferred,
    /// The leader's disk is nearly full: it takes releases and keepalives, but no new sessions and acquires until space is
    /// freed. Nothing was done.
    NoSpace,
}

impl Failure {
    /// A failure with nothing but a sentence.
    pub fn new(error: Code, message: impl Into<String>) -> Failure {
        Failure { error, message: message.into(), holder: None, queue: None, leader: None }
    }
}

/// JSON shows only what there is to say; bincode, which has no names, always has every field.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Failure")]
struct FailureText {
    error: Code,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder: Option<HeldBy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queue: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leader: Option<LeaderView>,
}

type FailureBinary = (Code, String, Option<HeldBy>, Option<u64>, Option<LeaderView>);

impl Serialize for Failure {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        let Failure { error, message, holder, queue, leader } = self.clone();
        if serializer.is_human_readable() {
            FailureText { error, message, holder, queue, leader }.serialize(serializer)
        } else {
            (error, message, holder, queue, leader).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Failure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Failure, D::Error> {
        if deserializer.is_human_readable() {
            let FailureText { error, message, holder, queue, leader } = FailureText::deserialize(deserializer)?;
            Ok(Failure { error, message, holder, queue, leader })
        } else {
            let (error, message, holder, queue, leader) = FailureBinary::deserialize(deserializer)?;
            Ok(Failure { error, message, holder, queue, leader })
        }
    }
}

impl Default for Acquire {
    fn default() -> Acquire {
        Acquire { session: None, ttl_ms: default_ttl_ms(), wait_ms: 0, owner: String::new() }
    }
}

/// 30 seconds.
fn default_ttl_ms() -> u64 {
    30_000
}
