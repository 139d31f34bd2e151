//! Requests and answers of clients and servers.
//!
//! One set of types, two encodings: JSON in a WebSocket's text frames and in HTTP bodies, bincode in its binary
//! frames. A server answers a frame in the encoding of the request. docs/api.md is the reference.

mod access;
mod answers;
mod cluster;
mod failure;
mod keys;
mod locks;
mod records;
#[cfg(feature = "schema")]
mod schema;
#[cfg(feature = "schema")]
mod schema_fields;
mod session;
mod watch;

use serde::{Deserialize, Serialize};

pub use self::access::{AccessRule, AccessRules, AccessVerdict, Right, TestAccess};
pub use self::answers::{Acquired, Answer, Broken, Outcome, Response, SessionLease, SessionView, Stale};
pub use self::cluster::{DiskView, LeaderView, MemberView, MembersView, SnapshotView, StatusView};
pub use self::failure::{Code, Failure, HeldBy, waiters};
pub use self::keys::Keys;
pub use self::locks::{HolderView, LockPage, LockView, WaiterView};
pub use self::records::{
    Condition, Content, ListRecords, RecordChange, RecordPage, RecordSummary, RecordView, Transaction,
};
// For the description of the server's own types.
#[cfg(feature = "schema")]
#[doc(hidden)]
pub use self::schema_fields::{key_or_keys, with_fields};
pub use self::session::SessionId;
pub use self::watch::{Because, Change, Event, EventId, Listing, NotAnEvent, Watch, Watched};

/// The `id` of a frame that answers no request: the server sends it by itself. No request may use it.
pub const UNASKED: u64 = u64::MAX;

/// Maximum length of a request's frame on a WebSocket, in bytes. The server ends the connection of a longer one, on which
/// other requests may be under way.
pub const FRAME_BYTES: usize = 256 * 1024;

/// A request on a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Opens a session.
    OpenSession(OpenSession),
    /// Puts a session's deadline at a full time-to-live from now.
    KeepAlive {
        /// The session.
        session: SessionId,
    },
    /// Ends a session: all it holds is released, all it waits for is withdrawn.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// Reads a session.
    ShowSession {
        /// The session.
        session: SessionId,
    },
    /// Takes locks, or waits for them. All or none: one grant, with one token.
    #[cfg_attr(feature = "schema", schemars(transform = key_or_keys))]
    Acquire {
        /// The keys of the locks.
        #[serde(rename = "key", alias = "keys")]
        keys: Keys,
        /// How the locks are acquired, and for which session.
        #[serde(default)]
        options: Acquire,
        /// The operation's number in its session.
        #[serde(default)]
        number: Option<u64>,
    },
    /// Gives back all locks of a grant, if the session still holds them with this token; of several holds, one.
    #[cfg_attr(feature = "schema", schemars(transform = key_or_keys))]
    Release {
        /// All keys of the grant.
        #[serde(rename = "key", alias = "keys")]
        keys: Keys,
        /// The session that holds the locks, and the grant's token.
        grant: Release,
        /// The operation's number in its session.
        #[serde(default)]
        number: Option<u64>,
    },
    /// Drops the session's claim on exactly these keys, held or waiting, whichever it is by now; of several holds, one.
    #[cfg_attr(feature = "schema", schemars(transform = key_or_keys))]
    Withdraw {
        /// All keys of the claim.
        #[serde(rename = "key", alias = "keys")]
        keys: Keys,
        /// The session that has the claim.
        session: SessionId,
        /// The operation's number in its session.
        #[serde(default)]
        number: Option<u64>,
    },
    /// Reads a lock.
    ShowLock {
        /// The lock's key.
        key: String,
        /// How current the answer must be.
        #[serde(default)]
        consistency: Consistency,
    },
    /// Reads the locks that are held or waited for, in the order of their keys, a page at a time.
    ListLocks(ListLocks),
    /// Reads the node's own view of the cluster.
    Status,
    /// Changes the cluster's members, one server at a time. Asked again, it changes nothing more.
    ChangeMembers(MemberChange),
    /// Makes the leader transfer leadership to another voter.
    Transfer(Transfer),
    /// Takes a lock from its holder, by order of an operator.
    Break {
        /// The lock's key.
        key: String,
        /// The grant, and why it is broken.
        order: Break,
    },
    /// Reads the access rules.
    ShowAccess,
    /// Replaces the access rules. Asked again, it changes nothing more.
    SetAccess(AccessRules),
    /// Asks whether the access rules permit something.
    TestAccess(TestAccess),
    /// Replaces the value of a grant.
    Proclaim {
        /// A key of the grant.
        key: String,
        /// The session, the grant, and its new value.
        proclamation: Proclaim,
        /// The operation's number in its session.
        #[serde(default)]
        number: Option<u64>,
    },
    /// Follows the events of locks: each frame with this request's id has the next message, and the last one a failure.
    Watch(Watch),
    /// Ends a watch of this connection. Ended before, it changes nothing.
    Unwatch {
        /// The id of its request.
        watch: u64,
    },
    /// Reads a record.
    ShowRecord {
        /// Its key.
        key: String,
        /// How current the answer must be.
        #[serde(default)]
        consistency: Consistency,
    },
    /// Reads which records there are, in the order of their keys, a page at a time.
    ListRecords(ListRecords),
    /// Changes records, all or none.
    Transact {
        /// What is changed, and under which conditions.
        transaction: Transaction,
        /// The operation's number in its session.
        #[serde(default)]
        number: Option<u64>,
    },
}

/// A change of the cluster's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The voter that is to lead. Without it the leader chooses the one that is most up to date.
    #[serde(default)]
    pub to: Option<u16>,
}

/// The body of `POST /v1/sessions`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Whether other sessions may hold the lock at the same time.
    #[serde(default)]
    pub mode: Mode,
    /// In place of a mode: takes so many of the permits that the lock has, a semaphore; with `of`.
    #[serde(default)]
    pub permits: Option<u32>,
    /// All permits of the lock, 1 to 1,000,000; with `permits`.
    #[serde(default)]
    pub of: Option<u32>,
    /// Whether an acquire of what the session holds in the same way adds a hold: the lock is free after as many releases.
    #[serde(default)]
    pub reentrant: bool,
    /// Waits only where the queue has fewer waiters than this. A longer one is refused as [`Code::Held`], with its length.
    #[serde(default)]
    pub max_queue: Option<u32>,
    /// A value for other clients to read, at most 4,096 bytes: the grant has it, and `holders` show it. An acquire of what the
    /// session has already replaces the value, if it has one.
    #[serde(default)]
    pub value: Option<String>,
}

/// Whether other sessions may hold a lock at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// None may.
    #[default]
    Exclusive,
    /// Those that hold it shared, too.
    Shared,
    /// It is a semaphore: as many as it has permits for. A request names `permits` and `of` for that, and no mode.
    Semaphore,
}

/// The body of `POST /v1/locks/{key}/release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// The session that holds the lock.
    pub session: SessionId,
    /// The token of the grant that ends.
    pub token: u64,
}

/// The body of `POST /v1/locks/{key}/proclaim`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Proclaim {
    /// The session that holds the lock.
    pub session: SessionId,
    /// The token of the grant.
    pub token: u64,
    /// Its new value, at most 4,096 bytes.
    pub value: String,
}

/// The body of `POST /v1/locks/{key}/break`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Break {
    /// The token of the grant that ends: a lock that has passed on meanwhile is left alone.
    pub token: u64,
    /// Why, for the server's log: 1 to 256 bytes.
    pub reason: String,
}

/// The query of `GET /v1/locks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// It reflects everything that was answered before it was asked.
    #[default]
    Linearizable,
    /// Whatever the node that is asked has applied so far.
    Stale,
}

impl Default for Acquire {
    fn default() -> Acquire {
        Acquire {
            session: None,
            ttl_ms: default_ttl_ms(),
            wait_ms: 0,
            owner: String::new(),
            mode: Mode::Exclusive,
            permits: None,
            of: None,
            reentrant: false,
            max_queue: None,
            value: None,
        }
    }
}

/// 30 seconds.
fn default_ttl_ms() -> u64 {
    30_000
}
