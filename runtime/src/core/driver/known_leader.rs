//! Logs changes of the leader. A leader that fails is a warning, on the node that notices it; a
//! planned transfer of leadership is not.

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
        let term = after.term;
        let led = self.leader == Some(self.node) && after.leader != Some(self.node);
        // Also if the next leader has been heard of in the same iteration.
        if led && timed_out {
            warn!(
                term,
                "this node no longer leads: no majority of the voters has answered it for an election timeout. Requests fail \
                 until a majority elects a leader: check that the other voters run, and the network between them and this node"
            );
        } else if led && self.transfers {
            info!(term, "this node no longer leads: it transferred leadership");
        } else if led {
            warn!(
                term,
                "this node no longer leads: another node has begun an election. If this repeats, check this node's disk, its \
                 processor time and its network"
            );
        }
        match (after.leader, self.leader) {
            (Some(leader), _) if leader == after.node => info!(term, "this node leads now"),
            (Some(leader), _) => info!(term, %leader, "this node follows a leader"),
            (None, Some(_)) if led => {}
            (None, Some(leader)) if timed_out => {
                warn!(
                    term, %leader,
                    "the leader is lost: nothing was heard from it for an election timeout; starting an election. If that node \
                     should run, check it and the network"
                );
            }
            (None, Some(leader)) => info!(term, %leader, "an election has begun: the leader is being replaced"),
            (None, None) => debug!(term, "no leader is known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// A writer whose clones write to one buffer.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn known(leader: Option<u32>, term: u64, transfers: bool) -> KnownLeader {
        KnownLeader { node: NodeId(1), leader: leader.map(NodeId), term, transfers }
    }

    fn logged(before: &KnownLeader, after: &KnownLeader, timed_out: bool) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || writer.clone());
        tracing::subscriber::with_default(log.finish(), || before.log_change(after, timed_out));
        let bytes = lines.0.lock().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// Goal: the end of leadership is logged, and why, whether or not the next leader is known yet.
    #[test]
    fn end_of_leadership_is_logged_also_with_the_next_leader() {
        for next in [None, Some(2)] {
            let transferred = logged(&known(Some(1), 3, true), &known(next, 4, false), false);
            assert!(transferred.contains("INFO") && !transferred.contains("WARN"), "{transferred}");
            assert!(transferred.contains("it transferred leadership"), "{transferred}");
            let replaced = logged(&known(Some(1), 3, false), &known(next, 4, false), false);
            assert!(replaced.contains("WARN") && replaced.contains("another node has begun an election"), "{replaced}");
            let alone = logged(&known(Some(1), 3, false), &known(next, 4, false), true);
            assert!(alone.contains("WARN") && alone.contains("no majority of the voters"), "{alone}");
            for log in [transferred, replaced, alone] {
                assert_eq!(log.contains("this node follows a leader"), next.is_some(), "{log}");
            }
        }
    }

    /// Goal: a follower warns of a leader that it no longer hears, and of nothing else.
    #[test]
    fn follower_warns_only_of_a_leader_that_it_no_longer_hears() {
        let lost = logged(&known(Some(2), 3, false), &known(None, 3, false), true);
        assert!(lost.contains("WARN") && lost.contains("the leader is lost"), "{lost}");
        let replaced = logged(&known(Some(2), 3, false), &known(None, 4, false), false);
        assert!(replaced.contains("INFO") && replaced.contains("is being replaced"), "{replaced}");
        assert_eq!(logged(&known(Some(2), 3, false), &known(Some(2), 3, true), true), "");
    }
}
