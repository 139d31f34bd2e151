//! What clients ask of the lock table, and what comes of it.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Key, Owner, Sequence, SessionId, Token, Ttl};
use crate::raft::Stamp;

/// A command: the content of a log entry.
///
/// A command with a `sequence` is done once, however often it is applied; one without is judged by the state alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// Opens a session. Done again it opens another one, which holds nothing and expires.
    Open {
        /// The session to open.
        opening: Opening,
    },
    /// Ends a session: all that it holds is released, all that it waits for is withdrawn.
    Close {
        /// Which.
        session: SessionId,
    },
    /// Puts the deadlines of many sessions at a full time-to-live from now.
    KeepAlive {
        /// Which.
        sessions: Vec<SessionId>,
    },
    /// Takes a key's lock, or a place in its queue.
    Acquire {
        /// For whom.
        session: SessionId,
        /// The operation's number.
        sequence: Option<Sequence>,
        /// Of which key.
        key: Key,
        /// Whether to queue if it is held.
        wait: bool,
    },
    /// Opens a session for one lock and acquires it, in one entry. The session ends with its claim; without a claim
    /// it does not come to be.
    AcquireOnce {
        /// The session to open.
        opening: Opening,
        /// Of which key.
        key: Key,
        /// Whether to queue if it is held.
        wait: bool,
    },
    /// Drops a session's claim on a key, if it is still the claim that is meant.
    Release {
        /// Whose.
        session: SessionId,
        /// The operation's number.
        sequence: Option<Sequence>,
        /// Of which key.
        key: Key,
        /// Which claim is meant.
        claim: Claim,
    },
}

impl Command {
    /// The key that it asks for or drops.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Command::Acquire { key, .. } | Command::AcquireOnce { key, .. } | Command::Release { key, .. } => Some(key),
            Command::Open { .. } | Command::Close { .. } | Command::KeepAlive { .. } => None,
        }
    }
}

/// A session to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Opening {
    /// Random, drawn by the proposer.
    pub nonce: u64,
    /// A name for people.
    pub owner: Owner,
    /// How long the session lives without a sign of life.
    pub ttl: Ttl,
}

/// Which claim on a key a release means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Claim {
    /// The grant with this token.
    Held(Token),
    /// The place in the queue, but not the lock if it was granted meanwhile.
    Waiting,
    /// Whichever it is by now.
    Either,
}

/// What an entry did to the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Outcome {
    /// The answer to whoever proposed the command; a no-op has none.
    pub reply: Option<Reply>,
    /// What changed, in the order in which it did, for whoever watches.
    pub events: Vec<Event>,
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reply {
    /// The session lives.
    Opened {
        /// Its identity.
        session: SessionId,
    },
    /// The session has ended, now or before.
    Closed,
    /// These of the sessions do not exist; the others' deadlines were renewed.
    KeptAlive {
        /// Those that expired, were closed, or never were.
        missing: Vec<SessionId>,
    },
    /// The session holds the lock.
    Granted {
        /// The session.
        session: SessionId,
        /// The grant's fencing token.
        token: Token,
    },
    /// The session has a place in the queue.
    Queued {
        /// The session.
        session: SessionId,
        /// How many stand before it.
        ahead: u64,
    },
    /// The lock is held, and the command did not want to wait.
    Held {
        /// By whom.
        holder: SessionId,
        /// The holder's name for people.
        owner: Owner,
        /// With which token.
        token: Token,
        /// How many wait.
        queue: u64,
    },
    /// The claim was dropped.
    Released,
    /// The session has no such claim; nothing was done.
    NotHolder,
    /// The operation was done before, and left no claim that still exists.
    Gone,
    /// There is no such session: it expired, was closed, or never was.
    NoSession,
}

/// A change that somebody may be waiting for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// A session got a lock.
    Granted {
        /// Whose lock.
        key: Key,
        /// Who holds it now.
        session: SessionId,
        /// With which token.
        token: Token,
    },
    /// A session's hold on a lock ended.
    Released {
        /// Whose lock.
        key: Key,
        /// Who held it.
        session: SessionId,
        /// With which token.
        token: Token,
    },
    /// A session lost its place in a queue, without a grant.
    Withdrawn {
        /// Of whose queue.
        key: Key,
        /// Who waited.
        session: SessionId,
    },
    /// A session's deadline passed. Its locks and places follow as events of their own.
    Expired {
        /// Which.
        session: SessionId,
        /// When it should have given a sign of life, at the latest.
        deadline: Stamp,
    },
    /// A session was closed. Its locks and places follow as events of their own.
    Closed {
        /// Which.
        session: SessionId,
    },
}
