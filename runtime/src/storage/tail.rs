//! Classification of the log's end: clean, torn or damaged.
//!
//! Reading stops at the first offset of a segment that has no sound frame. This module decides what
//! is there. Recovery may cut off only what a crash in the middle of the last write can have left.
//! All other content is damage, because behind it there are, or were, writes that this node has
//! acknowledged.
//!
//! The decision rests on four guarantees of the writer:
//!
//! - A segment is zero before it is written to, and a frame is written only once the frame before
//!   it is synced. So **only the last frame of the log can be torn**, and its unwritten part is
//!   zero.
//! - A crash leaves of a write either a prefix of its bytes, or any selection of the sectors that
//!   it touches. A crash does not shorten the file: a segment has its full size, durably, before it
//!   gets its name.
//! - In an intact frame the first byte, the last byte and every full sector differ from zero by
//!   more than one bit. So no single flipped bit makes an intact frame look torn.
//! - A frame that was synced has *evidence* in another place (see the evidence module). The frame
//!   that the evidence names was acknowledged: if it is not there, it is neither torn nor
//!   unwritten, but lost.
//!
//! Two limits are unavoidable. If a disk turns a sector of the very last frame, or all of the
//! frame, back to zeros *after* it was synced, and the frame's evidence is not durable because the
//! power failed before the next sync, the result is indistinguishable from a write that was torn or
//! never begun. And a bit that flips in the zeros behind the log, from the next sector on, looks
//! like the remains of a frame whose first sector is missing: it is cut, and nothing is lost. A bit
//! that flips closer to the log's end cannot be the remains of a frame, and is refused.

use memchr::memmem;

use super::frame::{self, Flaw, HEADER, MAGIC, SEQUENCE_AT, Sequence};
use super::mask::SECTOR;

/// A sector that was not written.
const ZEROS: [u8; SECTOR] = [0; SECTOR];

/// Content behind the last sound frame of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// Zeros only.
    Clean,
    /// The remains of a torn write, and their length in bytes.
    Torn(usize),
    /// Damage, and its description.
    Damaged(String),
}

impl Tail {
    /// Takes evidence into account: if it shows that frames are `lost`, any end is damage. `lost`
    /// describes them.
    pub(super) fn with_evidence(self, lost: Option<String>) -> Tail {
        let Some(lost) = lost else { return self };
        match self {
            Tail::Clean => Tail::Damaged(format!("from here on there are only zeros, but {lost}")),
            Tail::Torn(_) => Tail::Damaged(format!("the content from here on looks like a torn write, but {lost}")),
            Tail::Damaged(what) => Tail::Damaged(format!("{what}; {lost}")),
        }
    }
}

/// Classifies the bytes of `segment` from `at` on, where the frame `expected` should be but `flaw`
/// was found. `is_last` states whether this is the log's last segment.
pub(super) fn classify(segment: &[u8], at: usize, expected: Sequence, flaw: Flaw, is_last: bool) -> Tail {
    let written = without_zeros(&segment[at..]);
    if written == 0 {
        return Tail::Clean;
    }
    let end = at + written;
    let what = describe(flaw, expected);
    if !is_last {
        return Tail::Damaged(format!("{what}, though the log goes on in the next segment"));
    }
    if let Some((later, number)) = later_frame(segment, at, expected) {
        return Tail::Damaged(format!("{what}, though frame {number} follows at byte {later}"));
    }
    let torn = match flaw {
        Flaw::Header => header_is_torn(segment, at, end, expected),
        Flaw::Content(frame_end) if end > frame_end => {
            return Tail::Damaged(format!("{what}, though more bytes follow behind it"));
        }
        Flaw::Content(frame_end) => content_is_torn(segment, at, frame_end),
        Flaw::OutOfSequence(_) | Flaw::TooLong(_) => false,
    };
    if torn {
        Tail::Torn(written)
    } else {
        Tail::Damaged(format!("{what}, and the content is not that of a torn write"))
    }
}

/// The first frame behind `at` that was written later than `expected`.
fn later_frame(segment: &[u8], at: usize, expected: Sequence) -> Option<(usize, Sequence)> {
    let behind = at + 1;
    let offsets = memmem::find_iter(segment.get(behind..)?, &MAGIC).map(|offset| behind + offset);
    let header = |offset| frame::read_header(segment.get(offset..)?);
    let mut headers = offsets.filter_map(|offset| Some((offset, header(offset)?.sequence)));
    headers.find(|(_, sequence)| *sequence > expected)
}

/// Whether the frame at `at`, whose header is valid, was written only in part: its trailer or a
/// sector is zero.
fn content_is_torn(segment: &[u8], at: usize, frame_end: usize) -> bool {
    let mut from = at;
    while from < frame_end {
        let to = next_sector(from).min(frame_end);
        if is_zero(&segment[from..to]) {
            return true;
        }
        from = to;
    }
    segment[frame_end - 1] == 0
}

/// Whether the content at `at` can be a frame whose header was written only in part. `end` is
/// behind the last byte that is not zero.
fn header_is_torn(segment: &[u8], at: usize, end: usize, expected: Sequence) -> bool {
    if at + HEADER >= segment.len() {
        return false; // A frame does not fit here.
    }
    let boundary = next_sector(at);
    // The sector in which the frame begins is missing.
    if is_zero(&segment[at..boundary.min(segment.len())]) {
        return true;
    }
    let second_missing = boundary < at + HEADER && is_zero(&segment[boundary..(boundary + SECTOR).min(segment.len())]);
    let written = if second_missing {
        end.min(boundary) // The header reaches into a second sector, which is missing.
    } else if end <= at + HEADER {
        end // Only a prefix of the header is there.
    } else {
        return false;
    };
    begins_header(&segment[at..written], expected)
}

/// Whether `piece` is a prefix of the header of the frame `expected`.
fn begins_header(piece: &[u8], expected: Sequence) -> bool {
    let same = |at: usize, known: &[u8]| piece.iter().skip(at).zip(known).all(|(found, known)| found == known);
    same(0, &MAGIC) && same(SEQUENCE_AT, &expected.0.to_le_bytes())
}

/// Offset of the sector after the one with this byte.
fn next_sector(at: usize) -> usize {
    (at / SECTOR + 1) * SECTOR
}

/// The length of `bytes` without the zeros at their end.
fn without_zeros(bytes: &[u8]) -> usize {
    let zeros: usize = bytes.rchunks(SECTOR).take_while(|piece| is_zero(piece)).map(<[u8]>::len).sum();
    let rest = &bytes[..bytes.len() - zeros];
    rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Whether all bytes are zero. Pieces are compared as a whole: a segment of the log may be almost empty.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(SECTOR).all(|piece| *piece == ZEROS[..piece.len()])
}

fn describe(flaw: Flaw, expected: Sequence) -> String {
    match flaw {
        Flaw::Header => format!("there is no readable header of frame {expected}"),
        Flaw::OutOfSequence(found) => format!("frame {found} is in the place of frame {expected}"),
        Flaw::TooLong(length) => format!("frame {expected} claims {length} bytes, more than the segment has"),
        Flaw::Content(_) => format!("the content of frame {expected} does not match its checksum"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{FrameBuffer, KIND_BATCH};
    use super::*;

    const LAST: Sequence = Sequence(3);

    /// A segment's bytes: frame 2 at the beginning, frame 3 right behind it at `at`, then zeros.
    /// The payloads are zeros, the worst case.
    fn segment(at: usize, last_payload: usize) -> (Vec<u8>, usize) {
        let mut buffer = FrameBuffer::default();
        let mut segment = Vec::new();
        // The encoding of a text has one byte before it, or three from 251 bytes on.
        for (number, payload) in [(Sequence(2), at - 33), (LAST, last_payload)] {
            buffer.fill(&vec![0_u8; payload].as_slice()).unwrap();
            let offset = segment.len() as u64;
            segment.extend_from_slice(buffer.seal(number, KIND_BATCH, offset));
        }
        let end = segment.len();
        segment.resize(end + SECTOR, 0);
        (segment, end)
    }

    /// Offsets for the last frame: all those at which its header crosses into another sector, and
    /// some others.
    fn offsets() -> impl Iterator<Item = usize> {
        (SECTOR..2 * SECTOR).filter(|at| at % 37 == 0 || at % SECTOR > SECTOR - 33 || at % SECTOR < 2)
    }

    /// Reads frame 3; classifies the bytes at `at` if it is not there.
    fn read_tail(segment: &[u8], at: usize, is_last: bool) -> Option<Tail> {
        let flaw = frame::read(segment, at, LAST).err()?;
        Some(classify(segment, at, LAST, flaw, is_last))
    }

    #[test]
    fn every_prefix_of_a_frame_is_torn_only_in_the_last_segment() {
        for at in offsets() {
            let (intact, end) = segment(at, 700);
            assert_eq!(read_tail(&intact, at, true), None);
            for cut in at..end {
                let mut torn = intact.clone();
                torn[cut..].fill(0);
                let written = torn.iter().rposition(|byte| *byte != 0).unwrap() + 1;
                let expected = if written > at { Tail::Torn(written - at) } else { Tail::Clean };
                assert_eq!(read_tail(&torn, at, true), Some(expected), "cut at {cut}, frame at {at}");
                let elsewhere = read_tail(&torn, at, false);
                assert!(written <= at || matches!(elsewhere, Some(Tail::Damaged(_))), "{elsewhere:?}");
            }
        }
    }

    #[test]
    fn every_selection_of_sectors_of_the_last_frame_is_torn() {
        for at in SECTOR..2 * SECTOR {
            let (intact, end) = segment(at, 2000);
            let sectors = end.div_ceil(SECTOR) - at / SECTOR;
            for selection in 0..(1_u32 << sectors) - 1 {
                let mut torn = intact.clone();
                for missing in (0..sectors).filter(|sector| selection & (1 << sector) == 0) {
                    let from = (at / SECTOR + missing) * SECTOR;
                    torn[from.max(at)..(from + SECTOR).min(end)].fill(0);
                }
                let tail = read_tail(&torn, at, true);
                let fits = if selection == 0 { tail == Some(Tail::Clean) } else { matches!(tail, Some(Tail::Torn(_))) };
                assert!(fits, "sectors {selection:b} of the frame at {at}: {tail:?}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_the_last_frame_is_damage() {
        for at in offsets() {
            // Frames that end just before, at and behind a sector's end: the trailer may be alone
            // in its sector.
            let to_boundary = 2 * SECTOR - at % SECTOR - 33;
            for payload in [0, 300, to_boundary - 1, to_boundary, to_boundary + 1] {
                let (mut segment, end) = segment(at, payload);
                for bit in at * 8..end * 8 {
                    segment[bit / 8] ^= 1 << (bit % 8);
                    let tail = read_tail(&segment, at, true);
                    assert!(matches!(tail, Some(Tail::Damaged(_))), "bit {bit}, frame {at}..{end}: {tail:?}");
                    segment[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }

    #[test]
    fn damaged_frame_is_detected_by_the_frame_behind_it() {
        // Frame 2 is the damaged one: even if only zeros are left of it, frame 3 shows that it
        // existed.
        for at in offsets() {
            let (mut segment, _) = segment(at, 100);
            segment[..at].fill(0);
            let tail = classify(&segment, 0, Sequence(2), Flaw::Header, true);
            let Tail::Damaged(what) = tail else { panic!("frame 3 at {at} was overlooked: {tail:?}") };
            assert!(what.ends_with(&format!("though frame 3 follows at byte {at}")), "{what}");
        }
    }

    #[test]
    fn bit_flipped_in_the_zeros_is_damage_only_in_the_sector_of_the_logs_end() {
        for at in offsets() {
            let mut segment = vec![0; 4 * SECTOR];
            for bit in at * 8..segment.len() * 8 {
                segment[bit / 8] ^= 1 << (bit % 8);
                let tail = read_tail(&segment, at, true);
                let near = bit / 8 < next_sector(at);
                assert_eq!(matches!(tail, Some(Tail::Damaged(_))), near, "bit {bit}, log ends at {at}: {tail:?}");
                segment[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn valid_header_out_of_sequence_is_never_torn() {
        let (segment, _) = segment(600, 50);
        for expected in [Sequence(2), Sequence(4)] {
            let flaw = frame::read(&segment, 600, expected).unwrap_err();
            assert_eq!(flaw, Flaw::OutOfSequence(LAST));
            assert!(matches!(classify(&segment, 600, expected, flaw, true), Tail::Damaged(_)));
        }
        let cut = &segment[..640];
        let flaw = frame::read(cut, 600, LAST).unwrap_err();
        assert!(matches!(classify(cut, 600, LAST, flaw, true), Tail::Damaged(_)));
    }

    #[test]
    fn remains_of_another_frame_are_damage() {
        for at in offsets() {
            let (mut torn, _) = segment(at, 700);
            torn[at + SEQUENCE_AT + 1..].fill(0);
            assert_eq!(read_tail(&torn, at, true), Some(Tail::Torn(SEQUENCE_AT + 1)));
            let tail = classify(&torn, at, LAST.next(), Flaw::Header, true);
            assert!(matches!(tail, Tail::Damaged(_)), "the remains of frame 3 taken for frame 4: {tail:?}");
        }
    }

    #[test]
    fn nonzero_byte_behind_a_torn_frame_is_damage() {
        for at in offsets() {
            let (mut torn, end) = segment(at, 700);
            torn[end - 100..].fill(0);
            assert!(matches!(read_tail(&torn, at, true), Some(Tail::Torn(_))));
            torn[end] = 1;
            let Some(Tail::Damaged(what)) = read_tail(&torn, at, true) else { panic!("overlooked behind {at}..{end}") };
            assert!(what.ends_with("more bytes follow behind it"), "{what}");
        }
    }

    #[test]
    fn nonzero_byte_where_no_frame_fits_is_damage() {
        for room in 1..=HEADER {
            let mut segment = vec![0; SECTOR + room];
            assert_eq!(classify(&segment, SECTOR, LAST, Flaw::Header, true), Tail::Clean);
            segment[SECTOR + room - 1] = MAGIC[0];
            let tail = classify(&segment, SECTOR, LAST, Flaw::Header, true);
            assert!(matches!(tail, Tail::Damaged(_)), "{room} bytes: {tail:?}");
        }
    }
}
