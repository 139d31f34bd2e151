//! Messages between nodes, over TCP.
//!
//! Each node dials every other one and sends its messages over that connection; what it receives comes over the
//! connections that others dialled. Delivery is "at most once, in order while a connection lasts": Raft repairs the
//! rest, so nothing is retried here, and what finds no connection or no room is dropped and counted. Snapshots take a
//! connection of their own (`snapshots`).
//!
//! Whom to dial, the log says ([`Peers::set_members`]). Whoever dials in is let in if it is of this cluster and was not
//! removed: a member that this node has not heard of yet may lead it. What is never let in is a node that comes back
//! with another data directory ([`identity`]), unless the cluster has replaced it by a new member.

pub mod frame;
mod identity;
mod inbound;
mod member_address;
mod outbound;
mod snapshots;

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_client::wire::{Code, Failure, ReplaceMember};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Message, NodeId, Term};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc};

pub use identity::PinnedPeers;
pub use inbound::{accept, refuse_all};
pub use member_address::MemberAddress;
pub use outbound::{DialError, dial_all, introduction};
pub use snapshots::{Answer, Offer, Verdict};

use crate::limits;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::storage::{Incarnation, Snapshots};
use crate::sync::Mutex;

/// The version of the protocol between nodes. Nodes of different versions refuse one another.
const VERSION: u16 = 4;

/// The first frame on a connection, from the node that dialled.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// That it is this protocol.
    pub magic: [u8; 8],
    /// The protocol's version.
    pub version: u16,
    /// The cluster.
    pub cluster: u64,
    /// The dialling node.
    pub from: NodeId,
    /// The node that it means.
    pub to: NodeId,
    /// Where the dialling node serves clients.
    pub client_addr: String,
    /// Where the dialling node can be dialled.
    pub peer_addr: String,
    /// The dialling node's data directory, by its number.
    pub incarnation: Incarnation,
    /// What for.
    pub purpose: Purpose,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Messages from the dialling node, for as long as it lasts.
    Messages,
    /// One snapshot from the dialling node.
    Snapshot,
    /// Only to learn where the other node serves clients. Every node of the cluster may ask, without being let in: above all one
    /// that has lost its log.
    Introduction,
}

/// The answer to a [`Hello`]: welcome, and by whom; or why not.
pub type Welcome = Result<Introduction, String>;

/// The node that answers a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The answering node's data directory, by its number.
    pub incarnation: Incarnation,
    /// Where it serves clients.
    pub client_addr: String,
}

const MAGIC: [u8; 8] = *b"PALISADE";

/// This node's identity and addresses: fixed at the start.
#[derive(Clone, Debug)]
pub struct Roster {
    /// The cluster's identity.
    pub cluster: u64,
    /// This node.
    pub node: NodeId,
    /// Its data directory's number.
    pub incarnation: Incarnation,
    /// Where it serves clients.
    pub client_addr: String,
    /// Where other nodes reach it.
    pub peer_addr: String,
    /// Where this node finds others, whatever the members' addresses say. By their numbers: each in its first generation.
    pub peer_addrs: BTreeMap<NodeId, String>,
}

impl Roster {
    /// What this node says first to a node that it dials.
    fn hello(&self, to: NodeId, purpose: Purpose) -> Hello {
        Hello {
            magic: MAGIC,
            version: VERSION,
            cluster: self.cluster,
            from: self.node,
            to,
            client_addr: self.client_addr.clone(),
            peer_addr: self.peer_addr.clone(),
            incarnation: self.incarnation,
            purpose,
        }
    }
}

/// The data directory that a member has, if the log says it.
fn meant(members: &Members, node: NodeId) -> Option<Incarnation> {
    members.get(node).and_then(|member| MemberAddress::of(&member.address).incarnation)
}

/// This node's links to all others.
#[derive(Debug)]
pub struct Peers {
    roster: Roster,
    links: Mutex<BTreeMap<NodeId, Arc<Link>>>,
    /// The members that are committed: which nodes are gone for ever, and which directories are meant.
    members: Mutex<Arc<Members>>,
    pinned: PinnedPeers,
    /// This node's own, to send, and where those that it receives go.
    snapshots: Arc<Snapshots>,
    /// The right to receive a snapshot: one at a time.
    receiving: Semaphore,
    metrics: Arc<Metrics>,
    /// Tells [`dial_all`] of new links.
    to_dial: mpsc::UnboundedSender<Arc<Link>>,
}

/// What is known of one peer.
#[derive(Debug)]
struct Link {
    peer: NodeId,
    outbox: Outbox<Message<LockTable>>,
    /// The term in which it is to be sent a snapshot.
    snapshots: Outbox<Term>,
    state: Mutex<LinkState>,
}

#[derive(Debug, Default)]
struct LinkState {
    /// Where to dial it.
    address: String,
    /// Whether it has ever let this process in.
    welcomed: bool,
    /// Whether messages to it have somewhere to go.
    dialled: bool,
    /// The task that reads from it.
    inbound: Option<tokio::task::AbortHandle>,
    /// Where it serves clients, once it has said so.
    client_addr: Option<String>,
}

/// The links that are to be dialled.
#[derive(Debug)]
pub struct ToDial(mpsc::UnboundedReceiver<Arc<Link>>);

impl Peers {
    /// No connection yet.
    pub fn new(
        roster: Roster,
        pinned: PinnedPeers,
        snapshots: Arc<Snapshots>,
        metrics: Arc<Metrics>,
    ) -> (Arc<Peers>, ToDial) {
        let (to_dial, dialled) = mpsc::unbounded_channel();
        let peers = Peers {
            roster,
            links: Mutex::new(BTreeMap::new()),
            members: Mutex::new(Arc::default()),
            pinned,
            snapshots,
            receiving: Semaphore::new(1),
            metrics,
            to_dial,
        };
        (Arc::new(peers), ToDial(dialled))
    }

    /// Has the newest snapshot sent to a peer, if there is a connection, and says whether there is; never waits. One that is
    /// on its way to it is enough.
    pub fn send_snapshot(&self, to: NodeId, term: Term) -> bool {
        let Some(link) = self.link(to).filter(|link| link.state.lock().dialled) else { return false };
        link.snapshots.clear();
        // Only this has put anything there, so there is room, unless the peer was removed just now.
        link.snapshots.push(term).is_ok()
    }

    /// This node's snapshots.
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// Sends a message if there is a connection and room; never waits.
    pub fn send(&self, message: Message<LockTable>) {
        let link = self.link(message.to);
        let sent = link.is_some_and(|link| link.state.lock().dialled && link.outbox.push(message).is_ok());
        if !sent {
            self.metrics.peer_messages_dropped.inc();
        }
    }

    /// The members are these now: `latest` as the log has them, `committed` for sure. This node dials every member in either. A
    /// member stays connected until its removal is committed: a leader that goes must hear that its removal is acknowledged.
    pub fn set_members(&self, latest: &Members, committed: &Arc<Members>) {
        *self.members.lock() = Arc::clone(committed);
        for (id, member) in committed.iter().chain(latest.iter()).filter(|(id, _)| *id != self.roster.node) {
            self.verify_or_pin(id, &MemberAddress::of(&member.address).peer_addr);
        }
        self.links.lock().retain(|id, link| {
            let stays = !committed.was_removed(*id);
            if !stays {
                link.outbox.close();
                link.snapshots.close();
                if let Some(inbound) = link.state.lock().inbound.take() {
                    inbound.abort();
                }
            }
            stays
        });
    }

    /// There is a node, and it can be dialled at this address, unless this node was told of another one at its start. `None`
    /// if it was removed.
    fn verify_or_pin(&self, peer: NodeId, address: &str) -> Option<Arc<Link>> {
        let first = NodeId::new(peer.number(), 0);
        let address = self.roster.peer_addrs.get(&first).map_or(address, String::as_str);
        let mut links = self.links.lock();
        if self.members.lock().was_removed(peer) {
            return None;
        }
        if let Some(link) = links.get(&peer) {
            address.clone_into(&mut link.state.lock().address);
            return Some(Arc::clone(link));
        }
        let state = LinkState { address: address.to_owned(), ..LinkState::default() };
        let (outbox, snapshots) = (Outbox::new(limits::PEER_OUTBOX), Outbox::new(1));
        let link = Arc::new(Link { peer, outbox, snapshots, state: Mutex::new(state) });
        links.insert(peer, Arc::clone(&link));
        // If `dial_all` has ended, the node is stopping.
        let _ = self.to_dial.send(Arc::clone(&link));
        Some(link)
    }

    /// Whether all of these nodes know this one by its data directory: each has welcomed it, in whichever generation it is now,
    /// and remembers the nodes that it has welcomed, over its own returns too.
    pub fn is_known_to(&self, others: &[NodeId]) -> bool {
        let links = self.links.lock();
        let welcomed =
            |other: &NodeId| links.iter().any(|(id, link)| id.number() == other.number() && link.state.lock().welcomed);
        others.iter().all(welcomed)
    }

    /// Refuses a server that says it is `node`, but has another data directory than that node had.
    fn verify(&self, node: NodeId, incarnation: Incarnation, peer_addr: &str) -> Result<(), String> {
        let meant = meant(&self.members.lock(), node);
        self.pinned.verify_or_pin(node, incarnation, peer_addr, meant)
    }

    /// Refuses a request to replace a node if its directory is not of this cluster, or not the one with which this node has met
    /// it: the request is about an old copy then, and the node itself may only be down. Also if the new member has been met
    /// already: the request is a copy's, of a directory that has returned. A leader that has never met the node cannot check
    /// this.
    ///
    /// # Errors
    /// What does not fit.
    pub fn recognise_lost(&self, member: &ReplaceMember) -> Result<(), Failure> {
        let lost = NodeId::new(member.id, member.generation);
        let ours = format!("{:016x}", self.roster.cluster);
        if member.cluster != ours {
            let message = format!("the lost directory is of cluster {}, this one is {ours}", member.cluster);
            return Err(Failure::new(Code::Invalid, message));
        }
        let incarnation: Incarnation = (member.lost_incarnation.parse())
            .map_err(|_| Failure::new(Code::Invalid, "lost_incarnation is not 16 hexadecimal digits"))?;
        let taken = |message| Err(Failure::new(Code::NodeIdInUse, message));
        let meant = meant(&self.members.lock(), lost);
        let known = meant.or_else(|| self.pinned.incarnation(lost));
        if known.is_some_and(|known| known != incarnation) {
            return taken(format!(
                "node {lost} of this cluster has another data directory than the one that is lost: that is an old copy, or \
                 another server's"
            ));
        }
        let has_returned =
            |by: &NodeId| self.pinned.incarnation(*by).is_some_and(|known| member.incarnation.parse() == Ok(known));
        if let Some(by) = lost.next_generation().filter(has_returned) {
            return taken(format!("node {lost} has come back as {by} already: this directory is an old copy"));
        }
        Ok(())
    }

    fn link(&self, peer: NodeId) -> Option<Arc<Link>> {
        self.links.lock().get(&peer).cloned()
    }

    /// This node's identity and addresses.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Where a node serves clients, if it has said so.
    pub fn client_addr(&self, id: NodeId) -> Option<String> {
        if id == self.roster.node {
            return Some(self.roster.client_addr.clone());
        }
        self.link(id)?.state.lock().client_addr.clone()
    }

    /// Whether messages to a node have somewhere to go at the moment; `None` if it was removed, or was never heard of.
    pub fn reaches(&self, id: NodeId) -> Option<bool> {
        self.link(id).map(|link| link.state.lock().dialled)
    }

    /// Whether a connection from this node stands.
    pub fn is_connected(&self, id: NodeId) -> bool {
        id == self.roster.node || self.link(id).is_some_and(|link| link.state.lock().inbound.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SystemDisk;

    /// A founder without a past takes part when every other founder's server knows it. One of them may have lost its log and
    /// returned meanwhile.
    #[test]
    fn welcome_of_a_later_generation_counts() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = Snapshots::open::<LockTable>(&SystemDisk::shared(), directory.path(), 7).unwrap();
        let roster = Roster {
            cluster: 7,
            node: NodeId(1),
            incarnation: Incarnation(1),
            client_addr: String::new(),
            peer_addr: String::new(),
            peer_addrs: BTreeMap::new(),
        };
        let pinned = PinnedPeers::load(directory.path()).unwrap();
        let (peers, _to_dial) = Peers::new(roster, pinned, snapshots.into(), Metrics::new());
        let founders = [NodeId(2), NodeId(3)];
        let welcomed = |node: NodeId| peers.verify_or_pin(node, "nowhere:1").unwrap().state.lock().welcomed = true;
        welcomed(NodeId(2));
        assert!(!peers.is_known_to(&founders));
        welcomed(NodeId::new(3, 1));
        assert!(peers.is_known_to(&founders));
    }
}
