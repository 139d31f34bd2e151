//! Comparisons of whole states, which test that checking what is new suffices.

use super::Slot;
use super::cluster::ClusterChecker;
use super::machine::Checked;
use crate::invariants::{
    Check, leader_completeness, log_matching, members_follow_the_log, memory_matches_disk, one_change_at_a_time,
};
use crate::raft::{Node, StateMachine};

impl<S: Checked> ClusterChecker<S> {
    /// Compares a running node with its disk, with other nodes and disks, and with what was agreed.
    ///
    /// # Errors
    /// The first violation.
    pub fn compare<'a>(&mut self, slot: Slot, node: &Node<S>, others: impl IntoIterator<Item = &'a Node<S>>) -> Check
    where
        S: 'a + StateMachine<Command: 'a>,
    {
        self.counts.states += 1;
        let server = self.server(slot)?;
        let is_idle = server.pending.is_empty();
        if is_idle {
            memory_matches_disk(node, &server.disk)?;
        }
        node.machine().check_state()?;
        members_follow_the_log(node.log())?;
        for other in others {
            log_matching(node.log(), other.log())?;
        }
        for other in self.servers.values() {
            log_matching(node.log(), &other.disk.log)?;
        }
        let Some(agreed) = &self.reference else { return Ok(()) };
        one_change_at_a_time(node.log(), node.commit().max(agreed.last()))?;
        if is_idle && !self.is_unknown(node.commit()) {
            agreed.compare_base(node.log())?;
            agreed.compare_commit(node)?;
            agreed.compare_machine(node.commit(), node.machine())?;
        }
        leader_completeness(agreed.required_entries(node), node)
    }
}
