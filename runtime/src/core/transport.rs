//! The way to the other nodes, as the driver sees it.

use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Message, NodeId, Term};

use crate::peers::Peers;

/// Carries messages to peers, or loses them. Nothing here ever waits.
pub trait Transport {
    /// Sends a message, if there is a way.
    fn send(&self, message: Message<LockTable>);

    /// Has the newest durable snapshot sent to a peer, if there is a way; says whether there is. One that is on its way to
    /// it is enough.
    fn send_snapshot(&self, to: NodeId, term: Term) -> bool;

    /// The members are these now: `latest` as the log has them, `committed` for sure.
    fn set_members(&self, latest: &Members, committed: &Arc<Members>);

    /// Whether there is a connection from this node.
    fn is_connected(&self, id: NodeId) -> bool;

    /// Whether all of these nodes know this one by its data directory.
    fn is_known_to(&self, others: &[NodeId]) -> bool;

    /// Where a node serves clients, if it has said so.
    fn client_addr(&self, id: NodeId) -> Option<String>;
}

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
