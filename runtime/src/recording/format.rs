//! The file format of a recording.
//!
//! ```text
//! file:  "PLSDREC5" | frame…
//! frame: payload length u32 | CRC-32C of the payload u32 | payload
//! payload: records, bincode, one after the other
//! ```
//!
//! Numbers are little-endian. A frame has the records that left the node at once: the steps of a
//! core iteration, or that a write is durable. The first record is the [`Header`]. An incomplete
//! frame at the end of the file was being written when the node was killed, so none of its outputs
//! was executed: the reader ignores it.

use std::collections::hash_map::DefaultHasher;
use std::fs::{File, TryLockError};
use std::hash::{Hash, Hasher};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use palisade_client::codec;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Config, Durable, Input};
use serde::{Deserialize, Serialize};

/// The first bytes of a recording: the format and its version.
pub const MAGIC: [u8; 8] = *b"PLSDREC5";
/// Length of a frame's header, in bytes.
pub const FRAME_HEADER: usize = 8;
/// The file name extension of a recording.
pub const EXTENSION: &str = "recording";
/// How long the reader waits for a keeper that is still writing.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(20);

/// Identifies the recorded node and run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program's version. Digests are comparable within one build of the standard library.
    pub version: String,
    /// The cluster ID.
    pub cluster: u64,
    /// The incarnation of the node's data directory.
    pub incarnation: u64,
    /// The node's configuration, with its ID.
    pub config: Config,
    /// When the recording began: `CLOCK_MONOTONIC` in nanoseconds, which all processes of a machine
    /// share.
    pub began: u64,
}

/// A digest of outputs, writes or a state: SipHash of what the derived `Hash` feeds it, so of every
/// field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 8]);

impl Digest {
    /// The digest of a value.
    pub fn of<T: Hash + ?Sized>(value: &T) -> Digest {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Digest(hasher.finish().to_le_bytes())
    }
}

/// A record of a recording. Generic over its large parts, so that it can be written from borrowed
/// ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record<D = Durable<LockTable>, I = Input<LockTable>> {
    /// The first record.
    Began(Header),
    /// The state from which the node starts.
    Recovered {
        /// Nanoseconds since the previous record.
        after: u64,
        /// The state that was recovered from the disk.
        durable: D,
    },
    /// The node took a step. None of its outputs was executed yet.
    Stepped {
        /// Nanoseconds since the previous record.
        after: u64,
        /// The node's input.
        input: I,
        /// The digest of the node's outputs.
        outputs: Digest,
        /// The digest of the node's state, only at intervals.
        state: Option<Digest>,
        /// The outputs as `Debug` formats them, if the recording is verbose.
        words: Option<String>,
    },
    /// The next writes that the steps have requested are durable.
    Written {
        /// Nanoseconds since the previous record.
        after: u64,
        /// Number of writes.
        writes: u64,
        /// The digest of the writes.
        digest: Digest,
    },
}

impl<D, I> Record<D, I> {
    /// Nanoseconds since the previous record.
    pub fn after(&self) -> u64 {
        match self {
            Record::Began(_) => 0,
            Record::Recovered { after, .. } | Record::Stepped { after, .. } | Record::Written { after, .. } => *after,
        }
    }
}

/// Writes the header of a frame into its first [`FRAME_HEADER`] bytes; the payload follows them.
pub(super) fn seal(frame: &mut [u8]) {
    let (header, payload) = frame.split_at_mut(FRAME_HEADER);
    let length = u32::try_from(payload.len()).expect("the records of a core iteration take less than 4 GiB");
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
}

/// The bytes of a complete recording with these records: for tests, which make up recordings.
pub fn whole<D: Serialize, I: Serialize>(records: &[Record<D, I>]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for record in records {
        let mut frame = vec![0; FRAME_HEADER];
        codec::encode_into(record, &mut frame);
        seal(&mut frame);
        bytes.extend(frame);
    }
    bytes
}

/// The path of the file that marks a recording as cut.
pub fn cut_mark(recording: &Path) -> PathBuf {
    recording.with_extension("cut")
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// The file cannot be opened, locked or read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a recording, or is a recording of another version.
    #[error("{} is not a recording of the version that this program reads", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The recording is still being written.
    #[error("{} is still being written: stop the node first", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A frame's checksum or contents are wrong.
    #[error("{} is damaged in the frame at byte {offset}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The offset of the frame, in bytes.
        offset: u64,
    },
}

/// A reader of a recording.
#[derive(Debug)]
pub struct Reading {
    path: PathBuf,
    file: BufReader<File>,
    /// Length of the file, and the offset up to which it was read, in bytes.
    length: u64,
    offset: u64,
    /// The payload of the current frame, positioned at its next record.
    frame: io::Cursor<Vec<u8>>,
    torn: u64,
}

impl Reading {
    /// Opens a recording and reads its header; `None` if the node was killed before the header was
    /// written. Waits up to 20 s for a keeper that has not finished.
    ///
    /// # Errors
    /// If the file cannot be read or is not a recording, or if the node still runs.
    pub fn open(path: &Path) -> Result<Option<(Header, Reading)>, Flaw> {
        let failed = |source| Flaw::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let deadline = Instant::now() + KEEPER_TIMEOUT;
        loop {
            match file.try_lock_shared() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => return Err(Flaw::InUse { path: path.to_owned() }),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        let length = file.metadata().map_err(failed)?.len();
        let (file, frame) = (BufReader::with_capacity(1 << 18, file), io::Cursor::default());
        let mut reading = Reading { path: path.to_owned(), file, length, offset: 0, frame, torn: 0 };
        let mut magic = [0; MAGIC.len()];
        if length < MAGIC.len() as u64 {
            return Ok(None);
        }
        reading.read(&mut magic)?;
        match (magic == MAGIC).then(|| reading.record()).transpose()? {
            Some(Some(Record::Began(header))) => Ok(Some((header, reading))),
            Some(None) => Ok(None),
            _ => Err(Flaw::Foreign { path: path.to_owned() }),
        }
    }

    /// The next record, in order; `None` at the end.
    ///
    /// # Errors
    /// If the file is damaged, or cannot be read.
    pub fn record(&mut self) -> Result<Option<Record>, Flaw> {
        let mut frame = self.offset;
        if self.frame.position() == self.frame.get_ref().len() as u64 {
            let left = self.length - self.offset;
            if left < FRAME_HEADER as u64 {
                self.torn = left;
                return Ok(None);
            }
            let mut header = [0; FRAME_HEADER];
            self.read(&mut header)?;
            let [length, sum] =
                [&header[..4], &header[4..]].map(|half| u32::from_le_bytes([half[0], half[1], half[2], half[3]]));
            if u64::from(length) > left - FRAME_HEADER as u64 {
                (self.torn, self.offset) = (left, self.length);
                return Ok(None);
            }
            let mut payload = vec![0; length as usize];
            self.read(&mut payload)?;
            if crc32c::crc32c(&payload) != sum || payload.is_empty() {
                return Err(Flaw::Damaged { path: self.path.clone(), offset: frame });
            }
            self.frame = io::Cursor::new(payload);
        } else {
            frame -= self.frame.get_ref().len() as u64;
        }
        let record = codec::decode_from(&mut self.frame);
        record.map(Some).map_err(|_| Flaw::Damaged { path: self.path.clone(), offset: frame })
    }

    /// Length of the incomplete frame at the end of the file, in bytes; known once the end was
    /// reached.
    pub fn torn(&self) -> u64 {
        self.torn
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file, in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Flaw> {
        self.offset += bytes.len() as u64;
        self.file.read_exact(bytes).map_err(|source| Flaw::Io { path: self.path.clone(), source })
    }
}
