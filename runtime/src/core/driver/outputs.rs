//! Executes the outputs of an iteration's steps, and so keeps the output contract.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Output, Persist};
use tracing::{debug, error, info};

use super::super::transport::Transport;
use super::Driver;
use crate::storage::StorageError;

impl<T: Transport> Driver<T> {
    /// Executes the outputs in order. All writes become one write at the position of the first.
    pub(super) fn execute_outputs(&mut self) -> Result<(), StorageError> {
        if let Some(observer) = &mut self.observer {
            observer.executing();
        }
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
                // Leaves an empty write in its place; `retain_mut` removes it.
                writes.push(std::mem::replace(write, Persist::Entries(Vec::new())));
                false
            }
            _ => true,
        });
        if !writes.is_empty() {
            let written = self.wal.write(&writes)?;
            if let Some(observer) = &mut self.observer {
                observer.written(&writes);
            }
            self.metrics.fsync_seconds.observe(written.sync.as_secs_f64());
            self.metrics.segments_removed.inc_by(written.removed as u64);
            self.scheduler.count(written.bytes);
            for write in &writes {
                if let Persist::Snapshot(snapshot) = write {
                    let (index, term) = (snapshot.last.index.0, snapshot.last.term.0);
                    info!(index, term, "installed the leader's snapshot");
                    self.scheduler.installed(self.now);
                    self.requests.snapshot_installed();
                }
            }
        }
        self.publish();
        for output in behind.drain(..) {
            self.release(output);
        }
        self.outputs = outputs;
        if let Some(watches) = &mut self.watches {
            watches.publish(&self.node);
        }
        if let Some(audit) = &mut self.audit {
            audit.hand_over();
        }
        Ok(())
    }

    /// Executes one output that is not a write. All outputs before it in the list are executed.
    fn release(&mut self, output: Output<LockTable>) {
        match output {
            Output::Send(message) => self.transport.send(message),
            Output::Accepted { id, first, term } => self.requests.accepted(id, first, term),
            Output::Refused { id, leader } => self.requests.refused(id, self.leader_view(leader), self.now),
            Output::ReadReady(id) => {
                self.freshness.read_confirmed(id);
                self.requests.read_ready(id);
            }
            Output::ReadRefused { id, leader } => {
                self.freshness.reads_ended();
                self.requests.read_refused(id, self.leader_view(leader));
            }
            Output::ChangeRefused { id, refusal } => {
                let leader = self.leader_view(self.node.leader());
                self.requests.change_refused(&self.node, id, refusal, leader);
            }
            Output::TransferRefused { id, leader } => {
                let led = leader == Some(self.node.id());
                let leader = self.leader_view(leader);
                self.requests.transfer_refused(&self.node, id, led, leader);
            }
            Output::Applied { index, term, outcome, .. } => {
                self.metrics.applied.inc();
                if let Some(audit) = &mut self.audit {
                    audit.applied(&self.node, (index, term), &outcome, &self.requests);
                }
                let events = self.requests.applied(&self.node, index, term, outcome);
                if let Some(watches) = &mut self.watches {
                    watches.applied(index, events);
                }
            }
            Output::Dropped { from, reason } => {
                self.metrics.dropped(reason);
                debug!(%from, reason = reason.name(), "message dropped");
            }
            Output::LostEntries { follower, acknowledged } => {
                self.metrics.followers_lost_entries.inc();
                error!(
                    node = %follower,
                    entry = acknowledged.0,
                    "a follower rejected an entry that it had acknowledged: its data directory is older than its \
                     acknowledgements (a restored copy, or a disk that lost writes). It counts for no commit, \
                     promotion or transfer until it has caught up. It may have lost a vote, too: replace the server \
                     (docs/operations.md)"
                );
            }
            Output::ArmElectionTimer | Output::ArmHeartbeatTimer => {}
            Output::SendSnapshot { to, term } => {
                if self.transport.send_snapshot(to, term) {
                    self.scheduler.sends(to, self.now);
                }
            }
            Output::Persist(_) => unreachable!("writes are taken out of the list"),
        }
    }
}
