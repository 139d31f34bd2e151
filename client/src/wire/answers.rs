//! What a server answers to requests that were done.

use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::{AccessRules, AccessVerdict, Failure, Keys, Mode, RecordPage, RecordView, SessionId, Watched};

/// The answer to a [`Request`](super::Request).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Response {
    /// The request's id.
    pub id: u64,
    /// What came of it.
    pub result: Outcome,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was done.
    Ok(Answer),
    /// The request failed, or its outcome is not known.
    Error(Failure),
}

/// What a request that was done is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// The locks were given back.
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
    Status(Box<StatusView>),
    /// The members after the change, which is committed.
    Members(MembersView),
    /// Another node leads now.
    Transferred(LeaderView),
    /// The grant was broken.
    Broken(Broken),
    /// Not an answer: an operator has broken this grant. The server tells all WebSockets, with the id
    /// [`UNASKED`](super::UNASKED). With access control, only those whose clients may read the lock or hold it.
    Lost(Broken),
    /// The access rules in force.
    Access(AccessRules),
    /// Whether the access rules permit something.
    AccessVerdict(AccessVerdict),
    /// A hold was given back, and the session still has others: the locks remain its.
    StillHeld {
        /// How many holds the session still has.
        holds: u32,
    },
    /// The grant has the value.
    Proclaimed,
    /// The next message of a watch.
    Watched(Watched),
    /// The watch has ended: no frame of it follows.
    Unwatched,
    /// A record, read.
    Record(RecordView),
    /// A page of records.
    Records(RecordPage),
    /// A record, as the node that was asked has it.
    StaleRecord(Stale<RecordView>),
    /// A page of records, as the node that was asked has them.
    StaleRecords(Stale<RecordPage>),
    /// The changes of the transaction are made.
    Written {
        /// The version that all records changed by it have.
        version: u64,
    },
}

/// A grant that an operator broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Broken {
    /// The lock's key.
    pub key: String,
    /// The token of the grant.
    pub token: u64,
    /// The public number of the session that held the lock.
    pub session: u64,
    /// The name of that session's client: for the operator; empty in [`Answer::Lost`], and without TLS.
    #[serde(default)]
    pub principal: String,
}

/// A session and its time-to-live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionLease {
    /// The session.
    pub session: SessionId,
    /// Its time-to-live in milliseconds. The lease is good until the moment the request was sent plus this.
    pub ttl_ms: u64,
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The keys of its locks.
    pub keys: Keys,
    /// The fencing token: greater than that of every earlier grant in the cluster.
    pub token: u64,
    /// The session that holds the locks.
    pub session: SessionId,
    /// The session's time-to-live in milliseconds.
    pub ttl_ms: u64,
    /// If the node signs grants, a signed token (docs/fencing.md) for each key, in their order.
    pub signed: Vec<String>,
}

#[cfg(feature = "schema")]
const GRANT: &str = "A grant: it has its key as `key`, or its keys as `keys` if there are several, and never both.";

/// JSON has `key` for one key and `keys` for several, and `signed` only if there is something: for one key a string, for
/// several a list. bincode, which has no names, always has every field.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename = "Acquired")]
#[cfg_attr(feature = "schema", schemars(description = GRANT, transform = super::key_or_keys))]
pub(super) struct AcquiredText {
    /// The key of its lock, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    key: Option<String>,
    /// The keys of its locks, in order, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    keys: Option<Keys>,
    /// The fencing token: greater than that of every earlier grant in the cluster.
    token: u64,
    /// The session that holds the locks.
    session: SessionId,
    /// The session's time-to-live in milliseconds.
    ttl_ms: u64,
    /// If the node signs grants, a signed token: of one key a text, of several keys a list, in their order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Keys"))]
    signed: Option<Keys>,
}

impl Serialize for Acquired {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        let Acquired { keys, token, session, ttl_ms, signed } = self;
        if serializer.is_human_readable() {
            let (token, session, ttl_ms) = (*token, *session, *ttl_ms);
            let key = keys.single().map(str::to_owned);
            let keys = key.is_none().then(|| keys.clone());
            let signed = (!signed.is_empty()).then(|| Keys::from(signed.as_slice()));
            AcquiredText { key, keys, token, session, ttl_ms, signed }.serialize(serializer)
        } else {
            (keys, token, session, ttl_ms, signed).serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Acquired {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Acquired, D::Error> {
        if deserializer.is_human_readable() {
            let AcquiredText { key, keys, token, session, ttl_ms, signed } = AcquiredText::deserialize(deserializer)?;
            let keys = keys.or_else(|| key.map(Keys::from)).ok_or_else(|| D::Error::missing_field("key"))?;
            let signed = signed.map_or_else(Vec::new, |signed| signed.as_slice().to_vec());
            Ok(Acquired { keys, token, session, ttl_ms, signed })
        } else {
            let (keys, token, session, ttl_ms, signed) =
                <(Keys, u64, SessionId, u64, Vec<String>)>::deserialize(deserializer)?;
            Ok(Acquired { keys, token, session, ttl_ms, signed })
        }
    }
}

/// A session, as `GET /v1/sessions/{id}` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionView {
    /// Its public number.
    pub session: u64,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockView {
    /// The lock's key.
    pub key: String,
    /// Whether a session holds it.
    pub held: bool,
    /// The first of the holders.
    pub holder: Option<HolderView>,
    /// All holders, in the order of their grants: an exclusive one is alone.
    #[serde(default)]
    pub holders: Vec<HolderView>,
    /// The waiters, in order of arrival.
    pub queue: Vec<WaiterView>,
}

/// A holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HolderView {
    /// The name its opener gave.
    pub owner: String,
    /// Its session's public number.
    pub session: u64,
    /// The grant's fencing token.
    pub token: u64,
    /// Milliseconds of cluster time until its session expires.
    pub expires_in_ms: u64,
    /// Whether others may hold the lock at the same time.
    #[serde(default)]
    pub mode: Mode,
    /// The permits that it takes, of a semaphore.
    #[serde(default)]
    pub permits: Option<u32>,
    /// All permits of the semaphore.
    #[serde(default)]
    pub of: Option<u32>,
    /// How many releases give it up.
    #[serde(default = "one")]
    pub holds: u32,
    /// All keys of the claim, if there are several.
    #[serde(default)]
    pub keys: Vec<String>,
    /// The value of the grant.
    #[serde(default)]
    pub value: Option<String>,
}

fn one() -> u32 {
    1
}

/// A waiter of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaiterView {
    /// The name its opener gave.
    pub owner: String,
    /// Its session's public number.
    pub session: u64,
    /// Whether others may hold the lock beside it.
    #[serde(default)]
    pub mode: Mode,
    /// The permits that it will take, of a semaphore.
    #[serde(default)]
    pub permits: Option<u32>,
    /// All permits of the semaphore.
    #[serde(default)]
    pub of: Option<u32>,
    /// All keys of the claim, if there are several.
    #[serde(default)]
    pub keys: Vec<String>,
}

/// A node's state, read without contact to other nodes
/// ([`Consistency::Stale`](super::Consistency::Stale)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Stale{T}"))]
pub struct Stale<T> {
    /// What it has.
    pub view: T,
    /// So many milliseconds ago the node last heard from the leader, or as a leader from a majority. What it shows may be older
    /// by the time that the message took. There is none if the node has heard from no other since it started.
    pub age_ms: Option<u64>,
}

/// A page of locks, in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockPage {
    /// The locks.
    pub locks: Vec<LockView>,
    /// Ask again with `after` at this key for the next page; none at the end.
    pub next_after: Option<String>,
}

/// What a node knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatusView {
    /// The node that answers.
    pub node: u16,
    /// How often its server has come back without its data directory.
    #[serde(default)]
    pub generation: u16,
    /// The cluster's ID, 16 hexadecimal digits.
    pub cluster: String,
    /// `"leader"`, `"follower"`, `"candidate"` or `"pre_candidate"`; `"founding"` at a founder that takes no part until it
    /// has met all other founders.
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
    /// The cluster's name.
    #[serde(default)]
    pub cluster_name: String,
    /// At a founder that takes no part yet (its role is `"founding"`): the other founders that it has not met.
    #[serde(default)]
    pub waiting_for: Vec<u16>,
    /// The version of the program that answers, such as `0.1.0`. Absent in the JSON of versions before it.
    #[serde(default)]
    pub version: String,
}

/// Free space in the file system of a node's data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskView {
    /// How many bytes the node may still allocate, and what it has allocated for the next segment of its log; none if the
    /// system does not say.
    pub free_bytes: Option<u64>,
    /// The low-water mark: with less free, the node refuses new sessions and acquires as a leader ([`Code::NoSpace`](super::Code::NoSpace)).
    pub low_water_bytes: u64,
    /// Whether it does.
    pub low: bool,
    /// What keeps the next segment of the log from being prepared, if anything does.
    pub obstacle: Option<String>,
}

/// The members of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MembersView {
    /// All of them, in the order of their numbers.
    pub members: Vec<MemberView>,
    /// The leader that the answering node knows of.
    #[serde(default)]
    pub leader: Option<LeaderView>,
}

/// A snapshot: the state after one entry, in a file. Files of one entry are the same on every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaderView {
    /// Its node number.
    pub id: u16,
    /// `host:port` for clients; none while the node that answers has not yet heard it from the leader.
    pub client_addr: Option<String>,
}

/// A node of the cluster, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// The version of its program, such as `0.1.0`, as of its last handshake with the answering node; null if there was
    /// none yet, or its version does not say it. Only in JSON; nodes of 0.1.0 do not have the field.
    #[serde(default, with = "only_in_json")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>", skip_serializing_if = "Option::is_none"))]
    pub version: Option<String>,
    /// The version of the protocol between nodes in which it and the answering node speak; at the answering node itself,
    /// the newest one that it speaks. Only in JSON; nodes of 0.1.0 do not have the field.
    #[serde(default, with = "only_in_json")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<u16>", skip_serializing_if = "Option::is_none"))]
    pub protocol: Option<u16>,
}

/// Fields of a type in JSON that its binary form lacks: its bytes stay those that earlier versions read.
mod only_in_json {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { value.serialize(serializer) } else { serializer.serialize_unit() }
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        if deserializer.is_human_readable() {
            T::deserialize(deserializer)
        } else {
            <()>::deserialize(deserializer).map(|()| T::default())
        }
    }
}
