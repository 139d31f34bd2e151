//! Limits on what clients may make a node do for snapshots. Each one writes the whole state, and each
//! one that is read keeps its file on the disk.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::wire::{Code, Failure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::limits::{SNAPSHOT_READ_GRACE, SNAPSHOT_READ_RATE, SNAPSHOT_REQUEST_PAUSE, SNAPSHOT_SMALL};
use crate::storage::{DiskFile, SnapshotInfo};
use crate::sync::Mutex;

/// Snapshots that clients request: one at a time, with a pause between two.
#[derive(Debug)]
pub(super) struct SnapshotRequests {
    one: Arc<Semaphore>,
    /// When the last one that a client requested was durable.
    last: Mutex<Option<Instant>>,
}

/// A refusal, and after how many seconds the request may be sent again.
pub(super) type TooSoon = (Failure, u64);

impl SnapshotRequests {
    pub(super) fn new() -> SnapshotRequests {
        SnapshotRequests { one: Arc::new(Semaphore::new(1)), last: Mutex::new(None) }
    }

    /// Begins a request. `newest` is the newest snapshot, after which `log_bytes` were written to the
    /// log.
    pub(super) fn begin(&self, newest: Option<SnapshotInfo>, log_bytes: u64) -> Result<OwnedSemaphorePermit, TooSoon> {
        let Ok(permit) = Arc::clone(&self.one).try_acquire_owned() else {
            let message = "another client has requested a snapshot, which is not durable yet: try again in 1 s";
            return Err((Failure::new(Code::TooSoon, message), 1));
        };
        let since = self.last.lock().map(|last| last.elapsed());
        match too_soon(newest.map_or(0, |newest| newest.bytes), log_bytes, since) {
            Some(refusal) => Err(refusal),
            None => Ok(permit),
        }
    }

    /// The requested snapshot is durable.
    pub(super) fn taken(&self) {
        *self.last.lock() = Some(Instant::now());
    }
}

fn too_soon(bytes: u64, log_bytes: u64, since: Option<Duration>) -> Option<TooSoon> {
    let pause = SNAPSHOT_REQUEST_PAUSE.checked_sub(since?).filter(|pause| !pause.is_zero())?;
    if bytes <= SNAPSHOT_SMALL || log_bytes >= bytes {
        return None;
    }
    let (since, again) = (since?.as_secs(), pause.as_secs() + 1);
    let message = format!(
        "a snapshot of {bytes} bytes was requested {since} s ago, and only {log_bytes} bytes were written to the log since: \
         try again in {again} s"
    );
    Some((Failure::new(Code::TooSoon, message), again))
}

/// A snapshot that a client reads: its file is open until the client has it or the time for it is
/// over.
#[derive(Debug)]
pub(super) struct Download {
    file: Arc<Mutex<Option<OpenFile>>>,
    deadline: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct OpenFile {
    file: Arc<dyn DiskFile>,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Download {
    /// Begins the time for reading this file of so many bytes.
    pub(super) fn begin(file: Box<dyn DiskFile>, bytes: u64, permit: OwnedSemaphorePermit) -> Download {
        let open = OpenFile { file: Arc::from(file), _permit: Arc::new(permit) };
        let file = Arc::new(Mutex::new(Some(open)));
        let (allowed, late) = (time_for(bytes), Arc::clone(&file));
        let deadline = tokio::spawn(async move {
            sleep(allowed).await;
            if late.lock().take().is_some() {
                warn!(bytes, ?allowed, "ended a client's reading of a snapshot: the client reads it too slowly");
            }
        });
        Download { file, deadline }
    }

    /// Reads a piece of the file; may block on the disk.
    pub(super) fn read_at(&self, piece: &mut [u8], at: u64) -> io::Result<()> {
        let open = self.file.lock().clone();
        let open = open.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))?;
        open.file.read_exact_at(piece, at)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.deadline.abort();
    }
}

/// How long a client may read a snapshot of this size.
fn time_for(bytes: u64) -> Duration {
    SNAPSHOT_READ_GRACE + Duration::from_secs(bytes / SNAPSHOT_READ_RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_pause_unless_the_log_has_grown_or_the_snapshot_is_small() {
        let soon = Some(Duration::from_secs(3));
        assert_eq!(too_soon(1_000_000, 999_999, None), None, "the first request");
        let (failure, again) = too_soon(1_000_000, 999_999, soon).unwrap();
        assert_eq!((failure.error, again), (Code::TooSoon, 8));
        assert!(failure.message.contains("try again in 8 s"), "{failure}");
        assert_eq!(too_soon(1_000_000, 1_000_000, soon), None);
        assert_eq!(too_soon(SNAPSHOT_SMALL, 0, soon), None);
        assert_eq!(too_soon(1_000_000, 0, Some(SNAPSHOT_REQUEST_PAUSE)), None);
    }

    #[test]
    fn one_request_at_a_time() {
        let requests = SnapshotRequests::new();
        let first = requests.begin(None, 0).unwrap();
        assert_eq!(requests.begin(None, 0).unwrap_err().0.error, Code::TooSoon);
        drop(first);
        assert!(requests.begin(None, 0).is_ok());
    }
}
