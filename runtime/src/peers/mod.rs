//! Messages between nodes, over TCP.
//!
//! Each node dials every other one and sends its messages over that connection; what it receives comes over the
//! connections that others dialled. Delivery is "at most once, in order while a connection lasts": Raft repairs the
//! rest, so nothing is retried here, and what finds no connection or no room is dropped and counted. Snapshots take a
//! connection of their own (`snapshots`).

mod frame;
mod inbound;
mod outbound;
mod snapshots;

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Message, NodeId, Term};
use serde::{Deserialize, Serialize};

pub use inbound::accept;
pub use outbound::dial;
pub use snapshots::send_snapshots;
use tokio::sync::Semaphore;

use crate::handover::Outbox;
use crate::limits;
use crate::metrics::Metrics;
use crate::storage::Snapshots;
use crate::sync::Mutex;

/// The version of the protocol between nodes. Nodes of different versions refuse one another.
const VERSION: u16 = 2;

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
    purpose: Purpose,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Purpose {
    /// Messages from the dialling node, for as long as it lasts.
    Messages,
    /// One snapshot from the dialling node.
    Snapshot,
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
    /// This node's own, to send, and where those that it receives go.
    snapshots: Arc<Snapshots>,
    /// The right to receive a snapshot: one at a time.
    receiving: Semaphore,
    metrics: Arc<Metrics>,
}

/// What is known of one peer.
#[derive(Debug)]
struct Link {
    outbox: Outbox<Message<LockTable>>,
    /// The term in which it is to be sent a snapshot.
    snapshots: Outbox<Term>,
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
    pub fn new(roster: Roster, snapshots: Arc<Snapshots>, metrics: Arc<Metrics>) -> Arc<Peers> {
        let others = roster.peer_addrs.keys().filter(|&&id| id != roster.node);
        let link = || Link {
            outbox: Outbox::new(limits::PEER_OUTBOX),
            snapshots: Outbox::new(1),
            state: Mutex::new(LinkState::default()),
        };
        let links = others.map(|&id| (id, link())).collect();
        Arc::new(Peers { roster, links, snapshots, receiving: Semaphore::new(1), metrics })
    }

    /// Has the newest snapshot sent to a peer, if there is a connection; never waits. One that is on its way to it is
    /// enough.
    pub fn send_snapshot(&self, to: NodeId, term: Term) {
        let link = &self.links[&to];
        if link.state.lock().dialled {
            link.snapshots.clear();
            // Only this has put anything there, so there is room.
            let _ = link.snapshots.push(term);
        }
    }

    /// This node's snapshots.
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
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
