//! The core's published state, for status pages and metrics.

use std::sync::Arc;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Members, Node, NodeId, Role};

use crate::sync::Mutex;

/// A node's state as of its last step.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Name of the role.
    pub role: &'static str,
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
    /// Waiting acquires of this node's clients.
    pub waits: u64,
    /// The cluster's members: the latest in its log.
    pub members: Arc<Members>,
    /// On a leader: each peer, and the last index that the peer has acknowledged.
    pub matched: Vec<(NodeId, u64)>,
}

/// The view that the core publishes and others read.
#[derive(Debug, Default)]
pub struct SharedView(Mutex<View>);

impl SharedView {
    /// A copy of the view.
    pub fn get(&self) -> View {
        self.0.lock().clone()
    }

    /// The leader, if known; it may be this node itself.
    pub fn leader(&self) -> Option<NodeId> {
        self.0.lock().leader
    }

    pub(super) fn publish(&self, node: &Node<LockTable>, waits: usize, log_bytes: u64) {
        let mut view = self.0.lock();
        view.role = node.role().name();
        view.term = node.term().0;
        view.leader = node.leader();
        view.commit = node.commit().0;
        view.last = node.log().last().index.0;
        view.entries = node.log().entries().len() as u64;
        view.log_bytes = log_bytes;
        view.clock = node.clock().0;
        view.sessions = node.machine().sessions().len() as u64;
        view.locks = node.machine().locks().len() as u64;
        view.waits = waits as u64;
        view.members = Arc::clone(node.log().members());
        view.matched.clear();
        if let Role::Leader(leadership) = node.role() {
            view.matched.extend(leadership.progress.iter().map(|(&peer, progress)| (peer, progress.matched.0)));
        }
    }
}
