//! Every entry that a leader commits is in the logs of a majority of the voters (§3.6.2, §4.1): the
//! voters in the leader's own log, whether it is one of them or not.

use super::{Check, Property};
use crate::raft::{Log, Node, NodeId, StateMachine};
use crate::require;

/// Checks a leader right after it has committed an entry of its term. `log` is the log of any node.
pub fn committed_by_a_majority<'a, S: StateMachine + 'a>(
    leader: &Node<S>,
    log: impl Fn(NodeId) -> &'a Log<S::Command>,
) -> Check {
    let (index, members) = (leader.commit(), &**leader.log().members());
    let term = leader.log().term_at(index);
    let has = |voter| {
        let log = if voter == leader.id() { leader.log() } else { log(voter) };
        log.base().index >= index || log.term_at(index) == term
    };
    require!(
        Property::CommittedByMajority,
        members.is_majority(has),
        "leader {} of term {} takes entry {index} for committed, which no majority of {members:?} has",
        leader.id(),
        leader.term()
    )
}

#[cfg(test)]
mod tests {
    use super::committed_by_a_majority;
    use crate::invariants::states::{complaint, follower, leader, with_members};
    use crate::raft::{Index, NodeId};

    /// Whether the check fails for a leader that has committed its no-op at index 2, if the nodes
    /// `others` also have that entry.
    fn wrong(voters: &[u32], others: &[u32]) -> bool {
        let mut leader = with_members(&leader(2, &[1]), 2, voters);
        *leader.parts().commit = Index(2);
        let (with, without) = (follower(2, &[1, 2]), follower(2, &[1, 1]));
        let log = |id: NodeId| if others.contains(&id.0) { with.log() } else { without.log() };
        !complaint(committed_by_a_majority(&leader, log)).is_empty()
    }

    #[test]
    fn entry_that_too_few_have_is_seen() {
        assert!(wrong(&[1, 2, 3], &[]) && !wrong(&[1, 2, 3], &[2]) && !wrong(&[1, 2, 3], &[3]));
        assert!(wrong(&[1, 2, 3, 4], &[3]) && !wrong(&[1, 2, 3, 4], &[3, 4]));
    }

    #[test]
    fn leader_that_is_removed_and_counts_itself_is_seen() {
        assert!(wrong(&[2, 3], &[2]) && !wrong(&[2, 3], &[2, 3]));
    }

    #[test]
    fn non_voters_do_not_count() {
        assert!(wrong(&[1, 2, 3], &[4, 5]));
    }
}
