//! A disk in memory that records its state after each write and sync, so that a crash can be
//! simulated at each of them: of the unsynced sectors, any selection may become durable.
//!
//! Names are durable at once; other tests cover the effect of crashes on names.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

use palisade::storage::{Access, Beside, Disk, DiskFile, Lock, LockedDir, Locking, StorageError, Wal};
use palisade_spec::raft::{Durable, Members};
use parking_lot::{Mutex, MutexGuard};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::testing::Tape;
use super::{FRAMES_AT, Opened, SECTOR, batch, identity};

/// A part of a write that lies in one sector.
#[derive(Clone, Debug)]
struct Piece {
    offset: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Content {
    /// The content that the operating system shows.
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// Pieces written since the last sync, oldest first.
    pending: Vec<Piece>,
}

impl Content {
    fn write(&mut self, mut bytes: &[u8], mut offset: usize) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(SECTOR - offset % SECTOR));
            put(&mut self.cache, now, offset);
            self.pending.push(Piece { offset, bytes: now.to_vec() });
            (bytes, offset) = (later, offset + now.len());
        }
    }

    /// Makes the `chosen` pending pieces durable, and discards the others.
    fn flush(&mut self, mut chosen: impl FnMut(usize) -> bool) {
        for (number, piece) in self.pending.drain(..).enumerate() {
            if chosen(number) {
                put(&mut self.durable, &piece.bytes, piece.offset);
            }
        }
    }
}

fn put(to: &mut Vec<u8>, bytes: &[u8], offset: usize) {
    to.resize(to.len().max(offset + bytes.len()), 0);
    to[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// The content of a disk, and the unsynced content in the system's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    names: BTreeMap<String, usize>,
    contents: Vec<Content>,
}

impl State {
    /// The log's last segment: its name, and the content that the system shows.
    pub(crate) fn last_segment(&self) -> (&str, &[u8]) {
        let is_segment = |name: &&String| name.starts_with("wal-") && name.ends_with(".log");
        let name = self.names.keys().rfind(is_segment).expect("the log has begun");
        (name, &self.contents[self.names[name]].cache)
    }

    /// Makes everything durable, and replaces the content of the last segment.
    pub(crate) fn with_last_segment(&self, bytes: Vec<u8>) -> State {
        let mut state = self.clone();
        for content in &mut state.contents {
            content.flush(|_| true);
        }
        let last = state.names[self.last_segment().0];
        state.contents[last] = Content { cache: bytes.clone(), durable: bytes, pending: Vec::new() };
        state
    }

    /// Number of pieces (each within one sector) that were written and not synced.
    pub(crate) fn pending(&self) -> usize {
        self.contents.iter().map(|content| content.pending.len()).sum()
    }

    /// Whether the content that the system shows is durable.
    pub(crate) fn is_durable(&self) -> bool {
        self.contents.iter().all(|content| content.cache == content.durable)
    }

    /// The state after a failed sync: the sectors of this `selection` were written, the others are
    /// forgotten. The content that the system shows does not reveal which.
    pub(crate) fn failed_sync(&self, selection: u64) -> State {
        let mut state = self.clone();
        let mut before = 0;
        for content in &mut state.contents {
            let pending = content.pending.len();
            content.flush(|number| selection >> (before + number) & 1 == 1);
            before += pending;
        }
        state
    }

    /// The state after a power failure: of the sectors in flight, this `selection` was written.
    pub(crate) fn power_failure(&self, selection: u64) -> State {
        let mut state = self.failed_sync(selection);
        for content in &mut state.contents {
            content.cache.clone_from(&content.durable);
        }
        state
    }

    /// Like [`State::power_failure`]; of the last sector in flight only the first `bytes` were
    /// written.
    pub(crate) fn torn(&self, selection: u64, bytes: usize) -> State {
        let mut state = self.clone();
        let pieces = state.contents.iter_mut().filter_map(|content| content.pending.last_mut());
        pieces.for_each(|piece| piece.bytes.truncate(bytes));
        state.power_failure(selection)
    }

    /// Opens the log on this state. The returned disk has recorded the state after each write and
    /// each sync meanwhile.
    pub(crate) fn open(&self, segment_bytes: u64) -> (Result<Opened, StorageError>, TestDisk) {
        let disk = TestDisk(Arc::new(Mutex::new(Inner { state: self.clone(), moments: Vec::new() })));
        let directory =
            LockedDir::open_on(Arc::new(disk.clone()), "/data").and_then(|locked| locked.claim(&identity()));
        let blank = Durable::blank(Tape, Members::default());
        (directory.and_then(|directory| Wal::open_with_segments_of(segment_bytes, directory, blank)), disk)
    }
}

/// The kind of an operation, and the state of the disk right after it.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) state: State,
    pub(crate) is_sync: bool,
}

#[derive(Debug)]
struct Inner {
    state: State,
    moments: Vec<Moment>,
}

/// The disk. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct TestDisk(Arc<Mutex<Inner>>);

impl TestDisk {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    pub(crate) fn state(&self) -> State {
        self.inner().state.clone()
    }

    /// All operations on segments, in order.
    pub(crate) fn moments(&self) -> Vec<Moment> {
        self.inner().moments.clone()
    }

    fn name(path: &Path) -> String {
        path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let found = self.inner().state.names.get(&TestDisk::name(path)).copied();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for TestDisk {
    fn create_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<OsString>> {
        Ok(self.inner().state.names.keys().map(OsString::from).collect())
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn available(&self, _: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let number = match (self.find(path), access) {
            (Ok(number), Access::Read | Access::Write | Access::Continue) => number,
            (Err(error), Access::Read | Access::Write) => return Err(error),
            (_, Access::Create | Access::Continue) => {
                let mut inner = self.inner();
                let State { names, contents } = &mut inner.state;
                contents.push(Content::default());
                names.insert(TestDisk::name(path), contents.len() - 1);
                contents.len() - 1
            }
        };
        Ok(Box::new(TestFile { disk: self.clone(), number }))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let number = self.find(path)?;
        Ok(self.inner().state.contents[number].cache.clone())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let number = self.find(from)?;
        let names = &mut self.inner().state.names;
        names.remove(&TestDisk::name(from));
        names.insert(TestDisk::name(to), number);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.find(path)?;
        self.inner().state.names.remove(&TestDisk::name(path));
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Locking> {
        Ok(Locking::Locked(Lock::new(())))
    }

    fn beside(&self, _: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        work();
        Ok(Beside::done())
    }
}

#[derive(Debug)]
struct TestFile {
    disk: TestDisk,
    number: usize,
}

impl TestFile {
    fn change(&self, is_sync: bool, change: impl FnOnce(&mut Content)) {
        let mut inner = self.disk.inner();
        change(&mut inner.state.contents[self.number]);
        let name = inner.state.names.iter().find(|(_, number)| **number == self.number);
        if name.is_some_and(|(name, _)| name.starts_with("wal-") && name.ends_with(".log")) {
            let state = inner.state.clone();
            inner.moments.push(Moment { state, is_sync });
        }
    }
}

impl DiskFile for TestFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let inner = self.disk.inner();
        let cache = &inner.state.contents[self.number].cache;
        let from = cache.get(usize::try_from(offset).unwrap()..).unwrap_or_default();
        let read = from.len().min(bytes.len());
        bytes[..read].copy_from_slice(&from[..read]);
        Ok(read)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change(false, |content| content.write(bytes, usize::try_from(offset).unwrap()));
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.inner().state.contents[self.number].cache.len() as u64)
    }

    /// Truncates durably at once. Only temporary files are truncated, and they are synced before
    /// they get their names, so no crash of the log can expose this.
    fn set_length(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).expect("files are short");
        self.change(false, |content| {
            content.cache.resize(length, 0);
            content.durable.truncate(length);
        });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(true, |content| content.flush(|_| true));
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A log that was written, and the record of all operations on its disk.
pub(crate) struct RecordedDisk {
    pub(crate) moments: Vec<Moment>,
    /// Number of acknowledged frames at each moment.
    pub(crate) acknowledged: Vec<usize>,
    /// The durable state before the first frame and after each.
    pub(crate) durable: Vec<Durable<Tape>>,
    /// The state of the disk before the first frame and after each.
    pub(crate) states: Vec<State>,
    /// Begin and end of each frame in its segment.
    pub(crate) frames: Vec<(usize, usize)>,
    pub(crate) segment_bytes: u64,
}

impl RecordedDisk {
    /// Writes `count` batches with payloads of up to `largest` bytes.
    pub(crate) fn write(seed: u64, count: usize, largest: usize, segment_bytes: u64) -> RecordedDisk {
        let (opened, disk) = State::default().open(segment_bytes);
        let (mut wal, blank, _) = opened.unwrap();
        let rng = &mut SmallRng::seed_from_u64(seed);
        let mut acknowledged = vec![0; disk.moments().len()];
        let (mut durable, mut states, mut frames) = (vec![blank], vec![disk.state()], Vec::new());
        for number in 0..count {
            let batch = batch(rng, &durable[number], largest);
            let written = wal.write(&batch).unwrap();
            let mut after = durable[number].clone();
            batch.iter().for_each(|write| after.apply(write));
            durable.push(after);
            states.push(disk.state());
            let goes_on = frames.last().filter(|_| written.rotation.is_none());
            let at = goes_on.map_or(FRAMES_AT, |&(_, end)| end);
            frames.push((at, at + written.bytes));
            acknowledged.resize(disk.moments().len(), number);
            *acknowledged.last_mut().unwrap() = number + 1;
        }
        RecordedDisk { moments: disk.moments(), acknowledged, durable, states, frames, segment_bytes }
    }

    /// Number of frames.
    pub(crate) fn count(&self) -> usize {
        self.frames.len()
    }

    /// Number of frames that lead to this durable state; `None` if it is no state of this log.
    pub(crate) fn frames_of(&self, durable: &Durable<Tape>) -> Option<usize> {
        self.durable.iter().position(|is| is == durable)
    }
}
