//! The write-ahead log of the running node: one call, one write, one sync.
//!
//! [`Wal::write`] returns once the batch is durable, so the caller cannot continue without a sync.
//! When it fails, the content of the disk is unknown: an operating system may report a failed sync
//! once and then forget it, so a second attempt would prove nothing. The log therefore rejects all
//! writes from then on, and the process must stop; the next start reads the actual content of the
//! disk.
//!
//! After the sync, the log writes the frame's evidence (see the evidence module). The next sync
//! makes it durable.
//!
//! The protocol shortens the log at its beginning ([`Persist::Compact`], [`Persist::Snapshot`]).
//! When a new segment begins, the log removes the segments of which it no longer has any entry,
//! because a snapshot includes them.

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
use super::log_summary::LogSummary;
use super::preallocate::{Blank, Preparation};
use super::record::Record;
use super::recover::{self, LastSegment, RecoveryReport};
use super::segment::{FRAMES_AT, Header, Start};
use super::segment_gc::Removal;
use super::segment_number::{SegmentNumber, Segments};
use super::{DataDir, Snapshots, Space, StorageError};

/// Default size of a segment, in bytes.
pub const DEFAULT_SEGMENT_BYTES: u64 = 16 << 20;

/// Cost of one write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Length of its frames, in bytes; 0 for an empty batch, which writes nothing.
    pub bytes: usize,
    /// Duration of the write itself.
    pub write: Duration,
    /// Duration of the sync.
    pub sync: Duration,
    /// Time to begin a new segment; `None` if no new segment was necessary.
    pub rotation: Option<Duration>,
    /// Number of segments that became superfluous with the new segment.
    pub removed: usize,
}

/// The segment that frames are appended to.
#[derive(Debug)]
struct Active {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    number: SegmentNumber,
    /// Offset of the next frame.
    end: u64,
    size: u64,
    slots: Slots,
}

/// The write-ahead log of a node that replicates `S`. Holds the data directory and its lock for its
/// lifetime.
#[derive(Debug)]
pub struct Wal<S: StateMachine> {
    active: Active,
    next: Sequence,
    buffer: FrameBuffer,
    /// The segment after the active one, begun once the active one is half full.
    preparation: Preparation,
    space: Arc<Space>,
    /// Summary of the log's contents.
    summary: LogSummary,
    /// All segments of the log, each with the index of the last entry before it.
    segments: Vec<(SegmentNumber, Index)>,
    removal: Removal,
    snapshots: Arc<Snapshots>,
    /// Message of the first failed write; all later writes are rejected.
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
    /// If the log is damaged, or if an operation of the operating system fails.
    pub fn open(directory: DataDir, blank: Durable<S>) -> Result<(Wal<S>, Durable<S>, RecoveryReport), StorageError>
    where
        S: DeserializeOwned,
        S::Command: Serialize + DeserializeOwned,
    {
        Wal::open_with_segments_of(DEFAULT_SEGMENT_BYTES, directory, blank)
    }

    /// Opens the log, reads back what is durable, and cuts off the remains of an unfinished write.
    /// `blank` is the content of the disk at the first start; new segments are `segment_bytes`
    /// long, existing ones keep their size.
    ///
    /// # Errors
    /// If the log is damaged, or if an operation of the operating system fails. The node must not
    /// start then.
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
            summary: recovered.summary,
            segments,
            removal: Removal::default(),
            snapshots,
            failed: None,
            segment_bytes,
            directory,
            machine: PhantomData,
        };
        if recovered.settled {
            // From here on the log continues behind the snapshot; the record tells the next start
            // so.
            let snapshot = &recovered.durable.snapshot;
            let installed = Record::Installed { last: snapshot.last, stamp: snapshot.stamp, keeps: false };
            wal.append(&mut vec![installed], &mut Written::default())?;
        }
        Ok((wal, recovered.durable, recovered.report))
    }

    /// The snapshots in the log's directory.
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// The free space for the log.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Retries the preparation of the next segment if it has failed and the pause is over at `now`.
    /// To be called periodically, whether or not anything is written.
    pub fn tend(&mut self, now: Instant) {
        self.preparation.tend(self.active.size - self.active.end, now);
    }

    /// The log's directory.
    pub fn directory(&self) -> &DataDir {
        &self.directory
    }

    /// Makes a batch durable as a whole: one write, one sync. The node may act on the batch (answer
    /// clients, send messages) once this returns, and not before. A crash in the middle leaves all
    /// of the batch or nothing.
    ///
    /// A snapshot in the batch is made durable separately, after the writes before it. A crash may
    /// leave a batch with snapshots written up to one of them.
    ///
    /// # Errors
    /// If the batch did not become durable, or may not have. The process must stop; every later
    /// call fails, too.
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
                // After a crash between this and the record, the next start finds the snapshot
                // beside the old log and finishes the installation.
                self.snapshots.install(snapshot)?;
            }
            records.push(Record::of(write, |position| self.summary.has(position)));
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
        // Only after the sync has succeeded: a start takes a frame with evidence for durable.
        let evidence = active.slots.encode(&Evidence::of(frame, self.next, active.end));
        let slot_at = active.slots.offset(self.next) as u64;
        active.file.write_all_at(&evidence, slot_at).map_err(StorageError::write("write to", &active.path))?;
        active.end += length;
        self.next = self.next.next();
        records.drain(..).for_each(|record| self.summary.apply(&record));
        self.prepare_ahead();
        Ok(())
    }

    /// Begins a new segment, with room for a frame of this length.
    fn rotate(&mut self, frame: u64, written: &mut Written) -> Result<(), StorageError> {
        let before = Instant::now();
        let number = self.active.number.next();
        let blank = self.preparation.take(number, self.segment_bytes)?;
        let start = self.summary.start();
        let header = Header { number, first: self.next, size: self.segment_bytes.max(FRAMES_AT + frame), start };
        self.segments.push((number, start.last.index));
        // The last segment before which the log has no entries any more.
        let base = self.summary.base();
        let superfluous = self.segments.iter().rposition(|&(_, before)| before <= base).unwrap_or(0);
        self.active = Active::begin(blank, header, self.segments[superfluous].0, &mut self.directory)?;
        let superfluous = self.segments.drain(..superfluous).map(|(number, _)| number.path(self.directory.path()));
        let superfluous: Vec<PathBuf> = superfluous.collect();
        written.removed += superfluous.len();
        self.removal.start(self.directory.disk(), superfluous);
        written.rotation = Some(written.rotation.unwrap_or_default() + before.elapsed());
        Ok(())
    }

    /// Starts preparing the next segment once half of this one is used. Not earlier, because an
    /// idle node needs none.
    fn prepare_ahead(&mut self) {
        if self.active.end > self.active.size / 2 {
            self.preparation.start(self.active.number.next(), self.segment_bytes);
        }
    }
}

impl Active {
    /// Begins a segment. Before a frame is written to it, the identity file durably counts it, and
    /// no longer counts the segments before `first`.
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

    /// Continues the last segment of a log that was read back.
    fn reopen(last: LastSegment, directory: &mut DataDir) -> Result<Active, StorageError> {
        let file = directory.disk().open(&last.path, Access::Write).map_err(StorageError::io("open", &last.path))?;
        // A crash right after the segment's creation may have left the segment uncounted.
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
    fn failed_write_or_sync_poisons_the_log() {
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
