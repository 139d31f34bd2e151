//! Linearizable reads without a log entry (ReadIndex, §6.4).
//!
//! A read must see everything that was acknowledged before it was asked. Everything that was is committed, so it is
//! enough to know at some moment after the question that this node's commit index is the cluster's. Two things could
//! be wrong with it:
//!
//! - A new leader has every committed entry, but does not know which of its entries are committed. It does once it has
//!   committed one of its own term: until then reads wait.
//! - The leader may have been deposed without knowing, and its successor has committed more. If a majority has
//!   followed it in its term *after* the question came, no other leader can have committed anything before: reads wait
//!   for the answers to messages that were sent after them. Each such message carries the number of a **round**;
//!   a round is confirmed when a majority has answered to it or to a later one.
//!
//! While one round is under way, the reads that come in wait for the next: many share one. Here a read that is
//! confirmed can be served at once, for what is committed is applied.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Node, NodeId, Output, ReadId, ReadRound, Role, StateMachine};

/// The reads that a leader has not confirmed, and its rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reads {
    /// The round that the messages of now carry.
    pub round: ReadRound,
    /// Those that wait for this round.
    pub asked: Vec<ReadId>,
    /// Those that came since it began.
    pub next: Vec<ReadId>,
}

impl<S: StateMachine> Node<S> {
    /// Somebody wants to read. Answered by [`Output::ReadReady`], by [`Output::ReadRefused`], or, if the node loses
    /// its office first, not at all.
    pub(super) fn on_read(&mut self, id: ReadId, out: &mut Vec<Output<S>>) {
        let Role::Leader(leadership) = &mut self.role else {
            return out.push(Output::ReadRefused { id, leader: self.leader() });
        };
        leadership.reads.next.push(id);
        self.begin_round(out);
    }

    /// As leader: begins a round for the reads that wait, if none is under way and the commit index is known.
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

    /// As leader: a follower has answered to a message of `round`.
    pub(super) fn on_answer(&mut self, from: NodeId, round: ReadRound) {
        let progress = self.progress(from);
        progress.active = true;
        progress.round = progress.round.max(round);
    }

    /// As leader: if a majority has answered in the round under way, its reads are ready, and the next begins.
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
