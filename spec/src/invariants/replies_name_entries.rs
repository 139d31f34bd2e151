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

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::replies_name_entries;
    use crate::invariants::states::{complaint, follower, with_appended};
    use crate::lock::{LockTable, Outcome};
    use crate::raft::{Index, Node, Output, RequestId, Stamp, Term};

    /// Of three entries, the first two are committed.
    fn node() -> Node<LockTable> {
        with_appended(&follower(1, &[]), 1, &[1, 1, 1], 2)
    }

    fn accepted(first: u64, term: u64) -> Output<LockTable> {
        Output::Accepted { id: RequestId(1), first: Index(first), term: Term(term) }
    }

    fn applied(index: u64, term: u64, stamp: u64) -> Output<LockTable> {
        let outcome = Outcome { reply: None, events: [].into() };
        Output::Applied { index: Index(index), term: Term(term), stamp: Stamp(stamp), outcome }
    }

    /// The complaint about these outputs, if the node had committed the first entry before, and its log ended there.
    fn judge(outputs: &[Output<LockTable>], last: u64) -> alloc::string::String {
        complaint(replies_name_entries((Index(1), Index(last)), outputs, &node()))
    }

    #[test]
    fn replies_that_name_other_entries_are_seen() {
        assert_eq!(judge(&[applied(2, 1, 0), applied(3, 1, 0)], 3), "");
        for other in [applied(1, 1, 0), applied(3, 1, 0), applied(2, 2, 0), applied(2, 1, 7)] {
            assert!(judge(core::slice::from_ref(&other), 3).contains("applied"), "{other:?}");
        }
        assert!(judge(&[applied(2, 1, 0), applied(2, 1, 0)], 3).contains("applied 2"));
        assert_eq!(judge(&[accepted(2, 1)], 1), "");
        for other in [accepted(1, 1), accepted(3, 1), accepted(2, 2)] {
            assert!(judge(core::slice::from_ref(&other), 1).contains("accepted"), "{other:?}");
        }
        // An entry is accepted before it is applied.
        assert!(judge(&[applied(2, 1, 0), accepted(2, 1)], 1).contains("accepted"));
        let both: Vec<_> = [accepted(2, 1), applied(2, 1, 0)].into();
        assert_eq!(judge(&both, 1), "");
    }
}
