//! The core's published state, for status pages and metrics.

use std::mem;
use std::sync::Arc;

use palisade_client::wire::MemberView;
use palisade_spec::lock::{Access, LockTable};
use palisade_spec::raft::{Member, Members, Node, NodeId, Role, Standing};
use tokio::sync::watch;

use crate::member_address::MemberAddress;
use crate::sync::Mutex;

/// A node's state as of its last step.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Name of the role; "founding" while a founder takes no part.
    pub role: &'static str,
    /// At such a founder: the founders that have not met it.
    pub waiting_for: Vec<NodeId>,
    /// The term.
    pub term: u64,
    /// The leader, if known.
    pub leader: Option<NodeId>,
    /// The last index committed and applied on this node.
    pub commit: u64,
    /// The last index in the log.
    pub last: u64,
    /// Number of log entries in memory.
    pub entries: u64,
    /// Bytes written to the log since the last snapshot.
    pub log_bytes: u64,
    /// Cluster time in milliseconds.
    pub clock: u64,
    /// Live sessions.
    pub sessions: u64,
    /// Held locks.
    pub locks: u64,
    /// Bytes of all claims.
    pub claimed_bytes: u64,
    /// Waiting acquires of this node's clients.
    pub waits: u64,
    /// The cluster's members: the latest in its log.
    pub members: Arc<Members>,
    /// On a leader: each peer, and the last index that the peer has acknowledged.
    pub matched: Vec<(NodeId, u64)>,
    /// The access rules that this node has applied.
    pub access: Access,
}

/// The view that the core publishes and others read.
#[derive(Debug, Default)]
pub struct SharedView {
    view: Mutex<View>,
    leader: watch::Sender<Option<NodeId>>,
}

impl SharedView {
    /// A copy of the view.
    pub fn get(&self) -> View {
        self.view.lock().clone()
    }

    /// The leader, if known; it may be this node itself.
    pub fn leader(&self) -> Option<NodeId> {
        *self.leader.borrow()
    }

    /// The leader from now on, and whenever another one is known, or none.
    pub fn watch_leader(&self) -> watch::Receiver<Option<NodeId>> {
        self.leader.subscribe()
    }

    /// The access rules that this node has applied.
    pub fn access(&self) -> Access {
        self.view.lock().access.clone()
    }

    pub(super) fn publish(&self, node: &Node<LockTable>, waits: usize, log_bytes: u64, waiting_for: Option<&[NodeId]>) {
        self.leader.send_if_modified(|leader| mem::replace(leader, node.leader()) != node.leader());
        let mut view = self.view.lock();
        view.role = if waiting_for.is_some() { "founding" } else { node.role().name() };
        view.waiting_for = waiting_for.unwrap_or_default().to_vec();
        view.term = node.term().0;
        view.leader = node.leader();
        view.commit = node.commit().0;
        view.last = node.log().last().index.0;
        view.entries = node.log().entries().len() as u64;
        view.log_bytes = log_bytes;
        view.clock = node.clock().0;
        view.sessions = node.machine().sessions().len() as u64;
        view.locks = node.machine().locks().len() as u64;
        view.claimed_bytes = node.machine().claimed_bytes();
        view.waits = waits as u64;
        view.members = Arc::clone(node.log().members());
        view.matched = matched(node);
        view.access = node.machine().access().clone();
    }
}

/// On a leader: each peer, and the last index that the peer has acknowledged.
pub(super) fn matched(node: &Node<LockTable>) -> Vec<(NodeId, u64)> {
    match node.role() {
        Role::Leader(leadership) => leadership.progress.iter().map(|(&id, peer)| (id, peer.matched.0)).collect(),
        _ => Vec::new(),
    }
}

/// What the connections of a node tell of a member.
#[derive(Clone, Debug, Default)]
pub struct Reachability {
    /// Where it serves clients, if it has announced that.
    pub client_addr: Option<String>,
    /// Whether it has a connection to the node.
    pub connected: bool,
}

/// The members as clients see them.
pub fn member_views(
    members: &Members,
    matched: &[(NodeId, u64)],
    reachability: impl Fn(NodeId) -> Reachability,
) -> Vec<MemberView> {
    let view = |(id, member): (NodeId, &Member)| {
        let Reachability { client_addr, connected } = reachability(id);
        MemberView {
            id: id.number(),
            generation: id.generation(),
            voter: member.standing == Standing::Voter,
            returning: member.standing == Standing::Returning,
            peer_addr: MemberAddress::of(&member.address).peer_addr,
            client_addr,
            connected,
            matched: matched.iter().find(|(peer, _)| *peer == id).map(|&(_, matched)| matched),
            // The core does not know what others run, nor their disks.
            version: None,
            protocol: None,
            disk: None,
        }
    };
    members.iter().map(view).collect()
}
