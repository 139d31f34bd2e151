//! Reading the log back: every segment, every frame, every write, in order.
//!
//! Recovery ends in one of two ways: with exactly what was durable, or with an error. It repairs one thing, the
//! remains of a write that a crash cut off, and reports that it did; and it ends what a crash left half done: segments
//! and snapshots that were about to be removed, a log that was about to give way to a leader's snapshot.

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
use super::segment::{self, Segment, SegmentNumber, Start};
use super::snapshots::Snapshots;
use super::tail::{self, Tail};
use super::{DataDir, StorageError};

/// What recovery found and did, for the log of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// How many segments were read.
    pub segments: usize,
    /// How many frames, that is batches of writes, they held.
    pub frames: u64,
    /// The last entry that the newest snapshot includes, if there is one.
    pub snapshot: Option<Position>,
    /// How many bytes of the log that snapshot does not include.
    pub log_bytes: u64,
    /// The unfinished write that was cut off, if there was one.
    pub cut: Option<Cut>,
    /// Files that a crash left behind, in the making or about to be removed; now they are.
    pub leftovers: Vec<PathBuf>,
}

/// The remains of an unfinished write, cut off. None of it was ever acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub path: PathBuf,
    /// Where the write began.
    pub offset: u64,
    /// How many of its bytes were replaced by zeros.
    pub bytes: u64,
}

/// A log that was read back.
#[derive(Debug)]
pub(super) struct Recovered<S: StateMachine> {
    pub(super) durable: Durable<S>,
    /// The log as its segments tell it, even if it still has to be [settled](Recovered::settled).
    pub(super) outline: LogSummary,
    pub(super) snapshots: Snapshots,
    /// Whether the log on the disk still has to be told that it gave way to a leader's snapshot.
    pub(super) settled: bool,
    pub(super) report: RecoveryReport,
    /// The segments, each with the last entry before it.
    pub(super) segments: Vec<(SegmentNumber, Index)>,
    /// The number of the frame to be written next.
    pub(super) next: Sequence,
    /// The segment it goes to; `None` if there is none yet.
    pub(super) last: Option<LastSegment>,
}

/// The segment that is still written to.
#[derive(Debug)]
pub(super) struct LastSegment {
    pub(super) number: SegmentNumber,
    pub(super) path: PathBuf,
    /// Where the next frame goes.
    pub(super) end: u64,
    pub(super) size: u64,
    pub(super) slots: Slots,
}

/// Reads the log back. `blank` is the disk at the first start.
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
        let torn = match tail::judge(&segment.bytes, end, reader.next, flaw, is_last).in_light_of(lost) {
            Tail::Clean => 0,
            Tail::Torn(bytes) => bytes,
            Tail::Damaged(what) => return Err(damaged(&segment, end, what)),
        };
        if is_last {
            cut = settle(&**directory.disk(), &segment, sound, newest, torn)?;
        }
        last = Some(LastSegment { number: *number, path, end: end as u64, size: segment.header.size, slots });
    }
    let Reader { replay, next, frames, log_bytes } = reader;
    let unfit = |what| StorageError::SnapshotUnfit { path: directory.path().to_owned(), what };
    let outline = replay.outline();
    let (durable, settled) = replay.finish().map_err(unfit)?;
    if !durable.in_range() {
        let what =
            format!("it holds a term, an index, a stamp or a token far beyond {MAX_NUMBER}, which no node counts to");
        return Err(StorageError::Damaged { path: directory.path().to_owned(), offset: 0, what });
    }
    // Only now: whatever else an operator may want to look at is still there if the log was refused.
    let mut leftovers = remove(&**directory.disk(), found.leftovers)?;
    leftovers.extend(snapshots.remove_leftovers()?);
    let snapshot = snapshots.newest().map(|newest| newest.last);
    let report = RecoveryReport { segments: segments.len(), frames, snapshot, log_bytes, cut, leftovers };
    Ok(Recovered { durable, outline, snapshots, settled, report, segments, next, last })
}

/// The segments of a directory.
struct Found {
    /// Those that the log needs; none is missing.
    needed: Vec<SegmentNumber>,
    /// Those that a snapshot has made superfluous, and preparations that never became segments.
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

/// Where a segment's frames are.
struct Frames {
    /// Where each begins.
    starts: Vec<usize>,
    /// Where they end.
    end: usize,
    /// Why there is no other.
    flaw: Flaw,
}

/// What was read so far.
struct Reader<S: StateMachine> {
    replay: Replay<S>,
    next: Sequence,
    frames: u64,
    /// The length of the frames since the one that brought the snapshot's last entry.
    log_bytes: u64,
}

impl<S> Reader<S>
where
    S: StateMachine + DeserializeOwned,
    S::Command: DeserializeOwned,
{
    /// Before the first segment that is there.
    fn begin(directory: &DataDir, snapshot: Snapshot<S>, first: Option<SegmentNumber>) -> Result<Self, StorageError> {
        let (next, start) = match first {
            // Nothing was ever removed before the very first.
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

    /// Checks that the segment goes on where `previous` ended: with the next frame, and with what it led to.
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
                format!("the log ends here with {}, but segment {number} goes on from {start}", self.replay.start());
            return Err(StorageError::Damaged { path: path.clone(), offset, what });
        }
        Ok(())
    }

    /// Replays the segment's frames up to the first place that has none.
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

    /// Applies what the frame at `at` holds, or says why that is impossible.
    fn replay(&mut self, segment: &Segment, at: usize, frame: &Frame<'_>) -> Result<(), StorageError> {
        let (path, offset, number) = (&segment.path, at as u64, self.next);
        let not_understood = |what| StorageError::NotUnderstood { path: path.clone(), offset, what };
        if frame.kind != KIND_BATCH {
            return Err(not_understood(format!("frame {number} is of kind {}", frame.kind)));
        }
        let records: Vec<Record<'_, S::Command>> =
            codec::decode(&frame.payload()).map_err(|error| not_understood(format!("frame {number}: {error}")))?;
        let followed = records.into_iter().try_for_each(|record| self.replay.follow(record));
        followed.map_err(|what| {
            damaged(segment, at, format!("frame {number} is intact, but does not fit what is before it: {what}"))
        })
    }
}

/// Makes sure that the last segment is on the disk as it was read: its last frame and its newest evidence are written
/// once more (see the module's first argument), and the `torn` bytes behind the frame become zeros. Then the frames are
/// durable, and evidence of them is written as far as it is missing, one frame after the other.
///
/// A crash in the middle of this leaves remains of the same kind: whole sectors that are zero again, and evidence that
/// is at most two frames behind.
fn settle(
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

/// Removes what a crash left behind.
fn remove(disk: &dyn Disk, leftovers: Vec<PathBuf>) -> Result<Vec<PathBuf>, StorageError> {
    for path in &leftovers {
        disk.remove(path).map_err(StorageError::io("remove the left-over", path))?;
    }
    Ok(leftovers)
}

fn damaged(segment: &Segment, offset: usize, what: String) -> StorageError {
    StorageError::Damaged { path: segment.path.clone(), offset: offset as u64, what }
}
