//! Snapshots (§5): a log that does not grow for ever, and followers that lack what is gone from it.
//!
//! The driver takes snapshots, from what is durable ([`Durable::snapshot_at`](super::Durable::snapshot_at)), and tells
//! the node of one when it is durable; then the log's beginning may go. A follower that needs what is gone is sent the
//! newest snapshot instead. What a snapshot includes is committed, so it can be neither wrong nor too old, only of no use.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{
    Body, DropReason, Index, Log, Node, NodeId, Output, Persist, ProgressState, ReadRound, Role, Snapshot, StateMachine,
};

impl<S: StateMachine> Node<S> {
    /// A durable snapshot includes everything up to `through`.
    pub(super) fn on_compact(&mut self, through: Index, out: &mut Vec<Output<S>>) {
        assert!(through <= self.commit, "a snapshot has only what is committed");
        if through > self.log.base().index {
            self.log.compact(through);
            out.push(Output::Persist(Persist::Compact(through)));
        }
    }

    /// As leader: whether who needs the entry at `next` cannot be sent it, or not be asked whether it fits.
    pub(super) fn needs_snapshot(&self, next: Index) -> bool {
        next <= self.log.base().index
    }

    /// As leader: sends a follower the state instead of entries. It is probed from there on.
    pub(super) fn fall_back_to_snapshot(&mut self, peer: NodeId, out: &mut Vec<Output<S>>) {
        self.progress(peer).state = ProgressState::Probe;
        out.push(Output::SendSnapshot { to: peer, term: self.term() });
    }

    /// As follower: the leader's snapshot (figure 5.3, "InstallSnapshot RPC").
    pub(super) fn on_install_snapshot(&mut self, from: NodeId, snapshot: Arc<Snapshot<S>>, out: &mut Vec<Output<S>>) {
        let Snapshot { last, stamp, ref members, .. } = *snapshot;
        if self.is_leader() || last.term > self.term() {
            return out.push(Output::Dropped { from, reason: DropReason::Malformed });
        }
        self.role = Role::Follower { leader: Some(from) };
        out.push(Output::ArmElectionTimer);
        // What this node has committed already it does not take back.
        if last.index > self.commit {
            if self.log.term_at(last.index) == Some(last.term) {
                // Who has heard of no change of the members hears of them here.
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
