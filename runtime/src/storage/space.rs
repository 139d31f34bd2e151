//! Free space on the disk: how much the log has, and whether a leader may accept new work.
//!
//! Below a low-water mark a leader refuses new sessions and acquires. What keeps or ends claims
//! (releases, keepalives, closes, expiries) is still executed, in the space that the mark
//! reserves. The mark is room for two segments of the log and for two snapshots as large as the
//! newest:
//!
//! - one segment is the next one, without which the log cannot continue;
//! - the other segment is for the writes below the mark, until space is freed;
//! - a new snapshot shortens the log, so it must not fail for lack of space. The state grows
//!   between two snapshots, as a rule to no more than twice its size.
//!
//! A prepared segment counts as free space. Any obstacle to preparing the next segment (a quota, no
//! more inodes, a damaged disk) counts as no space, even if the file system reports free space.
//!
//! A request costs one atomic load here. [`Space::check`] asks the system; the server calls it
//! every second, on a thread of its own, and every segment change calls it, too.

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
    /// The operator's low-water mark, in bytes; it replaces the computed one.
    demanded: Option<u64>,
    /// Free bytes that the system reported last; `None` if the query failed.
    available: Option<u64>,
    /// Length of the prepared next segment, in bytes; 0 if none is prepared.
    prepared: u64,
    /// Why the last attempt to prepare the next segment failed.
    obstacle: Option<String>,
}

/// Free space, as of the last check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceView {
    /// Bytes that the log may still allocate, including the next segment if it is prepared; `None`
    /// if the system does not report free space.
    pub free: Option<u64>,
    /// The low-water mark, in bytes.
    pub mark: u64,
    /// Whether a leader refuses new sessions and acquires.
    pub is_low: bool,
    /// Why the last attempt to prepare the next segment of the log failed; `None` if none has failed
    /// since the last segment was prepared or begun.
    pub obstacle: Option<String>,
}

impl Space {
    /// Makes the tracker of a directory's free space, without a first check.
    pub(super) fn new(
        disk: &Arc<dyn Disk>,
        directory: impl Into<PathBuf>,
        segment_bytes: u64,
        snapshots: &Arc<Snapshots>,
    ) -> Arc<Space> {
        snapshots.reserve(segment_bytes.saturating_mul(2));
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
        self.snapshots.reserve(bytes);
        self.update_is_low(&state);
    }

    /// Asks the system how much space is free. May block on the disk.
    pub fn check(&self) {
        let available = self.disk.available(&self.directory);
        let mut state = self.state.lock();
        match available {
            Ok(available) => state.available = Some(available),
            Err(error) => {
                if state.available.take().is_some() {
                    let directory = self.directory.display();
                    warn!(
                        %directory, %error,
                        "the free space of the data directory's file system is unknown, so this node does not refuse requests \
                         before the disk is full: watch its free space by other means"
                    );
                }
            }
        }
        self.update_is_low(&state);
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

    /// Number of failed attempts to prepare a segment since the start.
    pub fn preparation_failures(&self) -> u64 {
        self.preparation_failures.load(Ordering::Relaxed)
    }

    /// Fails if there is no room for a segment of this length. An attempt without room would take
    /// the remaining space away from other writers while it lasts.
    pub(super) fn expect_room_for(&self, bytes: u64) -> std::io::Result<()> {
        match self.disk.available(&self.directory) {
            Ok(available) if available < bytes => {
                let message = format!("No space left on device ({available} bytes are free, {bytes} are needed)");
                Err(std::io::Error::new(std::io::ErrorKind::StorageFull, message))
            }
            // If the free space is unknown, only the attempt can tell.
            _ => Ok(()),
        }
    }

    /// Records that the next segment is prepared, with this length.
    pub(super) fn prepared(&self, bytes: u64) {
        {
            let mut state = self.state.lock();
            (state.prepared, state.obstacle) = (bytes, None);
        }
        self.check();
    }

    /// Records that the next segment could not be prepared.
    pub(super) fn not_prepared(&self, error: &StorageError) {
        self.preparation_failures.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.obstacle = Some(error.to_string());
        self.update_is_low(&state);
    }

    /// Records that the prepared segment is in use.
    pub(super) fn used(&self) {
        let mut state = self.state.lock();
        (state.prepared, state.obstacle) = (0, None);
        self.update_is_low(&state);
    }

    fn mark(&self, state: &State) -> u64 {
        let snapshot = self.snapshots.newest().map_or(0, |newest| newest.bytes);
        let computed = self.segment_bytes.saturating_add(snapshot).saturating_mul(2);
        state.demanded.unwrap_or(computed)
    }

    /// Updates `is_low`, with hysteresis: space becomes low below the mark, and stops being low
    /// once there is room for another segment above the mark. So a segment that is created or
    /// removed does not toggle it.
    fn update_is_low(&self, state: &State) {
        let (was_low, mark) = (self.is_low(), self.mark(state));
        let enough = if was_low { mark.saturating_add(self.segment_bytes) } else { mark };
        // A mark of 0 disables the check.
        let lacks = mark > 0 && state.free().is_some_and(|free| free < enough);
        let is_low = lacks || state.obstacle.is_some();
        self.is_low.store(is_low, Ordering::Relaxed);
        let (directory, free) = (self.directory.display(), state.free());
        if is_low && !was_low {
            warn!(
                %directory, free, mark,
                "the disk is nearly full: as a leader this node refuses new sessions, acquires and values until space is freed \
                 in its data directory's file system; releases, keepalives and expiries continue as long as there is room"
            );
        } else if was_low && !is_low {
            info!(%directory, free, mark, "there is enough space on the disk again: new sessions and acquires are accepted");
        }
    }
}

#[cfg(test)]
impl Space {
    /// A tracker that reports `free` bytes and has the low-water mark `mark`.
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
