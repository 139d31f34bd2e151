//! Free space on the disk: how much the log has, and whether that is enough to take on more work.
//!
//! Below a low-water mark a leader refuses new sessions and acquires. What ends claims (releases, keepalives, closes,
//! expiries) goes on, in the space that the mark has kept free. The mark is room for two segments of the log and for
//! two snapshots as large as the newest:
//!
//! - one segment is the next one, which the log cannot do without;
//! - the other one is for what goes on below the mark, until space is freed;
//! - a new snapshot is what shortens the log, so it must not fail for want of space. The state grows between two
//!   snapshots, as a rule to no more than twice its size.
//!
//! A segment that is prepared already counts as free space. Whatever keeps the next segment from being prepared (a
//! quota, no more inodes, a damaged disk) counts as no space, whatever the file system says.
//!
//! Nothing here is on the path of a request but one atomic load. [`Space::check`] asks the system; the server calls it
//! every second, on a thread of its own, and every segment change calls it too.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracing::{info, warn};

use super::disk::Disk;
use super::{Snapshots, StorageError};
use crate::sync::Mutex;

/// Free space of a data directory.
#[derive(Debug)]
pub struct Space {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    segment_bytes: u64,
    snapshots: Arc<Snapshots>,
    is_low: AtomicBool,
    preparation_failures: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the operator wants to be free, instead of the mark that is computed.
    demanded: Option<u64>,
    /// What the system said last; `None` if it could not say.
    available: Option<u64>,
    /// How long the next segment is, once it is prepared.
    prepared: u64,
    /// Why the next segment could not be prepared, at the last attempt.
    obstacle: Option<String>,
}

/// Free space, as of the last check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceView {
    /// What the log may still allocate, the next segment included if it is prepared, in bytes; `None` if the system does
    /// not say.
    pub free: Option<u64>,
    /// The low-water mark, in bytes.
    pub mark: u64,
    /// Whether a leader refuses new sessions and acquires.
    pub is_low: bool,
    /// Why the next segment of the log could not be prepared, if it could not.
    pub obstacle: Option<String>,
}

impl Space {
    /// Not checked yet.
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        directory: impl Into<PathBuf>,
        segment_bytes: u64,
        snapshots: &Arc<Snapshots>,
    ) -> Arc<Space> {
        Arc::new(Space {
            disk: Arc::clone(disk),
            directory: directory.into(),
            segment_bytes,
            snapshots: Arc::clone(snapshots),
            is_low: AtomicBool::new(false),
            preparation_failures: AtomicU64::new(0),
            state: Mutex::new(State::default()),
        })
    }

    /// Sets the low-water mark, in bytes, in place of the computed one.
    pub fn demand(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.demanded = Some(bytes);
        self.judge(&state);
    }

    /// Asks the system how much is free. May wait for the disk.
    pub fn check(&self) {
        let available = self.disk.available(&self.directory);
        let mut state = self.state.lock();
        match available {
            Ok(available) => state.available = Some(available),
            Err(error) => {
                if state.available.take().is_some() {
                    let directory = self.directory.display();
                    warn!(%directory, %error, "cannot learn how much space is free; the low-water mark is not kept");
                }
            }
        }
        self.judge(&state);
    }

    /// Whether a leader is to refuse new sessions and acquires.
    pub fn is_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed)
    }

    /// Free space as of the last check.
    pub fn view(&self) -> SpaceView {
        let state = self.state.lock();
        let (free, mark) = (state.free(), self.mark(&state));
        SpaceView { free, mark, is_low: self.is_low(), obstacle: state.obstacle.clone() }
    }

    /// How many attempts to prepare a segment have failed since the start.
    pub fn preparation_failures(&self) -> u64 {
        self.preparation_failures.load(Ordering::Relaxed)
    }

    /// Refuses to begin a segment for which there is no room: an attempt would take the last of it from others for as
    /// long as it lasts.
    pub(super) fn expect_room_for(&self, bytes: u64) -> std::io::Result<()> {
        match self.disk.available(&self.directory) {
            Ok(available) if available < bytes => {
                let message = format!("No space left on device ({available} bytes are free, {bytes} are needed)");
                Err(std::io::Error::new(std::io::ErrorKind::StorageFull, message))
            }
            // If the system does not say, the attempt will show.
            _ => Ok(()),
        }
    }

    /// The next segment is there, and has this length.
    pub(super) fn prepared(&self, bytes: u64) {
        {
            let mut state = self.state.lock();
            (state.prepared, state.obstacle) = (bytes, None);
        }
        self.check();
    }

    /// The next segment could not be prepared.
    pub(super) fn not_prepared(&self, error: &StorageError) {
        self.preparation_failures.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.obstacle = Some(error.to_string());
        self.judge(&state);
    }

    /// What was prepared is the log's segment now.
    pub(super) fn used(&self) {
        let mut state = self.state.lock();
        (state.prepared, state.obstacle) = (0, None);
        self.judge(&state);
    }

    fn mark(&self, state: &State) -> u64 {
        let snapshot = self.snapshots.newest().map_or(0, |newest| newest.bytes);
        let computed = self.segment_bytes.saturating_add(snapshot).saturating_mul(2);
        state.demanded.unwrap_or(computed)
    }

    /// It is low below the mark, and no more when there is room for another segment above it: so a segment that comes or
    /// goes does not turn it back and forth.
    fn judge(&self, state: &State) {
        let (was_low, mark) = (self.is_low(), self.mark(state));
        let enough = if was_low { mark.saturating_add(self.segment_bytes) } else { mark };
        // A mark of 0 switches this off.
        let lacks = mark > 0 && state.free().is_some_and(|free| free < enough);
        let is_low = lacks || state.obstacle.is_some();
        self.is_low.store(is_low, Ordering::Relaxed);
        let (directory, free) = (self.directory.display(), state.free());
        if is_low && !was_low {
            warn!(
                %directory, free, mark,
                "the disk is nearly full: as a leader this node refuses new sessions and acquires until space is freed \
                 in its data directory's file system; releases, keepalives and expiries go on as long as there is room"
            );
        } else if was_low && !is_low {
            info!(%directory, free, mark, "there is enough space on the disk again: new sessions and acquires are taken");
        }
    }
}

#[cfg(test)]
impl Space {
    /// One where so much is free, and so much should be.
    pub(crate) fn of_tests(free: u64, mark: u64) -> Arc<Space> {
        let (disk, directory) = (super::SystemDisk::shared(), tempfile::tempdir().expect("a temporary directory"));
        let snapshots = Snapshots::open::<super::testing::Tape>(&disk, directory.path(), 1).expect("a directory");
        let space = Space::new(&disk, directory.path(), 1, &Arc::new(snapshots.0));
        space.state.lock().available = Some(free);
        space.demand(mark);
        space
    }
}

impl State {
    fn free(&self) -> Option<u64> {
        self.available.map(|available| available.saturating_add(self.prepared))
    }
}
