//! The thread that writes the server's snapshots, beside the core.

use std::sync::Arc;

use crossbeam_channel::Sender;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::Snapshot;
use tokio::sync::oneshot;

use super::channel::{Core, Event};
use super::snapshot_scheduler::SnapshotWriter;
use crate::metrics::Metrics;
use crate::stopwatch::Stopwatch;
use crate::storage::Snapshots;

/// Niceness of the thread, as in nice(1).
const NICENESS: i32 = 10;

/// Starts the thread that writes snapshots for a core. It ends when its sender is dropped. The receiver
/// resolves at its end, with an error if it has panicked.
///
/// # Errors
/// If the thread cannot be started.
pub fn start(
    core: Core,
    snapshots: Arc<Snapshots>,
    metrics: Arc<Metrics>,
) -> std::io::Result<(Sender<Snapshot<LockTable>>, oneshot::Receiver<()>)> {
    let (writer, handed) = crossbeam_channel::bounded::<Snapshot<LockTable>>(1);
    let (ended, ends) = oneshot::channel();
    let write = move || {
        // The core has priority, and so have other nodes on this machine. On Linux a thread has a
        // niceness of its own; where it cannot be lowered, the snapshot is only finished sooner.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        for snapshot in handed {
            let stopwatch = Stopwatch::start();
            let result = snapshots.write(&snapshot);
            stopwatch.observe(&metrics.snapshot_seconds);
            core.deliver(Event::SnapshotWritten(result));
        }
        let _ = ended.send(());
    };
    std::thread::Builder::new().name("snapshots".into()).spawn(write)?;
    Ok((writer, ends))
}

impl SnapshotWriter for Sender<Snapshot<LockTable>> {
    fn begin(&mut self, snapshot: Snapshot<LockTable>) -> bool {
        self.try_send(snapshot).is_ok()
    }

    fn drop_table(&mut self, table: LockTable) {
        // Rare. If no thread can be started, the table is dropped here.
        let _ = std::thread::Builder::new().name("drop-table".into()).spawn(move || drop(table));
    }
}
