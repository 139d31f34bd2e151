//! Leader Append-Only (figure 3.2): a leader never overwrites or deletes entries in its log; it only appends.

use super::{Check, require};
use crate::raft::{Node, StateMachine};

/// Compares a node before and after a step that it took as the leader of one term throughout.
pub fn leader_append_only<S: StateMachine>(before: &Node<S>, after: &Node<S>) -> Check {
    if !(before.is_leader() && after.is_leader() && before.term() == after.term()) {
        return Ok(());
    }
    for entry in before.log().entries() {
        let index = entry.index;
        let kept = index <= after.log().base().index || after.log().get(index) == Some(entry);
        require!("leader append-only", kept, "leader {} lost or changed its entry {index}", after.id());
    }
    Ok(())
}
