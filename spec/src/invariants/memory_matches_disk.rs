//! A node whose writes are all done has in memory what its disk has.

use super::{Check, Property};
use crate::raft::{Durable, Node, StateMachine};
use crate::require;

/// Compares a node that has no writes under way with its disk.
pub fn memory_matches_disk<S: StateMachine>(node: &Node<S>, disk: &Durable<S>) -> Check {
    let same = node.hard_state() == disk.hard && node.log() == &disk.log;
    require!(Property::MemoryMatchesDisk, same, "the memory of server {} differs from its disk", node.id())
}
