//! The write-ahead log as the running node uses it: one call, one write, one sync.
//!
//! [`Wal::write`] returns when the batch is durable, so there is no way to go on without having synced. When it
//! fails, what is on the disk is unknown: an operating system may report a failed sync once and then forget it, so
//! a second try would prove nothing. The log therefore refuses everything from then on, and the process must stop;
//! the next start reads what really is there.
//!
//! After the sync, the frame's evidence is written (see the evidence module). The next sync makes it durable.
//!
//! The log's beginning goes when the protocol says so ([`Persist::Compact`], [`Persist::Snapshot`]): a segment is removed
//! when the next one is begun and nothing that stands in it is in the log any more.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_spec::raft::{Durable, Index, Persist, StateMachine};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::{Access, DiskFile};
use super::evidence::{Evidence, Slots};
use super::frame::{FrameBuffer, KIND_BATCH, Sequence};
use super::identity::Segments;
use super::log_summary::LogSummary;
use super::preallocate::{Blank, Preparation};
use super::record::Record;
use super::recover::{self, LastSegment, RecoveryReport};
use super::segment::{FRAMES_AT, Header, SegmentNumber, Start};
use super::segment_gc::Removal;
use super::{DataDir, Snapshots, Space, StorageError};

/// The size of a segment in bytes, unless told otherwise.
pub const DEFAULT_SEGMENT_BYTES: u64 = 16 << 20;

/// What one write cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The length of its frames in bytes; 0 for an empty batch, which writes nothing.
    pub bytes: usize,
    /// How long the write itself took.
    pub write: Duration,
    /// How long the sync took.
    pub sync: Duration,
    /// How long it took to begin a new segment, if that was necessary.
    pub rotation: Option<Duration>,
    /// How many segments were found superfluous when it was.
    pub removed: usize,
}

/// The segment that frames go to.
#[derive(Debug)]
struct Active {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    number: SegmentNumber,
    /// Where the next frame goes.
    end: u64,
    size: u64,
    slots: Slots,
}

/// The write-ahead log of a node that replicates `S`. Holds the data directory, and its lock, as long as it lives.
#[derive(Debug)]
pub struct Wal<S: StateMachine> {
    active: Active,
    next: Sequence,
    buffer: FrameBuffer,
    /// The segment after the active one, begun once the active one is half full.
    preparation: Preparation,
    space: Arc<Space>,
    /// What the log has come to.
    outline: LogSummary,
    /// All segments that are there, each with the last entry before it.
    segments: Vec<(SegmentNumber, Index)>,
    removal: Removal,
    snapshots: Arc<Snapshots>,
    /// The first failure, after which there is no other.
    failed: Option<String>,
    segment_bytes: u64,
    directory: DataDir,
    machine: PhantomData<fn(&S)>,
}

impl<S: StateMachine> Wal<S> {
    /// Opens the log with segments of the [default size](DEFAULT_SEGMENT_BYTES). See
    /// [`open_with_segments_of`](Wal::open_with_segments_of).
    ///
    /// # Errors
    /// If the log is damaged, or if the operating system refuses something.
    pub fn open(directory: DataDir, blank: Durable<S>) -> Result<(Wal<S>, Durable<S>, RecoveryReport), StorageError>
    where
        S: DeserializeOwned,
        S::Command: Serialize + DeserializeOwned,
    {
        Wal::open_with_segments_of(DEFAULT_SEGMENT_BYTES, directory, blank)
    }

    /// Opens the log, reads back what is durable, and cuts off the remains of an unfinished write. `blank` is the disk
    /// at the first start; new segments are `segment_bytes` long, existing ones stay as they are.
    ///
    /// # Errors
    /// If the log is damaged, or if the operating system refuses something. The node must not start then.
    pub fn open_with_segments_of(
        segment_bytes: u64,
        mut directory: DataDir,
        blank: Durable<S>,
    ) -> Result<(Wal<S>, Durable<S>, RecoveryReport), StorageError>
    where
        S: DeserializeOwned,
        S::Command: Serialize + DeserializeOwned,
    {
        let recovered = recover::recover(&directory, blank)?;
        let mut segments = recovered.segments;
        let active = match recovered.last {
            Some(last) => Active::reopen(last, &mut directory)?,
            None => {
                let number = SegmentNumber::FIRST;
                let blank = Blank::create(&**directory.disk(), directory.path(), number, segment_bytes)?;
                let size = segment_bytes.max(FRAMES_AT);
                let header = Header { number, first: recovered.next, size, start: Start::default() };
                segments.push((number, Index(0)));
                Active::begin(blank, header, number, &mut directory)?
            }
        };
        let snapshots = Arc::new(recovered.snapshots);
        let space = Space::new(directory.disk(), directory.path(), segment_bytes, &snapshots);
        let mut wal = Wal {
            active,
            next: recovered.next,
            buffer: FrameBuffer::default(),
            preparation: Preparation::new(directory.disk(), directory.path(), &space),
            space,
            outline: recovered.outline,
            segments,
            removal: Removal::default(),
            snapshots,
            failed: None,
            segment_bytes,
            directory,
            machine: PhantomData,
        };
        if recovered.settled {
            // From here on the log goes on behind the snapshot; the next start must know why.
            let snapshot = &recovered.durable.snapshot;
            let installed = Record::Installed { last: snapshot.last, stamp: snapshot.stamp, keeps: false };
            wal.append(&mut vec![installed], &mut Written::default())?;
        }
        Ok((wal, recovered.durable, recovered.report))
    }

    /// The snapshots beside the log.
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// The free space beside the log.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Sees to the next segment, if its preparation has failed. To be called now and then, whether anything is written or
    /// not; `now` decides when it is tried again.
    pub fn tend(&mut self, now: Instant) {
        self.preparation.tend(self.active.size - self.active.end, now);
    }

    /// The directory that the log is in.
    pub fn directory(&self) -> &DataDir {
        &self.directory
    }

    /// Makes a batch durable as a whole: one write, one sync. Whatever waited for it may be released when this
    /// returns, and not before. After a crash in the middle of it, all of it or nothing is there.
    ///
    /// A snapshot in it is made durable by itself, after what stands before it. A crash may leave a batch with snapshots
    /// done up to one of them.
    ///
    /// # Errors
    /// If it did not become durable, or may not have. The process must stop; every later call fails too.
    pub fn write(&mut self, batch: &[Persist<S>]) -> Result<Written, StorageError>
    where
        S: Serialize,
        S::Command: Serialize,
    {
        if let Some(first) = &self.failed {
            return Err(StorageError::Poisoned { first: first.clone() });
        }
        if batch.is_empty() {
            return Ok(Written::default());
        }
        let result = self.try_write(batch);
        if let Err(error) = &result {
            self.failed = Some(error.to_string());
        }
        result
    }

    fn try_write(&mut self, batch: &[Persist<S>]) -> Result<Written, StorageError>
    where
        S: Serialize,
        S::Command: Serialize,
    {
        let mut written = Written::default();
        let mut records = Vec::new();
        for write in batch {
            if let Persist::Snapshot(snapshot) = write {
                self.append(&mut records, &mut written)?;
                // If a crash comes between this and the record, the next start finds the snapshot beside the old log,
                // and brings the log into line with it.
                self.snapshots.install(snapshot)?;
            }
            records.push(Record::of(write, |position| self.outline.has(position)));
        }
        self.append(&mut records, &mut written)?;
        Ok(written)
    }

    /// Makes records durable: one frame, one write, one sync.
    fn append(&mut self, records: &mut Vec<Record<'_, S::Command>>, written: &mut Written) -> Result<(), StorageError>
    where
        S::Command: Serialize,
    {
        if records.is_empty() {
            return Ok(());
        }
        self.buffer.fill(records)?;
        let bytes = self.buffer.len();
        let length = bytes as u64;
        if self.active.size - self.active.end < length {
            self.rotate(length, written)?;
        }
        let active = &mut self.active;
        let frame = self.buffer.seal(self.next, KIND_BATCH, active.end);
        let before = Instant::now();
        active.file.write_all_at(frame, active.end).map_err(StorageError::write("write to", &active.path))?;
        let between = Instant::now();
        active.file.sync_data().map_err(StorageError::write("sync", &active.path))?;

        written.bytes += bytes;
        written.write += between - before;
        written.sync += between.elapsed();
        // Not before the sync has succeeded: who finds the evidence takes the frame for durable.
        let evidence = active.slots.encode(&Evidence::of(frame, self.next, active.end));
        let slot_at = active.slots.offset(self.next) as u64;
        active.file.write_all_at(&evidence, slot_at).map_err(StorageError::write("write to", &active.path))?;
        active.end += length;
        self.next = self.next.next();
        records.drain(..).for_each(|record| self.outline.follow(&record));
        self.prepare_ahead();
        Ok(())
    }

    /// Begins a new segment, with room for a frame of this length.
    fn rotate(&mut self, frame: u64, written: &mut Written) -> Result<(), StorageError> {
        let before = Instant::now();
        let number = self.active.number.next();
        let blank = self.preparation.take(number, self.segment_bytes)?;
        let start = self.outline.start();
        let header = Header { number, first: self.next, size: self.segment_bytes.max(FRAMES_AT + frame), start };
        self.segments.push((number, start.last.index));
        // The last segment before which there is nothing but what the log has lost.
        let base = self.outline.base();
        let superfluous = self.segments.iter().rposition(|&(_, before)| before <= base).unwrap_or(0);
        self.active = Active::begin(blank, header, self.segments[superfluous].0, &mut self.directory)?;
        let superfluous = self.segments.drain(..superfluous).map(|(number, _)| number.path(self.directory.path()));
        let superfluous: Vec<PathBuf> = superfluous.collect();
        written.removed += superfluous.len();
        self.removal.start(self.directory.disk(), superfluous);
        written.rotation = Some(written.rotation.unwrap_or_default() + before.elapsed());
        Ok(())
    }

    /// Starts preparing the next segment once half of this one is used. Not earlier: an idle node needs none.
    fn prepare_ahead(&mut self) {
        if self.active.end > self.active.size / 2 {
            self.preparation.start(self.active.number.next(), self.segment_bytes);
        }
    }
}

impl Active {
    /// Begins a segment. Before a frame can go to it, the directory knows that it exists, and that those before `first`
    /// need not.
    fn begin(
        blank: Blank,
        header: Header,
        first: SegmentNumber,
        directory: &mut DataDir,
    ) -> Result<Active, StorageError> {
        let (file, path) = blank.publish(&**directory.disk(), directory.path(), directory.identity(), &header)?;
        directory.record_segments(Segments { first, last: header.number })?;
        let slots = Slots::of(&header.encode(directory.identity()), header.first);
        Ok(Active { file, path, number: header.number, end: FRAMES_AT, size: header.size, slots })
    }

    /// Goes on in the last segment of a log that was read back.
    fn reopen(last: LastSegment, directory: &mut DataDir) -> Result<Active, StorageError> {
        let file = directory.disk().open(&last.path, Access::Write).map_err(StorageError::io("open", &last.path))?;
        // A crash right after the segment's creation may have come before this.
        directory.record_segments(Segments { last: last.number, ..directory.segments() })?;
        Ok(Active { file, path: last.path, number: last.number, end: last.end, size: last.size, slots: last.slots })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use palisade_spec::raft::{HardState, Members, NodeId, Term};

    use super::super::Identity;
    use super::super::failing::FailsOnce;
    use super::super::testing::Tape;
    use super::*;

    fn open(directory: &std::path::Path) -> (Wal<Tape>, Durable<Tape>) {
        let identity = Identity::of(1, NodeId(1));
        let directory = DataDir::open(directory, &identity).unwrap();
        let (wal, durable, _) =
            Wal::open_with_segments_of(4096, directory, Durable::blank(Tape, Members::default())).unwrap();
        (wal, durable)
    }

    fn vote_in(term: u64) -> [Persist<Tape>; 1] {
        [Persist::HardState(HardState { term: Term(term), vote: Some(NodeId(1)) })]
    }

    #[test]
    fn after_a_failed_write_or_sync_there_is_no_other() {
        for at in 0..12 {
            for through in [0, 20, usize::MAX] {
                let directory = tempfile::tempdir().unwrap();
                let (mut wal, _) = open(directory.path());
                let file = wal.directory.disk().open(&wal.active.path, Access::Write).unwrap();
                let (file, calls) = FailsOnce::at(at, through, file);
                wal.active.file = file;

                // Each write is a write of the frame, a sync, and a write of the evidence.
                let good = u64::from(at / 3);
                for term in 1..=good {
                    wal.write(&vote_in(term)).unwrap();
                }
                let error = wal.write(&vote_in(good + 1)).unwrap_err();
                assert!(error.to_string().contains("The process must stop"), "{error}");
                let calls_before = calls.load(Ordering::Relaxed);
                for term in [good + 1, good + 2] {
                    let refused = wal.write(&vote_in(term)).unwrap_err();
                    assert!(matches!(refused, StorageError::Poisoned { .. }), "{refused}");
                }
                assert_eq!(calls.load(Ordering::Relaxed), calls_before, "a poisoned log must not touch the disk");

                drop(wal);
                let (_, durable) = open(directory.path());
                let found = durable.hard.term.0;
                assert!(found == good || found == good + 1, "term {found} after {good} good writes");
            }
        }
    }
}
