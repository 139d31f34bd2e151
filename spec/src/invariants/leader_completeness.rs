//! Leader Completeness (figure 3.2): if a log entry is committed in a given term, then that entry
//! will be present in the logs of the leaders for all higher-numbered terms.

use super::{Check, Property};
use crate::raft::{Entry, Node, StateMachine};
use crate::require;

/// Fails if a leader lacks a committed entry.
///
/// Pass the entries committed *before* the node's term, or check a leader right after its election:
/// a deposed leader that has not yet heard of its successor need not have the successor's entries.
pub fn leader_completeness<'a, S: StateMachine>(
    committed: impl IntoIterator<Item = &'a Entry<S::Command>>,
    leader: &Node<S>,
) -> Check
where
    S::Command: 'a,
{
    if !leader.is_leader() {
        return Ok(());
    }
    for entry in committed.into_iter().filter(|entry| entry.term < leader.term()) {
        let index = entry.index;
        let present = index <= leader.log().base().index || leader.log().get(index) == Some(entry);
        require!(
            Property::LeaderCompleteness,
            present,
            "leader {} of term {} lacks the committed entry {index}",
            leader.id(),
            leader.term()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::leader_completeness;
    use crate::invariants::Committed;
    use crate::invariants::states::{complaint, follower, leader, noop};
    use crate::raft::Index;

    fn committed(terms: &[u64]) -> Committed<crate::lock::Command> {
        (1..).zip(terms).map(|(index, &term)| (Index(index), noop(index, term))).collect()
    }

    #[test]
    fn leader_without_a_committed_entry_is_seen() {
        assert_eq!(complaint(leader_completeness(committed(&[1, 1]).values(), &leader(3, &[1, 1]))), "");
        let lacks = "leader 1 of term 3 lacks the committed entry 2";
        assert_eq!(complaint(leader_completeness(committed(&[1, 1]).values(), &leader(3, &[1]))), lacks);
        assert_eq!(complaint(leader_completeness(committed(&[1, 2]).values(), &leader(3, &[1, 1]))), lacks);
    }

    #[test]
    fn only_what_was_committed_in_an_earlier_term_is_asked_of_a_leader() {
        for terms in [[1, 3, 3], [1, 3, 4]] {
            assert_eq!(complaint(leader_completeness(committed(&terms).values(), &leader(3, &[1]))), "");
        }
    }

    #[test]
    fn follower_may_lack_anything() {
        assert_eq!(complaint(leader_completeness(committed(&[1, 1]).values(), &follower(3, &[1]))), "");
    }
}
