//! Commands of the lock table, their replies and the events they cause.

use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Key, Owner, Principal, Proof, Revision, Rules, Sequence, SessionId, Token, Ttl};
use crate::raft::Stamp;

/// A command: the content of a log entry.
///
/// A command with a `sequence` takes effect once, however often it is applied; the effect of one
/// without depends on the state alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// Opens a session. A repetition opens another session, which holds nothing and expires.
    Open {
        /// The session to open.
        opening: Opening,
    },
    /// Ends a session: releases all its locks and withdraws it from all queues.
    Close {
        /// The session to end.
        session: SessionId,
    },
    /// Sets the deadlines of many sessions to a full time-to-live from now.
    KeepAlive {
        /// The sessions to renew.
        sessions: Vec<SessionId>,
    },
    /// Acquires a key's lock, or a position in its queue.
    Acquire {
        /// The session that acquires it.
        session: SessionId,
        /// The operation's number.
        sequence: Option<Sequence>,
        /// The key to lock.
        key: Key,
        /// Whether to queue if the lock is held.
        wait: bool,
    },
    /// Opens a session for one lock and acquires it, in one entry. The session ends with its claim;
    /// if the command yields no claim, no session is opened.
    AcquireOnce {
        /// The session to open.
        opening: Opening,
        /// The key to lock.
        key: Key,
        /// Whether to queue if the lock is held.
        wait: bool,
    },
    /// Drops a session's claim on a key, if it is still the named claim.
    Release {
        /// The session that has the claim.
        session: SessionId,
        /// The operation's number.
        sequence: Option<Sequence>,
        /// The key of the claim.
        key: Key,
        /// The claim to drop.
        claim: Claim,
    },
    /// Takes a lock from its holder, by order of an operator: only the grant that it names. Needs no
    /// proof of the session. If the holder's session has no other claim, it ends.
    Break {
        /// The key of the lock.
        key: Key,
        /// The token of the grant to end.
        token: Token,
        /// The operator.
        #[serde(default)]
        principal: Principal,
    },
    /// Replaces the access rules, if nobody has changed them since the proposer read them.
    SetAccess {
        /// The operator.
        principal: Principal,
        /// The revision that the operator has read.
        revision: Revision,
        /// The new rules; `None` ends access control.
        rules: Option<Arc<Rules>>,
    },
}

impl Command {
    /// The key to acquire or release: its holder ends first if that is due. A break is about the
    /// holder as it is, due or not: otherwise it could meet a grant that this very entry has made.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Command::Acquire { key, .. } | Command::AcquireOnce { key, .. } | Command::Release { key, .. } => Some(key),
            Command::Open { .. }
            | Command::Close { .. }
            | Command::KeepAlive { .. }
            | Command::Break { .. }
            | Command::SetAccess { .. } => None,
        }
    }
}

/// A session to be opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Opening {
    /// What every later request of the session must prove.
    pub proof: Proof,
    /// A human-readable name.
    pub owner: Owner,
    /// The client, to which the access rules apply.
    #[serde(default)]
    pub principal: Principal,
    /// How long the session lives without a renewal (keepalive, grant, or new acquire of a held
    /// lock).
    pub ttl: Ttl,
}

/// The claim on a key that a release names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Claim {
    /// The grant with this token.
    Held(Token),
    /// The position in the queue, but not the lock if it was granted meanwhile.
    Waiting,
    /// Either of the two.
    Either,
}

/// What an entry did to the table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Outcome {
    /// The reply to the proposer; a no-op has none.
    pub reply: Option<Reply>,
    /// The changes in the order in which they happened, for observers.
    pub events: Vec<Event>,
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reply {
    /// The session is open.
    Opened {
        /// Its identity.
        session: SessionId,
    },
    /// The session has ended, now or before.
    Closed,
    /// The listed sessions do not exist; the others' deadlines were renewed.
    KeptAlive {
        /// The sessions that expired, were closed, or never existed.
        missing: Vec<SessionId>,
    },
    /// The session holds the lock.
    Granted {
        /// The session.
        session: SessionId,
        /// The grant's fencing token.
        token: Token,
    },
    /// The session has a position in the queue.
    Queued {
        /// The session.
        session: SessionId,
        /// The number of waiters before it.
        ahead: u64,
    },
    /// The lock is held, and the command asked not to wait.
    Held {
        /// The session that holds the lock.
        holder: SessionId,
        /// The human-readable name of the holder.
        owner: Owner,
        /// The token of the holder's grant.
        token: Token,
        /// The number of waiters.
        queue: u64,
    },
    /// The claim was dropped.
    Released,
    /// The session has no such claim, or no session has; nothing was done.
    NotHolder,
    /// The grant was broken.
    Broken {
        /// The session that held the lock.
        session: SessionId,
        /// The client of that session.
        principal: Principal,
    },
    /// The operation was done before, and no claim made by it exists now.
    Gone,
    /// The session does not exist: it expired, was closed, or never existed.
    NoSession,
    /// The access rules do not permit it; nothing was done.
    Denied,
    /// The command's access rules are in force.
    AccessSet {
        /// Their revision.
        revision: Revision,
    },
    /// The access rules were changed after the proposer read them; nothing was done.
    AccessChanged {
        /// The revision in force.
        revision: Revision,
    },
}

/// A change of the table, for observers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// A session was granted a lock.
    Granted {
        /// The key of the lock.
        key: Key,
        /// The new holder.
        session: SessionId,
        /// The grant's token.
        token: Token,
    },
    /// A session no longer holds a lock.
    Released {
        /// The key of the lock.
        key: Key,
        /// The former holder.
        session: SessionId,
        /// The token of its grant.
        token: Token,
    },
    /// An operator broke a grant. The release, and the end of the session if it has no other claim,
    /// follow as separate events.
    Broken {
        /// The key of the lock.
        key: Key,
        /// The holder whose grant was broken.
        session: SessionId,
        /// The token of the grant.
        token: Token,
    },
    /// A session lost its queue position without a grant.
    Withdrawn {
        /// The key of the queue.
        key: Key,
        /// The former waiter.
        session: SessionId,
    },
    /// A session's deadline passed. The loss of its locks and queue positions follows as separate
    /// events.
    Expired {
        /// The expired session.
        session: SessionId,
        /// The session's last deadline.
        deadline: Stamp,
    },
    /// A session was closed. The loss of its locks and queue positions follows as separate events.
    Closed {
        /// The closed session.
        session: SessionId,
    },
    /// The turn of a waiter came, and the access rules in force do not permit it to acquire the lock.
    /// Its withdrawal follows as a separate event.
    Denied {
        /// The key of the queue.
        key: Key,
        /// The waiter.
        session: SessionId,
        /// Its client.
        principal: Principal,
    },
}
