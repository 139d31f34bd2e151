//! Election Safety (figure 3.2): at most one leader can be elected in a given term.

use alloc::collections::BTreeMap;

use super::{Check, Property};
use crate::raft::{NodeId, Term};
use crate::require;

/// The leader observed in each term.
pub type Leaders = BTreeMap<Term, NodeId>;

/// Records that `node` leads `term`, and fails if another node led it.
pub fn election_safety(leaders: &mut Leaders, term: Term, node: NodeId) -> Check {
    let leader = *leaders.entry(term).or_insert(node);
    require!(Property::ElectionSafety, leader == node, "nodes {leader} and {node} both lead term {term}")
}

#[cfg(test)]
mod tests {
    use super::{Leaders, election_safety};
    use crate::invariants::states::complaint;
    use crate::raft::{NodeId, Term};

    #[test]
    fn second_leader_of_a_term_is_seen() {
        let mut leaders = Leaders::new();
        let mut lead = |term, node| complaint(election_safety(&mut leaders, Term(term), NodeId(node)));
        assert_eq!(lead(1, 1), "");
        assert_eq!(lead(2, 2), "");
        assert_eq!(lead(1, 1), "");
        assert_eq!(lead(1, 2), "nodes 1 and 2 both lead term 1");
        assert_eq!(lead(2, 1), "nodes 2 and 1 both lead term 2");
    }
}
