//! Sends the driver's messages over these connections.

use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Message, NodeId, Term};

use super::Peers;
use crate::core::Transport;

impl Transport for Arc<Peers> {
    fn send(&self, message: Message<LockTable>) {
        Peers::send(self, message);
    }

    fn send_snapshot(&self, to: NodeId, term: Term) -> bool {
        Peers::send_snapshot(self, to, term)
    }

    fn set_members(&self, latest: &Members, committed: &Arc<Members>) {
        Peers::set_members(self, latest, committed);
    }

    fn is_connected(&self, id: NodeId) -> bool {
        Peers::is_connected(self, id)
    }

    fn is_known_to(&self, others: &[NodeId]) -> bool {
        Peers::is_known_to(self, others)
    }

    fn client_addr(&self, id: NodeId) -> Option<String> {
        Peers::client_addr(self, id)
    }
}
