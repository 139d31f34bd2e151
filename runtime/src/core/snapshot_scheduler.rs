//! When this node takes snapshots of its state, and how its log is shortened afterwards.
//!
//! At the end of a round everything is carried out, so the node's state machine is what the durable log makes of it up
//! to the commit index: a snapshot is a copy of it. The copy is cheap (the table shares its chunks with it), and all
//! that is not goes on elsewhere: a thread writes the file while the core goes on, and the log is shortened a piece a
//! round. That is how a snapshot does not stall the node.
//!
//! What a follower needs behind a snapshot that is on its way to it stays in the log ([`catching_up`]).
//!
//! None of what is decided here can break safety (docs/protocol.md, "What the driver may decide"): a snapshot is the
//! state that every node has after that entry, the log loses only what a *durable* snapshot includes, and a snapshot
//! that could not be written has changed nothing.

mod catching_up;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use palisade_client::wire::{Code, Failure};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Index, Node, NodeId, Snapshot};
use tokio::sync::oneshot;
use tracing::{error, info};

use self::catching_up::CatchingUp;
use super::{Core, Event};
use crate::limits;
use crate::metrics::Metrics;
use crate::storage::{SnapshotInfo, Snapshots, StorageError};

/// When snapshots are taken, and how much of the log stays beside them.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPolicy {
    /// One is taken when this much was written to the log since the last one, or as much as that one takes up: so no
    /// more is written for snapshots than for the log itself.
    pub log_bytes: u64,
    /// One is taken when the last one is this old, and something was applied since.
    pub interval: Duration,
    /// So many entries that the snapshot includes stay in the log, for followers that are a little behind.
    pub margin: u64,
}

impl Default for SnapshotPolicy {
    fn default() -> SnapshotPolicy {
        SnapshotPolicy {
            log_bytes: limits::SNAPSHOT_LOG_BYTES,
            interval: limits::SNAPSHOT_INTERVAL,
            margin: limits::SNAPSHOT_MARGIN,
        }
    }
}

/// How far the thread that writes snapshots stands back, as in nice(1).
const WRITER_NICENESS: i32 = 10;

/// Where somebody waits for a snapshot to be taken.
pub type SnapshotReply = oneshot::Sender<Result<SnapshotInfo, Failure>>;

/// Takes snapshots, one at a time.
#[derive(Debug)]
pub(super) struct SnapshotScheduler {
    policy: SnapshotPolicy,
    snapshots: Arc<Snapshots>,
    writer: Box<dyn SnapshotWriter>,
    metrics: Arc<Metrics>,
    /// One is being written.
    is_busy: bool,
    /// How much was written to the log since the newest snapshot, or the one that is being written, was taken.
    log_bytes: u64,
    /// When that was; the next attempt's time counts from here after a failure too.
    since: Instant,
    /// Not before this, after a failure.
    not_before: Option<Instant>,
    /// Who wants one that is taken from now on.
    wanted: Vec<SnapshotReply>,
    /// Who waits for the one that is being written.
    waiting: Vec<SnapshotReply>,
    /// What the log may lose, but for what followers need that catch up.
    superfluous: Index,
    catching_up: CatchingUp,
}

impl SnapshotScheduler {
    /// `log_bytes` is how much the start has read back of what the newest snapshot does not include: a node that is
    /// often restarted takes snapshots too.
    pub(super) fn new(
        policy: SnapshotPolicy,
        log_bytes: u64,
        snapshots: Arc<Snapshots>,
        writer: Box<dyn SnapshotWriter>,
        metrics: Arc<Metrics>,
        now: Instant,
    ) -> SnapshotScheduler {
        let mut scheduler = SnapshotScheduler {
            policy,
            snapshots,
            writer,
            metrics,
            is_busy: false,
            log_bytes,
            since: now,
            not_before: None,
            wanted: Vec::new(),
            waiting: Vec::new(),
            superfluous: Index(0),
            catching_up: CatchingUp::default(),
        };
        // What was not shortened before the node stopped.
        scheduler.shorten();
        scheduler
    }

    /// Somebody wants a snapshot of what is applied by now.
    pub(super) fn want(&mut self, reply: SnapshotReply) {
        self.wanted.push(reply);
        self.not_before = None;
    }

    /// So much was written to the log.
    pub(super) fn count(&mut self, bytes: usize) {
        self.log_bytes += bytes as u64;
        self.catching_up.count(bytes);
    }

    /// A snapshot is on its way to a follower, and the log behind it is going to be needed.
    pub(super) fn sends(&mut self, to: NodeId, now: Instant) {
        if let Some(newest) = self.snapshots.newest() {
            self.catching_up.sends(to, newest.last.index, now);
        }
    }

    /// How much was written to the log since the last snapshot.
    pub(super) fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// A leader's snapshot is about to take the place of this table, of which this is a copy.
    pub(super) fn let_go(&mut self, replaced: LockTable) {
        self.writer.let_go(replaced);
    }

    /// A leader's snapshot has become this node's.
    pub(super) fn installed(&mut self, now: Instant) {
        self.metrics.snapshots_installed.inc();
        (self.log_bytes, self.since) = (0, now);
    }

    /// When there is something to do that no event announces: now, as long as the log is to be shortened. A snapshot
    /// that is due by its age can wait for the next round, of which the timers make several a second.
    pub(super) fn next(&self, node: &Node<LockTable>, now: Instant) -> Option<Instant> {
        self.compaction(node).map(|_| now)
    }

    fn has_news(&self, node: &Node<LockTable>) -> bool {
        node.commit() > self.snapshots.newest().map_or(Index(0), |newest| newest.last.index)
    }

    /// At the end of a round: takes a snapshot if it is time.
    pub(super) fn tend(&mut self, node: &Node<LockTable>, now: Instant) {
        let newest_bytes = self.snapshots.newest().map_or(0, |newest| newest.bytes);
        self.catching_up.look(node, self.policy.margin, newest_bytes, now);
        if self.is_busy {
            return;
        }
        if !self.has_news(node) {
            // Nothing is applied that the newest does not include.
            let newest = self.snapshots.newest().ok_or_else(nothing_yet);
            self.wanted.drain(..).for_each(|reply| drop(reply.send(newest.clone())));
            return;
        }
        let is_due = !self.wanted.is_empty()
            || self.log_bytes >= self.policy.log_bytes.max(newest_bytes)
            || now.saturating_duration_since(self.since) >= self.policy.interval;
        if is_due && self.not_before.is_none_or(|at| at <= now) {
            self.take(node, now);
        }
    }

    fn take(&mut self, node: &Node<LockTable>, now: Instant) {
        let entry = node.log().get(node.commit()).expect("what is newer than the newest snapshot is in the log");
        let members = Arc::clone(node.log().members_at(entry.index));
        let machine = node.machine().clone();
        let snapshot = Snapshot { last: entry.position(), stamp: entry.stamp, members, machine };
        self.waiting.append(&mut self.wanted);
        // The writer takes one at a time, as this does; it ends only with the core.
        self.is_busy = self.writer.begin(snapshot);
        (self.log_bytes, self.since, self.not_before) = (0, now, None);
    }

    /// The snapshot is durable, or could not be written.
    pub(super) fn written(&mut self, result: Result<SnapshotInfo, StorageError>, now: Instant) {
        self.is_busy = false;
        let told = match result {
            Ok(snapshot) => {
                let (index, bytes) = (snapshot.last.index, snapshot.bytes);
                info!(%index, bytes, hash = %snapshot.hash, "snapshot taken");
                self.metrics.snapshots_taken.inc();
                self.shorten();
                Ok(snapshot)
            }
            Err(error) => {
                let again = limits::SNAPSHOT_RETRY;
                error!(%error, ?again, "a snapshot could not be written; the log stays as it is");
                self.not_before = Some(now + again);
                // What made it due still does.
                self.log_bytes = self.log_bytes.max(self.policy.log_bytes);
                Err(Failure::new(Code::Overloaded, format!("the snapshot could not be written: {error}")))
            }
        };
        self.waiting.drain(..).for_each(|reply| drop(reply.send(told.clone())));
    }

    fn shorten(&mut self) {
        let newest = self.snapshots.newest().map_or(0, |newest| newest.last.index.0);
        self.superfluous = self.superfluous.max(Index(newest.saturating_sub(self.policy.margin)));
    }

    /// What the log is to lose in this round: a piece of what it may, for to drop a million entries takes its time.
    pub(super) fn compaction(&self, node: &Node<LockTable>) -> Option<Index> {
        let base = node.log().base().index;
        let through = self.catching_up.allow().map_or(self.superfluous, |allowed| allowed.min(self.superfluous));
        (base < through).then(|| through.min(Index(base.0 + limits::ROUND_COMPACTION)))
    }

    /// The node stops.
    pub(super) fn shut_down(&mut self) {
        let failure = Failure::new(Code::ShuttingDown, "this node is stopping");
        let everybody = self.wanted.drain(..).chain(self.waiting.drain(..));
        everybody.for_each(|reply| drop(reply.send(Err(failure.clone()))));
    }
}

fn nothing_yet() -> Failure {
    Failure::new(Code::NoLeader, "nothing was ever applied here, so there is nothing to take a snapshot of")
}

/// Who writes snapshots beside the driver, one at a time.
pub trait SnapshotWriter: fmt::Debug + Send {
    /// Begins to write one; what comes of it, an [`Event::SnapshotWritten`] tells. `false` if nothing will come of it.
    fn begin(&mut self, snapshot: Snapshot<LockTable>) -> bool;

    /// Lets go of a table that a leader's snapshot has replaced: to give the memory of a large one back takes seconds.
    fn let_go(&mut self, replaced: LockTable) {
        drop(replaced);
    }
}

impl SnapshotWriter for Sender<Snapshot<LockTable>> {
    fn begin(&mut self, snapshot: Snapshot<LockTable>) -> bool {
        self.try_send(snapshot).is_ok()
    }

    fn let_go(&mut self, replaced: LockTable) {
        // Rare. Without a thread it is done here.
        let _ = std::thread::Builder::new().name("let-go".into()).spawn(move || drop(replaced));
    }
}

/// Starts the thread that writes snapshots. It ends when nobody can hand it any.
pub(super) fn start_writer(
    core: Core,
    snapshots: Arc<Snapshots>,
    metrics: Arc<Metrics>,
) -> std::io::Result<Sender<Snapshot<LockTable>>> {
    let (writer, handed) = crossbeam_channel::bounded::<Snapshot<LockTable>>(1);
    let write = move || {
        // The core comes first, and so do the other nodes of this machine if there are any. On Linux a thread has a
        // priority of its own; where it cannot be lowered, a snapshot is only sooner done.
        let _ = rustix::process::setpriority_process(None, WRITER_NICENESS);
        for snapshot in handed {
            let before = Instant::now();
            let result = snapshots.write(&snapshot);
            metrics.snapshot_seconds.observe(before.elapsed().as_secs_f64());
            core.deliver(Event::SnapshotWritten(result));
        }
    };
    std::thread::Builder::new().name("snapshots".into()).spawn(write)?;
    Ok(writer)
}

#[cfg(test)]
mod tests;
