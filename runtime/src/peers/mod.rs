//! Messages between nodes, over TCP.
//!
//! Each node dials every other one and sends its messages over that connection; it receives over
//! the connections that others dialled. Delivery is "at most once, in order while a connection
//! lasts": Raft repairs the rest, so nothing is retried here, and messages without a connection or
//! without room in the outbox are dropped and counted. Snapshots have a connection of their own
//! (`snapshots`), and so have requests of clients that a follower forwards to the leader (`forward`).
//!
//! The log names the nodes to dial ([`Peers::set_members`]). An inbound connection is accepted if
//! its node belongs to this cluster, and neither the node nor its number was removed: the node may be
//! a member that this node has not heard of yet, even its leader. With TLS, both sides first prove by
//! their certificates which node they are ([`crate::tls`]): nothing that a stranger says is believed.
//! A certificate names a number, in every generation. A node that returns with another data directory
//! is rejected ([`pinned_peers`]), unless the cluster has replaced it by a new member.

mod dial;
mod forward;
pub mod frame;
mod hello;
mod inbound;
mod intake;
mod link;
mod outbound;
mod pinned_peers;
mod snapshots;
mod transport;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::{Code, Failure, ReplaceMember};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Message, NodeId, Term};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub use dial::{DialError, introduction};
pub use forward::{Forwarded, Removal};
pub use hello::{Hello, Introduction, Purpose, Roster, Welcome};
pub use inbound::{accept, refuse_all};
pub use link::Program;
pub use outbound::dial_all;
pub use pinned_peers::PinnedPeers;
pub use snapshots::{Answer, Offer, Verdict};
pub use versions::{Greeting, PROGRAM, RangeWelcome, Speaks, Versions};

use self::hello::MAGIC;
use self::link::{Link, LinkState};
use self::pinned_peers::copied_while_it_ran;
use self::snapshots::Turns;

use crate::budget::{Budget, SENT_BY_STRANGERS};
use crate::limits;
use crate::log_pause::LogPause;
use crate::member_address::MemberAddress;
use crate::metrics::Metrics;
use crate::outbox::Outbox;
use crate::storage::{Incarnation, Snapshots, Start};
use crate::sync::Mutex;

/// Minimum time between two equal log lines about a refused connection: a refused node dials again
/// every second.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);
/// How long a node's earlier process has to show that it still runs, before a later start is believed. Shorter than the
/// time that the dialling node has for its hello.
const ORIGINAL_ANSWERS: Duration = Duration::from_secs(1);

/// The newest version of the protocol between nodes that this program speaks, for operators.
pub fn protocol_version() -> u16 {
    versions::SPOKEN.newest
}

/// Runs what may wait for the disk on a blocking thread: messages of other connections must not wait for it.
async fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    spawn_blocking(work).await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Err("this node is stopping".to_owned()),
    })
}

/// The incarnation of a member's data directory, if the log names it.
fn expected_incarnation(members: &Members, node: NodeId) -> Option<Incarnation> {
    members.get(node).and_then(|member| MemberAddress::of(&member.address).incarnation)
}

/// Whether a number had members and will have none any more. A number's first member has generation 0, and a
/// replacement removes one generation and adds the next in one step. A removal leaves the number without a member,
/// and a leader then accepts neither an addition under the number nor another replacement.
fn number_was_removed(members: &Members, number: u16) -> bool {
    members.by_number(number).is_none() && members.was_removed(NodeId::new(number, 0))
}

/// Whether a node was removed, replaced, or never was a member and cannot become one, because its number was removed.
/// A replacement that this node has not heard of yet is not concerned: its number still has a member here.
fn is_gone(members: &Members, node: NodeId) -> bool {
    members.was_removed(node) || number_was_removed(members, node.number())
}

/// This node's links to all others.
#[derive(Debug)]
pub struct Peers {
    roster: Roster,
    links: Mutex<BTreeMap<NodeId, Arc<Link>>>,
    /// The committed members: they tell which nodes were removed, and which data directories are
    /// valid.
    members: Mutex<Arc<Members>>,
    /// The members that the log has beside the committed ones.
    uncommitted: Mutex<Vec<NodeId>>,
    pinned: PinnedPeers,
    /// The snapshots that this node sends, and the store for those that it receives.
    snapshots: Arc<Snapshots>,
    /// Whose turn it is to send this node a snapshot.
    receiving: Turns,
    /// Permit to pin a node that has dialled: one at a time.
    pinning: Arc<Semaphore>,
    /// Memory for the unfinished frames of nodes that are no members.
    stranger_bytes: Arc<Budget>,
    metrics: Arc<Metrics>,
    /// Limits the log lines about peers that are refused or cannot be reached.
    log_pause: LogPause,
    /// Passes new links to [`dial_all`].
    to_dial: mpsc::UnboundedSender<Arc<Link>>,
}

/// New links for [`dial_all`].
#[derive(Debug)]
pub struct ToDial(mpsc::UnboundedReceiver<Arc<Link>>);

impl Peers {
    /// Creates the peers, without connections.
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
            uncommitted: Mutex::default(),
            pinned,
            snapshots,
            receiving: Turns::new(),
            pinning: Arc::new(Semaphore::new(1)),
            stranger_bytes: Budget::new(&SENT_BY_STRANGERS, limits::STRANGER_BYTES),
            metrics,
            log_pause: LogPause::default(),
            to_dial,
        };
        (Arc::new(peers), ToDial(dialled))
    }

    /// Starts sending the newest snapshot to a peer, if it is connected; returns whether it is.
    /// Never waits. A transfer already in progress suffices.
    pub fn send_snapshot(&self, to: NodeId, term: Term) -> bool {
        let Some(link) = self.link(to).filter(|link| link.state.lock().dialled) else { return false };
        link.snapshots.clear();
        // Only this function fills the outbox, so it has room; it is closed if the peer was removed
        // just now.
        link.snapshots.push(term).is_ok()
    }

    /// Whether a node is a member of the cluster, as far as this node knows.
    fn is_member(&self, node: NodeId) -> bool {
        self.members.lock().get(node).is_some()
    }

    /// Whether the log has a node among the members, committed or not.
    fn is_in_log(&self, node: NodeId) -> bool {
        self.is_member(node) || self.uncommitted.lock().contains(&node)
    }

    /// Whether this node dials a member at this address: one of the log or of the command line.
    fn is_address_of_member(&self, address: IpAddr) -> bool {
        let is_named = |id: &NodeId| self.roster.peer_addrs.contains_key(&NodeId::new(id.number(), 0));
        let links = self.links.lock();
        let mut members = links.iter().filter(|(id, _)| is_named(id) || self.is_in_log(**id));
        members.any(|(_, link)| link.state.lock().resolved.contains(&address.to_canonical()))
    }

    /// This node's snapshots.
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// Sends a message if the peer is connected and its outbox has room; never waits.
    pub fn send(&self, message: Message<LockTable>) {
        let link = self.link(message.to);
        let sent = link.is_some_and(|link| link.state.lock().dialled && link.outbox.push(message).is_ok());
        if !sent {
            self.metrics.peer_messages_dropped.inc();
        }
    }

    /// Sets the members: `latest` as the log has them, `committed` as of the commit index. This
    /// node dials every member of either. A member stays connected until its removal is committed:
    /// a leader that removes itself must receive the acknowledgements of its removal.
    pub fn set_members(&self, latest: &Members, committed: &Arc<Members>) {
        *self.members.lock() = Arc::clone(committed);
        *self.uncommitted.lock() = latest.ids().filter(|id| committed.get(*id).is_none()).collect();
        for (id, member) in committed.iter().chain(latest.iter()).filter(|(id, _)| *id != self.roster.node) {
            self.get_or_create_link(id, &MemberAddress::of(&member.address).peer_addr);
        }
        self.links.lock().retain(|id, link| {
            let stays = !is_gone(committed, *id);
            if !stays {
                link.end();
            }
            stays
        });
    }

    /// The link to a node, created if it is missing. The node is dialled at this address, unless
    /// this node's command line names another one. `None` if the node or its number was removed.
    fn get_or_create_link(&self, peer: NodeId, address: &str) -> Option<Arc<Link>> {
        let first = NodeId::new(peer.number(), 0);
        let address = self.roster.peer_addrs.get(&first).map_or(address, String::as_str);
        let mut links = self.links.lock();
        if is_gone(&self.members.lock(), peer) {
            return None;
        }
        if let Some(link) = links.get(&peer) {
            address.clone_into(&mut link.state.lock().address);
            return Some(Arc::clone(link));
        }
        let state = LinkState { address: address.to_owned(), ..LinkState::default() };
        let (outbox, snapshots) = (Outbox::new(limits::PEER_OUTBOX), Outbox::new(1));
        let link =
            Arc::new(Link { peer, outbox, snapshots, state: Mutex::new(state), ended: watch::Sender::default() });
        links.insert(peer, Arc::clone(&link));
        // If `dial_all` has ended, the node is stopping.
        let _ = self.to_dial.send(Arc::clone(&link));
        Some(link)
    }

    /// Whether all of these nodes have pinned this node's data directory: each has welcomed it, in
    /// its current generation whichever that is, and a node keeps its pins when it returns in a
    /// later generation.
    pub fn is_known_to(&self, others: &[NodeId]) -> bool {
        let links = self.links.lock();
        let welcomed =
            |other: &NodeId| links.iter().any(|(id, link)| id.number() == other.number() && link.state.lock().welcomed);
        others.iter().all(welcomed)
    }

    /// The link to a node that has dialled, after [`Peers::verify`]. Pinning waits for the disk, when
    /// the two nodes meet for the first time or the node was started again: one at a time, so that all
    /// strangers together take one thread, and a node that is pinned already waits for none.
    async fn admit(self: &Arc<Peers>, hello: &Hello) -> Result<Arc<Link>, String> {
        if self.pinned.is_pinned(hello.from, hello.incarnation, &hello.start)
            && let Some(link) = self.link(hello.from)
        {
            return Ok(link);
        }
        self.refuse_copy_of_running(hello).await?;
        // Also when the dialling node has gone, until the disk has answered. The semaphore is never closed.
        let one = Arc::clone(&self.pinning).acquire_owned().await.ok();
        let (peers, hello) = (Arc::clone(self), hello.clone());
        off_the_loop(move || {
            let _one = one;
            peers.make_room_for(hello.from)?;
            peers.verify(hello.from, hello.incarnation, &hello.start, &hello.peer_addr)?;
            let link = peers.link(hello.from).or_else(|| peers.get_or_create_link(hello.from, &hello.peer_addr));
            link.ok_or_else(|| "the dialling node was removed just now".to_owned())
        })
        .await
    }

    /// Whether to log a line about a node. One that is no member chooses its number and what it says: its lines have the
    /// places of its address.
    fn due_about(&self, peer: NodeId, line: &str, pause: Duration) -> Option<u64> {
        let is_member = self.members.lock().get(peer).is_some();
        let resolved = |link: Arc<Link>| link.state.lock().resolved.first().copied();
        match self.link(peer).filter(|_| !is_member).and_then(resolved) {
            Some(address) => self.log_pause.due_from(address, line, pause, Instant::now()),
            None => self.log_pause.due(line, pause, Instant::now()),
        }
    }

    /// Refuses a later start of a node whose pinned start answers still, at the address where this node dials it: the
    /// later one runs on a copy that was made while the original ran. Without an answer nothing is known: the node may
    /// have moved, or been started again.
    async fn refuse_copy_of_running(&self, hello: &Hello) -> Result<(), String> {
        let Some(earlier) = self.pinned.earlier_start(hello.from, hello.incarnation, &hello.start) else {
            return Ok(());
        };
        let Some(address) = self.link(hello.from).map(|link| link.state.lock().address.clone()) else { return Ok(()) };
        match timeout(ORIGINAL_ANSWERS, introduction(&self.roster, &address)).await {
            Ok(Ok(found)) if found.incarnation == hello.incarnation && found.start.alone() == earlier => {
                Err(copied_while_it_ran(hello.from, &hello.start, &earlier, &address))
            }
            _ => Ok(()),
        }
    }

    /// Forgets nodes that are no members, so that strangers cannot make this node remember and dial
    /// ever more of them: those first that it cannot reach.
    fn make_room_for(&self, node: NodeId) -> Result<(), String> {
        let (members, uncommitted) = (Arc::clone(&self.members.lock()), self.uncommitted.lock().clone());
        let is_unknown = |id: NodeId| {
            members.get(id).is_none()
                && !members.was_removed(id)
                && !uncommitted.contains(&id)
                && id != self.roster.node
        };
        if !is_unknown(node) {
            return Ok(());
        }
        let pinned = self.pinned.addresses();
        let mut forgotten = Vec::new();
        {
            let mut links = self.links.lock();
            let met = pinned.iter().map(|(id, _)| *id).chain(links.keys().copied());
            let mut unknown: BTreeSet<NodeId> = met.filter(|id| is_unknown(*id) && *id != node).collect();
            while unknown.len() >= limits::UNKNOWN_NODES {
                let is_connected = |id: &NodeId| links.get(id).is_some_and(|link| link.is_connected());
                let Some(unreached) = unknown.iter().copied().find(|id| !is_connected(id)) else {
                    return Err(format!(
                        "node {node} is no member of the cluster, as far as this node knows, and neither are {} others to \
                         which it is connected: add the node first (palisade members add), and keep programs that do not \
                         belong to the cluster away from this port",
                        unknown.len()
                    ));
                };
                unknown.remove(&unreached);
                forgotten.push(unreached);
                if let Some(link) = links.remove(&unreached) {
                    link.end();
                    link.state.lock().outbound.drain(..).for_each(|task| task.abort());
                }
            }
        }
        // Not under the lock of the links: this may wait for the disk.
        forgotten.into_iter().for_each(|id| self.pinned.forget(id));
        Ok(())
    }

    /// Rejects a server that claims to be `node` but has another data directory, or a copy of it.
    fn verify(&self, node: NodeId, incarnation: Incarnation, start: &Start, peer_addr: &str) -> Result<(), String> {
        let expected = expected_incarnation(&self.members.lock(), node);
        let pinned = self.pinned.verify_or_pin(node, incarnation, start, peer_addr, expected);
        pinned.map_err(|why| why.sentence(self.roster.node, node))
    }

    /// Rejects a request to replace a node if the lost directory is not of this cluster, or not the
    /// one that this node has pinned: then the request comes from an old copy, and the node itself
    /// may only be down. Also rejects it if the new member is already pinned with the requesting
    /// directory: then the request comes from a copy of a directory that has returned. A node
    /// that has never met the lost one cannot check this.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub fn recognise_lost(&self, member: &ReplaceMember) -> Result<(), Failure> {
        let lost = NodeId::new(member.id, member.generation);
        let ours = format!("{:016x}", self.roster.cluster);
        if member.cluster != ours {
            let message = format!(
                "the lost directory belongs to another cluster (ID {}) than this node, which belongs to cluster `{}` (ID {ours})",
                member.cluster, self.roster.cluster_name
            );
            return Err(Failure::new(Code::Invalid, message));
        }
        let incarnation: Incarnation = (member.lost_incarnation.parse())
            .map_err(|_| Failure::new(Code::Invalid, "lost_incarnation is not 16 hexadecimal digits"))?;
        let taken = |message| Err(Failure::new(Code::NodeIdInUse, message));
        let expected = expected_incarnation(&self.members.lock(), lost);
        let known = expected.or_else(|| self.pinned.incarnation(lost));
        if known.is_some_and(|known| known != incarnation) {
            return taken(format!(
                "node {lost} of this cluster has another data directory than the lost one: the lost one is an old copy, or \
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

    /// The address at which a node serves clients, if it has announced it.
    pub fn client_addr(&self, id: NodeId) -> Option<String> {
        if id == self.roster.node {
            return Some(self.roster.client_addr.clone());
        }
        self.link(id)?.state.lock().client_addr.clone()
    }

    /// The address at which the node of this number answers administrative requests, if it has announced
    /// one.
    pub fn admin_addr(&self, number: u16) -> Option<String> {
        if number == self.roster.node.number() {
            return self.roster.admin_addr.clone();
        }
        // The links are in the order of the generations.
        let links = self.links.lock();
        let link = links.iter().rev().find_map(|(id, link)| (id.number() == number).then_some(link))?;
        link.state.lock().admin_addr.clone()
    }

    /// What a node runs, as of its last handshake with this one.
    pub fn program(&self, id: NodeId) -> Option<Program> {
        if id == self.roster.node {
            return Some(Program::new(Speaks::this_program(), protocol_version()));
        }
        self.link(id)?.state.lock().program.clone()
    }

    /// Whether the outbound connection to a node is open; `None` if the node was removed or is
    /// unknown.
    pub fn reaches(&self, id: NodeId) -> Option<bool> {
        self.link(id).map(|link| link.state.lock().dialled)
    }

    /// Whether the inbound connection from a node is open; `true` for this node itself.
    pub fn is_connected(&self, id: NodeId) -> bool {
        id == self.roster.node || self.link(id).is_some_and(|link| link.state.lock().inbound.is_some())
    }
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::{Address, Change};

    use super::*;
    use crate::storage::SystemDisk;

    pub(super) fn peers(directory: &std::path::Path) -> (Arc<Peers>, ToDial) {
        let (snapshots, _) = Snapshots::open::<LockTable>(&SystemDisk::shared(), directory, 7).unwrap();
        let roster = Roster {
            cluster: 7,
            cluster_name: "test".into(),
            node: NodeId(1),
            incarnation: Incarnation(1),
            start: Start::default(),
            client_addr: String::new(),
            admin_addr: None,
            peer_addr: String::new(),
            peer_addrs: BTreeMap::new(),
            tls: None,
        };
        Peers::new(roster, PinnedPeers::load(directory).unwrap(), snapshots.into(), Metrics::new())
    }

    /// Goal: strangers that claim ever more node numbers make this node remember and dial few of them,
    /// and neither a member nor a node that is connected is forgotten for them.
    #[tokio::test]
    async fn strangers_are_forgotten_for_one_another() {
        let directory = tempfile::tempdir().unwrap();
        let (peers, _to_dial) = peers(directory.path());
        let members = Arc::new(Members::of([1, 2, 3].map(NodeId)));
        peers.set_members(&Members::of([1, 2, 3, 4].map(NodeId)), &members);
        let admit = async |number: u32| {
            let stranger =
                Roster { node: NodeId(number), incarnation: Incarnation(number.into()), ..peers.roster.clone() };
            peers.admit(&stranger.hello(NodeId(1), Purpose::Messages)).await
        };
        for member in [2, 3, 4] {
            admit(member).await.unwrap();
        }
        // It may be the leader of a cluster that this node has just joined.
        let connected = |link: &Link| {
            let mut state = link.state.lock();
            (state.dialled, state.inbound) = (true, Some(tokio::spawn(async {}).abort_handle()));
        };
        connected(&admit(5).await.unwrap());
        for number in 1_000..1_200 {
            admit(number).await.unwrap();
        }
        let known: Vec<u32> = peers.links.lock().keys().map(|node| node.0).collect();
        assert_eq!((known.len(), &known[..4]), (3 + limits::UNKNOWN_NODES, &[2, 3, 4, 5][..]));
        let pinned = |peers: &Peers| peers.pinned.addresses().into_iter().map(|(node, _)| node.0).collect::<Vec<_>>();
        assert_eq!(pinned(&peers), known);
        let stored = PinnedPeers::load(directory.path()).unwrap().addresses();
        assert_eq!(stored.into_iter().map(|(node, _)| node.0).collect::<Vec<_>>(), known);

        peers.links.lock().values().for_each(|link| connected(link));
        let refusal = admit(2_000).await.unwrap_err();
        assert!(refusal.contains("is no member of the cluster"), "{refusal}");
        assert_eq!(pinned(&peers), known);
    }

    /// Goal: connections from the addresses of members, also of one that is not committed yet, are no strangers'. A node
    /// that only claims to belong to the cluster does not turn its address into a member's.
    #[tokio::test]
    async fn addresses_of_members_are_those_that_they_are_dialled_at() {
        let directory = tempfile::tempdir().unwrap();
        let (peers, _to_dial) = peers(directory.path());
        peers.set_members(&Members::of([1, 2, 3].map(NodeId)), &Arc::new(Members::of([1, 2].map(NodeId))));
        // Nothing listens there, and the second is a name.
        for (id, address) in [(2, "127.0.0.2:1"), (3, "localhost:1"), (4, "127.0.0.4:1")] {
            let link = peers.get_or_create_link(NodeId(id), address).unwrap();
            assert!(dial::connect(&peers, &link, Purpose::Messages).await.is_err());
        }
        let is_member = |address: &str| peers.is_address_of_member(address.parse().unwrap());
        assert!(is_member("127.0.0.2") && is_member("::ffff:127.0.0.2"));
        assert!(is_member("127.0.0.1") || is_member("::1"));
        assert!(!is_member("127.0.0.4") && !is_member("127.0.0.5"));
    }

    /// Goal: the removal of a number ends the links of all its generations, also of one that no log has. A replacement
    /// ends that of the lost node only: a later generation may be one that this node has not heard of yet.
    #[test]
    fn removed_number_has_no_link_in_any_generation() {
        let directory = tempfile::tempdir().unwrap();
        let (peers, _to_dial) = peers(directory.path());
        let [lost, returned, unheard] = [0, 1, 2].map(|generation| NodeId::new(3, generation));
        let linked = || [lost, returned, unheard].map(|id| peers.get_or_create_link(id, "three:1").is_some());
        let founders = Arc::new(Members::of([NodeId(1), NodeId(2), lost]));
        peers.set_members(&founders, &founders);
        assert_eq!(linked(), [true; 3]);

        let replace = Change::Replace { lost, by: returned, address: Address::from("three:1") };
        let replaced = Arc::new(founders.with(&replace).unwrap());
        peers.set_members(&replaced, &founders);
        assert_eq!(linked(), [true; 3], "the replacement is not committed");
        peers.set_members(&replaced, &replaced);
        assert_eq!(linked(), [false, true, true]);

        let removed = Arc::new(replaced.with(&Change::Remove(returned)).unwrap());
        peers.set_members(&removed, &replaced);
        assert_eq!(linked(), [false, true, true], "the removal is not committed");
        peers.set_members(&removed, &removed);
        assert!(peers.links.lock().keys().all(|id| id.number() != 3), "no link is left");
        assert_eq!(linked(), [false; 3]);
    }

    /// A blank founder takes part once every other founder's server has welcomed it. One of them
    /// may have lost its log and returned in a later generation meanwhile.
    #[test]
    fn welcome_of_a_later_generation_counts() {
        let directory = tempfile::tempdir().unwrap();
        let (peers, _to_dial) = peers(directory.path());
        let founders = [NodeId(2), NodeId(3)];
        let welcomed = |node: NodeId| peers.get_or_create_link(node, "nowhere:1").unwrap().state.lock().welcomed = true;
        welcomed(NodeId(2));
        assert!(!peers.is_known_to(&founders));
        welcomed(NodeId::new(3, 1));
        assert!(peers.is_known_to(&founders));
    }
}
