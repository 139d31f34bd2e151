//! Reading the log back: every segment, every frame, every write, in order.
//!
//! Recovery ends in one of two ways: with exactly what was durable, or with an error. It repairs one thing, the
//! remains of a write that a crash cut off, and reports that it did.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use palisade_client::codec;
use palisade_spec::raft::{Durable, Persist, StateMachine};
use serde::de::DeserializeOwned;

use super::frame::{self, Flaw, Frame, KIND_BATCH, Sequence};
use super::mask::SECTOR;
use super::prepare::zero;
use super::segment::{self, Segment, SegmentNumber};
use super::tail::{self, Tail};
use super::{DataDir, StorageError, replay};

/// What recovery found and did, for the log of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// How many segments were read.
    pub segments: usize,
    /// How many frames, that is batches of writes, they held.
    pub frames: u64,
    /// The unfinished write that was cut off, if there was one.
    pub cut: Option<Cut>,
    /// Preparations of segments that a crash left behind, now removed.
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
    /// How many bytes the file had lost at its end; they are zeros again.
    pub restored: u64,
}

/// A log that was read back.
#[derive(Debug)]
pub(super) struct Recovered<S: StateMachine> {
    pub(super) durable: Durable<S>,
    pub(super) report: RecoveryReport,
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
}

/// Reads the log back. `blank` is the disk at the first start.
pub(super) fn recover<S>(directory: &DataDir, blank: Durable<S>) -> Result<Recovered<S>, StorageError>
where
    S: StateMachine + DeserializeOwned,
    S::Command: DeserializeOwned,
{
    let numbers = find_segments(directory)?;
    let mut reader = Reader { durable: blank, next: Sequence::FIRST, frames: 0 };
    let mut last: Option<LastSegment> = None;
    let mut cut = None;
    for number in &numbers {
        let path = number.path(directory.path());
        let segment = segment::read(&path, *number, directory.identity())?;
        reader.check_continues(&segment, last.as_ref())?;
        let Frames { last_at, end, flaw } = reader.read_frames(&segment)?;
        let is_last = Some(number) == numbers.last();
        let torn = match tail::judge(&segment.bytes, end, reader.next, flaw, is_last) {
            Tail::Clean => 0,
            Tail::Torn(bytes) => bytes,
            Tail::Damaged(what) => return Err(damaged(&segment, end, what)),
        };
        if is_last {
            cut = settle(&segment, last_at..end, torn)?;
        }
        last = Some(LastSegment { number: *number, path, end: end as u64, size: segment.header.size });
    }
    // Only now: whatever else an operator may want to look at is still there if the log was refused.
    let leftovers = remove_leftovers(directory.path())?;
    let report = RecoveryReport { segments: numbers.len(), frames: reader.frames, cut, leftovers };
    Ok(Recovered { durable: reader.durable, report, next: reader.next, last })
}

/// The log's segments, none of which is missing.
fn find_segments(directory: &DataDir) -> Result<Vec<SegmentNumber>, StorageError> {
    let found = segment::list(directory.path())?.segments;
    let mut expected = SegmentNumber::NONE;
    for number in &found {
        expected = expected.next();
        if *number != expected {
            return Err(StorageError::MissingSegment { path: expected.path(directory.path()) });
        }
    }
    if expected < directory.last_segment() {
        return Err(StorageError::MissingSegment { path: expected.next().path(directory.path()) });
    }
    Ok(found)
}

/// Where a segment's frames are.
struct Frames {
    /// Where the last one begins; equal to `end` if there is none.
    last_at: usize,
    /// Where they end.
    end: usize,
    /// Why there is no other.
    flaw: Flaw,
}

/// What was read so far.
struct Reader<S: StateMachine> {
    durable: Durable<S>,
    next: Sequence,
    frames: u64,
}

impl<S> Reader<S>
where
    S: StateMachine + DeserializeOwned,
    S::Command: DeserializeOwned,
{
    /// Checks that the segment begins with the frame that follows the last one of `previous`.
    fn check_continues(&self, segment: &Segment, previous: Option<&LastSegment>) -> Result<(), StorageError> {
        let first = segment.header.first;
        if first == self.next {
            return Ok(());
        }
        let (path, offset) = previous.map_or((&segment.path, 0), |previous| (&previous.path, previous.end));
        let segment = segment.header.number;
        let what = format!("frame {} should follow here, but segment {segment} begins with frame {first}", self.next);
        Err(StorageError::Damaged { path: path.clone(), offset, what })
    }

    /// Replays the segment's frames up to the first place that has none.
    fn read_frames(&mut self, segment: &Segment) -> Result<Frames, StorageError> {
        let (mut last_at, mut at) = (SECTOR, SECTOR);
        loop {
            let frame = match frame::read(&segment.bytes, at, self.next) {
                Ok(frame) => frame,
                Err(flaw) => return Ok(Frames { last_at, end: at, flaw }),
            };
            self.replay(&frame).map_err(|what| {
                damaged(segment, at, format!("frame {} is intact, but its content makes no sense: {what}", self.next))
            })?;
            (last_at, at) = (at, frame.end);
            self.next = self.next.next();
            self.frames += 1;
        }
    }

    /// Applies what a frame holds, or says why that is impossible.
    fn replay(&mut self, frame: &Frame<'_>) -> Result<(), String> {
        if frame.kind != KIND_BATCH {
            return Err(format!("it is of kind {}, which this program does not know", frame.kind));
        }
        let writes: Vec<Persist<S>> = codec::decode(&frame.payload()).map_err(|error| error.to_string())?;
        for write in &writes {
            replay::check(&self.durable, write)?;
            self.durable.apply(write);
        }
        Ok(())
    }
}

/// Makes sure that the last segment is on the disk as it was read: its last frame is written once more (see the
/// module's first argument), the `torn` bytes behind it become zeros, and what the file lost at its end too.
///
/// A crash in the middle of this leaves remains of the same kind: whole sectors that are zero again.
fn settle(segment: &Segment, last_frame: Range<usize>, torn: usize) -> Result<Option<Cut>, StorageError> {
    let path = &segment.path;
    let file = File::options().write(true).open(path).map_err(StorageError::io("open", path))?;
    let (from, offset) = (last_frame.start as u64, last_frame.end as u64);
    file.write_all_at(&segment.bytes[last_frame], from).map_err(StorageError::write("write to", path))?;
    let bytes = torn as u64;
    zero(&file, path, offset, offset + bytes)?;
    zero(&file, path, segment.header.size - segment.missing, segment.header.size)?;
    file.sync_all().map_err(StorageError::write("sync", path))?;
    let restored = segment.missing;
    Ok((bytes > 0 || restored > 0).then(|| Cut { path: path.clone(), offset, bytes, restored }))
}

/// Removes the preparations that never became segments.
fn remove_leftovers(directory: &Path) -> Result<Vec<PathBuf>, StorageError> {
    let leftovers = segment::list(directory)?.leftovers;
    for path in &leftovers {
        fs::remove_file(path).map_err(StorageError::io("remove the left-over", path))?;
    }
    Ok(leftovers)
}

fn damaged(segment: &Segment, offset: usize, what: String) -> StorageError {
    StorageError::Damaged { path: segment.path.clone(), offset: offset as u64, what }
}
