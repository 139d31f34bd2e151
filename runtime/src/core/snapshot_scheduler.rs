//! Schedules snapshots of this node's state, and the compaction of its log after them.
//!
//! At the end of an iteration all outputs are executed, so the node's state machine is that of
//! the durable log up to the commit index: a snapshot is a copy of it. The copy is cheap (the two
//! tables share their chunks), and the expensive work does not stall the node: a thread writes the
//! file while the core goes on, and each iteration compacts a bounded part of the log.
//!
//! The entries that a follower needs after a snapshot in transfer stay in the log
//! ([`catching_up`]).
//!
//! No decision here can break safety (docs/protocol.md, "What the driver may decide"): a snapshot
//! is the state that every node has after its last entry, the log loses only entries that a
//! *durable* snapshot includes, and a failed snapshot changes nothing.

mod catching_up;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::wire::{Code, Failure};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Index, Node, NodeId, Snapshot};
use tracing::{error, info};

use self::catching_up::CatchingUp;
use super::channel::SnapshotReply;
use crate::limits;
use crate::metrics::Metrics;
use crate::storage::{SnapshotInfo, Snapshots, StorageError};

/// When snapshots are taken, and how many of the included entries stay in the log.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPolicy {
    /// A snapshot is due when this many bytes were written to the log since the last one, or as
    /// many as that one has if that is more: so snapshots write no more than the log itself.
    pub log_bytes: u64,
    /// A snapshot is due when the last one is this old, and an entry was applied since.
    pub interval: Duration,
    /// Number of entries that stay in the log although the snapshot includes them, for followers
    /// that are slightly behind.
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

/// A snapshot that could not be written.
#[derive(Debug)]
struct FailedAttempt {
    why: String,
    /// Earliest time of the next attempt, also if a client requests one: on a full disk each takes the space that the log needs.
    again_at: Instant,
}

/// Takes snapshots, one at a time.
#[derive(Debug)]
pub(super) struct SnapshotScheduler {
    policy: SnapshotPolicy,
    snapshots: Arc<Snapshots>,
    writer: Box<dyn SnapshotWriter>,
    metrics: Arc<Metrics>,
    /// Whether a snapshot is being written.
    is_busy: bool,
    /// Bytes written to the log since the newest snapshot, or the one being written, was taken.
    log_bytes: u64,
    /// When that snapshot was taken; the interval counts from here after a failure too.
    since: Instant,
    /// The last attempt, if it failed: then the reason why it was due persists.
    failed: Option<FailedAttempt>,
    /// Requesters of the next snapshot.
    wanted: Vec<SnapshotReply>,
    /// Requesters of the snapshot being written.
    waiting: Vec<SnapshotReply>,
    /// The last entry that the log may lose, regardless of the followers that are catching up.
    superfluous: Index,
    catching_up: CatchingUp,
}

impl SnapshotScheduler {
    /// `log_bytes` is the number of bytes that recovery read from the log and that the newest
    /// snapshot does not include: so a node that restarts often takes snapshots too.
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
            failed: None,
            wanted: Vec::new(),
            waiting: Vec::new(),
            superfluous: Index(0),
            catching_up: CatchingUp::default(),
        };
        // The part that was not compacted before the node stopped.
        scheduler.advance_compaction();
        scheduler
    }

    /// Requests a snapshot of the state applied by now.
    pub(super) fn request(&mut self, reply: SnapshotReply) {
        self.wanted.push(reply);
    }

    /// Counts bytes written to the log.
    pub(super) fn count(&mut self, bytes: usize) {
        self.log_bytes += bytes as u64;
        self.catching_up.count(bytes);
    }

    /// A snapshot transfer to a follower has started: the log keeps the entries after the snapshot.
    pub(super) fn sends(&mut self, to: NodeId, now: Instant) {
        if let Some(newest) = self.snapshots.newest() {
            self.catching_up.sends(to, newest.last.index, now);
        }
    }

    /// Bytes written to the log since the last snapshot.
    pub(super) fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Drops this copy of a table that a leader's snapshot may have replaced, or of the snapshot's own.
    pub(super) fn drop_table(&mut self, table: LockTable) {
        self.writer.drop_table(table);
    }

    /// This node has installed a leader's snapshot.
    pub(super) fn installed(&mut self, now: Instant) {
        self.metrics.snapshots_installed.inc();
        (self.log_bytes, self.since) = (0, now);
    }

    /// When there is work that no event announces: now, while the log is to be compacted. A
    /// snapshot that is due by its age waits for the next iteration; the timers cause several a
    /// second.
    pub(super) fn next(&self, node: &Node<LockTable>, now: Instant) -> Option<Instant> {
        self.compaction(node).map(|_| now)
    }

    fn has_unsnapshotted_entries(&self, node: &Node<LockTable>) -> bool {
        node.commit() > self.snapshots.newest().map_or(Index(0), |newest| newest.last.index)
    }

    /// At the end of an iteration: takes a snapshot if one is due.
    pub(super) fn maybe_take(&mut self, node: &Node<LockTable>, now: Instant) {
        let newest_bytes = self.snapshots.newest().map_or(0, |newest| newest.bytes);
        self.catching_up.update(node, self.policy.margin, newest_bytes, now);
        if self.is_busy {
            return;
        }
        if !self.has_unsnapshotted_entries(node) {
            // The newest snapshot includes every applied entry.
            let newest = self.snapshots.newest().ok_or_else(nothing_applied);
            self.wanted.drain(..).for_each(|reply| drop(reply.send(newest.clone())));
            return;
        }
        if let Some(failed) = &self.failed
            && failed.again_at > now
        {
            let refusal = failed.refusal(now);
            self.wanted.drain(..).for_each(|reply| drop(reply.send(Err(refusal.clone()))));
            return;
        }
        let is_due = !self.wanted.is_empty()
            || self.failed.is_some()
            || self.log_bytes >= self.policy.log_bytes.max(newest_bytes)
            || now.saturating_duration_since(self.since) >= self.policy.interval;
        if is_due {
            self.take(node, now);
        }
    }

    /// Takes a snapshot at once, without a request, if an entry was applied since the last one.
    pub(super) fn take_once(&mut self, node: &Node<LockTable>, now: Instant) {
        if !self.is_busy && self.has_unsnapshotted_entries(node) {
            self.take(node, now);
        }
    }

    fn take(&mut self, node: &Node<LockTable>, now: Instant) {
        let entry = node.log().get(node.commit()).expect("what is newer than the newest snapshot is in the log");
        let members = Arc::clone(node.log().members_at(entry.index));
        let machine = node.machine().clone();
        let snapshot = Snapshot { last: entry.position(), stamp: entry.stamp, members, machine };
        self.waiting.append(&mut self.wanted);
        // The writer takes one snapshot at a time, like this scheduler; it ends only with the core.
        self.is_busy = self.writer.begin(snapshot);
        (self.log_bytes, self.since, self.failed) = (0, now, None);
    }

    /// The snapshot is durable, or its write failed.
    pub(super) fn written(&mut self, result: Result<SnapshotInfo, StorageError>, now: Instant) {
        self.is_busy = false;
        let reply_result = match result {
            Ok(snapshot) => {
                let (index, bytes) = (snapshot.last.index.0, snapshot.bytes);
                info!(index, bytes, hash = %snapshot.hash, "took a snapshot of this node's state");
                self.metrics.snapshots_taken.inc();
                self.advance_compaction();
                Ok(snapshot)
            }
            Err(error) => {
                let again = limits::SNAPSHOT_RETRY;
                error!(%error, ?again, "cannot write a snapshot: the log keeps its entries and grows; the node tries again");
                self.log_bytes = self.log_bytes.max(self.policy.log_bytes);
                let why = format!("the snapshot could not be written: {error}");
                self.failed = Some(FailedAttempt { why: why.clone(), again_at: now + again });
                Err(Failure::new(Code::Overloaded, why))
            }
        };
        self.waiting.drain(..).for_each(|reply| drop(reply.send(reply_result.clone())));
    }

    fn advance_compaction(&mut self) {
        let newest = self.snapshots.newest().map_or(0, |newest| newest.last.index.0);
        self.superfluous = self.superfluous.max(Index(newest.saturating_sub(self.policy.margin)));
    }

    /// The last entry that the log loses in this iteration: a bounded part, because removing a
    /// million entries takes time.
    pub(super) fn compaction(&self, node: &Node<LockTable>) -> Option<Index> {
        let base = node.log().base().index;
        let through = self.catching_up.allow().map_or(self.superfluous, |allowed| allowed.min(self.superfluous));
        (base < through).then(|| through.min(Index(base.0 + limits::ITERATION_COMPACTION)))
    }

    /// Fails every request: the node stops.
    pub(super) fn shut_down(&mut self) {
        let failure = Failure::new(Code::ShuttingDown, "this node is stopping; send the request to another node");
        let replies = self.wanted.drain(..).chain(self.waiting.drain(..));
        replies.for_each(|reply| drop(reply.send(Err(failure.clone()))));
    }
}

impl FailedAttempt {
    /// The answer to a request that comes before the next attempt.
    fn refusal(&self, now: Instant) -> Failure {
        let (why, seconds) = (&self.why, self.again_at.saturating_duration_since(now).as_secs() + 1);
        let message = format!("{why}; the node makes the next attempt after a pause: try again in {seconds} s");
        Failure::new(Code::Overloaded, message)
    }
}

fn nothing_applied() -> Failure {
    Failure::new(Code::NoLeader, "this node has applied no entry yet, so there is no state to take a snapshot of")
}

/// Writes snapshots beside the driver, one at a time.
pub trait SnapshotWriter: fmt::Debug + Send {
    /// Starts writing a snapshot; an [`Event::SnapshotWritten`](super::Event::SnapshotWritten) reports the result. Returns `false`
    /// if no report will follow.
    fn begin(&mut self, snapshot: Snapshot<LockTable>) -> bool;

    /// Drops a table that may have no other copy: freeing the memory of a large one takes seconds.
    fn drop_table(&mut self, table: LockTable) {
        drop(table);
    }
}

#[cfg(test)]
mod tests;
