//! State Machine Safety (figure 3.2): if a server has applied a log entry at a given index to its
//! state machine, no other server will ever apply a different log entry for the same index.

use alloc::collections::BTreeMap;

use super::{Check, Property};
use crate::raft::{Entry, Index, Node, StateMachine};
use crate::require;

/// Every entry that any node has applied.
pub type Committed<C> = BTreeMap<Index, Entry<C>>;

/// Records the entries that `node` has applied, and fails if another entry was applied at one of
/// their indexes.
pub fn state_machine_safety<S: StateMachine>(committed: &mut Committed<S::Command>, node: &Node<S>) -> Check {
    for entry in node.log().entries().iter().take_while(|entry| entry.index <= node.commit()) {
        let applied = committed.entry(entry.index).or_insert_with(|| entry.clone());
        require!(
            Property::StateMachineSafety,
            applied == entry,
            "node {} applied {:?} at {}, where {:?} was applied before",
            node.id(),
            entry.payload,
            entry.index,
            applied.payload
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Committed, state_machine_safety};
    use crate::invariants::states::{complaint, follower, noop, with_appended};
    use crate::raft::Index;

    #[test]
    fn different_entries_at_an_index_are_seen() {
        let mut committed = Committed::new();
        let mut note = |terms: &[u64], commit| {
            let node = with_appended(&follower(2, &[]), 2, terms, commit);
            complaint(state_machine_safety(&mut committed, &node))
        };
        assert_eq!(note(&[1, 1, 1], 2), "");
        assert_eq!(note(&[1, 1, 2], 2), "");
        assert_eq!(note(&[1, 2, 2], 1), "");
        assert!(note(&[1, 2, 2], 2).starts_with("node 1 applied Noop at 2, where Noop was applied before"));
        assert_eq!(note(&[1, 1, 2], 3), "");
        assert_eq!(committed.into_values().collect::<alloc::vec::Vec<_>>(), [noop(1, 1), noop(2, 1), noop(3, 2)]);
    }

    /// Entries that a node has not applied are not recorded yet.
    #[test]
    fn only_what_is_applied_is_noted() {
        let mut committed = Committed::new();
        let node = with_appended(&follower(1, &[]), 1, &[1, 1, 1], 1);
        assert_eq!(complaint(state_machine_safety(&mut committed, &node)), "");
        assert!(committed.keys().eq([&Index(1)]));
    }
}
