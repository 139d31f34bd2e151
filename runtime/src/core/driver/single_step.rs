//! One input at a time: how strings move the driver (`puppet`).
//!
//! A [round](Driver::round) decides what is stepped, and when; these do not. What follows a step is a round's: the same
//! outputs are carried out in the same order by the same code.

use palisade_spec::lock::LockTable;
use palisade_spec::raft::Input;
use tokio::sync::oneshot;

use super::super::transport::Transport;
use super::Driver;
use crate::storage::{SnapshotInfo, StorageError};

impl<T: Transport> Driver<T> {
    /// Steps the node with this input and no other, and carries out what it asks for. Nobody waits for an answer.
    ///
    /// # Errors
    /// As [`Driver::round`]: the process must stop.
    pub fn step_once(&mut self, input: Input<LockTable>) -> Result<(), StorageError> {
        let led = self.leading();
        self.requests.nobody_asks(&input);
        self.step(input);
        self.tell_members();
        self.carry_out()?;
        if led.is_some() && led != self.leading() {
            self.requests.lost_leadership();
        }
        Ok(())
    }

    /// Takes a snapshot of what is applied, if something was since the last one.
    pub fn take_snapshot(&mut self) {
        let (reply, _) = oneshot::channel();
        self.scheduler.want(reply);
        self.scheduler.tend(&self.node, self.now);
    }

    /// What came of a snapshot that was taken so. The log is shortened when somebody says so.
    pub fn snapshot_written(&mut self, result: Result<SnapshotInfo, StorageError>) {
        self.scheduler.written(result, self.now);
    }
}
