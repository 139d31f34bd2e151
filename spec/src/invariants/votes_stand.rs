//! A node's term never decreases, and a vote that it gave stands for its term (§3.4, §3.8).

use super::{Check, Property};
use crate::raft::{HardState, NodeId};
use crate::require;

/// Compares a node's hard state before and after a step, or a crash.
pub fn votes_stand(id: NodeId, was: HardState, is: HardState) -> Check {
    let (from, to) = (was.term, is.term);
    require!(Property::TermsOnlyGrow, to >= from, "node {id} went from term {from} back to term {to}")?;
    let stands = to > from || was.vote.is_none() || is.vote == was.vote;
    require!(Property::OneVotePerTerm, stands, "node {id} changed its vote in term {to}")
}

#[cfg(test)]
mod tests {
    use super::votes_stand;
    use crate::invariants::Property::{self, OneVotePerTerm, TermsOnlyGrow};
    use crate::raft::{HardState, NodeId, Term};

    #[test]
    fn vote_that_changes_within_a_term_and_term_that_falls_are_seen() {
        let hard = |term, vote: Option<u32>| HardState { term: Term(term), vote: vote.map(NodeId) };
        let judge =
            |was, is| -> Option<Property> { votes_stand(NodeId(1), was, is).err().map(|violation| violation.property) };
        for (was, is, found) in [
            (hard(2, None), hard(2, None), None),
            (hard(2, None), hard(2, Some(3)), None),
            (hard(2, Some(3)), hard(2, Some(3)), None),
            (hard(2, Some(3)), hard(3, None), None),
            (hard(2, Some(3)), hard(3, Some(1)), None),
            (hard(2, Some(3)), hard(2, None), Some(OneVotePerTerm)),
            (hard(2, Some(3)), hard(2, Some(1)), Some(OneVotePerTerm)),
            (hard(2, Some(3)), hard(1, Some(3)), Some(TermsOnlyGrow)),
        ] {
            assert_eq!(judge(was, is), found, "{was:?} to {is:?}");
        }
    }
}
