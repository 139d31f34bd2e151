//! Snapshots (§5): they bound the log's length, and serve followers that lack entries removed from
//! it.
//!
//! The driver takes snapshots of durable state
//! ([`Durable::snapshot_at`](super::Durable::snapshot_at)), and reports each one when it is
//! durable; then the node removes the log's beginning. The leader sends its newest snapshot to a
//! follower that needs removed entries. A snapshot includes only committed entries, so an old
//! snapshot is useless but never wrong.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{
    Body, DropReason, Index, Log, Node, NodeId, Output, Persist, ProgressState, ReadRound, Role, Snapshot, StateMachine,
};

impl<S: StateMachine> Node<S> {
    /// Handles the report of a durable snapshot that includes everything up to `through`.
    pub(super) fn on_compact(&mut self, through: Index, out: &mut Vec<Output<S>>) {
        assert!(through <= self.commit, "a snapshot has only what is committed");
        if through > self.log.base().index {
            self.log.compact(through);
            out.push(Output::Persist(Persist::Compact(through)));
        }
    }

    /// Leader: whether a follower that needs the entry at `next` needs a snapshot: the log lacks
    /// that entry, or the position before it.
    pub(super) fn needs_snapshot(&self, next: Index) -> bool {
        next <= self.log.base().index
    }

    /// Leader: requests a snapshot for a follower, which is probed from there on.
    pub(super) fn fall_back_to_snapshot(&mut self, peer: NodeId, out: &mut Vec<Output<S>>) {
        self.progress(peer).state = ProgressState::Probe;
        out.push(Output::SendSnapshot { to: peer, term: self.term() });
    }

    /// Follower: installs the leader's snapshot (figure 5.3, "InstallSnapshot RPC").
    pub(super) fn on_install_snapshot(&mut self, from: NodeId, snapshot: Arc<Snapshot<S>>, out: &mut Vec<Output<S>>) {
        let Snapshot { last, stamp, ref members, .. } = *snapshot;
        if self.is_leader() || last.term > self.term() {
            return out.push(Output::Dropped { from, reason: DropReason::Malformed });
        }
        self.role = Role::Follower { leader: Some(from) };
        out.push(Output::ArmElectionTimer);
        // A node never reverts what it has committed.
        if last.index > self.commit {
            if self.log.term_at(last.index) == Some(last.term) {
                // A node that lacks earlier membership changes takes the members from the snapshot.
                self.log.set_members_at(last.index, members);
                self.log.compact(last.index);
            } else {
                self.log = Log::starting_at(last, stamp, Arc::clone(members));
                self.clock = stamp;
            }
            self.machine = snapshot.machine.clone();
            self.commit = last.index;
            out.push(Output::Persist(Persist::Snapshot(snapshot)));
        }
        // A leader has everything that was ever committed (§3.6.3).
        self.send(from, Body::AppendAccepted { matched: self.commit, round: ReadRound::default() }, out);
    }
}
