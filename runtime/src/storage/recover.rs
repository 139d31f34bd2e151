//! Recovery: reads back every segment, every frame and every write, in order.
//!
//! Recovery ends in one of two ways: with exactly the durable state, or with an error. It makes one
//! repair, and reports it: it cuts off the remains of a torn write. And it finishes what a crash
//! interrupted: the removal of segments and snapshots, and the installation of a leader's snapshot.

use std::path::PathBuf;

use palisade_client::codec;
use palisade_spec::raft::{Durable, Index, MAX_NUMBER, Position, Snapshot, StateMachine};
use serde::de::DeserializeOwned;

use super::disk::{Access, Disk};
use super::evidence::{Evidence, SLOTS_END, Slots, SoundFrames};
use super::frame::{self, Flaw, Frame, KIND_BATCH, Sequence};
use super::log_summary::LogSummary;
use super::preallocate::zero;
use super::record::Record;
use super::replay::Replay;
use super::segment::{self, Segment, Start};
use super::segment_number::SegmentNumber;
use super::snapshots::Snapshots;
use super::tail::{self, Tail};
use super::{DataDir, StorageError};

/// Findings and repairs of a recovery, for the process's log output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of segments read.
    pub segments: usize,
    /// Number of frames (batches of writes) in these segments.
    pub frames: u64,
    /// The last entry that the newest snapshot includes, if there is one.
    pub snapshot: Option<Position>,
    /// Bytes of the log that this snapshot does not include.
    pub log_bytes: u64,
    /// The torn write that was cut off, if there was one.
    pub cut: Option<Cut>,
    /// Files that a crash left behind, unfinished or superfluous; recovery has removed them.
    pub leftovers: Vec<PathBuf>,
}

/// The remains of a torn write, which recovery cut off. No part of the write was ever acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub path: PathBuf,
    /// Offset of the write in the segment.
    pub offset: u64,
    /// Number of bytes replaced by zeros.
    pub bytes: u64,
}

/// A log that was read back.
#[derive(Debug)]
pub(super) struct Recovered<S: StateMachine> {
    pub(super) durable: Durable<S>,
    /// Summary of the log as its segments have it, even if a [record](Recovered::settled) is still
    /// missing.
    pub(super) summary: LogSummary,
    pub(super) snapshots: Snapshots,
    /// Whether the log on the disk still lacks the record that a leader's snapshot replaced it.
    pub(super) settled: bool,
    pub(super) report: RecoveryReport,
    /// The segments, each with the index of the last entry before it.
    pub(super) segments: Vec<(SegmentNumber, Index)>,
    /// The number of the next frame.
    pub(super) next: Sequence,
    /// The segment of the next frame; `None` if there is none yet.
    pub(super) last: Option<LastSegment>,
}

/// The log's last segment, to which the next frame is appended.
#[derive(Debug)]
pub(super) struct LastSegment {
    pub(super) number: SegmentNumber,
    pub(super) path: PathBuf,
    /// Offset of the next frame.
    pub(super) end: u64,
    pub(super) size: u64,
    pub(super) slots: Slots,
}

/// Reads the log back. `blank` is the content of the disk at the first start.
pub(super) fn recover<S>(directory: &DataDir, blank: Durable<S>) -> Result<Recovered<S>, StorageError>
where
    S: StateMachine + DeserializeOwned,
    S::Command: DeserializeOwned,
{
    let (snapshots, snapshot) = Snapshots::open(directory.disk(), directory.path(), directory.identity().cluster)?;
    let snapshot = snapshot.unwrap_or(blank.snapshot);
    let found = find_segments(directory)?;
    let mut reader = Reader::begin(directory, snapshot, found.needed.first().copied())?;
    let mut segments = Vec::new();
    let mut last: Option<LastSegment> = None;
    let mut cut = None;
    for number in &found.needed {
        let path = number.path(directory.path());
        let segment = segment::read(&**directory.disk(), &path, *number, directory.identity())?;
        reader.check_continues(&segment, last.as_ref())?;
        segments.push((*number, segment.header.start.last.index));
        let Frames { starts, end, flaw } = reader.read_frames(&segment)?;
        let is_last = Some(number) == found.needed.last();
        let slots = segment.slots();
        let sound = SoundFrames { segment: &segment.bytes, starts: &starts, end };
        let newest = slots.newest(sound, is_last);
        let newest = newest.map_err(|contradiction| damaged(&segment, contradiction.offset, contradiction.what))?;
        let lost = newest.lost_from(reader.next, slots.offset(newest.sequence));
        let torn = match tail::classify(&segment.bytes, end, reader.next, flaw, is_last).with_evidence(lost) {
            Tail::Clean => 0,
            Tail::Torn(bytes) => bytes,
            Tail::Damaged(what) => return Err(damaged(&segment, end, what)),
        };
        if is_last {
            cut = make_durable(&**directory.disk(), &segment, sound, newest, torn)?;
        }
        last = Some(LastSegment { number: *number, path, end: end as u64, size: segment.header.size, slots });
    }
    let Reader { replay, next, frames, log_bytes } = reader;
    let unfit = |what| StorageError::SnapshotUnfit { path: directory.path().to_owned(), what };
    let summary = replay.summary();
    let (durable, settled) = replay.finish().map_err(unfit)?;
    if !durable.in_range() {
        let what =
            format!("it holds a term, an index, a stamp or a token far beyond {MAX_NUMBER}, which no node reaches");
        return Err(StorageError::Damaged { path: directory.path().to_owned(), offset: 0, what });
    }
    // Only now, so that a refused start removes no file that an operator may want to examine.
    let mut leftovers = remove(&**directory.disk(), found.leftovers)?;
    leftovers.extend(snapshots.remove_leftovers()?);
    let snapshot = snapshots.newest().map(|newest| newest.last);
    let report = RecoveryReport { segments: segments.len(), frames, snapshot, log_bytes, cut, leftovers };
    Ok(Recovered { durable, summary, snapshots, settled, report, segments, next, last })
}

/// The segments of a directory.
struct Found {
    /// The segments that the log needs; none is missing.
    needed: Vec<SegmentNumber>,
    /// Segments that a snapshot has made superfluous, and temporary files that never became
    /// segments.
    leftovers: Vec<PathBuf>,
}

fn find_segments(directory: &DataDir) -> Result<Found, StorageError> {
    let mut found = segment::list(&**directory.disk(), directory.path())?;
    let known = directory.segments();
    let needed = found.segments.split_off(found.segments.partition_point(|number| *number < known.first));
    let mut expected = known.first;
    for number in &needed {
        if *number != expected {
            break;
        }
        expected = expected.next();
    }
    if expected <= known.last.max(needed.last().copied().unwrap_or(SegmentNumber::NONE)) {
        return Err(StorageError::MissingSegment { path: expected.path(directory.path()) });
    }
    let superfluous = found.segments.iter().map(|number| number.path(directory.path()));
    found.leftovers.extend(superfluous);
    Ok(Found { needed, leftovers: found.leftovers })
}

/// Positions of a segment's frames.
struct Frames {
    /// Offset of each frame.
    starts: Vec<usize>,
    /// End of the last frame.
    end: usize,
    /// Why there is no sound frame at `end`.
    flaw: Flaw,
}

/// The state of the log as read so far.
struct Reader<S: StateMachine> {
    replay: Replay<S>,
    next: Sequence,
    frames: u64,
    /// Length of the frames from the first one that goes past the snapshot on, in bytes.
    log_bytes: u64,
}

impl<S> Reader<S>
where
    S: StateMachine + DeserializeOwned,
    S::Command: DeserializeOwned,
{
    /// Makes a reader that starts at segment `first`; `None` if there are no segments.
    fn begin(directory: &DataDir, snapshot: Snapshot<S>, first: Option<SegmentNumber>) -> Result<Self, StorageError> {
        let (next, start) = match first {
            // No segment precedes the first one of a log.
            None | Some(SegmentNumber::FIRST) => (Sequence::FIRST, Start::default()),
            Some(number) => {
                let path = number.path(directory.path());
                let header = segment::read(&**directory.disk(), &path, number, directory.identity())?.header;
                (header.first, header.start)
            }
        };
        let unfit = |what| StorageError::SnapshotUnfit { path: directory.path().to_owned(), what };
        Ok(Reader { replay: Replay::begin(snapshot, start).map_err(unfit)?, next, frames: 0, log_bytes: 0 })
    }

    /// Checks that the segment continues where `previous` ended: with the next frame number and the
    /// same state of the log.
    fn check_continues(&self, segment: &Segment, previous: Option<&LastSegment>) -> Result<(), StorageError> {
        let (first, start) = (segment.header.first, segment.header.start);
        let number = segment.header.number;
        let (path, offset) = previous.map_or((&segment.path, 0), |previous| (&previous.path, previous.end));
        if first != self.next {
            let what =
                format!("frame {} should follow here, but segment {number} begins with frame {first}", self.next);
            return Err(StorageError::Damaged { path: path.clone(), offset, what });
        }
        if start != self.replay.start() {
            let what =
                format!("the log ends here with {}, but segment {number} continues from {start}", self.replay.start());
            return Err(StorageError::Damaged { path: path.clone(), offset, what });
        }
        Ok(())
    }

    /// Replays the segment's frames up to the first offset without a sound frame.
    fn read_frames(&mut self, segment: &Segment) -> Result<Frames, StorageError> {
        let mut starts = Vec::new();
        let mut at = SLOTS_END;
        loop {
            let frame = match frame::read(&segment.bytes, at, self.next) {
                Ok(frame) => frame,
                Err(flaw) => return Ok(Frames { starts, end: at, flaw }),
            };
            self.replay(segment, at, &frame)?;
            self.log_bytes += (frame.end - at) as u64;
            if !self.replay.is_past_the_snapshot() {
                self.log_bytes = 0;
            }
            starts.push(at);
            at = frame.end;
            self.next = self.next.next();
            self.frames += 1;
        }
    }

    /// Applies the records of the frame at `at`, or reports why they are impossible.
    fn replay(&mut self, segment: &Segment, at: usize, frame: &Frame<'_>) -> Result<(), StorageError> {
        let (path, offset, number) = (&segment.path, at as u64, self.next);
        let not_understood = |what| StorageError::NotUnderstood { path: path.clone(), offset, what };
        if frame.kind != KIND_BATCH {
            return Err(not_understood(format!("frame {number} is of kind {}", frame.kind)));
        }
        let records: Vec<Record<'_, S::Command>> =
            codec::decode(&frame.payload()).map_err(|error| not_understood(format!("frame {number}: {error}")))?;
        let applied = records.into_iter().try_for_each(|record| self.replay.apply(record));
        applied.map_err(|what| {
            damaged(segment, at, format!("frame {number} is intact, but contradicts the log before it: {what}"))
        })
    }
}

/// Makes the last segment durable as it was read: writes its last frame and its newest evidence
/// again (see the first argument of the storage module), and replaces the `torn` bytes behind the
/// frame by zeros. Once the frames are durable, writes the missing evidence, one frame after the
/// other.
///
/// A crash in the middle of this leaves a state of the same kind: whole sectors that are zero
/// again, and evidence that is at most two frames behind.
fn make_durable(
    disk: &dyn Disk,
    segment: &Segment,
    sound: SoundFrames<'_>,
    newest: Evidence,
    torn: usize,
) -> Result<Option<Cut>, StorageError> {
    let path = &segment.path;
    let slots = segment.slots();
    let file = disk.open(path, Access::Write).map_err(StorageError::io("open", path))?;
    let write =
        |bytes: &[u8], at: usize| file.write_all_at(bytes, at as u64).map_err(StorageError::write("write to", path));
    if let Some(&last_at) = sound.starts.last() {
        write(&segment.bytes[last_at..sound.end], last_at)?;
    }
    write(&slots.encode(&newest), slots.offset(newest.sequence))?;
    let (offset, bytes) = (sound.end as u64, torn as u64);
    zero(&*file, path, offset, offset + bytes)?;
    file.sync_all().map_err(StorageError::write("sync", path))?;
    for evidence in slots.after(sound, newest.sequence) {
        write(&slots.encode(&evidence), slots.offset(evidence.sequence))?;
        file.sync_data().map_err(StorageError::write("sync", path))?;
    }
    Ok((bytes > 0).then(|| Cut { path: path.clone(), offset, bytes }))
}

/// Removes files that a crash left behind.
fn remove(disk: &dyn Disk, leftovers: Vec<PathBuf>) -> Result<Vec<PathBuf>, StorageError> {
    for path in &leftovers {
        disk.remove(path).map_err(StorageError::io("remove the left-over", path))?;
    }
    Ok(leftovers)
}

fn damaged(segment: &Segment, offset: usize, what: String) -> StorageError {
    StorageError::Damaged { path: segment.path.clone(), offset: offset as u64, what }
}
