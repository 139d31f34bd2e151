//! A node's replies name their entries: `Accepted` the entries that were appended, and `Applied`
//! each committed entry, one after the other.

use super::{Check, Property};
use crate::raft::{Index, Node, Output, StateMachine};
use crate::require;

/// Checks the outputs of one step. The node had committed entries up to `commit` before it, and its
/// log ended at `last`.
pub fn replies_name_entries<S: StateMachine>(
    (commit, last): (Index, Index),
    outputs: &[Output<S>],
    after: &Node<S>,
) -> Check {
    let (name, id) = (Property::RepliesNameEntries, after.id());
    let mut applied = commit;
    for output in outputs {
        match output {
            Output::Accepted { first, term, .. } => {
                let is_next = (*first, *term) == (last.next(), after.term()) && applied <= last;
                require!(name, is_next, "server {id} accepted entries from {first} on, after {last}")?;
            }
            Output::Applied { index, term, stamp, .. } => {
                let is_named = *index == applied.next()
                    && after.log().get(*index).is_some_and(|entry| (entry.term, entry.stamp) == (*term, *stamp));
                require!(name, is_named, "server {id} applied {index} of term {term} at {stamp}")?;
                applied = *index;
            }
            _ => {}
        }
    }
    Ok(())
}
