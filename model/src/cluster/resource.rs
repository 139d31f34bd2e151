//! The resource that a lock protects.

use palisade_spec::invariants::{Check, Property};
use palisade_spec::lock::{Key, LockTable, SessionId, Token};
use palisade_spec::require;
use serde::Serialize;

use crate::world::History;

/// A resource that a lock protects. It rejects a write whose token is lower than the highest one
/// that it has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// The lock's key.
    pub key: Key,
    /// The highest token that the resource has seen.
    pub highest: Option<Token>,
    /// The sessions that wrote, in order.
    pub accepted: Vec<SessionId>,
    /// Whether the resource rejected a write. Without fencing it would have accepted that write
    /// after one of a later holder.
    pub refused: bool,
}

impl Resource {
    /// Creates a resource without writes.
    pub(super) fn new(key: Key) -> Resource {
        Resource { key, highest: None, accepted: Vec::new(), refused: false }
    }

    /// A session writes with this token.
    pub(super) fn write(&mut self, writer: SessionId, token: Token) {
        if self.highest > Some(token) {
            self.refused = true;
        } else {
            self.highest = Some(token);
            self.accepted.push(writer);
        }
    }

    /// Checks that the accepted writes are in the order of the grants.
    pub(super) fn writes_in_order(&self, history: &History<LockTable>) -> Check {
        let granted = |writer: &SessionId| {
            let holds = |table: &LockTable| table.lock(&self.key).is_some_and(|lock| lock.holder(*writer).is_some());
            history.machines.iter().position(holds)
        };
        require!(
            Property::NoStaleWrite,
            self.accepted.iter().map(granted).is_sorted(),
            "sessions wrote in the order {:?}, which is not that of their grants",
            self.accepted
        )
    }
}
