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
