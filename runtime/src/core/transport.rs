//! Sending to the other nodes, as the driver sees it.

use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Message, NodeId, Term};

/// Sends messages to peers, or drops them. No function here waits.
pub trait Transport {
    /// Sends a message, if its receiver is connected.
    fn send(&self, message: Message<LockTable>);

    /// Starts sending the newest durable snapshot to a peer, if the peer is connected; returns
    /// whether it is. A transfer already in progress suffices.
    fn send_snapshot(&self, to: NodeId, term: Term) -> bool;

    /// Sets the members: `latest` as the log has them, `committed` as of the commit index.
    fn set_members(&self, latest: &Members, committed: &Arc<Members>);

    /// Whether a node has a connection to this one.
    fn is_connected(&self, id: NodeId) -> bool;

    /// Whether all of these nodes have pinned this node's data directory.
    fn is_known_to(&self, others: &[NodeId]) -> bool;

    /// Where a node serves clients, if it has announced that.
    fn client_addr(&self, id: NodeId) -> Option<String>;
}
