//! One round: drain, step, write, release.

use std::time::Instant;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Change, Input, Message, NodeId, Output, Role, Term};
use tracing::{debug, info, warn};

use super::super::Event;
use super::super::transport::Transport;
use super::{Batch, Driver, leader_view};
use crate::storage::StorageError;

impl<T: Transport> Driver<T> {
    /// One round: every event is stepped, then every output is carried out. `now` was read *after* the events were taken
    /// in, so it is later than the moment any client sent its request: a deadline counted from this clock is never before
    /// one counted from that moment.
    ///
    /// # Errors
    /// If a write failed, or may have. Nothing that stood behind it was carried out, and nothing ever may be: the process
    /// must stop.
    pub fn round(&mut self, batch: &mut Batch, now: Instant) -> Result<(), StorageError> {
        let led = self.leading();
        let (leader, term) = (self.node.leader(), self.node.term());
        self.now = now;
        let elapsed = self.timers.elapsed(self.now);
        self.step(Input::ClockAdvanced(elapsed));
        if let Some(through) = self.scheduler.compaction(&self.node) {
            self.step(Input::Compact(through));
        }
        for message in batch.messages.drain(..) {
            self.receive(message);
        }
        for event in batch.events.drain(..) {
            match event {
                Event::Request(request, responder) => self.requests.take(&self.node, request, responder),
                Event::Disconnected(connection) => self.requests.disconnected(connection, self.now),
                Event::TakeSnapshot(reply) => self.scheduler.want(reply),
                Event::SnapshotWritten(result) => self.scheduler.written(result, self.now),
                Event::Stop => self.stops = Some(self.now + self.timers.longest_election()),
            }
        }
        self.requests.tick(&self.node, self.now);
        // Messages first, then everything that clients want, in one proposal: its AppendEntries stand before its
        // write in the outputs, and so leave before the sync.
        let proposals = self.requests.proposals();
        if !proposals.is_empty() {
            self.step(Input::Propose(proposals));
        }
        while let Some(change) = self.requests.change(&self.node) {
            match change {
                Change::Replace { lost, .. } if self.node.is_leader() && self.transport.is_connected(lost) => {
                    self.requests.replaced_is_there(lost);
                }
                Change::Replace { by, .. } if self.node.is_leader() && self.transport.is_connected(by) => {
                    self.requests.replaced_is_there(by);
                }
                change if self.strands(&change) => self.requests.change_strands(),
                change => self.step(Input::Change(change)),
            }
        }
        if let Some(read) = self.requests.read() {
            self.step(Input::Read(read));
        }
        while let Some(to) = self.requests.wish(&self.node) {
            self.step(Input::Transfer(to));
            // One that is refused is told from the others by being the last.
            self.settle_wish();
        }
        self.hand_over_to_stop();
        // Timers last: what has arrived meanwhile may have started them afresh.
        if self.timers.heartbeat_is_due(self.now) {
            self.step(Input::HeartbeatTimeout);
        }
        if self.timers.election_is_due(self.now) {
            if self.takes_part() {
                self.step(Input::ElectionTimeout);
                self.check_contact();
            } else {
                self.timers.arm_election(self.now);
            }
        }
        // New members are to be dialled before anything is sent to them.
        self.tell_members();
        self.carry_out()?;
        self.wal.tend(now);
        self.requests.answer_reads(&self.node, self.freshness.age(self.now));
        // Everything is carried out: the node's state is that of the durable log up to the commit index.
        self.scheduler.tend(&self.node, self.now);
        let leads = self.leading();
        if led.is_some() && led != leads {
            self.requests.lost_leadership();
        }
        if leads.is_some() && led != leads {
            self.timers.start_clock(self.now);
        }
        self.requests.watch_handover(&self.node, |id| leader_view(&self.transport, id));
        self.log_changes(leader, term);
        Ok(())
    }

    /// A message from a peer. A blank founder takes part only when all others know it: it could be one that has lost its disk,
    /// and they would not notice if they had not met it before.
    fn receive(&mut self, message: Message<LockTable>) {
        if !self.takes_part() {
            return;
        }
        let told = match message.body {
            Body::AppendEntries { commit, .. } => Some(commit),
            _ => None,
        };
        let replaced = matches!(message.body, Body::InstallSnapshot { .. }).then(|| self.node.machine().clone());
        self.step(Input::Receive(message));
        if let Some(replaced) = replaced {
            self.scheduler.let_go(replaced);
        }
        let follows = !self.node.is_leader() && self.node.leader().is_some();
        if follows && told.is_some_and(|commit| commit <= self.node.commit()) {
            self.freshness.is_current(self.now);
        }
    }

    /// After an election timeout: a leader that still leads has been answered by a majority.
    fn check_contact(&mut self) {
        if let Some(term) = self.leading() {
            let knows = self.node.log().term_at(self.node.commit()) == Some(term);
            self.freshness.has_majority(knows, self.now);
        } else {
            self.freshness.follows();
        }
    }

    fn takes_part(&mut self) -> bool {
        if self.founding && self.transport.is_known_to(&self.founders) {
            info!("all founders know this node");
            self.founding = false;
        }
        !self.founding
    }

    /// Whether a change would leave the cluster to members that are not there now. It would be safe, and it could not be undone.
    fn strands(&self, change: &Change) -> bool {
        let Ok(members) = self.node.members().with(change) else { return false };
        let is_there = |id| self.transport.is_connected(id);
        let learner_is_away = matches!(change, Change::Promote(id) if !is_there(*id));
        self.node.is_leader() && (learner_is_away || !members.is_majority(is_there))
    }

    /// Answers a wish to hand over that the node has just refused.
    fn settle_wish(&mut self) {
        if let Some(Output::TransferRefused { leader }) = self.outputs.last() {
            let leader = self.leader_view(*leader);
            self.outputs.pop();
            self.requests.transfer_refused(self.node.is_leader(), leader);
        }
    }

    /// A leader that is to stop hands over first: so nobody has to wait for an election timeout (§3.10).
    fn hand_over_to_stop(&mut self) {
        let hands_over = matches!(self.node.role(), Role::Leader(leadership) if leadership.successor.is_some());
        if self.stops.is_some() && self.node.is_leader() && !hands_over {
            self.step(Input::Transfer(None));
        }
    }

    /// Steps the node. Timers are armed at once: they are the driver's own, and a later input of this round may
    /// depend on them.
    pub(super) fn step(&mut self, input: Input<LockTable>) {
        let first = self.outputs.len();
        let shown = self.observer.is_some().then(|| input.clone());
        self.node.step(input, &mut self.outputs);
        if let (Some(observer), Some(input)) = (&mut self.observer, shown) {
            observer.stepped(&self.node, &input, &self.outputs[first..]);
        }
        for output in &self.outputs[first..] {
            match output {
                Output::ArmElectionTimer => self.timers.arm_election(self.now),
                Output::ArmHeartbeatTimer => self.timers.arm_heartbeat(self.now),
                _ => {}
            }
        }
    }

    fn log_changes(&self, leader: Option<NodeId>, term: Term) {
        if (self.node.leader(), self.node.term()) == (leader, term) {
            return;
        }
        let (role, term) = (self.node.role().name(), self.node.term().0);
        match self.node.leader() {
            Some(leader) => info!(role, term, %leader, "leader known"),
            None if leader.is_some() => warn!(role, term, "no leader heard"),
            None => debug!(role, term, "no leader yet"),
        }
    }
}
