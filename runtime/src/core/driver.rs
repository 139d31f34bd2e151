//! The driver: what carries a node's outputs out, and the inputs to it, without any thread, socket or clock of its own.
//!
//! Time is an argument, inputs are values, randomness is handed in; the disk is behind the write-ahead log, the network
//! behind a [`Transport`]. The core's thread (`thread.rs`) drives it with channels and the monotonic clock; a simulation
//! drives it with virtual time. What the driver owes the protocol is in [`palisade_spec::raft::interface`], and is kept
//! in `carry_out.rs`; what it decides by itself (docs/protocol.md, "What the driver may decide"), in `round.rs`.
//!
//! The clock is read in one more way than by who drives it: to measure, for the metrics, how long something took. Nothing
//! is decided by that.

mod iteration;
mod outputs;
mod single_step;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::LeaderView;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{
    Config, Durable, HardState, Members, Message, Node, NodeId, Output, Role, StateMachine, Term,
};
use rand::rngs::SmallRng;

use super::Event;
use super::freshness::Freshness;
use super::observer::Observer;
use super::pending_requests::PendingRequests;
use super::snapshot_scheduler::{SnapshotPolicy, SnapshotScheduler, SnapshotWriter};
use super::timers::{Timers, Timing};
use super::transport::Transport;
use super::view::SharedView;
use crate::metrics::Metrics;
use crate::storage::Wal;

/// The longest the core sleeps when nothing at all is due.
const IDLE: Duration = Duration::from_secs(1);

/// The pause between two rounds in which somebody is due: a clock that counts milliseconds need not be asked more often.
const SWEEP_PACE: Duration = Duration::from_millis(1);

/// Everything that a driver needs to begin.
pub struct DriverParts<T> {
    /// The node's configuration.
    pub config: Config,
    /// What its disk holds.
    pub durable: Durable<LockTable>,
    /// Its write-ahead log, after recovery.
    pub wal: Wal<LockTable>,
    /// How many bytes of it the newest snapshot does not include.
    pub log_bytes: u64,
    /// The cluster's other founders, if this node is one.
    pub founders: Vec<NodeId>,
    /// How it times elections.
    pub timing: Timing,
    /// What makes one election timeout longer than another.
    pub jitter: SmallRng,
    /// When it takes snapshots.
    pub snapshots: SnapshotPolicy,
    /// Who writes them.
    pub writer: Box<dyn SnapshotWriter>,
    /// The way to its peers.
    pub transport: T,
    /// Where it shows itself.
    pub view: Arc<SharedView>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// How many sessions there may be at once.
    pub max_sessions: usize,
    /// Who watches it.
    pub observer: Option<Box<dyn Observer>>,
}

/// What one round takes.
#[derive(Debug, Default)]
pub struct Batch {
    /// What peers said.
    pub messages: Vec<Message<LockTable>>,
    /// Everything else.
    pub events: Vec<Event>,
}

/// A node, and everything that goes on around its steps.
pub struct Driver<T> {
    node: Node<LockTable>,
    wal: Wal<LockTable>,
    timers: Timers,
    freshness: Freshness,
    requests: PendingRequests,
    scheduler: SnapshotScheduler,
    transport: T,
    metrics: Arc<Metrics>,
    view: Arc<SharedView>,
    observer: Option<Box<dyn Observer>>,
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

impl<T: Transport> Driver<T> {
    /// The node comes back, or begins.
    pub fn new(parts: DriverParts<T>, now: Instant) -> Driver<T> {
        let DriverParts { config, durable, wal, log_bytes, founders, timing, jitter, .. } = parts;
        let DriverParts { snapshots, writer, transport, view, metrics, max_sessions, mut observer, .. } = parts;
        let space = Arc::clone(wal.space());
        let scheduler = SnapshotScheduler::new(
            snapshots,
            log_bytes,
            Arc::clone(wal.snapshots()),
            writer,
            Arc::clone(&metrics),
            now,
        );
        // A restored state is nothing that this node has promised to anybody.
        let founding =
            !founders.is_empty() && durable.hard == HardState::default() && durable.log.last() == durable.snapshot.last;
        if let Some(observer) = &mut observer {
            observer.recovered(&durable);
        }
        let mut driver = Driver {
            node: Node::recover(config, durable),
            wal,
            timers: Timers::start(timing, jitter, now),
            freshness: Freshness::default(),
            requests: PendingRequests::new(Arc::clone(&metrics), max_sessions, space),
            scheduler,
            transport,
            metrics,
            view,
            observer,
            outputs: Vec::new(),
            now,
            members: Default::default(),
            stops: None,
            founding,
            founders,
        };
        driver.tell_members();
        driver.publish();
        driver
    }

    /// The node, as of its last round.
    pub fn node(&self) -> &Node<LockTable> {
        &self.node
    }

    /// The node's log.
    pub fn wal(&self) -> &Wal<LockTable> {
        &self.wal
    }

    /// When the next round has something to do, whether anything comes until then or not. It may have passed.
    pub fn next_alarm(&self) -> Instant {
        let timers = [self.timers.next(), self.stops];
        let work =
            [self.requests.next(&self.node, self.now), self.scheduler.next(&self.node, self.now), self.next_sweep()];
        timers.into_iter().chain(work).flatten().min().unwrap_or_else(|| self.now + IDLE)
    }

    /// When the next of those who are due can be ended: as long as there are any, a leader's clock is to be told the time often, for
    /// each no-op ends only so many (docs/decisions/0013).
    fn next_sweep(&self) -> Option<Instant> {
        let now = self.node.clock();
        let is_due =
            self.node.is_leader() && self.node.machine().next_deadline().is_some_and(|deadline| deadline < now);
        is_due.then(|| self.now + SWEEP_PACE)
    }

    /// Whether the node is to stop and need not wait any longer: somebody else leads, or nobody can be made to.
    pub fn may_stop(&self) -> bool {
        let Some(latest) = self.stops else { return false };
        let Role::Leader(leadership) = self.node.role() else {
            return self.node.leader().is_some() || latest <= self.now;
        };
        leadership.successor.is_none() || latest <= self.now
    }

    /// Tells everybody who waits for something that there is nothing to wait for: the node stops.
    pub fn shut_down(&mut self) {
        self.requests.shut_down();
        self.scheduler.shut_down();
    }

    /// The term this node leads, if it does.
    fn leading(&self) -> Option<Term> {
        self.node.is_leader().then(|| self.node.term())
    }

    /// Shows the node's state. Before anybody is answered: who asks for the status after an answer finds what it said.
    fn publish(&self) {
        self.view.publish(&self.node, self.requests.waits(), self.scheduler.log_bytes());
    }

    /// Tells the connections who belongs to the cluster, if that has changed.
    fn tell_members(&mut self) {
        let log = self.node.log();
        let (latest, committed) = (log.members(), log.members_at(self.node.commit()));
        if !Arc::ptr_eq(latest, &self.members.0) || !Arc::ptr_eq(committed, &self.members.1) {
            self.members = (Arc::clone(latest), Arc::clone(committed));
            self.transport.set_members(latest, committed);
        }
    }

    fn leader_view(&self, leader: Option<NodeId>) -> Option<LeaderView> {
        leader.map(|id| leader_view(&self.transport, id))
    }
}

fn leader_view(transport: &impl Transport, id: NodeId) -> LeaderView {
    LeaderView { id: id.number(), client_addr: transport.client_addr(id) }
}

impl<T> fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("node", &self.node).field("now", &self.now).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
