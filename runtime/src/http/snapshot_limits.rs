//! Limits on what clients may make a node do for snapshots. Each one writes the whole state, and each
//! one that is read keeps its file on the disk.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::wire::{Code, Failure};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::accounts::AccountName;
use crate::limits::{
    SNAPSHOT_CLIENTS_PAUSE, SNAPSHOT_READ_GRACE, SNAPSHOT_READ_RATE, SNAPSHOT_REQUEST_PAUSE, SNAPSHOT_SMALL,
};
use crate::storage::DiskFile;
use crate::sync::Mutex;

/// Snapshots that clients request: one at a time, with a pause between two, which is long for one client
/// and short for different ones. So a client that requests them in a loop leaves time in which another
/// client's request is granted.
#[derive(Debug)]
pub(super) struct SnapshotRequests {
    one: Arc<Semaphore>,
    /// When the last one that each client requested was durable, if its pause is not over.
    last: Mutex<HashMap<Option<AccountName>, Instant>>,
}

/// A refusal, and after how many seconds the request may be sent again.
pub(super) type TooSoon = (Failure, u64);

impl SnapshotRequests {
    pub(super) fn new() -> SnapshotRequests {
        SnapshotRequests { one: Arc::new(Semaphore::new(1)), last: Mutex::default() }
    }

    /// Begins a request of this client. The newest snapshot has so many bytes, and after it `log_bytes`
    /// were written to the log.
    pub(super) fn begin(
        &self,
        client: &Option<AccountName>,
        bytes: u64,
        log_bytes: u64,
        now: Instant,
    ) -> Result<OwnedSemaphorePermit, TooSoon> {
        let Ok(permit) = Arc::clone(&self.one).try_acquire_owned() else {
            let message = "another client has requested a snapshot, which is not durable yet: try again in 1 s";
            return Err((Failure::new(Code::TooSoon, message), 1));
        };
        let last = self.last.lock();
        let own = last.get(client).map(|&last| now.saturating_duration_since(last));
        let others = last.values().map(|&last| now.saturating_duration_since(last)).min();
        let refusal = too_soon(bytes, log_bytes, own, SNAPSHOT_REQUEST_PAUSE)
            .or_else(|| too_soon(bytes, log_bytes, others, SNAPSHOT_CLIENTS_PAUSE));
        refusal.map_or(Ok(permit), Err)
    }

    /// The snapshot that this client has requested is durable.
    pub(super) fn taken(&self, client: Option<AccountName>, now: Instant) {
        let mut last = self.last.lock();
        last.retain(|_, last| now.saturating_duration_since(*last) < SNAPSHOT_REQUEST_PAUSE);
        last.insert(client, now);
    }
}

fn too_soon(bytes: u64, log_bytes: u64, since: Option<Duration>, pause: Duration) -> Option<TooSoon> {
    let pause = pause.checked_sub(since?).filter(|pause| !pause.is_zero())?;
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

/// Permits for reading a snapshot.
#[derive(Debug)]
pub(super) struct ReadPermit {
    pub(super) _of_all: OwnedSemaphorePermit,
    pub(super) _of_client: Option<OwnedSemaphorePermit>,
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
    _permit: Arc<ReadPermit>,
}

impl Download {
    /// Begins the time for reading this file of so many bytes.
    pub(super) fn begin(file: Box<dyn DiskFile>, bytes: u64, permit: ReadPermit) -> Download {
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
        let refusal = |bytes, log_bytes, since| too_soon(bytes, log_bytes, since, SNAPSHOT_REQUEST_PAUSE);
        assert_eq!(refusal(1_000_000, 999_999, None), None, "the first request");
        let (failure, again) = refusal(1_000_000, 999_999, soon).unwrap();
        assert_eq!((failure.error, again), (Code::TooSoon, 8));
        assert!(failure.message.contains("try again in 8 s"), "{failure}");
        assert_eq!(refusal(1_000_000, 1_000_000, soon), None);
        assert_eq!(refusal(SNAPSHOT_SMALL, 0, soon), None);
        assert_eq!(refusal(1_000_000, 0, Some(SNAPSHOT_REQUEST_PAUSE)), None);
    }

    #[test]
    fn one_request_at_a_time() {
        let requests = SnapshotRequests::new();
        let begin = || requests.begin(&None, 0, 0, Instant::now());
        let first = begin().unwrap();
        assert_eq!(begin().unwrap_err().0.error, Code::TooSoon);
        drop(first);
        assert!(begin().is_ok());
    }

    /// Goal: a client that requests snapshots in a loop, at the very moment at which it may, leaves time
    /// for another client's request.
    #[test]
    fn a_loop_of_one_client_leaves_time_for_another() {
        let requests = SnapshotRequests::new();
        let start = Instant::now();
        let [looping, other] = ["looping", "other"].map(|name| Some(AccountName::Principal(name.into())));
        let again = |client: &Option<AccountName>, now| {
            requests.begin(client, 1_000_000, 0, now).map_or_else(|(_, seconds)| seconds, |_| 0)
        };
        assert_eq!(again(&looping, start), 0);
        requests.taken(looping.clone(), start);
        assert_eq!((again(&looping, start), again(&other, start)), (11, 3));
        let later = start + SNAPSHOT_CLIENTS_PAUSE;
        assert_eq!((again(&looping, later), again(&other, later)), (9, 0));
        requests.taken(other.clone(), later);
        assert_eq!((again(&looping, later), again(&other, later)), (9, 11));
        let over = later + SNAPSHOT_REQUEST_PAUSE;
        assert_eq!((again(&looping, over), again(&other, over)), (0, 0));
    }
}
