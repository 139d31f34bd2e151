//! Evidence of the log's end: each segment names, apart from the frames, the newest frame known to
//! be synced.
//!
//! A frame's checksums prove its presence, but nothing in the frames proves an absence: if the last
//! frames are zeros, or the file was put back to earlier content, the remaining frames look like
//! the log of a node that never wrote more. So each segment has two *evidence slots* between its
//! header and its frames, one sector each:
//!
//! ```text
//! magic "PLSYNCED" | the segment header's checksum u32 | frame's number u64 | its offset u64 | its end u64
//! | its header (29 bytes) | zeros | CRC-32C at 508
//! ```
//!
//! The log writes the slot of frame N after the sync of frame N has succeeded, and before
//! [`Wal::write`](super::Wal::write) returns. The slot becomes durable with the sync of frame N +
//! 1: the hot path has one small write more, and no additional sync. Frames use the two slots in
//! turn. In a new segment both slots name the frame before its first.
//!
//! # Consequences for a start
//!
//! - *A slot that names frame N proves that frame N was synced.* If the frames read end before it,
//!   frames are lost.
//! - *A sync of frame N leaves the slot of frame N - 1 durable.* A killed process leaves the slot
//!   of the last frame in the system's cache. After a power failure the newest slot may name the
//!   frame before the last synced one; and the frame that was in flight may have arrived as a
//!   whole. So the newest slot is at most two frames behind.
//! - *Only one slot is written to at a time*, and only when the other one is durable. So after a
//!   crash the older slot has either its old content or its new content. A torn write leaves the
//!   beginning of the new content before the end of the old one. All else in a slot is damage.
//!
//! Evidence cannot show that the last frame is missing if its own evidence is missing, too: a power
//! failure before the sync of that frame leaves the same state.

use super::frame::{HEADER, Sequence, field};
use super::mask::SECTOR;

/// Number of slots in a segment.
pub(super) const SLOTS: usize = 2;
/// Offset of the first slot.
const SLOTS_AT: usize = SECTOR;
/// End of the last slot, and offset of the first frame.
pub(super) const SLOTS_END: usize = SLOTS_AT + SLOTS * SECTOR;

const MAGIC: [u8; 8] = *b"PLSYNCED";
const SEQUENCE_AT: usize = 12;
const OFFSET_AT: usize = 20;
const END_AT: usize = 28;
const HEADER_AT: usize = 36;
const SUM_AT: usize = SECTOR - 4;

/// The content of one slot.
pub(super) type Slot = [u8; SECTOR];

/// A frame that was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evidence {
    pub(super) sequence: Sequence,
    /// Offset of the frame in its segment.
    pub(super) offset: u64,
    /// Offset of the next frame.
    pub(super) end: u64,
    /// The frame's header, which has the checksum of its payload.
    pub(super) header: [u8; HEADER],
}

/// The evidence slots of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    /// Checksum of the segment's header: a slot of another segment is not valid in this one.
    segment_sum: u32,
    /// Number of the segment's first frame.
    first: Sequence,
}

/// The frames read from one segment, up to the first offset without a sound frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoundFrames<'a> {
    /// The whole segment.
    pub(super) segment: &'a [u8],
    /// Offset of each frame.
    pub(super) starts: &'a [usize],
    /// End of the last frame.
    pub(super) end: usize,
}

/// A state of the slots that no crash explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contradiction {
    /// The slot's offset in the segment.
    pub(super) offset: usize,
    /// Description of the contradiction.
    pub(super) what: String,
}

impl Slots {
    /// The slots of the segment with this header sector, whose first frame is `first`.
    pub(super) fn of(header: &[u8], first: Sequence) -> Slots {
        Slots { segment_sum: u32::from_le_bytes(field(header, SUM_AT)), first }
    }

    /// Offset of a frame's slot in the file.
    pub(super) fn offset(self, frame: Sequence) -> usize {
        // Both slots of a new segment name the frame before its first. The first frame uses the
        // second slot.
        let turn = frame.0.wrapping_add(1).wrapping_sub(self.first.0);
        SLOTS_AT + if turn.is_multiple_of(SLOTS as u64) { 0 } else { SECTOR }
    }

    /// The evidence in a new segment: no frame of this segment is known to be synced, all frames
    /// before it are.
    pub(super) fn initial(self) -> Evidence {
        let at = SLOTS_END as u64;
        Evidence { sequence: Sequence(self.first.0.saturating_sub(1)), offset: at, end: at, header: [0; HEADER] }
    }

    /// The bytes of a slot.
    pub(super) fn encode(self, evidence: &Evidence) -> Slot {
        let mut slot = [0; SECTOR];
        slot[..8].copy_from_slice(&MAGIC);
        slot[8..SEQUENCE_AT].copy_from_slice(&self.segment_sum.to_le_bytes());
        slot[SEQUENCE_AT..OFFSET_AT].copy_from_slice(&evidence.sequence.0.to_le_bytes());
        slot[OFFSET_AT..END_AT].copy_from_slice(&evidence.offset.to_le_bytes());
        slot[END_AT..HEADER_AT].copy_from_slice(&evidence.end.to_le_bytes());
        slot[HEADER_AT..HEADER_AT + HEADER].copy_from_slice(&evidence.header);
        let sum = crc32c::crc32c(&slot[..SUM_AT]);
        slot[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        slot
    }

    /// Decodes the slot at `offset`; `None` if it is not valid there.
    fn decode(self, segment: &[u8], offset: usize) -> Option<Evidence> {
        let slot = segment.get(offset..)?.first_chunk::<SECTOR>()?;
        let number = |at| u64::from_le_bytes(field(slot, at));
        let evidence = Evidence {
            sequence: Sequence(number(SEQUENCE_AT)),
            offset: number(OFFSET_AT),
            end: number(END_AT),
            header: field(slot, HEADER_AT),
        };
        let is_initial = evidence == self.initial();
        let belongs = is_initial || (evidence.sequence >= self.first && self.offset(evidence.sequence) == offset);
        (belongs && self.encode(&evidence) == *slot).then_some(evidence)
    }

    /// The evidence of `frame`, computed from the frames: `None` if it is not among them.
    fn expected(self, frames: SoundFrames<'_>, frame: Sequence) -> Option<Evidence> {
        if frame == self.initial().sequence {
            return Some(self.initial());
        }
        let number = usize::try_from(frame.0.checked_sub(self.first.0)?).ok()?;
        let offset = *frames.starts.get(number)?;
        let end = frames.starts.get(number + 1).copied().unwrap_or(frames.end);
        let header = field(frames.segment, offset);
        Some(Evidence { sequence: frame, offset: offset as u64, end: end as u64, header })
    }

    /// The evidence of the frames behind `newest`, oldest first.
    pub(super) fn after(self, frames: SoundFrames<'_>, newest: Sequence) -> impl Iterator<Item = Evidence> {
        let mut last = newest;
        std::iter::from_fn(move || {
            last = last.next();
            self.expected(frames, last)
        })
    }

    /// The newest evidence, if the slots agree with each other and with the frames. Evidence of a
    /// frame behind the last one of `frames` is no contradiction here: [`Evidence::lost_from`]
    /// reports it.
    ///
    /// `is_last` states whether this is the log's last segment. In all others every frame was
    /// synced.
    pub(super) fn newest(self, frames: SoundFrames<'_>, is_last: bool) -> Result<Evidence, Contradiction> {
        let slots: [usize; SLOTS] = std::array::from_fn(|slot| SLOTS_AT + slot * SECTOR);
        let valid = slots.iter().filter_map(|&offset| self.decode(frames.segment, offset));
        let Some(newest) = valid.max_by_key(|evidence| evidence.sequence) else {
            return Err(contradicts(SLOTS_AT, "neither of the segment's evidence slots can be read".to_owned()));
        };
        let last = Sequence(self.initial().sequence.0 + frames.starts.len() as u64);
        if newest.sequence > last {
            return Ok(newest);
        }
        let at = self.offset(newest.sequence);
        if self.expected(frames, newest.sequence) != Some(newest) {
            let what = format!("this evidence is of another frame {} than the one in the segment", newest.sequence);
            return Err(contradicts(at, what));
        }
        self.check_older(frames, newest.sequence)?;
        let behind = last.0 - newest.sequence.0;
        if behind > if is_last { 2 } else { 1 } {
            let what = format!("the newest evidence is of frame {}, {behind} frames before the last", newest.sequence);
            return Err(contradicts(at, what));
        }
        Ok(newest)
    }

    /// Checks the slot that does not hold the evidence of frame `newest`, which is one of `frames`.
    fn check_older(self, frames: SoundFrames<'_>, newest: Sequence) -> Result<(), Contradiction> {
        let next = newest.next();
        let offset = self.offset(next);
        let older = Sequence(newest.0.saturating_sub(1)).max(self.initial().sequence);
        let old = self.expected(frames, older).expect("the frames before `newest` were read, too");
        let old = self.encode(&old);
        let found = &frames.segment[offset..offset + SECTOR];
        if *found == old {
            return Ok(());
        }
        // The slot was being written when the process or the machine stopped. So the next frame was
        // synced.
        let new = self.expected(frames, next).map(|evidence| self.encode(&evidence));
        if new.is_some_and(|new| is_torn(found, &new, &old)) {
            return Ok(());
        }
        let what = match self.decode(frames.segment, offset) {
            Some(evidence) => format!("evidence of frame {older} belongs here, not of frame {}", evidence.sequence),
            None => "this evidence slot cannot be read, and its content is not that of a torn write".to_owned(),
        };
        Err(contradicts(offset, what))
    }
}

impl Evidence {
    /// Evidence of the frame with these bytes.
    pub(super) fn of(frame: &[u8], sequence: Sequence, offset: u64) -> Evidence {
        Evidence { sequence, offset, end: offset + frame.len() as u64, header: field(frame, 0) }
    }

    /// Describes the frames that are lost if the frames end before frame `next`: `None` if none is
    /// known to be lost. `slot` is the offset of this evidence.
    pub(super) fn lost_from(&self, next: Sequence, slot: usize) -> Option<String> {
        let lost = self.sequence.0.checked_sub(next.0)? + 1;
        let Evidence { sequence, end, .. } = self;
        Some(format!(
            "the evidence at byte {slot} shows that frame {sequence} was synced and ended at byte {end}, so at least \
             {lost} {} from frame {next} on {} lost",
            if lost == 1 { "frame" } else { "frames" },
            if lost == 1 { "is" } else { "are" },
        ))
    }
}

fn contradicts(offset: usize, what: String) -> Contradiction {
    Contradiction { offset, what }
}

/// Whether `slot` begins like `new` and continues like `old`.
fn is_torn(slot: &[u8], new: &Slot, old: &Slot) -> bool {
    let written = slot.iter().zip(new).take_while(|(found, new)| found == new).count();
    slot[written..] == old[written..]
}

#[cfg(test)]
mod tests {
    use super::super::frame::{FrameBuffer, KIND_BATCH};
    use super::*;

    const FIRST: Sequence = Sequence(77);

    fn slots() -> Slots {
        Slots { segment_sum: 0x0403_0201, first: FIRST }
    }

    /// A segment with this number of frames and initial slots; the frames' offsets; the end of the
    /// last one.
    fn segment(frames: u64) -> (Vec<u8>, Vec<usize>, usize) {
        let mut buffer = FrameBuffer::default();
        let mut segment = vec![0; SLOTS_END];
        let mut starts = Vec::new();
        for number in 0..frames {
            starts.push(segment.len());
            buffer.fill(&vec![7_u8; 20].as_slice()).unwrap();
            let at = segment.len() as u64;
            segment.extend_from_slice(buffer.seal(Sequence(FIRST.0 + number), KIND_BATCH, at));
        }
        let end = segment.len();
        segment.resize(end + SECTOR, 0);
        put(&mut segment, SLOTS_AT, &slots().encode(&slots().initial()));
        put(&mut segment, SLOTS_AT + SECTOR, &slots().encode(&slots().initial()));
        (segment, starts, end)
    }

    fn put(segment: &mut [u8], at: usize, slot: &Slot) {
        segment[at..at + SECTOR].copy_from_slice(slot);
    }

    /// Writes the evidence of the first `count` frames to the slots.
    fn with_evidence(segment: &[u8], starts: &[usize], end: usize, count: u64) -> Vec<u8> {
        let mut with = segment.to_vec();
        let before = Sequence(FIRST.0 - 1);
        let frames = SoundFrames { segment, starts, end };
        for evidence in slots().after(frames, before).take(usize::try_from(count).unwrap()) {
            put(&mut with, slots().offset(evidence.sequence), &slots().encode(&evidence));
        }
        with
    }

    #[test]
    fn evidence_lags_two_frames_in_the_last_segment_and_one_before_it() {
        for count in 0..6 {
            let (blank, starts, end) = segment(count);
            for known in 0..=count {
                let segment = with_evidence(&blank, &starts, end, known);
                for (is_last, most) in [(true, 2), (false, 1)] {
                    let frames = SoundFrames { segment: &segment, starts: &starts, end };
                    let newest = slots().newest(frames, is_last);
                    assert_eq!(newest.is_ok(), count - known <= most, "{known} of {count}: {newest:?}");
                    if let Ok(newest) = newest {
                        assert_eq!(newest.sequence.0, FIRST.0 + known - 1);
                        assert_eq!(slots().after(frames, newest.sequence).count() as u64, count - known);
                    }
                }
            }
        }
    }

    #[test]
    fn evidence_of_missing_frames_reports_their_number() {
        let (blank, starts, end) = segment(5);
        let segment = with_evidence(&blank, &starts, end, 5);
        for kept in 0..5 {
            let frames = SoundFrames { segment: &segment, starts: &starts[..kept], end: starts[kept] };
            let newest = slots().newest(frames, true).unwrap();
            let next = Sequence(FIRST.0 + kept as u64);
            let lost = newest.lost_from(next, 512).unwrap();
            assert!(lost.contains(&format!("at least {} frame", 5 - kept)), "{lost}");
        }
        let newest = slots().newest(SoundFrames { segment: &segment, starts: &starts, end }, true).unwrap();
        assert_eq!(newest.lost_from(Sequence(FIRST.0 + 5), 512), None);
    }

    #[test]
    fn every_flipped_bit_invalidates_a_slot() {
        let (blank, starts, end) = segment(3);
        let mut segment = with_evidence(&blank, &starts, end, 3);
        let mut hidden = 0;
        for bit in SLOTS_AT * 8..SLOTS_END * 8 {
            segment[bit / 8] ^= 1 << (bit % 8);
            let offset = bit / 8 / SECTOR * SECTOR;
            assert_eq!(slots().decode(&segment, offset), None, "bit {bit}");
            // The flipped bit may restore the old last byte of the newest slot: then the slot looks
            // torn.
            hidden +=
                usize::from(slots().newest(SoundFrames { segment: &segment, starts: &starts, end }, true).is_ok());
            segment[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(hidden <= 1, "{hidden} bits");
    }

    #[test]
    fn frame_other_than_the_synced_one_is_detected() {
        let (blank, starts, end) = segment(3);
        let mut segment = with_evidence(&blank, &starts, end, 3);
        // Its length and its offset are the same.
        let mut buffer = FrameBuffer::default();
        buffer.fill(&vec![8_u8; 20].as_slice()).unwrap();
        let other = buffer.seal(Sequence(FIRST.0 + 2), KIND_BATCH, starts[2] as u64);
        segment[starts[2]..end].copy_from_slice(other);
        let refused = slots().newest(SoundFrames { segment: &segment, starts: &starts, end }, true).unwrap_err();
        assert!(refused.what.contains("of another frame 79 than the one in the segment"), "{refused:?}");
        assert_eq!(refused.offset, slots().offset(Sequence(79)));
    }

    #[test]
    fn the_bytes_of_a_slot_are_pinned() {
        let (segment, starts, _) = segment(1);
        let frame = &segment[starts[0]..starts[0] + 51];
        let slot = slots().encode(&Evidence::of(frame, FIRST, starts[0] as u64));
        let hex: String = slot[..HEADER_AT].iter().map(|byte| format!("{byte:02x}")).collect();
        // A change here is a change of the format: give the segments a new version.
        assert_eq!(hex, "504c53594e434544010203044d0000000000000000060000000000003306000000000000");
        assert_eq!(slot[HEADER_AT..HEADER_AT + HEADER], frame[..HEADER]);
        assert!(slot[HEADER_AT + HEADER..SUM_AT].iter().all(|byte| *byte == 0));
    }
}
