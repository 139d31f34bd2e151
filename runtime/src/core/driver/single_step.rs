//! Steps with one input at a time, for a caller that chooses each input (`stepper`).
//!
//! A [`Driver::iterate`] decides which inputs are stepped and when; these functions leave that to
//! the caller. They execute the same outputs in the same order by the same code.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::Input;

use super::super::transport::Transport;
use super::Driver;
use crate::storage::{SnapshotInfo, StorageError};

impl<T: Transport> Driver<T> {
    /// Steps the node with this input only, and executes its outputs. The driver has no requester
    /// for the ids of such inputs, and drops the replies.
    ///
    /// # Errors
    /// As [`Driver::iterate`]: the process must stop.
    pub fn step_once(&mut self, input: Input<LockTable>) -> Result<(), StorageError> {
        self.step(input);
        self.update_members();
        self.execute_outputs()
    }

    /// Takes a snapshot of the applied state, if an entry was applied since the last one.
    pub fn take_snapshot(&mut self) {
        self.scheduler.take_once(&self.node, self.now);
    }

    /// The result of a snapshot taken by [`Driver::take_snapshot`]. The log is compacted only when
    /// the caller steps that input.
    pub fn snapshot_written(&mut self, result: Result<SnapshotInfo, StorageError>) {
        self.scheduler.written(result, self.now);
    }
}
