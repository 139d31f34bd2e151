//! Leader Completeness (figure 3.2): if a log entry is committed in a given term, then that entry will be present in
//! the logs of the leaders for all higher-numbered terms.

use super::{Check, Committed, require};
use crate::raft::{Node, StateMachine};

/// Fails if a leader lacks an entry that is committed.
///
/// Pass what was committed *before* the node's term, or check a leader when it is elected: a leader of an old term
/// that has not yet heard of its successor need not have what the successor commits.
pub fn leader_completeness<S: StateMachine>(committed: &Committed<S::Command>, leader: &Node<S>) -> Check {
    if !leader.is_leader() {
        return Ok(());
    }
    for (&index, entry) in committed.iter().filter(|(_, entry)| entry.term < leader.term()) {
        let present = index <= leader.log().base().index || leader.log().get(index) == Some(entry);
        require!(
            "leader completeness",
            present,
            "leader {} of term {} lacks the committed entry {index}",
            leader.id(),
            leader.term()
        );
    }
    Ok(())
}
