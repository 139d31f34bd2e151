//! The core's rounds: drain, step, write, release.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, select};
use palisade_client::wire::LeaderView;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{
    Body, Change, HardState, Input, Members, Message, Node, NodeId, Output, Persist, Role, Snapshot, StateMachine, Term,
};
use tracing::{debug, info, warn};

use super::contact::Contact;
use super::desk::Desk;
use super::snapshots::Taker;
use super::timers::Timers;
use super::view::SharedView;
use super::{CoreParts, Doors, Event};
use crate::limits;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::storage::{StorageError, Wal};

/// The longest the core sleeps when nothing at all is due.
const IDLE: Duration = Duration::from_secs(1);

/// The pause between two rounds in which somebody is due: a clock that counts milliseconds need not be asked more often.
const SWEEP_PACE: Duration = Duration::from_millis(1);

struct Round<'a> {
    node: Node<LockTable>,
    wal: Wal<LockTable>,
    timers: Timers,
    contact: Contact,
    desk: Desk,
    taker: Taker,
    peers: Arc<Peers>,
    metrics: Arc<Metrics>,
    view: &'a SharedView,
    /// The outputs of this round's steps; kept between rounds for its memory.
    outputs: Vec<Output<LockTable>>,
    /// When this round began.
    now: Instant,
    /// The members that the connections were told of: the latest, and the latest that are committed.
    members: (Arc<Members>, Arc<Members>),
    /// Whether this is a founder that has no past, and that not all others know yet.
    founding: bool,
    /// The other founders.
    founders: Vec<NodeId>,
    /// If the node is to stop: by when at the latest. A leader hands over first.
    stops: Option<Instant>,
}

/// Runs the node until it is stopped or a write fails.
pub(super) fn run(
    doors: &Doors,
    view: &SharedView,
    parts: CoreParts,
    writer: Sender<Snapshot<LockTable>>,
) -> Result<(), StorageError> {
    let CoreParts { config, durable, wal, log_bytes, timing, snapshots, peers, metrics, max_sessions, founders } =
        parts;
    let now = Instant::now();
    let taker = Taker::new(snapshots, log_bytes, Arc::clone(wal.snapshots()), writer, Arc::clone(&metrics), now);
    // A restored state is nothing that this node has promised to anybody.
    let founding =
        !founders.is_empty() && durable.hard == HardState::default() && durable.log.last() == durable.snapshot.last;
    let mut round = Round {
        node: Node::recover(config, durable),
        wal,
        timers: Timers::start(timing, now),
        contact: Contact::default(),
        desk: Desk::new(Arc::clone(&metrics), max_sessions),
        taker,
        peers,
        metrics,
        view,
        outputs: Vec::new(),
        now,
        members: Default::default(),
        stops: None,
        founding,
        founders,
    };
    round.tell_members();
    round.publish();
    let mut batch = Batch::default();
    while !round.may_stop() && batch.fill(doors, round.next_alarm()) {
        round.take(&mut batch)?;
    }
    round.desk.shut_down();
    round.taker.shut_down();
    Ok(())
}

/// What one round takes.
#[derive(Default)]
struct Batch {
    messages: Vec<Message<LockTable>>,
    events: Vec<Event>,
}

impl Batch {
    /// Waits for something or for the alarm, then takes all that there is, within limits. `false` when nobody is there
    /// any more who could ask for something.
    fn fill(&mut self, doors: &Doors, alarm: Instant) -> bool {
        let first = select! {
            recv(doors.messages) -> messages => messages.map(|messages| self.messages.extend(messages)).is_ok(),
            recv(doors.events) -> event => event.map(|event| self.events.push(event)).is_ok(),
            default(alarm.saturating_duration_since(Instant::now())) => true,
        };
        let messages = doors.messages.try_iter().take(limits::CORE_BATCH);
        messages.for_each(|messages| self.messages.extend(messages));
        self.events.extend(doors.events.try_iter().take(limits::CORE_BATCH));
        first
    }
}

impl Round<'_> {
    fn next_alarm(&self) -> Instant {
        let alarms = [self.timers.next(), self.desk.next(), self.taker.next(&self.node), self.stops, self.next_sweep()];
        alarms.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + IDLE)
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
        self.step(Input::Receive(message));
        let follows = !self.node.is_leader() && self.node.leader().is_some();
        if follows && told.is_some_and(|commit| commit <= self.node.commit()) {
            self.contact.is_current(self.now);
        }
    }

    /// After an election timeout: a leader that still leads has been answered by a majority.
    fn check_contact(&mut self) {
        if let Some(term) = self.leading() {
            let knows = self.node.log().term_at(self.node.commit()) == Some(term);
            self.contact.has_majority(knows, self.now);
        } else {
            self.contact.follows();
        }
    }

    fn takes_part(&mut self) -> bool {
        if self.founding && self.peers.is_known_to(self.founders.iter().copied()) {
            info!("all founders know this node");
            self.founding = false;
        }
        !self.founding
    }

    /// Whether a change would leave the cluster to members that are not there now. It would be safe, and it could not be undone.
    fn strands(&self, change: &Change) -> bool {
        let Ok(members) = self.node.members().with(change) else { return false };
        let is_there = |id| self.peers.is_connected(id);
        let learner_is_away = matches!(change, Change::Promote(id) if !is_there(*id));
        self.node.is_leader() && (learner_is_away || !members.is_majority(is_there))
    }

    /// Answers a wish to hand over that the node has just refused.
    fn settle_wish(&mut self) {
        if let Some(Output::TransferRefused { leader }) = self.outputs.last() {
            let leader = self.leader_view(*leader);
            self.outputs.pop();
            self.desk.transfer_refused(self.node.is_leader(), leader);
        }
    }

    /// When the next of those who are due can be ended: as long as there are any, a leader's clock is to be told the time often, for
    /// each no-op ends only so many (docs/decisions/0013).
    fn next_sweep(&self) -> Option<Instant> {
        let now = self.node.clock().now;
        let is_due =
            self.node.is_leader() && self.node.machine().next_deadline().is_some_and(|deadline| deadline < now);
        is_due.then(|| self.now + SWEEP_PACE)
    }

    /// One round: every event is stepped, then every output is carried out.
    fn take(&mut self, batch: &mut Batch) -> Result<(), StorageError> {
        let led = self.leading();
        let (leader, term) = (self.node.leader(), self.node.term());
        // The clock is read after the events were taken from their channel, so it is later than the moment any client
        // sent its request: a deadline counted from this clock is never before one counted from that moment.
        self.now = Instant::now();
        let elapsed = self.timers.elapsed(self.now);
        self.step(Input::ClockAdvanced(elapsed));
        if let Some(through) = self.taker.compaction(&self.node) {
            self.step(Input::Compact(through));
        }
        for message in batch.messages.drain(..) {
            self.receive(message);
        }
        for event in batch.events.drain(..) {
            match event {
                Event::Ask(ask, responder) => self.desk.take(&self.node, ask, responder),
                Event::Disconnected(connection) => self.desk.disconnected(connection),
                Event::TakeSnapshot(reply) => self.taker.want(reply),
                Event::SnapshotWritten(result) => self.taker.written(result, self.now),
                Event::Stop => self.stops = Some(self.now + self.timers.longest_election()),
            }
        }
        self.desk.tick(self.now);
        // Messages first, then everything that clients want, in one proposal: its AppendEntries stand before its
        // write in the outputs, and so leave before the sync.
        let proposals = self.desk.proposals();
        if !proposals.is_empty() {
            self.step(Input::Propose(proposals));
        }
        while let Some(change) = self.desk.change() {
            if self.strands(&change) {
                self.desk.change_strands();
            } else {
                self.step(Input::Change(change));
            }
        }
        if let Some(read) = self.desk.read() {
            self.step(Input::Read(read));
        }
        while let Some(to) = self.desk.wish() {
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
        self.desk.answer_reads(&self.node, self.contact.age(self.now));
        // Everything is carried out: the node's state is that of the durable log up to the commit index.
        self.taker.tend(&self.node, self.now);
        if led.is_some() && led != self.leading() {
            self.desk.lost_leadership();
        }
        let peers = Arc::clone(&self.peers);
        self.desk.watch_handover(&self.node, |id| leader_view(&peers, id));
        self.log_changes(leader, term);
        self.metrics.round_seconds.observe(self.now.elapsed().as_secs_f64());
        Ok(())
    }

    /// The term this node leads, if it does.
    fn leading(&self) -> Option<Term> {
        self.node.is_leader().then(|| self.node.term())
    }

    /// Steps the node. Timers are armed at once: they are the driver's own, and a later input of this round may
    /// depend on them.
    fn step(&mut self, input: Input<LockTable>) {
        let first = self.outputs.len();
        self.node.step(input, &mut self.outputs);
        for output in &self.outputs[first..] {
            match output {
                Output::ArmElectionTimer => self.timers.arm_election(self.now),
                Output::ArmHeartbeatTimer => self.timers.arm_heartbeat(self.now),
                _ => {}
            }
        }
    }

    /// Carries the outputs out, in order, with one write at the place of the first and for all of them.
    fn carry_out(&mut self) -> Result<(), StorageError> {
        let mut writes = Vec::new();
        let mut outputs = std::mem::take(&mut self.outputs);
        let barrier = outputs.iter().position(|output| matches!(output, Output::Persist(_)));
        let mut behind = outputs.split_off(barrier.unwrap_or(0));
        if outputs.iter().any(|output| matches!(output, Output::Applied { .. })) {
            self.publish();
        }
        for output in outputs.drain(..) {
            self.release(output);
        }
        behind.retain_mut(|output| match output {
            Output::Persist(write) => {
                // An empty write in its place: it is taken out right here.
                writes.push(std::mem::replace(write, Persist::Entries(Vec::new())));
                false
            }
            _ => true,
        });
        if !writes.is_empty() {
            let written = self.wal.write(&writes)?;
            self.metrics.fsync_seconds.observe(written.sync.as_secs_f64());
            self.metrics.segments_removed.inc_by(written.removed as u64);
            self.taker.count(written.bytes);
            for write in &writes {
                if let Persist::Snapshot(snapshot) = write {
                    let (index, term) = (snapshot.last.index, snapshot.last.term);
                    info!(%index, %term, "the leader's snapshot was installed");
                    self.taker.installed(self.now);
                }
            }
        }
        self.publish();
        for output in behind.drain(..) {
            self.release(output);
        }
        self.outputs = outputs;
        Ok(())
    }

    /// Shows the node's state. Before anybody is answered: who asks for the status after an answer finds what it said.
    fn publish(&self) {
        self.view.publish(&self.node, self.desk.waits(), self.taker.log_bytes());
    }

    /// Carries out one output that is not a write. Everything before it in the list is done.
    fn release(&mut self, output: Output<LockTable>) {
        match output {
            Output::Send(message) => self.peers.send(message),
            Output::Accepted { first, term } => self.desk.accepted(first, term),
            Output::Refused { leader } => self.desk.refused(self.leader_view(leader)),
            Output::ReadReady(read) => self.desk.read_ready(read),
            Output::ReadRefused { id, leader } => self.desk.read_refused(id, self.leader_view(leader)),
            Output::ChangeRefused(refusal) => {
                let leader = self.leader_view(self.node.leader());
                self.desk.change_refused(&self.node, refusal, leader);
            }
            // That the node has nobody to hand over to before it stops: it stops all the same.
            Output::TransferRefused { .. } => {}
            Output::Applied { index, term, outcome, .. } => {
                self.metrics.applied.inc();
                self.desk.applied(&self.node, index, term, outcome);
            }
            Output::Dropped { from, reason } => {
                self.metrics.dropped(reason);
                debug!(%from, reason = reason.name(), "message dropped");
            }
            Output::ArmElectionTimer | Output::ArmHeartbeatTimer => {}
            Output::SendSnapshot { to, term } => self.peers.send_snapshot(to, term),
            Output::Persist(_) => unreachable!("writes are taken out of the list"),
        }
    }

    fn leader_view(&self, leader: Option<NodeId>) -> Option<LeaderView> {
        leader.map(|id| leader_view(&self.peers, id))
    }

    /// A leader that is to stop hands over first: so nobody has to wait for an election timeout (§3.10).
    fn hand_over_to_stop(&mut self) {
        let hands_over = matches!(self.node.role(), Role::Leader(leadership) if leadership.successor.is_some());
        if self.stops.is_some() && self.node.is_leader() && !hands_over {
            self.step(Input::Transfer(None));
        }
    }

    /// Whether the node is to stop and need not wait any longer: somebody else leads, or nobody can be made to.
    fn may_stop(&self) -> bool {
        let Some(latest) = self.stops else { return false };
        let Role::Leader(leadership) = self.node.role() else {
            return self.node.leader().is_some() || latest <= self.now;
        };
        leadership.successor.is_none() || latest <= self.now
    }

    /// Tells the connections who belongs to the cluster, if that has changed.
    fn tell_members(&mut self) {
        let log = self.node.log();
        let (latest, committed) = (log.members(), log.members_at(self.node.commit()));
        if !Arc::ptr_eq(latest, &self.members.0) || !Arc::ptr_eq(committed, &self.members.1) {
            self.members = (Arc::clone(latest), Arc::clone(committed));
            self.peers.set_members(latest, committed);
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

fn leader_view(peers: &Peers, id: NodeId) -> LeaderView {
    LeaderView { id: id.0, client_addr: peers.client_addr(id) }
}
