//! A removed leader leads until its removal is committed, and no longer (§4.2.2).

use super::{Check, Property};
use crate::raft::{Node, StateMachine};
use crate::require;

/// Fails if a node leads although it knows that its removal is committed.
pub fn removed_leader_steps_down<S: StateMachine>(node: &Node<S>) -> Check {
    let gone = node.log().members().get(node.id()).is_none() && node.log().members_since() <= node.commit();
    require!(
        Property::RemovedLeaderStepsDown,
        !(node.is_leader() && gone),
        "node {} leads term {}, and was removed by entry {}",
        node.id(),
        node.term(),
        node.log().members_since()
    )
}

#[cfg(test)]
mod tests {
    use super::removed_leader_steps_down;
    use crate::invariants::states::{complaint, follower, leader, with_members};
    use crate::lock::LockTable;
    use crate::raft::{Index, Node};

    fn when_committed(mut node: Node<LockTable>, commit: u64) -> alloc::string::String {
        *node.parts().commit = Index(commit);
        complaint(removed_leader_steps_down(&node))
    }

    #[test]
    fn leader_that_goes_on_is_seen() {
        let removed = with_members(&leader(1, &[]), 1, &[2, 3]);
        assert_eq!(when_committed(removed.clone(), 1), "");
        assert_eq!(when_committed(removed, 2), "node 1 leads term 1, and was removed by entry 2");
        assert_eq!(when_committed(with_members(&leader(1, &[]), 1, &[1, 2]), 2), "");
        assert_eq!(when_committed(with_members(&follower(1, &[1]), 1, &[2, 3]), 2), "");
    }
}
