//! One frame: the unit that one write appends to a segment.
//!
//! ```text
//! magic "PLFR" | payload length u32 | sequence u64 | kind u8 | salt u32
//! | CRC-32C of the payload | CRC-32C of the 25 bytes before
//! payload: bincode, masked (see the mask module)
//! trailer: 0xA5
//! ```
//!
//! Numbers are little-endian; the payload's checksum is that of the masked bytes. A torn frame is
//! recognizable because of what an intact frame guarantees: its first byte, its last byte and every
//! full sector of it differ from zero by more than one bit. [`FrameBuffer::seal`], the only
//! function that makes frames, enforces this.

use std::fmt;

use palisade_client::codec;
use serde::Serialize;

use super::{StorageError, mask};

/// A frame's number in the sequence of all frames of the log. The first is 1; there are no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sequence(pub(super) u64);

impl Sequence {
    /// The first frame of a log.
    pub(super) const FIRST: Sequence = Sequence(1);

    /// The next frame's number.
    pub(super) fn next(self) -> Sequence {
        Sequence(self.0 + 1)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kind of a frame whose payload is a batch of records; the only kind.
pub(super) const KIND_BATCH: u8 = 1;

/// Every byte of it has more than one bit set: a flipped bit cannot turn a byte into an unwritten
/// zero.
pub(super) const MAGIC: [u8; 4] = *b"PLFR";
/// Offset of the sequence number in the header, in bytes.
pub(super) const SEQUENCE_AT: usize = 8;
/// The header's length in bytes.
pub(super) const HEADER: usize = 29;
/// The last byte of every frame.
const TRAILER: u8 = 0xA5;
/// Bytes of a frame besides its payload.
const OVERHEAD: usize = HEADER + 1;
/// Maximum payload length, in bytes: recovery holds a whole segment in memory.
pub(super) const MAX_PAYLOAD: usize = 1 << 30;

/// The buffer in which frames are encoded, reused from write to write.
#[derive(Debug, Default)]
pub(super) struct FrameBuffer {
    bytes: Vec<u8>,
    payload: u32,
}

impl FrameBuffer {
    /// Encodes a payload and replaces the buffer's content.
    pub(super) fn fill<T: Serialize>(&mut self, value: &T) -> Result<(), StorageError> {
        self.bytes.clear();
        self.bytes.resize(HEADER, 0);
        codec::encode_into(value, &mut self.bytes);
        let length = self.bytes.len() - HEADER;
        self.payload = match u32::try_from(length) {
            Ok(payload) if length <= MAX_PAYLOAD => payload,
            _ => return Err(StorageError::TooLarge { bytes: length, limit: MAX_PAYLOAD }),
        };
        self.bytes.push(TRAILER);
        Ok(())
    }

    /// The length of the whole frame in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Makes a frame, to be written at `offset` of its file, of the payload last encoded. To be
    /// called once for each [`fill`](FrameBuffer::fill).
    pub(super) fn seal(&mut self, sequence: Sequence, kind: u8, offset: u64) -> &[u8] {
        let end = self.bytes.len() - 1;
        // Terminates: a sector can be nearly equal to the mask of one salt only, and there are more
        // salts than sectors.
        for salt in 0.. {
            mask::apply(sequence.0, salt, &mut self.bytes[HEADER..end]);
            self.write_header(sequence, kind, salt);
            if mask::is_dense(&self.bytes, offset) {
                break;
            }
            mask::apply(sequence.0, salt, &mut self.bytes[HEADER..end]);
        }
        &self.bytes
    }

    fn write_header(&mut self, sequence: Sequence, kind: u8, salt: u32) {
        let end = self.bytes.len() - 1;
        let payload_sum = crc32c::crc32c(&self.bytes[HEADER..end]);
        let header = &mut self.bytes[..HEADER];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&self.payload.to_le_bytes());
        header[SEQUENCE_AT..16].copy_from_slice(&sequence.0.to_le_bytes());
        header[16] = kind;
        header[17..21].copy_from_slice(&salt.to_le_bytes());
        header[21..25].copy_from_slice(&payload_sum.to_le_bytes());
        let header_sum = crc32c::crc32c(&header[..25]);
        header[25..].copy_from_slice(&header_sum.to_le_bytes());
    }
}

/// A frame that was read as a whole, with its checksums verified.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    sequence: Sequence,
    salt: u32,
    masked: &'a [u8],
    /// Offset at which the next frame begins.
    pub(super) end: usize,
}

impl Frame<'_> {
    /// The unmasked payload.
    pub(super) fn payload(&self) -> Vec<u8> {
        let mut payload = self.masked.to_vec();
        mask::apply(self.sequence.0, self.salt, &mut payload);
        payload
    }
}

/// Why there is no sound frame at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// There is no header with a valid checksum.
    Header,
    /// The header is valid, but belongs to the frame with this number.
    OutOfSequence(Sequence),
    /// The header is valid, but its payload length, in bytes, exceeds the segment.
    TooLong(u32),
    /// The header is valid; the payload or the trailer is not. The frame would end at this offset.
    Content(usize),
}

/// A header with a valid checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    length: u32,
    pub(super) sequence: Sequence,
    kind: u8,
    salt: u32,
    payload_sum: u32,
}

/// The header at the beginning of `bytes`, if its magic and its checksum are valid.
pub(super) fn read_header(bytes: &[u8]) -> Option<Header> {
    let (header, _) = bytes.split_first_chunk::<HEADER>()?;
    let sum = u32::from_le_bytes(field(header, 25));
    if header[..4] != MAGIC || crc32c::crc32c(&header[..25]) != sum {
        return None;
    }
    Some(Header {
        length: u32::from_le_bytes(field(header, 4)),
        sequence: Sequence(u64::from_le_bytes(field(header, SEQUENCE_AT))),
        kind: header[16],
        salt: u32::from_le_bytes(field(header, 17)),
        payload_sum: u32::from_le_bytes(field(header, 21)),
    })
}

/// Reads the frame at offset `at` of a segment; it must have the number `expected`.
pub(super) fn read(segment: &[u8], at: usize, expected: Sequence) -> Result<Frame<'_>, Flaw> {
    let header = segment.get(at..).and_then(read_header).ok_or(Flaw::Header)?;
    if header.sequence != expected {
        return Err(Flaw::OutOfSequence(header.sequence));
    }
    let too_long = Flaw::TooLong(header.length);
    let length = usize::try_from(header.length).map_err(|_| too_long)?;
    let end = at.checked_add(OVERHEAD).and_then(|end| end.checked_add(length)).ok_or(too_long)?;
    let body = segment.get(at + HEADER..end).ok_or(too_long)?;
    match body.split_last() {
        Some((&TRAILER, masked)) if crc32c::crc32c(masked) == header.payload_sum => {
            Ok(Frame { kind: header.kind, sequence: expected, salt: header.salt, masked, end })
        }
        _ => Err(Flaw::Content(end)),
    }
}

/// The `N` bytes at `at`. Panics if `bytes` is too short.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment's bytes with one frame at `at`, and zeros around it.
    fn segment_with(payload: &[u8], sequence: Sequence, at: usize) -> Vec<u8> {
        let mut buffer = FrameBuffer::default();
        buffer.fill(&payload).unwrap();
        let frame = buffer.seal(sequence, KIND_BATCH, at as u64);
        let mut segment = vec![0; at];
        segment.extend_from_slice(frame);
        segment.resize(at + frame.len() + 700, 0);
        segment
    }

    #[test]
    fn a_frame_reads_back() {
        for length in [0, 1, 7, 8, 500, 5000] {
            let payload: Vec<u8> = vec![0; length];
            let segment = segment_with(&payload, Sequence(9), 100);
            let frame = read(&segment, 100, Sequence(9)).unwrap();
            assert_eq!(codec::decode::<Vec<u8>>(&frame.payload()).unwrap(), payload);
            assert_eq!(frame.end, segment.len() - 700);
            assert_eq!(read(&segment, 100, Sequence(8)).unwrap_err(), Flaw::OutOfSequence(Sequence(9)));
            assert_eq!(read(&segment, 101, Sequence(9)).unwrap_err(), Flaw::Header);
        }
    }

    #[test]
    fn frame_longer_than_its_segment_is_rejected() {
        let segment = segment_with(&[1; 50], Sequence(9), 0);
        let cut = &segment[..segment.len() - 701];
        assert!(matches!(read(cut, 0, Sequence(9)), Err(Flaw::TooLong(_))));
    }

    #[test]
    fn a_payload_that_equals_the_mask_gets_another_salt() {
        // The worst possible payload: masked with salt 0, it is zero throughout.
        let mut payload = vec![0; 3000];
        let prefix = {
            let mut buffer = Vec::new();
            codec::encode_into(&payload.as_slice(), &mut buffer);
            buffer.len() - payload.len()
        };
        let mut stream = vec![0; prefix + payload.len()];
        mask::apply(5, 0, &mut stream);
        payload.copy_from_slice(&stream[prefix..]);

        let segment = segment_with(&payload, Sequence(5), 512);
        let frame = read(&segment, 512, Sequence(5)).unwrap();
        assert_eq!(frame.salt, 1);
        assert!(mask::is_dense(&segment[512..frame.end], 512));
        assert_eq!(codec::decode::<Vec<u8>>(&frame.payload()).unwrap(), payload);
    }

    #[test]
    fn the_bytes_of_a_frame_are_pinned() {
        let mut buffer = FrameBuffer::default();
        buffer.fill(&[1_u8, 2, 3].as_slice()).unwrap();
        let frame: String =
            buffer.seal(Sequence(258), KIND_BATCH, 512).iter().map(|byte| format!("{byte:02x}")).collect();
        // A change here is a change of the format: give the segments a new version.
        assert_eq!(frame, "504c4652040000000201000000000000010000000029dcd7423a86456bffaba871a5");
    }
}
