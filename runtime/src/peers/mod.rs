//! Messages between nodes, over TCP.
//!
//! Each node dials every other one and sends its messages over that connection; what it receives comes over the
//! connections that others dialled. Delivery is "at most once, in order while a connection lasts": Raft repairs the
//! rest, so nothing is retried here, and what finds no connection or no room is dropped and counted.

mod frame;
mod inbound;
mod outbound;

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Message, NodeId};
use serde::{Deserialize, Serialize};

pub use inbound::accept;
pub use outbound::dial;

use crate::handover::Outbox;
use crate::limits;
use crate::metrics::Metrics;
use crate::sync::Mutex;

/// The version of the protocol between nodes. Nodes of different versions refuse one another.
const VERSION: u16 = 1;

/// The first frame on a connection, from whoever dialled.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    magic: [u8; 8],
    version: u16,
    cluster: u64,
    from: NodeId,
    to: NodeId,
    /// Where the dialling node serves clients.
    client_addr: String,
    /// Every voter it was told of, in increasing order.
    voters: Vec<NodeId>,
}

/// The answer to a [`Hello`]: welcome, or why not.
type Welcome = Result<(), String>;

const MAGIC: [u8; 8] = *b"PALISADE";

/// Who is who: fixed at the start.
#[derive(Clone, Debug)]
pub struct Roster {
    /// The cluster's identity.
    pub cluster: u64,
    /// This node.
    pub node: NodeId,
    /// Where it serves clients.
    pub client_addr: String,
    /// Every node's `host:port` for nodes, this one's included.
    pub peer_addrs: BTreeMap<NodeId, String>,
}

/// This node's links to all others.
#[derive(Debug)]
pub struct Peers {
    roster: Roster,
    links: BTreeMap<NodeId, Link>,
    metrics: Arc<Metrics>,
}

/// What is known of one peer.
#[derive(Debug)]
struct Link {
    outbox: Outbox<Message<LockTable>>,
    state: Mutex<LinkState>,
}

#[derive(Debug, Default)]
struct LinkState {
    /// Whether messages to it have somewhere to go.
    dialled: bool,
    /// The task that reads from it.
    inbound: Option<tokio::task::AbortHandle>,
    /// Where it serves clients, once it has said so.
    client_addr: Option<String>,
}

impl Peers {
    /// No connection yet.
    pub fn new(roster: Roster, metrics: Arc<Metrics>) -> Arc<Peers> {
        let others = roster.peer_addrs.keys().filter(|&&id| id != roster.node);
        let link = || Link { outbox: Outbox::new(limits::PEER_OUTBOX), state: Mutex::new(LinkState::default()) };
        let links = others.map(|&id| (id, link())).collect();
        Arc::new(Peers { roster, links, metrics })
    }

    /// Sends a message if there is a connection and room; never waits.
    pub fn send(&self, message: Message<LockTable>) {
        let link = &self.links[&message.to];
        let sent = link.state.lock().dialled && link.outbox.push(message).is_ok();
        if !sent {
            self.metrics.messages_unsent.inc();
        }
    }

    /// The other nodes.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.links.keys().copied()
    }

    /// Who is who.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Where a node serves clients, if it has said so.
    pub fn client_addr(&self, id: NodeId) -> Option<String> {
        if id == self.roster.node {
            return Some(self.roster.client_addr.clone());
        }
        self.links.get(&id)?.state.lock().client_addr.clone()
    }

    /// Whether a connection from this node stands.
    pub fn is_connected(&self, id: NodeId) -> bool {
        id == self.roster.node || self.links.get(&id).is_some_and(|link| link.state.lock().inbound.is_some())
    }
}
