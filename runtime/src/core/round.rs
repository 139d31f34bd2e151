//! The core's rounds: drain, step, write, release.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, select};
use palisade_client::wire::LeaderView;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Input, Message, Node, NodeId, Output, Persist, Snapshot, Term};
use tracing::{debug, info, warn};

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

struct Round<'a> {
    node: Node<LockTable>,
    wal: Wal<LockTable>,
    timers: Timers,
    desk: Desk,
    taker: Taker,
    peers: Arc<Peers>,
    metrics: Arc<Metrics>,
    view: &'a SharedView,
    /// The outputs of this round's steps; kept between rounds for its memory.
    outputs: Vec<Output<LockTable>>,
    /// When this round began.
    now: Instant,
}

/// Runs the node until it is stopped or a write fails.
pub(super) fn run(
    doors: &Doors,
    view: &SharedView,
    parts: CoreParts,
    writer: Sender<Snapshot<LockTable>>,
) -> Result<(), StorageError> {
    let CoreParts { config, durable, wal, log_bytes, timing, snapshots, peers, metrics } = parts;
    let now = Instant::now();
    let taker = Taker::new(snapshots, log_bytes, Arc::clone(wal.snapshots()), writer, Arc::clone(&metrics), now);
    let mut round = Round {
        node: Node::recover(config, durable),
        wal,
        timers: Timers::start(timing, now),
        desk: Desk::new(Arc::clone(&metrics)),
        taker,
        peers,
        metrics,
        view,
        outputs: Vec::new(),
        now,
    };
    round.publish();
    let mut batch = Batch::default();
    while batch.fill(doors, round.next_alarm()) {
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
    /// Waits for something or for the alarm, then takes all that there is, within limits. `false` when the node is to
    /// stop.
    fn fill(&mut self, doors: &Doors, alarm: Instant) -> bool {
        let first = select! {
            recv(doors.messages) -> messages => messages.map(|messages| self.messages.extend(messages)).is_ok(),
            recv(doors.events) -> event => event.is_ok_and(|event| self.take(event)),
            default(alarm.saturating_duration_since(Instant::now())) => true,
        };
        first && {
            let messages = doors.messages.try_iter().take(limits::CORE_BATCH);
            messages.for_each(|messages| self.messages.extend(messages));
            doors.events.try_iter().take(limits::CORE_BATCH).all(|event| self.take(event))
        }
    }

    fn take(&mut self, event: Event) -> bool {
        let goes_on = !matches!(event, Event::Stop);
        self.events.push(event);
        goes_on
    }
}

impl Round<'_> {
    fn next_alarm(&self) -> Instant {
        let alarms = [self.timers.next(), self.desk.next(), self.taker.next(&self.node)];
        alarms.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + IDLE)
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
            self.step(Input::Receive(message));
        }
        for event in batch.events.drain(..) {
            match event {
                Event::Ask(ask, responder) => self.desk.take(&self.node, ask, responder),
                Event::Disconnected(connection) => self.desk.disconnected(connection),
                Event::TakeSnapshot(reply) => self.taker.want(reply),
                Event::SnapshotWritten(result) => self.taker.written(result, self.now),
                Event::Stop => {}
            }
        }
        self.desk.tick(self.now);
        // Messages first, then everything that clients want, in one proposal: its AppendEntries stand before its
        // write in the outputs, and so leave before the sync.
        let proposals = self.desk.proposals();
        if !proposals.is_empty() {
            self.step(Input::Propose(proposals));
        }
        // Timers last: what has arrived meanwhile may have started them afresh.
        if self.timers.heartbeat_is_due(self.now) {
            self.step(Input::HeartbeatTimeout);
        }
        if self.timers.election_is_due(self.now) {
            self.step(Input::ElectionTimeout);
        }
        self.carry_out()?;
        self.desk.answer_reads(&self.node);
        // Everything is carried out: the node's state is that of the durable log up to the commit index.
        self.taker.tend(&self.node, self.now);
        if led.is_some() && led != self.leading() {
            self.desk.lost_leadership();
        }
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
            Output::Refused { leader } => self.desk.refused(leader.map(|id| self.leader_view(id))),
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

    fn leader_view(&self, id: NodeId) -> LeaderView {
        LeaderView { id: id.0, client_addr: self.peers.client_addr(id) }
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
