//! The format of a snapshot file: the state after one entry, and all else that a node needs to
//! continue from there.
//!
//! ```text
//! head:     magic "PALISNAP" | format u32 | cluster u64 | length of the header u32 | header (bincode)
//!           | CRC-32C of all of it
//! chunks:   length u32 | CRC-32C of the length and the bytes | bytes of the state (bincode), 64 KiB but for the last
//! end:      0 u32 | length of the whole file u64 | SHA-256 of everything before it
//! ```
//!
//! Numbers are little-endian. A file holds nothing that is specific to one node, so the files of
//! all replicas at one position have the same bytes: files can be compared, and a transfer that one
//! node began can be resumed by another.
//!
//! The state is streamed into the file and out of it; memory never holds a second copy. The chunks'
//! checksums show *where* a file is damaged, and are verified before any content is used; the hash
//! shows that the file is complete.

use std::io::{self, Read, Write};
use std::sync::Arc;

use palisade_client::codec;
use palisade_spec::raft::{Members, Position, Snapshot, Stamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::frame::field;

const MAGIC: [u8; 8] = *b"PALISNAP";
/// The format that this program writes and reads.
pub(super) const FORMAT: u32 = 6;
/// Length of the fields before the header, in bytes: magic, format, cluster, length.
const PREFIX: usize = 24;
/// Maximum header length, in bytes; a greater length is damage.
const HEADER_BYTES: u32 = 1 << 20;
/// Bytes of the state in a chunk.
const CHUNK: usize = 64 * 1024;
/// Length of the end of the file, in bytes: the mark that no chunk follows, the length, the hash.
const END: usize = 4 + 8 + 32;

/// All of a snapshot except the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    last: Position,
    stamp: Stamp,
    members: Arc<Members>,
}

impl Header {
    fn of<S>(snapshot: &Snapshot<S>) -> Header {
        Header { last: snapshot.last, stamp: snapshot.stamp, members: Arc::clone(&snapshot.members) }
    }

    fn with<S>(self, machine: S) -> Snapshot<S> {
        Snapshot { last: self.last, stamp: self.stamp, members: self.members, machine }
    }
}

/// The SHA-256 of a snapshot's file, without the hash itself.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHash(pub [u8; 32]);

impl std::fmt::Display for SnapshotHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for SnapshotHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Description of a snapshot file, known without reading the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// The last entry that the state includes.
    pub last: Position,
    /// That entry's stamp.
    pub stamp: Stamp,
    /// The file's length, in bytes.
    pub bytes: u64,
    /// The file's hash.
    pub hash: SnapshotHash,
}

/// Why a snapshot file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFlaw {
    /// The file could not be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is in a format that this program does not know.
    #[error("it is in format {0}; this program reads format {FORMAT}")]
    UnknownFormat(u32),
    /// The file belongs to another cluster.
    #[error(
        "a node of another cluster wrote it: it was copied into the sender's data directory. Restore that directory as the sender left it"
    )]
    WrongCluster,
    /// The file is intact, but another version of the program wrote it.
    #[error("it holds at byte {offset} content that this program does not understand: {what}")]
    NotUnderstood {
        /// Offset of the content, in bytes.
        offset: u64,
        /// Description of the content.
        what: String,
    },
    /// The file does not hold what was written.
    #[error("it is damaged at byte {offset}: {what}")]
    Damaged {
        /// Offset of the damage, in bytes.
        offset: u64,
        /// Description of the damage.
        what: String,
    },
}

/// Writes a snapshot, and returns the description of the file.
pub(super) fn write<S: Serialize>(to: impl Write, cluster: u64, snapshot: &Snapshot<S>) -> io::Result<SnapshotInfo> {
    let mut file = Hashed { inner: to, hash: Sha256::new(), bytes: 0 };
    file.write_all(&head(cluster, &Header::of(snapshot)))?;
    let mut chunks = ChunkWriter { file, buffer: Vec::with_capacity(CHUNK) };
    codec::encode_to(&snapshot.machine, &mut chunks)?;
    let mut file = chunks.finish()?;
    let bytes = file.bytes + END as u64;
    file.write_all(&0_u32.to_le_bytes())?;
    file.write_all(&bytes.to_le_bytes())?;
    let hash = SnapshotHash(file.hash.finalize().into());
    file.inner.write_all(&hash.0)?;
    Ok(SnapshotInfo { last: snapshot.last, stamp: snapshot.stamp, bytes, hash })
}

fn head(cluster: u64, header: &Header) -> Vec<u8> {
    let mut head = vec![0; PREFIX];
    codec::encode_into(header, &mut head);
    let length = u32::try_from(head.len() - PREFIX).expect("a header is a few numbers");
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    head[12..20].copy_from_slice(&cluster.to_le_bytes());
    head[20..].first_chunk_mut().map(|bytes| *bytes = length.to_le_bytes()).expect("the prefix has room for it");
    let sum = crc32c::crc32c(&head);
    head.extend(sum.to_le_bytes());
    head
}

/// Reads a snapshot of this cluster (of any cluster, if `None`) and verifies all of it.
///
/// # Errors
/// The file's flaw and its offset.
pub fn read<S: DeserializeOwned>(
    from: impl Read,
    cluster: Option<u64>,
) -> Result<(Snapshot<S>, SnapshotInfo), SnapshotFlaw> {
    let mut file = Hashed { inner: from, hash: Sha256::new(), bytes: 0 };
    let header = read_head(&mut file, cluster)?;
    let mut chunks = ChunkReader { file, chunk: Vec::new(), at: 0, chunk_at: 0, flaw: None, is_over: false };
    let decoded = codec::decode_from::<S>(&mut chunks);
    // A flaw of a chunk is the cause, and the decoder's error only its consequence.
    if let Some(flaw) = chunks.flaw.take() {
        return Err(flaw);
    }
    let undecodable = |offset, what: String| SnapshotFlaw::Damaged { offset, what };
    let machine = match decoded {
        Ok(machine) => machine,
        Err(error) => {
            let offset = chunks.chunk_at;
            // If the whole file is as it was written, it is not damaged.
            while chunks.next_chunk()? {}
            read_end(chunks.file, &header)?;
            return Err(SnapshotFlaw::NotUnderstood { offset, what: format!("the state: {error}") });
        }
    };
    if chunks.at < chunks.chunk.len() || chunks.next_chunk()? {
        return Err(undecodable(chunks.chunk_at, "more follows behind the end of the state".into()));
    }
    let info = read_end(chunks.file, &header)?;
    Ok((header.with(machine), info))
}

/// Reads the header of a file in the format of this program.
fn read_head(file: &mut Hashed<impl Read>, cluster: Option<u64>) -> Result<Header, SnapshotFlaw> {
    let damaged = |what: &str| SnapshotFlaw::Damaged { offset: 0, what: what.to_owned() };
    let mut head = file.take_vec(PREFIX, 0, "its head")?;
    if head[..8] != MAGIC {
        return Err(damaged("this is not a snapshot"));
    }
    let length = u32::from_le_bytes(field(&head, 20));
    if length > HEADER_BYTES {
        return Err(damaged("its header is longer than the maximum"));
    }
    head.extend(file.take_vec(length as usize + 4, 0, "its header")?);
    let (head, sum) = head.split_last_chunk::<4>().ok_or_else(|| damaged("it has no header"))?;
    if crc32c::crc32c(head) != u32::from_le_bytes(*sum) {
        return Err(damaged("its header does not match its checksum"));
    }
    let format = u32::from_le_bytes(field(head, 8));
    if format != FORMAT {
        return Err(SnapshotFlaw::UnknownFormat(format));
    }
    if cluster.is_some_and(|cluster| cluster != u64::from_le_bytes(field(head, 12))) {
        return Err(SnapshotFlaw::WrongCluster);
    }
    codec::decode(&head[PREFIX..])
        .map_err(|error| SnapshotFlaw::NotUnderstood { offset: PREFIX as u64, what: format!("its header: {error}") })
}

/// Reads the end of the file, behind the mark that no chunk follows.
fn read_end(mut file: Hashed<impl Read>, header: &Header) -> Result<SnapshotInfo, SnapshotFlaw> {
    let offset = file.bytes;
    let damaged = |what: &str| Err(SnapshotFlaw::Damaged { offset, what: what.to_owned() });
    let bytes = u64::from_le_bytes(field(&file.take_vec(8, offset, "its end")?, 0));
    let hash = SnapshotHash(file.hash.clone().finalize().into());
    if field::<32>(&file.take_vec(32, offset, "its hash")?, 0) != hash.0 {
        return damaged("it does not match its hash");
    }
    if bytes != file.bytes {
        return damaged("its length differs from the length that it records");
    }
    if file.inner.read(&mut [0])? != 0 {
        return damaged("more follows behind its end");
    }
    Ok(SnapshotInfo { last: header.last, stamp: header.stamp, bytes, hash })
}

/// Hashes and counts the bytes that pass through.
struct Hashed<F> {
    inner: F,
    hash: Sha256,
    bytes: u64,
}

impl<F: Write> Hashed<F> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_all(bytes)?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl<F: Read> Hashed<F> {
    /// Fills `bytes` from the file. They belong to `what`, which begins at `offset`: if the file
    /// ends before, both are in the error.
    fn take(&mut self, bytes: &mut [u8], offset: u64, what: &str) -> Result<(), SnapshotFlaw> {
        self.inner.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                SnapshotFlaw::Damaged { offset, what: format!("the file ends within {what}") }
            }
            _ => error.into(),
        })?;
        self.hash.update(&*bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn take_vec(&mut self, length: usize, offset: u64, what: &str) -> Result<Vec<u8>, SnapshotFlaw> {
        let mut bytes = vec![0; length];
        self.take(&mut bytes, offset, what)?;
        Ok(bytes)
    }
}

/// Splits the written state into chunks.
struct ChunkWriter<F> {
    file: Hashed<F>,
    buffer: Vec<u8>,
}

impl<F: Write> ChunkWriter<F> {
    fn finish(mut self) -> io::Result<Hashed<F>> {
        self.write_chunk()?;
        Ok(self.file)
    }

    fn write_chunk(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let length = u32::try_from(self.buffer.len()).expect("a chunk is small").to_le_bytes();
        let sum = chunk_sum(length, &self.buffer);
        self.file.write_all(&length)?;
        self.file.write_all(&sum.to_le_bytes())?;
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

impl<F: Write> Write for ChunkWriter<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == CHUNK {
            self.write_chunk()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the state from its chunks; returns only bytes whose checksum was verified.
struct ChunkReader<F> {
    file: Hashed<F>,
    chunk: Vec<u8>,
    /// Number of bytes of the chunk already returned.
    at: usize,
    /// Offset of the chunk in the file.
    chunk_at: u64,
    flaw: Option<SnapshotFlaw>,
    /// Whether the last chunk was read.
    is_over: bool,
}

impl<F: Read> ChunkReader<F> {
    /// Reads the next chunk; returns `false` if there is none.
    fn next_chunk(&mut self) -> Result<bool, SnapshotFlaw> {
        if self.is_over {
            return Ok(false);
        }
        let offset = self.file.bytes;
        let damaged = |what: &str| Err(SnapshotFlaw::Damaged { offset, what: what.to_owned() });
        (self.chunk_at, self.at) = (offset, 0);
        self.chunk.clear();
        let length = field(&self.file.take_vec(4, offset, "a chunk")?, 0);
        let bytes = u32::from_le_bytes(length) as usize;
        if bytes == 0 {
            self.is_over = true;
            return Ok(false);
        }
        if bytes > CHUNK {
            return damaged("a chunk is longer than the maximum");
        }
        let sum = u32::from_le_bytes(field(&self.file.take_vec(4, offset, "a chunk")?, 0));
        self.chunk.resize(bytes, 0);
        self.file.take(&mut self.chunk, offset, "a chunk")?;
        if chunk_sum(length, &self.chunk) != sum {
            return damaged("a chunk does not match its checksum");
        }
        Ok(true)
    }
}

impl<F: Read> Read for ChunkReader<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.chunk.len() {
            match self.next_chunk() {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(flaw) => {
                    self.flaw = Some(flaw);
                    return Err(io::Error::other("the snapshot is damaged"));
                }
            }
        }
        let given = into.len().min(self.chunk.len() - self.at);
        into[..given].copy_from_slice(&self.chunk[self.at..self.at + given]);
        self.at += given;
        Ok(given)
    }
}

fn chunk_sum(length: [u8; 4], bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length), bytes)
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::{Index, Term};

    use super::*;

    const CLUSTER: u64 = 0xC1;

    fn snapshot<S>(machine: S) -> Snapshot<S> {
        let last = Position { term: Term(3), index: Index(700) };
        Snapshot { last, stamp: Stamp(12_345), members: Arc::default(), machine }
    }

    fn file<S: Serialize>(machine: S) -> (Vec<u8>, SnapshotInfo) {
        let mut bytes = Vec::new();
        let info = write(&mut bytes, CLUSTER, &snapshot(machine)).unwrap();
        assert_eq!(info.bytes, bytes.len() as u64);
        (bytes, info)
    }

    /// Reads a damaged file; returns the offset of the damage.
    fn damaged_at(bytes: &[u8], case: &str) -> u64 {
        match read::<Vec<u8>>(bytes, Some(CLUSTER)) {
            Err(SnapshotFlaw::Damaged { offset, .. }) => offset,
            other => panic!("{case}: {other:?}"),
        }
    }

    #[test]
    fn a_state_of_any_length_reads_back() {
        for length in [0, 1, 100, CHUNK - 3, CHUNK - 2, CHUNK, 3 * CHUNK - 7, 5 * CHUNK] {
            let state: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let (bytes, info) = file(&state);
            let (read, found) = read::<Vec<u8>>(bytes.as_slice(), Some(CLUSTER)).unwrap();
            assert_eq!((read, found), (snapshot(state), info));
        }
        let (bytes, _) = file(());
        read::<()>(bytes.as_slice(), None).unwrap();
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_located() {
        let (mut bytes, _) = file(vec![7_u8; 300]);
        for bit in 0..bytes.len() * 8 {
            let byte = bit / 8;
            bytes[byte] ^= 1 << (bit % 8);
            let offset = damaged_at(&bytes, &format!("bit {bit}"));
            assert!(offset <= byte as u64, "bit {bit} was found at {offset}");
            bytes[byte] ^= 1 << (bit % 8);
        }
        for cut in 0..bytes.len() {
            let offset = damaged_at(&bytes[..cut], &format!("cut at {cut}"));
            assert!(offset <= cut as u64, "cut at {cut} was found at {offset}");
        }
        bytes.push(0);
        assert_eq!(damaged_at(&bytes, "one byte more"), (bytes.len() - 1 - 40) as u64);
    }

    /// Missing, repeated or reordered chunks are detected, although each chunk is sound by itself.
    #[test]
    fn missing_repeated_or_reordered_chunks_are_refused() {
        let state: Vec<u8> = (0..3 * CHUNK).map(|at| u8::try_from(at % 253).unwrap()).collect();
        let (bytes, _) = file(&state);
        let head = head(CLUSTER, &Header::of(&snapshot(()))).len();
        let chunk = CHUNK + 8;
        let (first, second) = (&bytes[head..head + chunk], &bytes[head + chunk..head + 2 * chunk]);
        let rest = &bytes[head + 2 * chunk..];
        let swapped = [&bytes[..head], second, first, rest].concat();
        let missing = [&bytes[..head], second, rest].concat();
        let twice = [&bytes[..head], first, first, second, rest].concat();
        for (case, bytes) in [("swapped", swapped), ("missing", missing), ("twice", twice)] {
            damaged_at(&bytes, case);
        }
    }

    #[test]
    fn file_of_another_cluster_or_format_is_refused() {
        let (bytes, _) = file(vec![1_u8]);
        let refusal = read::<Vec<u8>>(bytes.as_slice(), Some(0xC2));
        assert!(matches!(refusal, Err(SnapshotFlaw::WrongCluster)));
        for format in [5, 7] {
            let mut other = head(CLUSTER, &Header::of(&snapshot(())));
            other[8] = format;
            let end = other.len() - 4;
            let sum = crc32c::crc32c(&other[..end]);
            other[end..].copy_from_slice(&sum.to_le_bytes());
            let refusal = read::<Vec<u8>>(other.as_slice(), Some(CLUSTER)).unwrap_err();
            assert_eq!(refusal.to_string(), format!("it is in format {format}; this program reads format 6"));
        }
    }

    #[test]
    fn full_disk_is_an_error() {
        let (bytes, _) = file(vec![7_u8; 300]);
        for room in 0..bytes.len() {
            let mut disk = vec![0; room];
            let error = write(disk.as_mut_slice(), CLUSTER, &snapshot(vec![7_u8; 300])).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WriteZero, "{room} bytes of room");
        }
    }

    #[test]
    fn the_bytes_of_a_file_are_pinned() {
        let (bytes, info) = file("held".to_string());
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // A change here is a change of the format: give the files a new version.
        assert_eq!(
            hex,
            concat!(
                "50414c49534e415006000000c1000000000000000900000003fbbc02fb39300000ceaf90840500000054247613046865",
                "6c64000000005e0000000000000009b1eebe9744d564f92fe19ad68816755a7df7c32d9e3fd7da148745b903727c",
            )
        );
        assert!(hex.ends_with(&info.hash.to_string()));
    }
}
