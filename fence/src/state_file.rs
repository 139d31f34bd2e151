//! The file with the highest tokens: written aside, synced, renamed, and then the directory is
//! synced. After a crash it has the old content or the new, and a checksum shows any other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::format::{Grant, Reader};
use crate::rule::Mark;
use crate::text::Malformed;

/// What the file begins with: its name and version.
const MAGIC: &[u8; 9] = b"PALFENCE\x01";
const CHECKSUM: usize = 32;

/// What a fence remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The cluster's name.
    pub(crate) cluster: String,
    /// The highest restore epoch that was admitted.
    pub(crate) epoch: u64,
    /// The highest grant of each key in that epoch.
    pub(crate) marks: BTreeMap<String, Mark>,
}

impl Seen {
    pub(crate) fn nothing(cluster: &str) -> Seen {
        Seen { cluster: cluster.to_owned(), epoch: 0, marks: BTreeMap::new() }
    }

    /// Keeps an admitted grant. A higher epoch ends the marks of the lower one.
    pub(crate) fn raise(&mut self, grant: &Grant) {
        if grant.epoch > self.epoch {
            self.marks.clear();
            self.epoch = grant.epoch;
        }
        self.marks.insert(grant.key.clone(), Mark::of(grant));
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put_text(&mut bytes, &self.cluster);
        bytes.extend(self.epoch.to_be_bytes());
        bytes.extend((self.marks.len() as u64).to_be_bytes());
        for (key, mark) in &self.marks {
            put_text(&mut bytes, key);
            bytes.extend(mark.token.to_be_bytes());
            bytes.extend(mark.session.to_be_bytes());
        }
        let checksum: [u8; CHECKSUM] = Sha256::digest(&bytes).into();
        bytes.extend(checksum);
        bytes
    }

    /// What the content of a file says.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Seen, Malformed> {
        let (content, checksum) =
            bytes.split_last_chunk::<CHECKSUM>().ok_or_else(|| Malformed::new("it is too short"))?;
        if <[u8; CHECKSUM]>::from(Sha256::digest(content)) != *checksum {
            return Err(Malformed::new("its checksum does not fit"));
        }
        let mut reader = Reader { what: "file", rest: content };
        if reader.array()? != *MAGIC {
            return Err(Malformed::new("it is not the file of a fence, or of another version"));
        }
        let cluster = read_text(&mut reader, "cluster's name")?;
        let (epoch, count) = (reader.number()?, reader.number()?);
        let mut marks = BTreeMap::new();
        for _ in 0..count {
            let key = read_text(&mut reader, "key")?;
            let mark = Mark { token: reader.number()?, session: reader.number()? };
            if marks.insert(key, mark).is_some() {
                return Err(Malformed::new("a key appears twice"));
            }
        }
        reader.end()?;
        Ok(Seen { cluster, epoch, marks })
    }

    /// Replaces the file, durably.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let aside = with_suffix(path, ".tmp");
        let mut file = File::create(&aside)?;
        file.write_all(&self.encode())?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        sync_name(path)
    }
}

/// Makes the name of a file durable.
pub(crate) fn sync_name(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).expect("names and keys have at most 65,535 bytes");
    bytes.extend(length.to_be_bytes());
    bytes.extend(text.as_bytes());
}

fn read_text(reader: &mut Reader<'_>, field: &str) -> Result<String, Malformed> {
    let length = u16::from_be_bytes(reader.array()?);
    reader.text(field, usize::from(length))
}

/// The directory of a file whose path may be just a name.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
