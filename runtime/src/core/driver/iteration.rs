//! One iteration of the core: take inputs, step the node, write, release outputs.

use std::collections::BTreeSet;
use std::time::Instant;

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Change, Input, Message, NodeId, Output, Progress, RequestId, Role};

use super::super::channel::Event;
use super::super::transport::Transport;
use super::known_leader::KnownLeader;
use super::{Batch, Driver, leader_view, reachability};
use crate::limits;
use crate::storage::StorageError;

impl<T: Transport> Driver<T> {
    /// Runs one iteration: steps the node with every input, then executes every output. `now`
    /// was read *after* the inputs were taken, so it is later than the moment at which any client
    /// sent its request: a deadline counted from `now` is never earlier than one counted from that
    /// moment.
    ///
    /// # Errors
    /// If a write failed, or may have failed. No output after it was executed, and none may be:
    /// the process must stop.
    pub fn iterate(&mut self, batch: &mut Batch, now: Instant) -> Result<(), StorageError> {
        let led = self.leading();
        let before = KnownLeader::of(&self.node);
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
                Event::TakeSnapshot(reply) => self.scheduler.request(reply),
                Event::SnapshotWritten(result) => {
                    if let (Some(audit), Ok(info)) = (&mut self.audit, &result) {
                        audit.snapshot_taken(info.last.index);
                    }
                    self.scheduler.written(result, self.now);
                }
                Event::Stop => self.stops = Some(self.now + self.timers.longest_election()),
            }
        }
        self.requests.tick(&self.node, self.now);
        // Messages first, then all client requests in one proposal: its AppendEntries come before
        // its write in the outputs, and so leave before the sync.
        if let Some(proposals) = self.requests.proposals() {
            self.step(proposals);
        }
        while let Some((id, change)) = self.requests.change(&self.node) {
            match change {
                Change::Replace { lost, .. } if self.node.is_leader() && self.transport.is_connected(lost) => {
                    self.requests.replaced_is_connected(id, lost);
                }
                Change::Replace { by, .. } if self.node.is_leader() && self.transport.is_connected(by) => {
                    self.requests.replaced_is_connected(id, by);
                }
                change if self.exceeds_members(&change) => self.requests.members_exceed_limit(id),
                change => match self.missing_for(&change) {
                    missing if missing.is_empty() => self.step(Input::Change { id, change }),
                    missing => self.requests.change_loses_majority(id, &missing),
                },
            }
        }
        if let Some(read) = self.requests.read() {
            self.read(read);
        }
        while let Some((id, to)) = self.requests.next_transfer(&self.node) {
            self.step(Input::Transfer { id, to });
        }
        self.transfer_before_stop();
        // Timers last: a message of this iteration may have restarted them.
        if self.timers.heartbeat_is_due(self.now) {
            self.step(Input::HeartbeatTimeout);
            if self.node.is_leader() && !self.freshness.awaits_confirmation() {
                let read = self.requests.read_of_no_client();
                self.read(read);
            }
        }
        let timed_out = self.timers.election_is_due(self.now);
        if timed_out {
            if self.participates() {
                self.answered = self.active_peers();
                self.step(Input::ElectionTimeout);
            } else {
                self.timers.arm_election(self.now);
            }
        }
        // The transport must dial new members before the outputs send to them.
        self.update_members();
        self.execute_outputs()?;
        self.wal.tend(now);
        self.requests.answer_reads(&self.node, self.freshness.age(self.now));
        self.requests.answer_changes(&self.node, |id| reachability(&self.transport, id));
        // All outputs are executed: the node's state machine is that of the durable log up to
        // the commit index.
        self.scheduler.maybe_take(&self.node, self.now);
        let leads = self.leading();
        if led.is_some() && led != leads {
            self.requests.lost_leadership();
            self.freshness.reads_ended();
            self.answered.clear();
        }
        if leads.is_some() && led != leads {
            self.timers.start_clock(self.now);
            self.requests.began_to_lead(self.now);
        }
        self.requests.recount_sessions(&self.node);
        self.requests.answer_transfers(&self.node, self.now, |id| leader_view(&self.transport, id));
        before.log_change(&KnownLeader::of(&self.node), timed_out);
        Ok(())
    }

    /// Steps a message from a peer. A blank founder ignores messages until all other founders have
    /// welcomed it: it could be one that has lost its disk, and founders that had not met it before
    /// would not notice.
    fn receive(&mut self, message: Message<LockTable>) {
        // One of a snapshot's table and the present one is dropped with the message.
        if let Body::InstallSnapshot { snapshot } = &message.body {
            let tables = [snapshot.machine.clone(), self.node.machine().clone()];
            self.step_received(message);
            tables.into_iter().for_each(|table| self.scheduler.drop_table(table));
        } else {
            self.step_received(message);
        }
    }

    fn step_received(&mut self, message: Message<LockTable>) {
        if !self.participates() {
            return;
        }
        let leader_commit = match message.body {
            Body::AppendEntries { commit, .. } => Some(commit),
            _ => None,
        };
        let (from, term) = (message.from, message.term);
        self.step(Input::Receive(message));
        // A replaced leader's message that was delayed is no news.
        let follows = self.node.leader() == Some(from) && self.node.term() == term;
        if follows && leader_commit.is_some_and(|commit| commit <= self.node.commit()) {
            self.freshness.is_current(self.now);
        }
    }

    fn read(&mut self, read: RequestId) {
        self.freshness.read_requested(read, self.now);
        self.step(Input::Read(read));
    }

    fn participates(&mut self) -> bool {
        self.founding.takes_part(self.now, |other| self.transport.is_known_to(&[other]))
    }

    /// Whether the change adds a member to a cluster that has all that it may have.
    fn exceeds_members(&self, change: &Change) -> bool {
        let members = self.node.members();
        let is_new = matches!(change, Change::Add { id, .. } if members.by_number(id.number()).is_none());
        self.node.is_leader() && is_new && members.iter().count() >= limits::MEMBERS
    }

    /// The nodes that are missing for the change: the voters after it that do not follow this leader, if
    /// the others are no majority, or the learner to promote is among them. The change would be safe, but
    /// might not be committed before they are back, nor anything after it.
    ///
    /// A voter follows if it is connected, answers, and lacks no more committed entries than fit in one
    /// message. An open connection alone proves little: a process that was stopped keeps it, because its
    /// kernel answers, and a voter that loads a snapshot acknowledges nothing. What is in flight to all voters
    /// is no lag, so a busy cluster may be changed. How much of the log a learner must have, the node
    /// decides, and says so.
    pub(super) fn missing_for(&self, change: &Change) -> Vec<NodeId> {
        let Role::Leader(leadership) = self.node.role() else { return Vec::new() };
        let Ok(members) = self.node.members().with(change) else { return Vec::new() };
        let is_promoted = |id: NodeId| matches!(change, Change::Promote(learner) if *learner == id);
        let follows = |id: NodeId, peer: &Progress| {
            self.answers_lately(id, peer) && (is_promoted(id) || !self.lacks_many_entries(peer))
        };
        let is_away =
            |id: &NodeId| *id != self.node.id() && !leadership.progress.get(id).is_some_and(|peer| follows(*id, peer));
        let away: Vec<NodeId> = members.voters().filter(is_away).collect();
        let loses_majority = !members.is_majority(|id| !away.contains(&id));
        away.into_iter().filter(|&id| loses_majority || is_promoted(id)).collect()
    }

    /// Leader: whether the peer is connected, and has answered in this period of the quorum check
    /// (CheckQuorum, §6.2) or in the one before it. A period is an election timeout, up to twice the minimum,
    /// and has at least five heartbeats: a peer that answers them is never missing because a period has just
    /// begun, and one that does not is missing after four minimum election timeouts at the latest.
    fn answers_lately(&self, id: NodeId, peer: &Progress) -> bool {
        self.transport.is_connected(id) && (peer.active || self.answered.contains(&id))
    }

    /// Leader: whether the peer lacks more committed entries than fit in one message.
    fn lacks_many_entries(&self, peer: &Progress) -> bool {
        self.node.commit().0.saturating_sub(peer.matched.0) > self.node.config().max_batch as u64
    }

    /// Leader: the peers that have answered in this period of the quorum check.
    fn active_peers(&self) -> BTreeSet<NodeId> {
        let Role::Leader(leadership) = self.node.role() else { return BTreeSet::new() };
        leadership.progress.iter().filter(|(_, peer)| peer.active).map(|(&id, _)| id).collect()
    }

    /// A leader that must stop transfers leadership first, so that the cluster does not wait for an
    /// election timeout (§3.10).
    fn transfer_before_stop(&mut self) {
        let is_transferring = matches!(self.node.role(), Role::Leader(leadership) if leadership.successor.is_some());
        if self.stops.is_some() && self.node.is_leader() && !is_transferring {
            // The node stops even if no member can take over from it: the driver drops the answer.
            let id = self.requests.next_id();
            self.step(Input::Transfer { id, to: None });
        }
    }

    /// Steps the node. Timers are armed at once: they belong to the driver, and a later input of
    /// this iteration may depend on them.
    pub(super) fn step(&mut self, input: Input<LockTable>) {
        let first = self.outputs.len();
        let observed = self.observer.is_some().then(|| input.clone());
        self.node.step(input, &mut self.outputs);
        if let (Some(observer), Some(input)) = (&mut self.observer, observed) {
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
}
