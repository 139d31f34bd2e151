//! Linearizable reads without a log entry (ReadIndex, §6.4).
//!
//! A read must see everything that was acknowledged before the read was requested. All of that is
//! committed, so it suffices that at some moment after the request this node's commit index is at
//! least the cluster's. There are two risks:
//!
//! - A new leader has every committed entry, but does not know which of its entries are committed.
//!   It knows once it has committed an entry of its own term: until then reads wait.
//! - The leader may have been deposed without knowing it, and its successor may have committed
//!   more. If a majority has followed it in its term *after* the request, no other leader can have
//!   committed anything before the request: reads wait for the answers to messages sent after them.
//!   Each such message carries the number of a **round**; a round is confirmed when a majority has
//!   answered it or a later one.
//!
//! While one round is in progress, new reads wait for the next: many reads share one round. A
//! confirmed read can be served at once, because a node applies what it commits in the same step.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Node, NodeId, Output, ReadRound, RequestId, Role, StateMachine};

/// The reads that a leader has not confirmed, and its rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reads {
    /// The round that current messages carry.
    pub round: ReadRound,
    /// The reads that wait for this round.
    pub asked: Vec<RequestId>,
    /// The reads that arrived since this round began.
    pub next: Vec<RequestId>,
}

impl<S: StateMachine> Node<S> {
    /// Handles a read request. Answered by [`Output::ReadReady`] or [`Output::ReadRefused`], or not
    /// at all if the node stops leading first.
    pub(super) fn on_read(&mut self, id: RequestId, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &mut self.role else {
            return out.push(Output::ReadRefused { id, leader: self.leader() });
        };
        leadership.reads.next.push(id);
        self.begin_round(out);
    }

    /// Leader: begins a round for the waiting reads, if no round is in progress and the commit
    /// index is known.
    pub(super) fn begin_round(&mut self, out: &mut Vec<Output<S>>) {
        let known = self.has_committed_in_its_term();
        let Role::Leader(leadership) = &mut self.role else { return };
        let reads = &mut leadership.reads;
        if !known || !reads.asked.is_empty() || reads.next.is_empty() {
            return;
        }
        reads.round = ReadRound(reads.round.0 + 1);
        reads.asked = core::mem::take(&mut reads.next);
        self.heartbeat(out);
        self.confirm_round(out);
    }

    /// Leader: records that a follower has answered a message of `round`.
    pub(super) fn record_reply(&mut self, from: NodeId, round: ReadRound) {
        let progress = self.progress(from);
        progress.active = true;
        progress.round = progress.round.max(round);
    }

    /// Leader: if a majority has answered the current round, its reads are ready, and the next
    /// round begins.
    pub(super) fn confirm_round(&mut self, out: &mut Vec<Output<S>>) {
        let members = alloc::sync::Arc::clone(self.log.members());
        let id = self.id();
        let Role::Leader(leadership) = &mut self.role else { return };
        let round = leadership.reads.round;
        let answered = |voter| voter == id || leadership.progress.get(&voter).is_some_and(|peer| peer.round >= round);
        if leadership.reads.asked.is_empty() || !members.is_majority(answered) {
            return;
        }
        for id in core::mem::take(&mut leadership.reads.asked) {
            out.push(Output::ReadReady(id));
        }
        self.begin_round(out);
    }
}
