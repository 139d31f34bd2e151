//! The driver executes a node's outputs and gives it its inputs, without a thread, socket or
//! clock of its own.
//!
//! Time is an argument, inputs are values, the caller supplies the randomness; the disk is behind
//! the write-ahead log, the network behind a [`Transport`]. The core's thread (`thread.rs`) drives
//! it with channels and the monotonic clock; a simulation drives it with virtual time. The driver's
//! obligations to the protocol are in [`palisade_spec::raft::interface`]; `outputs.rs` meets them.
//! Its own decisions (docs/protocol.md, "What the driver may decide") are in `iteration.rs`.
//!
//! Only a [`Stopwatch`](crate::stopwatch::Stopwatch) reads the clock here, for the metrics.

mod iteration;
mod known_leader;
mod outputs;
mod single_step;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::LeaderView;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{
    Config, Durable, HardState, Members, Message, Node, NodeId, Output, Role, StateMachine, Term,
};
use rand::rngs::SmallRng;

use super::admission::Quotas;
use super::channel::Event;
use super::founding::Founding;
use super::freshness::Freshness;
use super::observer::Observer;
use super::pending_requests::PendingRequests;
use super::snapshot_scheduler::{SnapshotPolicy, SnapshotScheduler, SnapshotWriter};
use super::timers::{Timers, Timing};
use super::transport::Transport;
use super::view::{Reachability, SharedView};
use crate::audit::Trail;
use crate::metrics::Metrics;
use crate::storage::Wal;
use crate::watch::Feed;

/// Maximum sleep of the core while nothing is due.
const IDLE: Duration = Duration::from_secs(1);

/// Pause between two iterations while a session is due: cluster time counts milliseconds, so a
/// shorter pause gains nothing.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);

/// The parts of a [`Driver`].
pub struct DriverParts<T> {
    /// The node's configuration.
    pub config: Config,
    /// The node's state on disk.
    pub durable: Durable<LockTable>,
    /// The node's write-ahead log, after recovery.
    pub wal: Wal<LockTable>,
    /// Bytes of the log that the newest snapshot does not include.
    pub log_bytes: u64,
    /// The cluster's other founders; empty if this node is not a founder.
    pub founders: Vec<NodeId>,
    /// The election timeout and the heartbeat interval.
    pub timing: Timing,
    /// The source of randomness for election timeouts.
    pub jitter: SmallRng,
    /// When the node takes snapshots.
    pub snapshots: SnapshotPolicy,
    /// Writes the snapshots.
    pub writer: Box<dyn SnapshotWriter>,
    /// Sends messages to peers.
    pub transport: T,
    /// Where the driver publishes the node's state.
    pub view: Arc<SharedView>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The limits that an operator may set.
    pub quotas: Quotas,
    /// The observer of the node's steps, if any.
    pub observer: Option<Box<dyn Observer>>,
    /// The audit log, if the node has one.
    pub audit: Option<Trail>,
    /// Where the driver publishes events for watches, if clients can watch.
    pub watches: Option<Feed>,
}

/// The inputs of one iteration.
#[derive(Debug, Default)]
pub struct Batch {
    /// Messages from peers.
    pub messages: Vec<Message<LockTable>>,
    /// All other inputs.
    pub events: Vec<Event>,
}

/// A node, and the state that the driver keeps around its steps.
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
    audit: Option<Trail>,
    watches: Option<Feed>,
    /// The outputs of this iteration's steps; the buffer is reused by the next iteration.
    outputs: Vec<Output<LockTable>>,
    /// When this iteration began.
    now: Instant,
    /// The members last passed to the transport: the latest in the log, and the latest committed.
    members: (Arc<Members>, Arc<Members>),
    /// On a leader: the peers that answered it in the period before its last quorum check.
    answered: BTreeSet<NodeId>,
    /// Whether this is a blank founder that waits for the other founders.
    founding: Founding,
    /// The deadline of a requested stop. A leader transfers leadership first.
    stops: Option<Instant>,
}

impl<T: Transport> Driver<T> {
    /// Recovers the node from its disk, or starts a new one.
    pub fn new(parts: DriverParts<T>, now: Instant) -> Driver<T> {
        let DriverParts { config, durable, wal, log_bytes, founders, timing, jitter, .. } = parts;
        let DriverParts {
            snapshots,
            writer,
            transport,
            view,
            metrics,
            quotas,
            mut observer,
            mut audit,
            mut watches,
            ..
        } = parts;
        let space = Arc::clone(wal.space());
        let scheduler = SnapshotScheduler::new(
            snapshots,
            log_bytes,
            Arc::clone(wal.snapshots()),
            writer,
            Arc::clone(&metrics),
            now,
        );
        // A restored snapshot holds no promise of this node: a founder with nothing else is blank.
        let is_blank = durable.hard == HardState::default() && durable.log.last() == durable.snapshot.last;
        let founding = Founding::new(if is_blank { founders } else { Vec::new() });
        if let Some(observer) = &mut observer {
            observer.recovered(&durable);
        }
        let node = Node::recover(config, durable);
        if let Some(audit) = &mut audit {
            audit.recovered(node.machine());
        }
        if let Some(watches) = &mut watches {
            watches.publish(&node);
        }
        let mut driver = Driver {
            node,
            wal,
            timers: Timers::start(timing, jitter, now),
            freshness: Freshness::default(),
            requests: PendingRequests::new(Arc::clone(&metrics), quotas, space),
            scheduler,
            transport,
            metrics,
            view,
            observer,
            audit,
            watches,
            outputs: Vec::new(),
            now,
            members: Default::default(),
            answered: BTreeSet::new(),
            stops: None,
            founding,
        };
        driver.update_members();
        driver.publish();
        driver
    }

    /// The node, as of its last iteration.
    pub fn node(&self) -> &Node<LockTable> {
        &self.node
    }

    /// The node's log.
    pub fn wal(&self) -> &Wal<LockTable> {
        &self.wal
    }

    /// When the next iteration has work to do, even if no input arrives before. The moment may have
    /// passed.
    pub fn next_alarm(&self) -> Instant {
        let timers = [self.timers.next(), self.stops];
        let work =
            [self.requests.next(&self.node, self.now), self.scheduler.next(&self.node, self.now), self.next_sweep()];
        timers.into_iter().chain(work).flatten().min().unwrap_or_else(|| self.now + IDLE)
    }

    /// When a leader can end further due sessions. While there are any, the leader advances the
    /// clock often, because each no-op ends only a bounded number of them (docs/decisions/0013).
    fn next_sweep(&self) -> Option<Instant> {
        let now = self.node.clock();
        let is_due =
            self.node.is_leader() && self.node.machine().next_deadline().is_some_and(|deadline| deadline < now);
        is_due.then(|| self.now + SWEEP_PAUSE)
    }

    /// Whether the node may stop now: a stop is requested, and its deadline has passed, or another
    /// node leads, or this node leads and no transfer is in progress.
    pub fn may_stop(&self) -> bool {
        let Some(latest) = self.stops else { return false };
        let Role::Leader(leadership) = self.node.role() else {
            return self.node.leader().is_some() || latest <= self.now;
        };
        leadership.successor.is_none() || latest <= self.now
    }

    /// Fails every pending request: the node stops.
    pub fn shut_down(&mut self) {
        self.requests.shut_down();
        self.scheduler.shut_down();
        if let Some(audit) = &mut self.audit {
            audit.stop();
        }
    }

    /// The term in which this node leads; `None` if it does not lead.
    fn leading(&self) -> Option<Term> {
        self.node.is_leader().then(|| self.node.term())
    }

    /// Publishes the node's state. This happens before any request is answered, so that a client
    /// that reads the status after an answer sees the state that the answer reported.
    fn publish(&self) {
        let waiting_for = self.founding.waiting_for();
        self.view.publish(&self.node, self.requests.waits(), self.scheduler.log_bytes(), waiting_for);
    }

    /// Passes the members to the transport if they have changed.
    fn update_members(&mut self) {
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

fn reachability(transport: &impl Transport, id: NodeId) -> Reachability {
    Reachability { client_addr: transport.client_addr(id), connected: transport.is_connected(id) }
}

impl<T> fmt::Debug for Driver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("node", &self.node).field("now", &self.now).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
