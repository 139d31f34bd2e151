//! An elected leader has the votes of a majority of the voters that its own log names (§3.4, §4.1).

use super::{Check, Property};
use crate::raft::{HardState, Node, NodeId, StateMachine};
use crate::require;

/// Checks a leader right after its election. `hard` is the hard state of any node; a node in a
/// later term may have voted for the leader.
pub fn elected_by_a_majority<S: StateMachine>(leader: &Node<S>, hard: impl Fn(NodeId) -> HardState) -> Check {
    let (id, term, members) = (leader.id(), leader.term(), &**leader.log().members());
    let voted = |voter| {
        let hard = hard(voter);
        hard.term > term || hard == HardState { term, vote: Some(id) }
    };
    require!(
        Property::ElectedByMajority,
        members.is_majority(voted),
        "node {id} leads term {term} without the votes of a majority of {members:?}"
    )
}

#[cfg(test)]
mod tests {
    use super::elected_by_a_majority;
    use crate::invariants::states::{complaint, leader, with_members};
    use crate::raft::{HardState, NodeId, Term};

    /// Whether the check fails for node 1 as leader of term 2, if nodes 1 and 2 have these terms
    /// and votes.
    fn wrong(voters: &[u32], one: (u64, u32), two: (u64, u32)) -> bool {
        let leader = with_members(&leader(2, &[]), 2, voters);
        let hard = |(term, vote)| HardState { term: Term(term), vote: Some(NodeId(vote)) };
        let of = |id: NodeId| match id.0 {
            1 => hard(one),
            2 => hard(two),
            _ => HardState::default(),
        };
        !complaint(elected_by_a_majority(&leader, of)).is_empty()
    }

    #[test]
    fn leader_that_too_few_voted_for_is_seen() {
        assert!(!wrong(&[1, 2, 3], (2, 1), (2, 1)));
        assert!(wrong(&[1, 2, 3], (2, 1), (2, 2)));
        assert!(wrong(&[1, 2, 3], (2, 1), (1, 1)));
        assert!(wrong(&[1, 2, 3, 4], (2, 1), (2, 1)));
    }

    #[test]
    fn node_in_later_term_may_have_voted() {
        assert!(!wrong(&[1, 2, 3], (2, 1), (3, 2)));
    }

    #[test]
    fn its_own_vote_does_not_count_if_it_is_removed() {
        assert!(wrong(&[2, 3], (2, 1), (2, 1)) && !wrong(&[1, 2], (2, 1), (2, 1)));
    }
}
