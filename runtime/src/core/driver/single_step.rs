//! Steps with one input at a time, for a caller that chooses each input (`stepper`).
//!
//! A [`Driver::iterate`] decides which inputs are stepped and when; these functions leave that to the
//! caller. They carry out the same outputs in the same order by the same code.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::Input;
use tokio::sync::oneshot;

use super::super::transport::Transport;
use super::{Driver, contact};
use crate::storage::{SnapshotInfo, StorageError};

impl<T: Transport> Driver<T> {
    /// Steps the node with this input only, and carries out its outputs. Nobody waits for an answer,
    /// so answers are ignored; a caller that steps so takes no client requests.
    ///
    /// # Errors
    /// As [`Driver::iterate`]: the process must stop.
    pub fn step_once(&mut self, input: Input<LockTable>) -> Result<(), StorageError> {
        let led = self.leading();
        self.step(input);
        self.update_members();
        self.carry_out()?;
        self.requests.answer_changes(&self.node, |id| contact(&self.transport, id));
        if led.is_some() && led != self.leading() {
            self.requests.lost_leadership();
        }
        Ok(())
    }

    /// Takes a snapshot of the applied state, if an entry was applied since the last one.
    pub fn take_snapshot(&mut self) {
        let (reply, _) = oneshot::channel();
        self.scheduler.request(reply);
        self.scheduler.maybe_take(&self.node, self.now);
    }

    /// The result of a snapshot taken by [`Driver::take_snapshot`]. The log is compacted only when
    /// the caller steps that input.
    pub fn snapshot_written(&mut self, result: Result<SnapshotInfo, StorageError>) {
        self.scheduler.written(result, self.now);
    }
}
