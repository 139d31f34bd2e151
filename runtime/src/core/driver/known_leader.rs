//! What a node logs about leaders. A leader that fails is a warning, on the node that notices it; a
//! leader that hands over as planned is not.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Node, NodeId, Role};
use tracing::{debug, info, warn};

/// A node's knowledge of the leader.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KnownLeader {
    node: NodeId,
    leader: Option<NodeId>,
    term: u64,
    /// Whether the node leads, and is transferring leadership.
    transfers: bool,
}

impl KnownLeader {
    pub(super) fn of(node: &Node<LockTable>) -> KnownLeader {
        let transfers = matches!(node.role(), Role::Leader(leadership) if leadership.successor.is_some());
        KnownLeader { node: node.id(), leader: node.leader(), term: node.term().0, transfers }
    }

    /// Logs the change to `after`, if there is one. `timed_out` tells whether the node's election
    /// timer fired meanwhile: then it has not heard from its leader, or as the leader from a
    /// majority, for an election timeout.
    pub(super) fn log_change(&self, after: &KnownLeader, timed_out: bool) {
        if (self.leader, self.term) == (after.leader, after.term) {
            return;
        }
        let (term, led) = (after.term, self.leader == Some(self.node));
        match (after.leader, self.leader) {
            (Some(leader), _) if leader == after.node => info!(term, "this node leads now"),
            (Some(leader), _) => info!(term, %leader, "this node follows a leader"),
            (None, Some(_)) if led && timed_out => {
                warn!(
                    term,
                    "this node no longer leads: no majority of the voters has answered it for an election timeout"
                );
            }
            (None, Some(_)) if led && self.transfers => {
                info!(term, "this node no longer leads: it transferred leadership")
            }
            (None, Some(_)) if led => warn!(term, "this node no longer leads: another node has begun an election"),
            (None, Some(leader)) if timed_out => {
                warn!(term, %leader, "the leader is lost: nothing was heard from it for an election timeout; starting an election");
            }
            (None, Some(leader)) => info!(term, %leader, "an election has begun: the leader is being replaced"),
            (None, None) => debug!(term, "no leader is known"),
        }
    }
}
