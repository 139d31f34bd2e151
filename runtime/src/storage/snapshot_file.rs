//! The file of a snapshot: the state after one entry, with whatever else a node needs to go on from there.
//!
//! ```text
//! head:     magic "PALISNAP" | format u32 | cluster u64 | length of the header u32 | header (bincode) | CRC-32C of all that
//! chunks:   length u32 | CRC-32C of the length and the bytes | bytes of the state (bincode), 64 KiB but for the last
//! end:      0 u32 | length of the whole file u64 | SHA-256 of everything before it
//! ```
//!
//! Numbers are little-endian. Nothing in it is one node's own, so every replica's file of one position has the same
//! bytes: files can be compared, and what one node has begun to send another can go on with.
//!
//! The state is streamed, into the file and out of it; it is never in memory a second time. The chunks' checksums say
//! *where* a file is damaged, and are compared before anything that was read is made use of; the hash says that it is
//! whole.

use std::io::{self, Read, Write};

use palisade_client::codec::{self, CodecError};
use std::sync::Arc;

use palisade_spec::raft::{Members, Position, Snapshot, Stamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::frame::field;

const MAGIC: [u8; 8] = *b"PALISNAP";
/// The only format this program writes and reads.
pub(super) const FORMAT: u32 = 2;
/// What stands before the header: magic, format, cluster, length.
const PREFIX: usize = 24;
/// The longest header that is believed to be one.
const HEADER_BYTES: u32 = 1 << 20;
/// How much of the state a chunk holds.
const CHUNK: usize = 64 * 1024;
/// The end of the file: the mark that no chunk follows, the length, the hash.
const END: usize = 4 + 8 + 32;

/// Everything of a snapshot but the state.
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

/// The SHA-256 of a snapshot's file, up to where it stands itself.
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

/// What is known of a snapshot's file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// The last entry that the state includes.
    pub last: Position,
    /// That entry's stamp.
    pub stamp: Stamp,
    /// The file's length.
    pub bytes: u64,
    /// The file's hash.
    pub hash: SnapshotHash,
}

/// What is wrong with a snapshot's file.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFlaw {
    /// It could not be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is in a format that this program does not know.
    #[error("it is in format {0}; this program knows format {FORMAT}")]
    UnknownFormat(u32),
    /// It is another cluster's.
    #[error("it is of cluster {0:016x}")]
    WrongCluster(u64),
    /// It is what was written, but by another program.
    #[error("it holds at byte {offset} what this program does not understand: {what}")]
    NotUnderstood {
        /// Where, in bytes from its beginning.
        offset: u64,
        /// What is not understood.
        what: String,
    },
    /// It is not what was written.
    #[error("it is damaged at byte {offset}: {what}")]
    Damaged {
        /// Where, in bytes from its beginning.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
}

/// Writes a snapshot, and says what came of it.
pub(super) fn write<S: Serialize>(to: impl Write, cluster: u64, snapshot: &Snapshot<S>) -> io::Result<SnapshotInfo> {
    let mut file = Hashed { inner: to, hash: Sha256::new(), bytes: 0 };
    file.write_all(&head(cluster, &Header::of(snapshot)))?;
    let mut chunks = Chunks { file, buffer: Vec::with_capacity(CHUNK) };
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
    head[20..].first_chunk_mut().map(|place| *place = length.to_le_bytes()).expect("the prefix has room for it");
    let sum = crc32c::crc32c(&head);
    head.extend(sum.to_le_bytes());
    head
}

/// Reads a snapshot of this cluster (of any, if none is named) and checks every byte of it.
///
/// # Errors
/// What is wrong with it, and where.
pub fn read<S: DeserializeOwned>(
    from: impl Read,
    cluster: Option<u64>,
) -> Result<(Snapshot<S>, SnapshotInfo), SnapshotFlaw> {
    let mut file = Hashed { inner: from, hash: Sha256::new(), bytes: 0 };
    let header = read_head(&mut file, cluster)?;
    let mut chunks = Chunked { file, chunk: Vec::new(), at: 0, chunk_at: 0, flaw: None, is_over: false };
    let decoded: Result<S, CodecError> = codec::decode_from(&mut chunks);
    // What the chunks say is the cause; what the decoder says, only what came of it.
    if let Some(flaw) = chunks.flaw.take() {
        return Err(flaw);
    }
    let undecodable = |offset, what: String| SnapshotFlaw::Damaged { offset, what };
    let machine = match decoded {
        Ok(machine) => machine,
        Err(error) => {
            let offset = chunks.chunk_at;
            // If all of the file is as it was written, it is not damaged.
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

fn read_head(file: &mut Hashed<impl Read>, cluster: Option<u64>) -> Result<Header, SnapshotFlaw> {
    let damaged = |what: &str| SnapshotFlaw::Damaged { offset: 0, what: what.to_owned() };
    let mut head = file.take_vec(PREFIX, 0, "its head")?;
    if head[..8] != MAGIC {
        return Err(damaged("this is not a snapshot"));
    }
    let length = u32::from_le_bytes(field(&head, 20));
    if length > HEADER_BYTES {
        return Err(damaged("its header is longer than any"));
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
    let found = u64::from_le_bytes(field(head, 12));
    if cluster.is_some_and(|cluster| cluster != found) {
        return Err(SnapshotFlaw::WrongCluster(found));
    }
    let header = codec::decode(&head[PREFIX..]);
    header.map_err(|error| SnapshotFlaw::NotUnderstood { offset: PREFIX as u64, what: format!("its header: {error}") })
}

/// Reads what stands behind the mark that no chunk follows.
fn read_end(mut file: Hashed<impl Read>, header: &Header) -> Result<SnapshotInfo, SnapshotFlaw> {
    let offset = file.bytes;
    let damaged = |what: &str| Err(SnapshotFlaw::Damaged { offset, what: what.to_owned() });
    let bytes = u64::from_le_bytes(field(&file.take_vec(8, offset, "its end")?, 0));
    let hash = SnapshotHash(file.hash.clone().finalize().into());
    if field::<32>(&file.take_vec(32, offset, "its hash")?, 0) != hash.0 {
        return damaged("it does not match its hash");
    }
    if bytes != file.bytes {
        return damaged("it is not as long as it says");
    }
    if file.inner.read(&mut [0])? != 0 {
        return damaged("more follows behind its end");
    }
    Ok(SnapshotInfo { last: header.last, stamp: header.stamp, bytes, hash })
}

/// Hashes and counts what passes through.
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
    /// Takes so many bytes, which a sound file has here: they belong to what begins at `offset`.
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

/// Cuts the state into chunks on its way to the file.
struct Chunks<F> {
    file: Hashed<F>,
    buffer: Vec<u8>,
}

impl<F: Write> Chunks<F> {
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

impl<F: Write> Write for Chunks<F> {
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

/// Puts the chunks together again; gives nothing out that was not checked.
struct Chunked<F> {
    file: Hashed<F>,
    chunk: Vec<u8>,
    /// What has been given out of the chunk.
    at: usize,
    /// Where in the file the chunk begins.
    chunk_at: u64,
    flaw: Option<SnapshotFlaw>,
    /// The last chunk was read.
    is_over: bool,
}

impl<F: Read> Chunked<F> {
    /// Goes on to the next chunk, if there is one.
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
            return damaged("a chunk is longer than any");
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

impl<F: Read> Read for Chunked<F> {
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

    /// Reads what should be refused; says where it is refused.
    fn refused(bytes: &[u8], scene: &str) -> u64 {
        match read::<Vec<u8>>(bytes, Some(CLUSTER)) {
            Err(SnapshotFlaw::Damaged { offset, .. }) => offset,
            other => panic!("{scene}: {other:?}"),
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
    fn every_flipped_bit_and_every_cut_is_refused_where_it_is() {
        let (mut bytes, _) = file(vec![7_u8; 300]);
        for bit in 0..bytes.len() * 8 {
            let byte = bit / 8;
            bytes[byte] ^= 1 << (bit % 8);
            let offset = refused(&bytes, &format!("bit {bit}"));
            assert!(offset <= byte as u64, "bit {bit} was found at {offset}");
            bytes[byte] ^= 1 << (bit % 8);
        }
        for cut in 0..bytes.len() {
            let offset = refused(&bytes[..cut], &format!("cut at {cut}"));
            assert!(offset <= cut as u64, "cut at {cut} was found at {offset}");
        }
        bytes.push(0);
        assert_eq!(refused(&bytes, "one byte more"), (bytes.len() - 1 - 40) as u64);
    }

    /// Goal: whole chunks may not go missing, come twice, or change places: each is sound by itself.
    #[test]
    fn chunks_in_another_order_are_refused() {
        let state: Vec<u8> = (0..3 * CHUNK).map(|at| u8::try_from(at % 253).unwrap()).collect();
        let (bytes, _) = file(&state);
        let head = head(CLUSTER, &Header::of(&snapshot(()))).len();
        let chunk = CHUNK + 8;
        let (first, second) = (&bytes[head..head + chunk], &bytes[head + chunk..head + 2 * chunk]);
        let rest = &bytes[head + 2 * chunk..];
        let swapped = [&bytes[..head], second, first, rest].concat();
        let missing = [&bytes[..head], second, rest].concat();
        let twice = [&bytes[..head], first, first, second, rest].concat();
        for (scene, bytes) in [("swapped", swapped), ("missing", missing), ("twice", twice)] {
            refused(&bytes, scene);
        }
    }

    #[test]
    fn another_clusters_file_and_another_format_are_refused_by_name() {
        let (bytes, _) = file(vec![1_u8]);
        let refusal = read::<Vec<u8>>(bytes.as_slice(), Some(0xC2));
        assert!(matches!(refusal, Err(SnapshotFlaw::WrongCluster(CLUSTER))));
        let mut later = head(CLUSTER, &Header::of(&snapshot(())));
        later[8] = 3;
        let end = later.len() - 4;
        let sum = crc32c::crc32c(&later[..end]);
        later[end..].copy_from_slice(&sum.to_le_bytes());
        assert!(matches!(read::<Vec<u8>>(later.as_slice(), Some(CLUSTER)), Err(SnapshotFlaw::UnknownFormat(3))));
    }

    /// A writer that is full.
    #[test]
    fn a_full_disk_is_an_error() {
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
                "50414c49534e415002000000c1000000000000000900000003fbbc02fb39300000ba81433c0500000054247613046865",
                "6c64000000005e0000000000000072860278ce49561b94914ec7bb1b8a2dd2aa133a120d880ae169b8cc3803c92e",
            )
        );
        assert!(hex.ends_with(&info.hash.to_string()));
    }
}
