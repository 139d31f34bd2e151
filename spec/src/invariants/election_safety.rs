//! Election Safety (figure 3.2): at most one leader can be elected in a given term.

use alloc::collections::BTreeMap;

use super::{Check, require};
use crate::raft::{NodeId, Term};

/// Who led which term, as seen so far.
pub type Leaders = BTreeMap<Term, NodeId>;

/// Notes that `node` leads `term`, and fails if another one did.
pub fn election_safety(leaders: &mut Leaders, term: Term, node: NodeId) -> Check {
    let leader = *leaders.entry(term).or_insert(node);
    require!("election safety", leader == node, "nodes {leader} and {node} both lead term {term}");
    Ok(())
}
