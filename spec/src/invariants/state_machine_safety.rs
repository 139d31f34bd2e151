//! State Machine Safety (figure 3.2): if a server has applied a log entry at a given index to its state machine, no
//! other server will ever apply a different log entry for the same index.

use alloc::collections::BTreeMap;

use super::{Check, require};
use crate::raft::{Entry, Index, Node, StateMachine};

/// Every entry that any node is known to have applied.
pub type Committed<C> = BTreeMap<Index, Entry<C>>;

/// Notes what `node` has applied, and fails if another entry was applied before at one of its indexes.
pub fn state_machine_safety<S: StateMachine>(committed: &mut Committed<S::Command>, node: &Node<S>) -> Check {
    for entry in node.log().entries().iter().take_while(|entry| entry.index <= node.commit()) {
        let applied = committed.entry(entry.index).or_insert_with(|| entry.clone());
        require!(
            "state machine safety",
            applied == entry,
            "node {} applied {:?} at {}, where {:?} was applied before",
            node.id(),
            entry.payload,
            entry.index,
            applied.payload
        );
    }
    Ok(())
}
