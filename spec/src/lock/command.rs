//! Commands of the lock table, their replies and the events they cause.

use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::details::claim_bytes;
use super::encoding::Encoded;
use super::{
    Key, Keys, Mode, Owner, Principal, Proof, Revision, Rules, Sequence, SessionId, Token, Transaction, Ttl, Value,
    Version, Writer,
};
use crate::raft::Stamp;

/// A command: the content of a log entry.
///
/// A command with a `sequence` takes effect once, however often it is applied; the effect of one
/// without depends on the state alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Encoded<'static>")]
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
    /// Acquires a lock or several, or a position in each of their queues.
    Acquire {
        /// The session that acquires it.
        session: SessionId,
        /// The operation's number.
        sequence: Option<Sequence>,
        /// What it acquires.
        request: LockRequest,
    },
    /// Opens a session for one claim and acquires it, in one entry. The session ends with its claim;
    /// if the command yields no claim, no session is opened.
    AcquireOnce {
        /// The session to open.
        opening: Opening,
        /// What it acquires.
        request: LockRequest,
    },
    /// Drops a session's claim, if it is still the named claim; of a claim that was acquired more than
    /// once, one hold.
    Release {
        /// The session that has the claim.
        session: SessionId,
        /// The operation's number.
        sequence: Option<Sequence>,
        /// All keys of the claim.
        keys: Keys,
        /// The claim to drop.
        claim: Claim,
    },
    /// Replaces the value of a grant, for its holder.
    Proclaim {
        /// The session that holds the lock.
        session: SessionId,
        /// The operation's number.
        sequence: Option<Sequence>,
        /// A key of the grant.
        key: Key,
        /// The token of the grant.
        token: Token,
        /// The new value.
        value: Value,
    },
    /// Takes a grant from its holder, by order of an operator: only the grant that it names, with all
    /// its keys. Needs no proof of the session. If the holder's session has no other claim, it ends.
    Break {
        /// A key of the grant.
        key: Key,
        /// The token of the grant to end.
        token: Token,
        /// The operator.
        principal: Principal,
    },
    /// Replaces the access rules, if they have not changed since the proposer read them.
    SetAccess {
        /// The operator.
        principal: Principal,
        /// The revision that the operator has read.
        revision: Revision,
        /// The new rules; `None` ends access control.
        rules: Option<Arc<Rules>>,
    },
    /// Changes records of the store, all or none.
    Transact {
        /// The client that asks for it.
        writer: Writer,
        /// What it changes, and under which conditions.
        transaction: Transaction,
    },
}

impl Command {
    /// The keys to acquire or release: their holders end first if they are due. A break is about the
    /// holder as it is, due or not: otherwise it could meet a grant that this very entry has made.
    /// A new value is about the grant that its session has, and a transaction about grants of sessions that
    /// are not due.
    pub fn keys(&self) -> Option<&Keys> {
        match self {
            Command::Acquire { request, .. } | Command::AcquireOnce { request, .. } => Some(&request.keys),
            Command::Release { keys, .. } => Some(keys),
            Command::Open { .. }
            | Command::Close { .. }
            | Command::KeepAlive { .. }
            | Command::Proclaim { .. }
            | Command::Break { .. }
            | Command::SetAccess { .. }
            | Command::Transact { .. } => None,
        }
    }
}

/// What an acquire asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LockRequest {
    /// The keys to lock, all with one grant.
    pub keys: Keys,
    /// How much of each lock to take.
    pub mode: Mode,
    /// The length that a queue may reach, with this request in it: the request is refused where it
    /// would be longer. A request with 0 does not wait.
    pub max_queue: u32,
    /// Whether an acquire of what the session holds already adds a hold, to be released as well.
    pub reentrant: bool,
    /// The value of the claim, for other clients. An acquire of a claim that the session has already replaces
    /// the claim's value if it has one.
    pub value: Option<Value>,
}

impl LockRequest {
    /// Asks for locks that no other session holds, and waits for them or not.
    pub fn exclusive(keys: impl Into<Keys>, wait: bool) -> LockRequest {
        LockRequest {
            keys: keys.into(),
            mode: Mode::EXCLUSIVE,
            max_queue: if wait { LockRequest::ANY_QUEUE } else { 0 },
            reentrant: false,
            value: None,
        }
    }

    /// As `max_queue`: the request waits, however many wait.
    pub const ANY_QUEUE: u32 = u32::MAX;

    /// The bytes that its claim counts ([`LockTable::claimed_bytes`](super::LockTable::claimed_bytes)).
    pub fn claimed_bytes(&self) -> u64 {
        self.keys.iter().map(|key| claim_bytes(key, self.keys.several(), self.value.as_ref())).sum()
    }

    /// Whether it waits if it cannot be granted at once.
    pub fn waits(&self) -> bool {
        self.max_queue > 0
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
    /// The session holds the locks.
    Granted {
        /// The session.
        session: SessionId,
        /// The grant's fencing token.
        token: Token,
    },
    /// The session has a position in the queue of every key.
    Queued {
        /// The session.
        session: SessionId,
        /// The number of waiters before it; of several keys, the greatest number.
        ahead: u64,
    },
    /// A lock cannot be granted now, and the command asked not to wait, or not in so long a queue.
    Held {
        /// The key of the lock.
        key: Key,
        /// The session that has held it longest; if there is no holder, the first waiter.
        holder: SessionId,
        /// The human-readable name of that session.
        owner: Owner,
        /// The token of the holder's grant; none for a waiter.
        token: Option<Token>,
        /// The number of waiters.
        queue: u64,
    },
    /// The claims on a key are of another size than the command's: it is a semaphore, or a semaphore of
    /// another size, or none. Nothing was done.
    OtherSize {
        /// The key.
        key: Key,
        /// The mode of the claim that came first.
        mode: Mode,
    },
    /// The session has a claim on one of the keys that is in another mode, or on other keys together
    /// with it. Nothing was done.
    OtherClaim {
        /// The key.
        key: Key,
    },
    /// The claim was dropped.
    Released,
    /// One hold was dropped, now or before, and the session still holds the lock.
    StillHeld {
        /// The number of holds left.
        holds: u32,
    },
    /// The grant has the value.
    Proclaimed,
    /// The session has no such claim, or no session has; nothing was done.
    NotHolder,
    /// The grant was broken.
    Broken {
        /// The session that held the lock.
        session: SessionId,
        /// The client of that session.
        principal: Principal,
    },
    /// The operation was done before, and the claim that it made or named does not exist now.
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
    /// The transaction was done, now or before.
    Written {
        /// The version that the records had after it.
        version: Version,
    },
    /// The grant that a transaction names is not held by a session that could act: its token is stale, or was
    /// never granted for this lock. Nothing was done.
    NotHeld {
        /// The key of the lock.
        lock: Key,
        /// The token that the transaction names.
        token: Token,
        /// The greatest token of the holders of the lock, and of those under which the records that the
        /// transaction would change were written.
        seen: Option<Token>,
    },
    /// The record has another version than the transaction says. Nothing was done.
    OtherVersion {
        /// The key of the record.
        record: Key,
        /// Its version; `None`: there is no such record.
        version: Option<Version>,
    },
    /// The record was written under a token, and the transaction names none. Nothing was done.
    Fenced {
        /// The key of the record.
        record: Key,
        /// The token.
        fence: Token,
    },
    /// The record would be longer than [`RECORD_BYTES`](super::RECORD_BYTES). Nothing was done.
    RecordTooLarge {
        /// The key of the record.
        record: Key,
        /// The length that its content would have.
        length: u64,
    },
    /// The store would be larger than the transaction's limit, and larger than it is. Nothing was done.
    StoreFull {
        /// The bytes that it would have.
        bytes: u64,
        /// The limit.
        limit: u64,
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
        /// The grant's token. The grants of one claim on several keys follow one another, and have one
        /// token.
        token: Token,
        /// How much of the lock it takes.
        mode: Mode,
        /// The name of the holder.
        owner: Owner,
        /// The value of the grant.
        value: Option<Value>,
    },
    /// The holder of a lock has replaced the value of its grant.
    Proclaimed {
        /// The key of the lock.
        key: Key,
        /// The holder.
        session: SessionId,
        /// The token of its grant.
        token: Token,
        /// The new value.
        value: Value,
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
        /// The key that they do not permit it; of several keys, the first.
        key: Key,
        /// The waiter.
        session: SessionId,
        /// Its client.
        principal: Principal,
    },
    /// A session has become the last waiter for a lock.
    Queued {
        /// The key of the queue. The positions of one claim on several keys follow one another.
        key: Key,
        /// The waiter.
        session: SessionId,
        /// How much of the lock it will take.
        mode: Mode,
        /// The name of the waiter.
        owner: Owner,
        /// The number of waiters before it in this queue.
        ahead: u64,
    },
    /// The turn of a waiter came after its deadline had passed. Its withdrawal follows as a separate event;
    /// its session ends in a later sweep, unless it was opened for this claim.
    Overdue {
        /// The key at which its turn came.
        key: Key,
        /// The waiter.
        session: SessionId,
    },
    /// A record was written: its content is new, or longer. The changes of one transaction have one version,
    /// and follow one another in the order of their keys.
    Put {
        /// The key of the record.
        key: Key,
        /// The transaction.
        version: Version,
        /// The greatest token that the transaction had to hold, if it had to hold any.
        fence: Option<Token>,
    },
    /// A record was deleted.
    Deleted {
        /// The key of the record.
        key: Key,
        /// The transaction.
        version: Version,
    },
}
