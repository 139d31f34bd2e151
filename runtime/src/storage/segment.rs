//! One segment: the layout of a file of the log.
//!
//! ```text
//! sector 0:  magic "PALISWAL" | format u32 | cluster u64 | node u32 | segment number u64 | first frame u64
//!            | size u64 | term u64 | has voted u8 | vote u32 | last entry: term u64, index u64, stamp u64
//!            | zeros | CRC-32C at 508
//! sectors 1, 2: evidence of the newest synced frame (see the evidence module)
//! then:      frames, one after the other
//! then:      zeros, up to the size
//! ```
//!
//! A segment gets its name only once its header and all its zeros are durable (see the preallocate
//! module). So an invalid header is damage, never a torn write, and so is a file that is shorter
//! than its header says. Therefore the header also restates the state of the log before the segment
//! ([`Start`]): this needs no write of its own, and cannot be torn.

use std::fmt;
use std::path::{Path, PathBuf};

use palisade_spec::raft::{HardState, Index, NodeId, Position, Stamp, Term};

use super::disk::Disk;
use super::evidence::{SLOTS_END, Slots};
use super::frame::{Sequence, field};
use super::mask::SECTOR;
use super::segment_number::SegmentNumber;
use super::{Identity, StorageError};

const MAGIC: [u8; 8] = *b"PALISWAL";
/// The only format that this program writes and reads. The checksum's offset is the same in every
/// format.
const FORMAT: u32 = 6;
const START_AT: usize = 48;
const SUM_AT: usize = SECTOR - 4;

/// Offset of the first frame in a segment, in bytes.
pub const FRAMES_AT: u64 = SLOTS_END as u64;

/// State of the log where a segment begins: all that recovery must know of the segments before it,
/// once a snapshot includes their entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) hard: HardState,
    /// The log's last entry, or its base if it is empty.
    pub(super) last: Position,
    /// That entry's stamp.
    pub(super) stamp: Stamp,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Start { hard: HardState { term, vote }, last, stamp } = self;
        write!(f, "entry {} of term {} at {stamp}, in term {term}", last.index, last.term)?;
        vote.map_or(Ok(()), |node| write!(f, " with a vote for node {node}"))
    }
}

impl Start {
    fn encode(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.hard.term.0.to_le_bytes());
        bytes[8] = u8::from(self.hard.vote.is_some());
        bytes[9..13].copy_from_slice(&self.hard.vote.map_or(0, |node| node.0).to_le_bytes());
        bytes[13..21].copy_from_slice(&self.last.term.0.to_le_bytes());
        bytes[21..29].copy_from_slice(&self.last.index.0.to_le_bytes());
        bytes[29..37].copy_from_slice(&self.stamp.0.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Start {
        let number = |at| u64::from_le_bytes(field(bytes, at));
        let vote = (bytes[8] != 0).then(|| NodeId(u32::from_le_bytes(field(bytes, 9))));
        Start {
            hard: HardState { term: Term(number(0)), vote },
            last: Position { term: Term(number(13)), index: Index(number(21)) },
            stamp: Stamp(number(29)),
        }
    }
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) number: SegmentNumber,
    /// The sequence number of its first frame.
    pub(super) first: Sequence,
    /// Length of the file, in bytes.
    pub(super) size: u64,
    /// State of the log before this segment.
    pub(super) start: Start,
}

impl Header {
    /// The bytes of a new segment before its frames: its header, and evidence of the frame before
    /// its first.
    pub(super) fn encode(&self, identity: &Identity) -> [u8; SLOTS_END] {
        let mut bytes = [0; SLOTS_END];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..20].copy_from_slice(&identity.cluster.to_le_bytes());
        bytes[20..24].copy_from_slice(&identity.node.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.size.to_le_bytes());
        self.start.encode(&mut bytes[START_AT..]);
        let sum = crc32c::crc32c(&bytes[..SUM_AT]);
        bytes[SUM_AT..SECTOR].copy_from_slice(&sum.to_le_bytes());
        let (header, slots) = bytes.split_at_mut(SECTOR);
        let evidence = Slots::of(header, self.first);
        slots.as_chunks_mut().0.fill(evidence.encode(&evidence.initial()));
        bytes
    }

    /// Decodes the first sector of the file at `path`, and rejects a segment of another log.
    fn decode(bytes: &[u8], path: &Path, identity: &Identity) -> Result<Header, StorageError> {
        let damaged = |what: &str| StorageError::Damaged { path: path.to_owned(), offset: 0, what: what.to_owned() };
        let Some(header) = bytes.first_chunk::<SECTOR>() else {
            return Err(damaged("the file ends within the segment's header"));
        };
        if crc32c::crc32c(&header[..SUM_AT]) != u32::from_le_bytes(field(header, SUM_AT)) {
            return Err(damaged("the segment's header does not match its checksum"));
        }
        if header[..8] != MAGIC {
            return Err(damaged("this is not a log segment"));
        }
        let format = u32::from_le_bytes(field(header, 8));
        if format != FORMAT {
            return Err(StorageError::UnknownFormat { path: path.to_owned(), found: format, known: FORMAT });
        }
        let cluster = u64::from_le_bytes(field(header, 12));
        if cluster != identity.cluster {
            return Err(StorageError::WrongCluster { path: path.to_owned() });
        }
        let node = NodeId(u32::from_le_bytes(field(header, 20)));
        if node != identity.node {
            return Err(StorageError::WrongNode { path: path.to_owned(), found: node, expected: identity.node });
        }
        Ok(Header {
            number: SegmentNumber(u64::from_le_bytes(field(header, 24))),
            first: Sequence(u64::from_le_bytes(field(header, 32))),
            size: u64::from_le_bytes(field(header, 40)),
            start: Start::decode(&header[START_AT..]),
        })
    }
}

/// A segment that was read.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// The whole content of the file.
    pub(super) bytes: Vec<u8>,
}

impl Segment {
    /// Its evidence slots.
    pub(super) fn slots(&self) -> Slots {
        Slots::of(&self.bytes, self.header.first)
    }
}

/// Reads a segment and checks everything but its frames.
pub(super) fn read(
    disk: &dyn Disk,
    path: &Path,
    number: SegmentNumber,
    identity: &Identity,
) -> Result<Segment, StorageError> {
    let bytes = disk.read(path).map_err(StorageError::io("read", path))?;
    let header = Header::decode(&bytes, path, identity)?;
    let damaged =
        |offset: usize, what: String| StorageError::Damaged { path: path.to_owned(), offset: offset as u64, what };
    if header.number != number {
        return Err(damaged(0, format!("this is segment {}, under the name of segment {number}", header.number)));
    }
    if header.size < FRAMES_AT {
        return Err(damaged(0, format!("a segment cannot have a size of {} bytes", header.size)));
    }
    let length = bytes.len() as u64;
    if length < header.size {
        let missing = header.size - length;
        let what = format!("the file ends here, {missing} bytes before the segment's end at byte {}", header.size);
        return Err(damaged(bytes.len(), what));
    }
    if length > header.size {
        let what = format!("the file has {length} bytes, and the segment only {}", header.size);
        return Err(StorageError::Damaged { path: path.to_owned(), offset: header.size, what });
    }
    Ok(Segment { path: path.to_owned(), header, bytes })
}

/// The segments and the unfinished segments in a directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// In the order of their numbers.
    pub(super) segments: Vec<SegmentNumber>,
    /// Temporary files that a crash left before they became segments.
    pub(super) leftovers: Vec<PathBuf>,
}

/// Lists the log's files; ignores all others.
pub(super) fn list(disk: &dyn Disk, directory: &Path) -> Result<Listing, StorageError> {
    let mut listing = Listing::default();
    for name in disk.list(directory).map_err(StorageError::io("list", directory))? {
        let Some(name) = name.to_str() else { continue };
        if let Some(number) = name.strip_suffix(".log").and_then(SegmentNumber::parse) {
            listing.segments.push(number);
        } else if name.strip_suffix(".log.tmp").and_then(SegmentNumber::parse).is_some() {
            listing.leftovers.push(directory.join(name));
        }
    }
    listing.segments.sort_unstable();
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity::of(0xC1, NodeId(2))
    }

    fn header() -> Header {
        let hard = HardState { term: Term(9), vote: Some(NodeId(3)) };
        let start = Start { hard, last: Position { term: Term(8), index: Index(5000) }, stamp: Stamp(123_456) };
        Header { number: SegmentNumber(3), first: Sequence(77), size: 4096, start }
    }

    #[test]
    fn header_round_trips_and_every_flipped_bit_is_detected() {
        let no_vote = Header { start: Start::default(), ..header() };
        let bytes = no_vote.encode(&identity());
        assert_eq!(Header::decode(&bytes, Path::new("segment"), &identity()).unwrap(), no_vote);
        let header = header();
        let mut bytes = header.encode(&identity());
        let path = Path::new("segment");
        assert_eq!(Header::decode(&bytes, path, &identity()).unwrap(), header);
        for bit in 0..SECTOR * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refused = Header::decode(&bytes, path, &identity());
            assert!(matches!(refused, Err(StorageError::Damaged { offset: 0, .. })), "bit {bit}: {refused:?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn segment_of_another_node_or_cluster_is_refused() {
        let bytes = header().encode(&identity());
        let other_node = Identity { node: NodeId(3), ..identity() };
        let other_cluster = Identity { cluster: 0xC2, ..identity() };
        let path = Path::new("segment");
        assert!(matches!(Header::decode(&bytes, path, &other_node), Err(StorageError::WrongNode { .. })));
        assert!(matches!(Header::decode(&bytes, path, &other_cluster), Err(StorageError::WrongCluster { .. })));
    }

    /// Format 1 had no state of the log before the segment; format 2 had no evidence; format 3 had
    /// no generations; in format 4 commands had no proofs, in format 5 no principals.
    #[test]
    fn unknown_format_is_reported_with_its_number() {
        for format in [1, 2, 3, 4, 5, 7] {
            let mut bytes = header().encode(&identity());
            bytes[8] = format;
            let sum = crc32c::crc32c(&bytes[..SUM_AT]);
            bytes[SUM_AT..SECTOR].copy_from_slice(&sum.to_le_bytes());
            let refused = Header::decode(&bytes, Path::new("segment"), &identity());
            let found = u32::from(format);
            assert!(
                matches!(refused, Err(StorageError::UnknownFormat { found: f, known, .. }) if (f, known) == (found, 6))
            );
        }
    }

    #[test]
    fn the_bytes_of_a_header_are_pinned() {
        let bytes = header().encode(&identity());
        let hex: String = bytes[..START_AT + 37].iter().map(|byte| format!("{byte:02x}")).collect();
        // A change here is a change of the format: give the segments a new version.
        assert_eq!(
            hex,
            concat!(
                "50414c495357414c06000000c1000000000000000200000003000000000000004d000000000000000010000000000000",
                "090000000000000001030000000800000000000000881300000000000040e2010000000000",
            )
        );
        assert!(bytes[START_AT + 37..SUM_AT].iter().all(|byte| *byte == 0));
        let slots = Slots::of(&bytes, header().first);
        let initial = slots.encode(&slots.initial());
        assert_eq!(bytes[SECTOR..], [initial, initial].concat());
    }
}
