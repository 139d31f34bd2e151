//! One key's lock: its holder and its waiters.

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Sequence, SessionId, Token};

/// A held lock. A free lock has no entry in the table and takes no memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lock {
    /// The session that holds it.
    pub holder: Holder,
    /// The waiters, first come first.
    pub queue: VecDeque<Waiter>,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// Its session.
    pub session: SessionId,
    /// The grant's fencing token.
    pub token: Token,
    /// The number of the acquire operation: a repetition of it is answered with this grant.
    pub sequence: Option<Sequence>,
}

/// A session that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiter {
    /// Its session.
    pub session: SessionId,
    /// The number of the acquire operation.
    pub sequence: Option<Sequence>,
}

impl Lock {
    /// The position of `session` in the queue; `None` if it does not wait.
    pub fn queue_position(&self, session: SessionId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.session == session)
    }
}
