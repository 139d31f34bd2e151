//! The lines of a record: one JSON object each, in any order, because many tasks write at once.
//!
//! ```text
//! {"type":"history","version":1,"drift_ppm":0}
//! {"type":"invoke","op":1,"client":"a","time":1000000,"call":{"acquire":{"key":"k","session":"s1","number":1,"wait_ms":500}}}
//! {"type":"note","op":1,"time":1500000,"note":{"queued":{"ahead":0}}}
//! {"type":"ok","op":1,"time":2000000,"value":{"granted":{"session":"s1","token":7}}}
//! {"type":"fail","op":2,"time":2100000,"error":{"held":{"token":7}}}
//! {"type":"info","op":3,"time":2200000,"why":"the connection broke"}
//! ```
//!
//! Empty lines and lines that begin with `#` are comments. Names are those of the wire format
//! (docs/api.md), where it has one.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::claim::{Keys, Mode, one_or_several};
use super::names::{Client, Key, Session};

/// Version of the format.
pub const VERSION: u32 = 1;

/// Time-to-live of a session that an acquire without `ttl_ms` opens, in milliseconds (docs/api.md).
pub const DEFAULT_TTL_MS: u64 = 30_000;

/// A time on the recorder's monotonic clock, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Later than every recorded time.
    pub const NEVER: Time = Time(u64::MAX);

    /// This time plus a number of milliseconds.
    pub fn plus_ms(self, milliseconds: u64) -> Time {
        Time(self.0.saturating_add(milliseconds.saturating_mul(1_000_000)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if *self == Time::NEVER {
            return f.write_str("never");
        }
        if fraction == 0 {
            return write!(f, "{whole} ms");
        }
        let digits = format!("{fraction:06}");
        write!(f, "{whole}.{} ms", digits.trim_end_matches('0'))
    }
}

/// Number of an operation in its record; it matches a completion to its invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(pub u64);

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A line of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// Facts about the whole record; optional.
    History {
        /// [`VERSION`].
        version: u32,
        /// How much faster than the recorder's clock the service's clocks may run, in millionths.
        /// Sessions may end that much earlier.
        #[serde(default)]
        drift_ppm: u32,
    },
    /// A client starts an operation.
    Invoke {
        /// The operation's number.
        op: OpId,
        /// The client.
        client: Client,
        /// A time before the request was sent.
        time: Time,
        /// The request.
        call: Call,
    },
    /// Something that the client learned before the operation ended.
    Note {
        /// The operation's number.
        op: OpId,
        /// The time at which the client learned it.
        time: Time,
        /// What the client learned.
        note: Note,
    },
    /// The operation was done.
    Ok {
        /// The operation's number.
        op: OpId,
        /// A time after the answer arrived.
        time: Time,
        /// The answer.
        value: Answer,
    },
    /// The service refused the operation. It was not done and never will be: it causes no grant,
    /// release or close at any time. An acquire that waited may have been in the queue until its
    /// completion.
    Fail {
        /// The operation's number.
        op: OpId,
        /// A time after the answer arrived.
        time: Time,
        /// The reason.
        error: Refusal,
    },
    /// The outcome is unknown: the operation may have been done, or may be done at any later time.
    Info {
        /// The operation's number.
        op: OpId,
        /// The time at which the client gave up.
        time: Time,
        /// The client's reason.
        why: String,
    },
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// Open a session.
    OpenSession {
        /// Its time-to-live, in milliseconds.
        ttl_ms: u64,
    },
    /// Keep a session alive.
    KeepAlive {
        /// The session.
        session: Session,
    },
    /// Close a session.
    CloseSession {
        /// The session.
        session: Session,
    },
    /// Acquire a lock, or several together: all or none, with one grant.
    Acquire {
        /// Their keys.
        #[serde(rename = "key")]
        keys: Keys,
        /// The session. Without one, the service or the client's library chooses one, and the
        /// answer names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<Session>,
        /// The session's exactly-once number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
        /// Maximum wait in the queue, in milliseconds; 0 does not wait.
        #[serde(default)]
        wait_ms: u64,
        /// Without `session`: the time-to-live of the session that the acquire opens, in
        /// milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl_ms: Option<u64>,
        /// How much of each lock.
        #[serde(default, skip_serializing_if = "is_default")]
        mode: Mode,
        /// The acquire waits only where fewer sessions wait: otherwise it is refused as
        /// [`Held`](Refusal::Held).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_queue: Option<u32>,
        /// Whether it adds a hold if the session holds the same already.
        #[serde(default, skip_serializing_if = "is_default")]
        reentrant: bool,
        /// The value of the grant, until it is given another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Arc<str>>,
    },
    /// Drop a claim, held or waiting; of several holds, one.
    Withdraw {
        /// All keys of the claim.
        #[serde(rename = "key")]
        keys: Keys,
        /// The session.
        session: Session,
        /// The session's exactly-once number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// Release a grant; of several holds, one.
    Release {
        /// All keys of the grant.
        #[serde(rename = "key")]
        keys: Keys,
        /// The session.
        session: Session,
        /// The token of the grant to end.
        token: u64,
        /// The session's exactly-once number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// Give a grant another value.
    Proclaim {
        /// A key of the grant.
        key: Key,
        /// The session.
        session: Session,
        /// The token of the grant.
        token: u64,
        /// The value.
        value: Arc<str>,
        /// The session's exactly-once number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// Take a grant from its holder, with all its keys, by order of an operator.
    Break {
        /// A key of the grant.
        key: Key,
        /// The token of the grant to end.
        token: u64,
    },
    /// Replace the access rules. The record does not have the rules: from this call on, the service may
    /// deny any request that they can be about.
    SetAccess {
        /// The revision that the operator has read.
        revision: u64,
    },
    /// Read a lock's holder and queue.
    Read {
        /// The lock.
        key: Key,
        /// Whether the answer may be stale.
        #[serde(default)]
        stale: bool,
    },
    /// Access the resource that a lock protects, with a token. The resource answers, not the lock
    /// service.
    Access {
        /// The lock's key, which is also the resource's name.
        key: Key,
        /// The token presented to the resource.
        token: u64,
        /// Whether the access only reads: readers may do that together.
        #[serde(default, skip_serializing_if = "is_default")]
        reads: bool,
    },
    /// A transaction of the key-value store: changes of records that are made together if all conditions are
    /// met, and otherwise not at all. It changes each record once.
    WriteRecord {
        /// The first record.
        record: Key,
        /// What is done to it.
        change: Change,
        /// The changes of other records.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        also: Vec<RecordChange>,
        /// A condition: the lock on the key of the first record is held with this token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// The other conditions.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        conditions: Vec<Condition>,
        /// The session that numbers the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<Session>,
        /// The session's exactly-once number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// Read a record.
    ReadRecord {
        /// The record.
        record: Key,
        /// Whether the answer may be stale.
        #[serde(default)]
        stale: bool,
    },
    /// No request: the client notes that it no longer trusts a session. The note is for human
    /// readers; no checker uses it.
    NoteLoss {
        /// The session.
        session: Session,
    },
}

impl Call {
    /// An exclusive acquire of one lock, for a session that the service or the client's library chooses.
    pub fn acquire_one(key: Key, wait_ms: u64, ttl_ms: Option<u64>) -> Call {
        Call::Acquire {
            keys: key.into(),
            session: None,
            number: None,
            wait_ms,
            ttl_ms,
            mode: Mode::Exclusive,
            max_queue: None,
            reentrant: false,
            value: None,
        }
    }

    /// A write to the resource.
    pub fn write(key: Key, token: u64) -> Call {
        Call::Access { key, token, reads: false }
    }

    /// What a transaction does, record by record.
    pub fn changes(&self) -> impl Iterator<Item = (&Key, &Change)> {
        let (first, others) = match self {
            Call::WriteRecord { record, change, also, .. } => (Some((record, change)), &also[..]),
            _ => (None, &[][..]),
        };
        first.into_iter().chain(others.iter().map(|RecordChange { record, change }| (record, change)))
    }

    /// The locks that must be held for a transaction, each with the token of its grant.
    pub fn must_hold(&self) -> impl Iterator<Item = (&Key, u64)> {
        let (first, others) = match self {
            Call::WriteRecord { record, token, conditions, .. } => {
                (token.map(|token| (record, token)), &conditions[..])
            }
            _ => (None, &[][..]),
        };
        first.into_iter().chain(others.iter().filter_map(|condition| match condition {
            Condition::Held { lock, token } => Some((lock, *token)),
            Condition::Version { .. } => None,
        }))
    }

    /// The records that must have a version for a transaction, each with that version; 0: there must be no
    /// such record.
    pub fn must_have(&self) -> impl Iterator<Item = (&Key, u64)> {
        let conditions = match self {
            Call::WriteRecord { conditions, .. } => &conditions[..],
            _ => &[][..],
        };
        conditions.iter().filter_map(|condition| match condition {
            Condition::Version { key, version } => Some((key, *version)),
            Condition::Held { .. } => None,
        })
    }

    /// The session's exactly-once number, if the request has one.
    pub fn number(&self) -> Option<u64> {
        match self {
            Call::Acquire { number, .. }
            | Call::Withdraw { number, .. }
            | Call::Release { number, .. }
            | Call::Proclaim { number, .. }
            | Call::WriteRecord { number, .. } => *number,
            _ => None,
        }
    }

    /// The keys of the locks, or of the resource, that the request is about.
    pub fn keys(&self) -> &[Key] {
        match self {
            Call::Acquire { keys, .. } | Call::Withdraw { keys, .. } | Call::Release { keys, .. } => keys.as_slice(),
            Call::Proclaim { key, .. }
            | Call::Break { key, .. }
            | Call::Read { key, .. }
            | Call::Access { key, .. } => std::slice::from_ref(key),
            Call::OpenSession { .. }
            | Call::KeepAlive { .. }
            | Call::CloseSession { .. }
            | Call::SetAccess { .. }
            | Call::WriteRecord { .. }
            | Call::ReadRecord { .. }
            | Call::NoteLoss { .. } => &[],
        }
    }

    /// The session that the request names.
    pub fn session(&self) -> Option<&Session> {
        match self {
            Call::KeepAlive { session }
            | Call::CloseSession { session }
            | Call::Withdraw { session, .. }
            | Call::Release { session, .. }
            | Call::Proclaim { session, .. }
            | Call::NoteLoss { session } => Some(session),
            Call::Acquire { session, .. } | Call::WriteRecord { session, .. } => session.as_ref(),
            Call::OpenSession { .. }
            | Call::Break { .. }
            | Call::SetAccess { .. }
            | Call::Read { .. }
            | Call::ReadRecord { .. }
            | Call::Access { .. } => None,
        }
    }
}

/// A change of a record. A text ends with a semicolon and has no other, so that the content of a record
/// shows which changes made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// The record is this text.
    Put(Arc<str>),
    /// The text is added to the record.
    Append(Arc<str>),
    /// The record is removed.
    Delete,
}

impl Change {
    /// The text that it writes.
    pub fn text(&self) -> Option<&str> {
        match self {
            Change::Put(text) | Change::Append(text) => Some(text),
            Change::Delete => None,
        }
    }
}

/// A change of one of several records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordChange {
    /// The record.
    pub record: Key,
    /// What is done to it.
    pub change: Change,
}

/// What must be the case for a transaction to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Condition {
    /// A lock is held with this token.
    Held {
        /// The lock.
        lock: Key,
        /// The token of the grant.
        token: u64,
    },
    /// A record has this version.
    Version {
        /// The record.
        key: Key,
        /// Its version; 0: there is no such record.
        version: u64,
    },
}

/// What a client learned of an acquire before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Note {
    /// The service reported that the acquire is in the queue.
    Queued {
        /// Number of sessions ahead of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ahead: Option<u64>,
    },
    /// The acquire's connection broke, or the client sent it again for another reason. The service
    /// may drop its queue position, and a repetition joins the queue at the end. Each sending may
    /// be executed.
    Disconnected,
}

/// The answer to a request that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The session is open.
    Opened {
        /// Its name.
        session: Session,
    },
    /// The session lives for a full time-to-live from some moment during the operation.
    KeptAlive,
    /// The session is closed.
    Closed,
    /// The lock is held.
    Granted {
        /// The holder.
        session: Session,
        /// The grant's token.
        token: u64,
    },
    /// The session has no claim on the lock any more.
    Withdrawn,
    /// The holder has released the lock.
    Released,
    /// One hold was dropped, and the session still holds the lock.
    StillHeld {
        /// The number of holds left.
        holds: u32,
    },
    /// The grant has the value.
    Proclaimed,
    /// The grant was broken.
    Broken {
        /// The session that held the lock.
        session: Session,
    },
    /// The access rules were replaced.
    AccessSet {
        /// Their revision.
        revision: u64,
    },
    /// A lock's state.
    Lock {
        /// The holders, in the order of their grants. A record has one by itself, and `null` for none.
        #[serde(default, rename = "holder", with = "one_or_several")]
        holders: Vec<Holder>,
        /// The waiting sessions, in queue order.
        #[serde(default)]
        queue: Vec<Session>,
        /// For a stale read: the age of the state as reported by the service, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        age_ms: Option<u64>,
    },
    /// The records were changed.
    Written {
        /// The number of the transaction: greater than those of all before, of any record.
        version: u64,
    },
    /// A record.
    Record {
        /// The number of the transaction that changed it last.
        version: u64,
        /// Its content.
        value: Arc<str>,
    },
    /// There is no such record.
    NoRecord,
    /// The resource accepted the token.
    Accepted,
    /// The note was recorded.
    Noted,
}

/// The holder of a lock, as a read shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Its session.
    pub session: Session,
    /// The token of its grant.
    pub token: u64,
    /// How much of the lock the grant takes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
    /// The value of the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Arc<str>>,
}

/// Why an operation was certainly not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Refusal {
    /// Others hold one of the locks, or wait for it, and the acquire does not wait, or not in so long a
    /// queue.
    Held {
        /// The token of its first holder; `None` if the lock is only waited for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
    },
    /// The wait ended without a grant, and the queue position is given up.
    Timeout,
    /// Another request withdrew the queue position.
    Withdrawn,
    /// The session does not hold the lock with this token, or has ended. Of a break: no session holds
    /// the lock with this token.
    NotHolder,
    /// The session has ended. An acquire that waited left the queue with it.
    NoSession,
    /// The access rules do not permit it. An acquire that waited is denied when its turn comes.
    Denied,
    /// Of a transaction: a lock is not held with the token; or a record was written under a token, and the
    /// request has none.
    StaleToken,
    /// Of a transaction: a record has another version than a condition says.
    OtherVersion {
        /// The version that it has; 0: there is no such record.
        version: u64,
    },
    /// The resource refused the token.
    Refused,
    /// The service rejected the request at admission: a limit, an invalid request, or no leader.
    NotTaken {
        /// The service's error message.
        message: String,
    },
}
