//! The lines of a record: one JSON object each, in any order, for many tasks write at once.
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
//! Empty lines and lines that begin with `#` are for people. The names are those of the wire (docs/api.md) where the
//! wire has one.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The version of the format that this code writes and reads.
pub const VERSION: u32 = 1;

/// The time-to-live of a session that an acquire opens without saying one, in milliseconds (docs/api.md).
pub const DEFAULT_TTL_MS: u64 = 30_000;

/// A moment on the recorder's monotonic clock, in nanoseconds. The clock begins anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// Later than everything that was recorded.
    pub const NEVER: Time = Time(u64::MAX);

    /// So many milliseconds later.
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

/// The number of an operation in its record: it ties a completion to its invocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(pub u64);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Arc<str>);

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// A client: a process that takes locks, and keeps the tokens that it is given to itself.
    Client
}

name! {
    /// A session, as the service names it.
    Session
}

name! {
    /// The key of a lock, and the name of the resource that it protects.
    Key
}

/// A line of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// What is true of the whole record. May be left out.
    History {
        /// [`VERSION`].
        version: u32,
        /// By how much a clock of the service may run faster than the recorder's, in millionths: so much less than its
        /// time-to-live may a session live.
        #[serde(default)]
        drift_ppm: u32,
    },
    /// A client asks.
    Invoke {
        /// The operation's number.
        op: OpId,
        /// Who asks.
        client: Client,
        /// Before the request left.
        time: Time,
        /// For what.
        call: Call,
    },
    /// Something that was learned while the operation went on.
    Note {
        /// The operation's number.
        op: OpId,
        /// When it was learned.
        time: Time,
        /// What.
        note: Note,
    },
    /// It was done.
    Ok {
        /// The operation's number.
        op: OpId,
        /// After the answer came.
        time: Time,
        /// The answer.
        value: Answer,
    },
    /// It was refused, and certainly not done, and never will be: no grant, release or close comes of it at any time. An
    /// acquire that waited may have stood in the queue until its completion.
    Fail {
        /// The operation's number.
        op: OpId,
        /// After the answer came.
        time: Time,
        /// Why not.
        error: Refusal,
    },
    /// Nobody knows: it may have been done, or be done at any later time.
    Info {
        /// The operation's number.
        op: OpId,
        /// When the client gave up.
        time: Time,
        /// What it knows.
        why: String,
    },
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// A session.
    OpenSession {
        /// Its time-to-live in milliseconds.
        ttl_ms: u64,
    },
    /// That a session lives on.
    KeepAlive {
        /// Which.
        session: Session,
    },
    /// That a session ends.
    CloseSession {
        /// Which.
        session: Session,
    },
    /// A lock.
    Acquire {
        /// Its key.
        key: Key,
        /// For which session. Without one the service, or the client's library, has one; the answer names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<Session>,
        /// The session's exactly-once number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
        /// How long to wait in the queue, in milliseconds; 0 does not wait.
        #[serde(default)]
        wait_ms: u64,
        /// Without `session`: the time-to-live of the one that is opened, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ttl_ms: Option<u64>,
    },
    /// That a claim is dropped, held or waiting.
    Withdraw {
        /// On which lock.
        key: Key,
        /// Whose.
        session: Session,
        /// The session's exactly-once number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// That a lock is given back.
    Release {
        /// Which.
        key: Key,
        /// Whose.
        session: Session,
        /// The token of the grant that ends.
        token: u64,
        /// The session's exactly-once number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// Who holds a lock and who waits for it.
    Read {
        /// Which.
        key: Key,
        /// Whether the answer may be old.
        #[serde(default)]
        stale: bool,
    },
    /// The resource that a lock protects, with a token. Its answer is the resource's, not the lock service's.
    Access {
        /// The lock's key; the resource is called the same.
        key: Key,
        /// The token that was handed to it.
        token: u64,
    },
    /// Nothing: the client notes that it no longer trusts a session. No checker looks at it, people do.
    NoteLoss {
        /// Which.
        session: Session,
    },
}

impl Call {
    /// The lock that it is about, or the resource.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Call::Acquire { key, .. }
            | Call::Withdraw { key, .. }
            | Call::Release { key, .. }
            | Call::Read { key, .. }
            | Call::Access { key, .. } => Some(key),
            Call::OpenSession { .. } | Call::KeepAlive { .. } | Call::CloseSession { .. } | Call::NoteLoss { .. } => {
                None
            }
        }
    }

    /// The session that it names.
    pub fn session(&self) -> Option<&Session> {
        match self {
            Call::KeepAlive { session }
            | Call::CloseSession { session }
            | Call::Withdraw { session, .. }
            | Call::Release { session, .. }
            | Call::NoteLoss { session } => Some(session),
            Call::Acquire { session, .. } => session.as_ref(),
            Call::OpenSession { .. } | Call::Read { .. } | Call::Access { .. } => None,
        }
    }
}

/// What was learned of an acquire before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Note {
    /// The service said that it stands in the queue.
    Queued {
        /// Behind so many.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ahead: Option<u64>,
    },
    /// The connection that it waits on broke, or it was sent again for another reason: its place may be given up, and a
    /// repetition stands at the end. Each sending may be carried out.
    Disconnected,
}

/// What came of what was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The session is there.
    Opened {
        /// Its name.
        session: Session,
    },
    /// The session lives, for a full time-to-live from some moment during the operation.
    KeptAlive,
    /// The session is gone.
    Closed,
    /// The lock is held.
    Granted {
        /// By whom.
        session: Session,
        /// The grant's token.
        token: u64,
    },
    /// The session has no claim any more.
    Withdrawn,
    /// The lock was given back by its holder.
    Released,
    /// A lock as it was.
    Lock {
        /// Who holds it, if anybody.
        holder: Option<Holder>,
        /// Who waits, first come first.
        #[serde(default)]
        queue: Vec<Session>,
        /// With a stale read: how old the service said that it is, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        age_ms: Option<u64>,
    },
    /// The resource let it pass.
    Accepted,
    /// It is noted.
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
}

/// Why something was certainly not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Refusal {
    /// Somebody else holds the lock, and the acquire does not wait.
    Held {
        /// The holder's token.
        token: u64,
    },
    /// The wait ended without a grant, and the place is given up.
    Timeout,
    /// The place was given up by somebody else.
    Withdrawn,
    /// The session does not hold the lock with this token, or is gone.
    NotHolder,
    /// The session is gone. An acquire that waited left the queue with it.
    NoSession,
    /// The resource refused the token.
    Refused,
    /// It was turned away at the door: a limit, a mistake, no leader to take it.
    NotTaken {
        /// The sentence that said so.
        message: String,
    },
}
