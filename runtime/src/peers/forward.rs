//! Connections over which another node forwards requests of its clients: HTTP behind the handshake of every
//! connection between nodes (decision 0034). `http::forward` speaks it, on both sides.

use std::io;
use std::sync::Arc;

use palisade_spec::raft::NodeId;
use tokio::sync::watch;

use super::dial::{DialError, connect};
use super::{Link, Peers, Purpose};
use crate::addresses::ClientAddress;
use crate::tls::Stream;

/// A connection over which another node forwards requests.
#[derive(Debug)]
pub struct Forwarded {
    /// The connection.
    pub stream: Stream,
    /// Whether a certificate has proved which node it is. Without that, what it says of the identity of clients
    /// is not believed where clients have identities.
    pub is_certified: bool,
    /// Where that node is.
    pub address: ClientAddress,
    /// Whether it was removed from the cluster since.
    pub removal: Removal,
}

impl Forwarded {
    pub(super) fn new(link: &Link, stream: Stream, is_certified: bool, address: ClientAddress) -> Forwarded {
        let removal = Removal { node: link.peer, ended: link.ended.subscribe() };
        Forwarded { stream, is_certified, address, removal }
    }
}

/// The removal of a node from the cluster: from then on it forwards nothing.
#[derive(Clone, Debug)]
pub struct Removal {
    /// The node.
    pub node: NodeId,
    ended: watch::Receiver<bool>,
}

impl Removal {
    /// Whether the node was removed.
    pub fn is_done(&self) -> bool {
        *self.ended.borrow()
    }

    /// Resolves when the node is removed.
    pub async fn done(mut self) {
        // The sender lives as long as the link; a link that was dropped has ended.
        drop(self.ended.wait_for(|&ended| ended).await);
    }
}

impl Peers {
    /// Dials a node to forward requests to it.
    ///
    /// # Errors
    /// If it cannot be reached, or one of the two nodes refuses the other.
    pub async fn dial_for_requests(self: &Arc<Peers>, node: NodeId) -> Result<Stream, DialError> {
        let unknown = || DialError::Io(io::Error::other(format!("this node does not know node {node}")));
        let link = self.link(node).ok_or_else(unknown)?;
        connect(self, &link, Purpose::Requests).await
    }

    /// Refuses to take requests from a node that is no member.
    pub(super) fn may_forward(&self, node: NodeId) -> Result<(), String> {
        if self.is_in_log(node) {
            return Ok(());
        }
        Err(format!(
            "node {node} is no member of the cluster, so it may not forward requests: add it first (palisade members add)"
        ))
    }
}
