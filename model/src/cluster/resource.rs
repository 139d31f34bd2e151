//! What the lock protects.

use palisade_spec::invariants::{Check, Violation};
use palisade_spec::lock::{LockTable, Token};
use serde::Serialize;

use super::key;
use crate::world::Ghost;

/// What the lock protects. It refuses a write whose token is lower than one that it has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// The highest token seen.
    pub highest: Option<Token>,
    /// Who wrote, in order.
    pub accepted: Vec<u64>,
    /// Whether a write was refused. A resource without a check of tokens would have done it: after another client that
    /// was granted the lock later.
    pub refused: bool,
}

impl Resource {
    /// Somebody writes, with this token.
    pub(super) fn write(&mut self, writer: usize, token: Token) {
        if self.highest > Some(token) {
            self.refused = true;
        } else {
            self.highest = Some(token);
            self.accepted.push(writer as u64);
        }
    }

    /// A resource that checks tokens accepts writes in the order in which the lock was granted.
    pub(super) fn writes_in_order(&self, ghost: &Ghost<LockTable>) -> Check {
        let granted = |&writer: &u64| {
            let holds =
                |table: &LockTable| table.lock(&key()).is_some_and(|lock| lock.holder.session.number == writer + 1);
            ghost.machines.iter().position(holds)
        };
        if self.accepted.iter().map(granted).is_sorted() {
            return Ok(());
        }
        let detail = format!("clients wrote in the order {:?}, which is not that of their grants", self.accepted);
        Err(Violation { property: "no stale write", detail })
    }
}
