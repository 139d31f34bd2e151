//! The bytes of a recording.
//!
//! ```text
//! file:  "PLSDREC2" | frame…
//! frame: payload length u32 | CRC-32C of the payload u32 | payload: records, bincode, one after the other
//! ```
//!
//! Numbers are little-endian. A frame is what was handed over at once: the steps of a round, or that a write is done. The
//! first record is the [`Header`]. A frame that the file's end cuts short was being handed over when the node was killed, so
//! nothing in it was carried out: it is read as if it were not there.

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

/// How a recording begins: the format and its version.
pub const MAGIC: [u8; 8] = *b"PLSDREC2";
/// What a frame has before its payload, in bytes.
pub const FRAME_HEADER: usize = 8;
/// How a recording's name ends.
pub const EXTENSION: &str = "recording";
/// How long the reader waits for a keeper that is still writing.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whose recording it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The program's version. Digests are comparable within one build of the standard library.
    pub version: String,
    /// The node's cluster.
    pub cluster: u64,
    /// Its data directory's own number.
    pub incarnation: u64,
    /// What it was configured with: its number too.
    pub config: Config,
    /// When the recording began: `CLOCK_MONOTONIC` in nanoseconds, which all processes of a machine share.
    pub began: u64,
}

/// A digest of outputs, writes or a state: SipHash of what the derived `Hash` feeds it, so of every field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 8]);

impl Digest {
    /// Of a value.
    pub fn of<T: Hash + ?Sized>(value: &T) -> Digest {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Digest(hasher.finish().to_le_bytes())
    }
}

/// What a recording consists of. Generic over what is large, so that it can be written from borrowed parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record<D = Durable<LockTable>, I = Input<LockTable>> {
    /// The first one.
    Began(Header),
    /// The node begins from this.
    Recovered {
        /// Nanoseconds since the record before.
        after: u64,
        /// What its disk had.
        durable: D,
    },
    /// The node took a step. Nothing that it asked for was carried out yet.
    Stepped {
        /// Nanoseconds since the record before.
        after: u64,
        /// What happened.
        input: I,
        /// What the node asked for.
        outputs: Digest,
        /// What it is now; only from time to time.
        state: Option<Digest>,
        /// What it asked for in words, if the recording is a verbose one.
        words: Option<String>,
    },
    /// Writes are durable: the next ones that the steps have asked for.
    Written {
        /// Nanoseconds since the record before.
        after: u64,
        /// How many.
        writes: u64,
        /// And what they are.
        digest: Digest,
    },
}

impl<D, I> Record<D, I> {
    /// How much time has passed since the record before, in nanoseconds.
    pub fn after(&self) -> u64 {
        match self {
            Record::Began(_) => 0,
            Record::Recovered { after, .. } | Record::Stepped { after, .. } | Record::Written { after, .. } => *after,
        }
    }
}

/// Makes the payload behind the first [`FRAME_HEADER`] bytes of `frame` into a frame.
pub(super) fn seal(frame: &mut [u8]) {
    let (header, payload) = frame.split_at_mut(FRAME_HEADER);
    let length = u32::try_from(payload.len()).expect("a round takes less than 4 GiB");
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
}

/// A whole recording, from its records: for tests, which write recordings of what never happened.
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

/// The file that says that a recording was cut.
pub fn cut_mark(recording: &Path) -> PathBuf {
    recording.with_extension("cut")
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// The system says no.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is no recording, or one of another version.
    #[error("{} is no recording of this version", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The node still runs.
    #[error("{} is still being written: stop the node first", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Bytes are not what was written.
    #[error("{} is damaged in the frame at byte {offset}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
    },
}

/// A recording that is being read, record by record.
#[derive(Debug)]
pub struct Reading {
    path: PathBuf,
    file: BufReader<File>,
    /// How long the file is, and where the next frame begins.
    length: u64,
    offset: u64,
    /// The records of the present frame that were not handed out yet.
    frame: io::Cursor<Vec<u8>>,
    torn: u64,
}

impl Reading {
    /// Opens a recording and reads its header; `None` if the node was killed before there was one. Waits a while for a
    /// keeper that has not finished.
    ///
    /// # Errors
    /// If it cannot be read, or the node still runs.
    pub fn open(path: &Path) -> Result<Option<(Header, Reading)>, Flaw> {
        let failed = |source| Flaw::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let patience = Instant::now() + PATIENCE;
        loop {
            match file.try_lock_shared() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < patience => {
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

    /// How many bytes at the end were no whole frame, once the end was reached.
    pub fn torn(&self) -> u64 {
        self.torn
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Flaw> {
        self.offset += bytes.len() as u64;
        self.file.read_exact(bytes).map_err(|source| Flaw::Io { path: self.path.clone(), source })
    }
}
