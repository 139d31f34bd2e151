//! The introductions of two nodes when one dials the other: the dialling node's hello, and the
//! answer to it. Which versions of the protocol they speak is in [`versions`](super::versions).

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_spec::raft::NodeId;
use serde::{Deserialize, Serialize};

use crate::storage::{Incarnation, Start};
use crate::tls::Tls;

/// The first frame on a connection, from the node that dialled; a part of its [`Greeting`](super::Greeting).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Identifies this protocol.
    pub magic: [u8; 8],
    /// The protocol's version: whether a range of versions follows the hello (`versions`).
    pub version: u16,
    /// The cluster.
    pub cluster: u64,
    /// The dialling node.
    pub from: NodeId,
    /// The node that it means to dial.
    pub to: NodeId,
    /// Where the dialling node serves clients.
    pub client_addr: String,
    /// Where the dialling node can be dialled.
    pub peer_addr: String,
    /// The incarnation of the dialling node's data directory.
    pub incarnation: Incarnation,
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The start of the dialling node.
    pub start: Start,
    /// Where the dialling node answers administrative requests, if not where it serves clients.
    pub admin_addr: Option<String>,
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Messages from the dialling node, for as long as it lasts.
    Messages,
    /// One snapshot from the dialling node.
    Snapshot,
    /// A query for the addresses of the answering node. Every node of the cluster may ask
    /// without being admitted: above all one that has lost its log.
    Introduction,
    /// Requests of clients that the dialling node forwards, and their answers.
    Requests,
}

/// The answer to a [`Hello`] of version 10: the answering node's introduction, or why it rejects the
/// dialling node.
pub type Welcome = Result<Introduction, String>;

/// The node that answers a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The incarnation of the answering node's data directory.
    pub incarnation: Incarnation,
    /// Where it serves clients.
    pub client_addr: String,
    /// The start of the answering node.
    pub start: Start,
    /// Where it answers administrative requests, if not where it serves clients.
    pub admin_addr: Option<String>,
}

/// The number in a hello of a node that speaks this version and no other: nothing follows the hello.
pub(super) const WITHOUT_RANGE: u16 = 10;
/// Begins every hello.
pub(super) const MAGIC: [u8; 8] = *b"PALISADE";

/// This node's identity and addresses, fixed at the start.
#[derive(Clone, Debug)]
pub struct Roster {
    /// The cluster's ID.
    pub cluster: u64,
    /// The cluster's name, for messages.
    pub cluster_name: String,
    /// This node.
    pub node: NodeId,
    /// The incarnation of its data directory.
    pub incarnation: Incarnation,
    /// Its start: this process.
    pub start: Start,
    /// Where it serves clients.
    pub client_addr: String,
    /// Where it answers administrative requests, if not where it serves clients.
    pub admin_addr: Option<String>,
    /// Where other nodes reach it.
    pub peer_addr: String,
    /// Addresses that override the members' addresses in the log, by node number: each in its first
    /// generation.
    pub peer_addrs: BTreeMap<NodeId, String>,
    /// How connections between nodes are secured; `None`: they are not.
    pub tls: Option<Arc<Tls>>,
}

impl Roster {
    /// The hello to a node that this one dials, in the form of version 10.
    pub(super) fn hello(&self, to: NodeId, purpose: Purpose) -> Hello {
        Hello {
            magic: MAGIC,
            version: WITHOUT_RANGE,
            cluster: self.cluster,
            from: self.node,
            to,
            client_addr: self.client_addr.clone(),
            peer_addr: self.peer_addr.clone(),
            incarnation: self.incarnation,
            purpose,
            start: self.start.clone(),
            admin_addr: self.admin_addr.clone(),
        }
    }
}
