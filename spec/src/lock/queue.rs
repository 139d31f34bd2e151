//! One key's lock: who holds it, and who waits for it.

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Sequence, SessionId, Token};

/// A held lock. A free one has no entry in the table and costs nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lock {
    /// Who holds it.
    pub holder: Holder,
    /// Who waits, first come first.
    pub queue: VecDeque<Waiter>,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// Its session.
    pub session: SessionId,
    /// The grant's fencing token.
    pub token: Token,
    /// The number of the operation that asked for it: the one whose repetition is answered with this grant.
    pub sequence: Option<Sequence>,
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiter {
    /// Its session.
    pub session: SessionId,
    /// The number of the operation that asked for it.
    pub sequence: Option<Sequence>,
}

impl Lock {
    /// Where `session` stands in the queue, if it does.
    pub fn queue_position(&self, session: SessionId) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.session == session)
    }
}
