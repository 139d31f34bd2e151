//! Preallocation of segments: zeros first, then a header, then a name.
//!
//! The zeros are written, not only allocated: a sync of bytes that replace written ones only writes
//! them, while a first write to allocated space must also record in the file system's journal that
//! the space is no longer empty. Writing zeros takes a while, so a thread of its own does it ahead
//! of time, and the log waits for it only if it fills a segment faster than the disk can zero the
//! next. The header is written last, because it names the first frame.
//!
//! A prepared segment makes the change of segments independent of free space: the identity file,
//! which is rewritten at each change, has its space allocated along with the zeros.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::disk::{Access, Beside, Disk, DiskFile};
use super::segment::Header;
use super::segment_number::SegmentNumber;
use super::space::Space;
use super::{Identity, StorageError, files, identity};

/// Half of the first pause between attempts to prepare a segment, and the maximum pause; the pause
/// doubles after each failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Bytes zeroed between two syncs: few enough that the log's own syncs do not queue behind many.
const CHUNK: u64 = 1 << 20;
/// Bytes zeroed by one write. A file system may keep the content of one write in one piece of its
/// cache (ext4 does since Linux 6.16), and then searches all of that piece in each small write and
/// each sync of the log within it.
const PAGE: usize = 4096;

/// A file of durable zeros that is not a segment yet.
#[derive(Debug)]
pub(super) struct Blank {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    number: SegmentNumber,
    size: u64,
}

impl Blank {
    /// Creates the file under a temporary name and zeros it. Also allocates all other space that
    /// beginning a segment takes. A failed attempt removes the file.
    pub(super) fn create(
        disk: &dyn Disk,
        directory: &Path,
        number: SegmentNumber,
        size: u64,
    ) -> Result<Blank, StorageError> {
        let path = number.path(directory);
        let temporary = files::temporary_path(&path);
        let zeroed = disk.open(&temporary, Access::Create).map_err(StorageError::write("create", &temporary));
        let zeroed = zeroed.and_then(|file| {
            zero(&*file, &temporary, 0, size)?;
            identity::preallocate(disk, directory)?;
            Ok(file)
        });
        match zeroed {
            Ok(file) => Ok(Blank { file, path, number, size }),
            Err(error) => {
                // Frees the space for other writers. The next attempt starts from scratch, because
                // the content after a failed sync is unknown.
                let _ = disk.remove(&temporary);
                Err(error)
            }
        }
    }

    /// Makes the file the log's next segment, durably. The file grows if the segment must be
    /// larger.
    pub(super) fn publish(
        self,
        disk: &dyn Disk,
        directory: &Path,
        identity: &Identity,
        header: &Header,
    ) -> Result<(Box<dyn DiskFile>, PathBuf), StorageError> {
        debug_assert!(self.number == header.number && self.size <= header.size, "prepared for this segment");
        let temporary = files::temporary_path(&self.path);
        zero(&*self.file, &temporary, self.size, header.size)?;
        let written = self.file.write_all_at(&header.encode(identity), 0);
        written.map_err(StorageError::write("write to", &temporary))?;
        self.file.sync_all().map_err(StorageError::write("sync", &temporary))?;
        files::publish(disk, &self.path, directory)?;
        Ok((self.file, self.path))
    }
}

/// Writes durable zeros from `from` to `to`.
pub(super) fn zero(file: &dyn DiskFile, path: &Path, from: u64, to: u64) -> Result<(), StorageError> {
    let zeros = [0; PAGE];
    let mut at = from;
    while at < to {
        let synced = to.min((at / CHUNK + 1) * CHUNK);
        while at < synced {
            let boundary = (at / PAGE as u64 + 1) * PAGE as u64;
            let length = usize::try_from(boundary.min(synced) - at).unwrap_or(PAGE);
            file.write_all_at(&zeros[..length], at).map_err(StorageError::write("write zeros to", path))?;
            at += length as u64;
        }
        file.sync_data().map_err(StorageError::write("sync", path))?;
    }
    Ok(())
}

/// The preparation of the next segment. Dropping it waits for the end of the work; the next start
/// removes the prepared file.
///
/// The log does not need the next segment until the present one is full. So a failed attempt is
/// logged, counted ([`Space`]) and repeated after a pause.
#[derive(Debug)]
pub(super) struct Preparation {
    stage: Stage,
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    space: Arc<Space>,
    /// Number of consecutive failed attempts.
    failures: u32,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Making(Making),
    Ready(Blank),
    /// The last attempt failed; the next one is due at `again`.
    Failed {
        number: SegmentNumber,
        size: u64,
        again: Instant,
    },
}

#[derive(Debug)]
struct Making {
    work: Beside,
    made: mpsc::Receiver<Result<Blank, StorageError>>,
    number: SegmentNumber,
    size: u64,
}

impl Preparation {
    pub(super) fn new(disk: &Arc<dyn Disk>, directory: &Path, space: &Arc<Space>) -> Preparation {
        let (disk, directory, space) = (Arc::clone(disk), directory.to_owned(), Arc::clone(space));
        Preparation { stage: Stage::Idle, disk, directory, space, failures: 0 }
    }

    /// Starts the preparation, unless it has started already.
    pub(super) fn start(&mut self, number: SegmentNumber, size: u64) {
        if matches!(self.stage, Stage::Idle) {
            self.attempt(number, size);
        }
    }

    fn attempt(&mut self, number: SegmentNumber, size: u64) {
        let (result, made) = mpsc::sync_channel(1);
        let (disk, directory, space) = (Arc::clone(&self.disk), self.directory.clone(), Arc::clone(&self.space));
        let make = move || {
            let blank = space.expect_room_for(size).map_err(StorageError::write("prepare", number.path(&directory)));
            let blank = blank.and_then(|()| Blank::create(&*disk, &directory, number, size));
            let blank = blank.map_err(StorageError::of_attempt);
            match &blank {
                Ok(_) => space.prepared(size),
                Err(error) => space.not_prepared(error),
            }
            // The receiver is gone if the log no longer needs the segment.
            let _ = result.send(blank);
        };
        let name = "wal-prepare";
        // Without a thread, the channel closes without a result.
        let work = self.disk.beside(name, Box::new(make)).unwrap_or_else(|error| {
            let error = StorageError::write("start a thread to prepare a segment in", &self.directory)(error);
            self.space.not_prepared(&error.of_attempt());
            Beside::done()
        });
        self.stage = Stage::Making(Making { work, made, number, size });
    }

    /// Polls the running attempt, and retries a failed one once its pause is over. `left` is the
    /// number of free bytes in the present segment.
    pub(super) fn tend(&mut self, left: u64, now: Instant) {
        match &mut self.stage {
            Stage::Idle | Stage::Ready(_) => {}
            Stage::Making(making) => match making.made.try_recv() {
                Err(mpsc::TryRecvError::Empty) => {}
                Ok(Ok(blank)) => {
                    if self.failures > 0 {
                        info!(
                            attempts = self.failures + 1,
                            "the next segment of the log is prepared after failed attempts"
                        );
                    }
                    (self.stage, self.failures) = (Stage::Ready(blank), 0);
                }
                Ok(Err(_)) | Err(mpsc::TryRecvError::Disconnected) => {
                    let Making { number, size, .. } = *making;
                    self.failures = self.failures.saturating_add(1);
                    let pause = RETRY.0.saturating_mul(1 << self.failures.min(16)).min(RETRY.1);
                    self.stage = Stage::Failed { number, size, again: now + pause };
                    self.log_failure(number, left, pause);
                }
            },
            Stage::Failed { number, size, again } if *again <= now => {
                let (number, size) = (*number, *size);
                self.attempt(number, size);
            }
            Stage::Failed { .. } => {}
        }
    }

    /// Logs the first, the second, the fourth… failed attempt; not every one.
    fn log_failure(&self, number: SegmentNumber, left: u64, pause: Duration) {
        let attempt = self.failures;
        if attempt.is_power_of_two() {
            let (file, obstacle) = (number.path(&self.directory), self.space.view().obstacle.unwrap_or_default());
            warn!(
                file = %file.display(), error = obstacle, attempt, left_in_segment = left, again_in = ?pause,
                "the next segment of the log cannot be prepared; the node stops when the present one is full: free space \
                 in the file system of its data directory"
            );
        }
    }

    /// Returns the prepared segment, and waits for it if the preparation is running. If there is
    /// none, creates it now, on the calling thread.
    pub(super) fn take(&mut self, number: SegmentNumber, size: u64) -> Result<Blank, StorageError> {
        self.failures = 0;
        let blank = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Ready(blank) => Some(blank),
            Stage::Making(Making { work, made, .. }) => {
                work.join();
                made.recv().ok().and_then(Result::ok)
            }
            Stage::Idle | Stage::Failed { .. } => None,
        };
        let blank = blank.map_or_else(|| Blank::create(&*self.disk, &self.directory, number, size), Ok)?;
        self.space.used();
        Ok(blank)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use palisade_spec::raft::{Durable, HardState, Members, NodeId, Persist, Term};

    use super::super::failing::FullDisk;
    use super::super::testing::Tape;
    use super::super::{DataDir, LayeredDisk, LockedDir, SystemDisk, Wal};
    use super::*;

    const SEGMENT: u64 = 64 * 1024;

    fn open(disk: &FullDisk, directory: &Path) -> Wal<Tape> {
        let disk = Arc::new(LayeredDisk::new(disk.clone(), SystemDisk::shared()));
        let directory: DataDir =
            LockedDir::open_on(disk, directory).unwrap().claim(&Identity::of(1, NodeId(1))).unwrap();
        Wal::open_with_segments_of(SEGMENT, directory, Durable::blank(Tape, Members::default())).unwrap().0
    }

    /// For any begin and end, the range is zero afterwards and no other byte has changed.
    #[test]
    fn zero_fills_exactly_the_given_range() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let end = 2 * CHUNK + 2;
        let edges = [0, 4095, 4097, CHUNK - 1, CHUNK + 1, end];
        for (from, to) in edges.into_iter().flat_map(|from| edges.map(|to| (from, to))) {
            std::fs::write(&path, vec![0xFF; usize::try_from(end).unwrap()]).unwrap();
            let file = SystemDisk.open(&path, Access::Write).unwrap();
            zero(&*file, &path, from, to).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let wrong = (0..).zip(&bytes).find(|(at, byte)| **byte != if (from..to).contains(at) { 0 } else { 0xFF });
            assert_eq!((bytes.len() as u64, wrong), (end, None), "from {from} to {to}");
        }
    }

    /// Writes this number of small frames; `None` if one fails.
    fn write(wal: &mut Wal<Tape>, frames: u64) -> Option<()> {
        for term in 1..=frames {
            wal.write(&[Persist::HardState(HardState { term: Term(term), vote: None })]).ok()?;
        }
        Some(())
    }

    /// Maximum number of such frames in a segment.
    const FILLS: u64 = SEGMENT / 30;

    /// Waits until the running preparation has ended.
    fn settle(wal: &mut Wal<Tape>, now: Instant, failures: u64) {
        for _ in 0..10_000 {
            wal.tend(now);
            let view = wal.space().view();
            if wal.space().preparation_failures() == failures && view.is_low == view.obstacle.is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} attempts have failed, not {failures}", wal.space().preparation_failures());
    }

    /// A failed preparation is retried, after longer and longer pauses, until it succeeds.
    /// Meanwhile the log continues, failed attempts leave no file on the disk, and the node reports
    /// low space.
    #[test]
    fn failed_preparation_is_retried() {
        let directory = tempfile::tempdir().unwrap();
        let disk = FullDisk::default();
        let mut wal = open(&disk, directory.path());
        wal.space().demand(0);
        disk.is_full.store(true, Ordering::Relaxed);
        write(&mut wal, SEGMENT / 2 / 20).expect("the present segment has room");
        let mut now = Instant::now();
        for failures in 1..=8 {
            settle(&mut wal, now, failures);
            assert!(wal.space().is_low());
            let view = wal.space().view();
            let why = view.obstacle.expect("it says why");
            assert!(why.contains("wal-00000000000000000002.log") && !why.contains("must stop"), "{why}");
            assert!(!files::temporary_path(&SegmentNumber(2).path(directory.path())).exists(), "it takes no space");
            // No retry before the pause is over.
            wal.tend(now);
            now += RETRY.1;
        }
        disk.is_full.store(false, Ordering::Relaxed);
        wal.tend(now);
        for _ in 0..10_000 {
            if !wal.space().is_low() {
                break;
            }
            wal.tend(now);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(wal.space().view().obstacle, None);
        assert_eq!(wal.space().preparation_failures(), 8);
        write(&mut wal, 3 * FILLS).expect("the log continues");
    }

    /// A prepared segment takes no more space: on a full disk the log continues in the prepared
    /// segment, and fails only when it needs another one. The next start finds all that was
    /// written.
    #[test]
    fn prepared_segment_needs_no_free_space() {
        let directory = tempfile::tempdir().unwrap();
        let disk = FullDisk::default();
        let mut wal = open(&disk, directory.path());
        let begin = Instant::now();
        while !matches!(wal.space().view().free, Some(free) if free > FullDisk::FREE) {
            write(&mut wal, 1).unwrap();
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing is prepared");
        }
        disk.is_full.store(true, Ordering::Relaxed);
        let mut term = 1_000_000;
        let error = loop {
            let vote = HardState { term: Term(term), vote: None };
            match wal.write(&[Persist::HardState(vote)]) {
                Ok(_) => term += 1,
                Err(error) => break error.to_string(),
            }
            assert!(term < 1_000_000 + 10 * FILLS, "the log never runs out of space");
        };
        assert!(error.contains("wal-00000000000000000003.log") && error.contains("must stop"), "{error}");
        drop(wal);
        let wal: DataDir = LockedDir::open_on(SystemDisk::shared(), directory.path())
            .unwrap()
            .claim(&Identity::of(1, NodeId(1)))
            .unwrap();
        let blank = Durable::blank(Tape, Members::default());
        let (wal, durable, _) = Wal::open_with_segments_of(SEGMENT, wal, blank).unwrap();
        assert_eq!(durable.hard.term, Term(term - 1));
        assert_eq!(wal.directory().segments().last, SegmentNumber(2));
    }
}
