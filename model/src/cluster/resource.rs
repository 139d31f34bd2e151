//! What the lock protects.

use palisade_spec::invariants::{Check, Violation};
use palisade_spec::lock::{Key, LockTable, SessionId, Token};
use serde::Serialize;

use crate::world::Ghost;

/// What a lock protects. It refuses a write whose token is lower than one that it has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// The lock.
    pub key: Key,
    /// The highest token seen.
    pub highest: Option<Token>,
    /// Who wrote, in order.
    pub accepted: Vec<SessionId>,
    /// Whether a write was refused. A resource without a check of tokens would have done it: after another client that
    /// was granted the lock later.
    pub refused: bool,
}

impl Resource {
    /// A resource without a write.
    pub(super) fn new(key: Key) -> Resource {
        Resource { key, highest: None, accepted: Vec::new(), refused: false }
    }

    /// Somebody writes, with this token.
    pub(super) fn write(&mut self, writer: SessionId, token: Token) {
        if self.highest > Some(token) {
            self.refused = true;
        } else {
            self.highest = Some(token);
            self.accepted.push(writer);
        }
    }

    /// A resource that checks tokens accepts writes in the order in which the lock was granted.
    pub(super) fn writes_in_order(&self, ghost: &Ghost<LockTable>) -> Check {
        let granted = |writer: &SessionId| {
            let holds = |table: &LockTable| table.lock(&self.key).is_some_and(|lock| lock.holder.session == *writer);
            ghost.machines.iter().position(holds)
        };
        if self.accepted.iter().map(granted).is_sorted() {
            return Ok(());
        }
        let detail = format!("sessions wrote in the order {:?}, which is not that of their grants", self.accepted);
        Err(Violation { property: "no stale write", detail })
    }
}
