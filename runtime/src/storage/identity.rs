//! Whose directory this is: the file `identity.json`.
//!
//! A node that takes up another node's log speaks with two voices in one cluster, and a node whose log is gone has
//! forgotten its votes; both can elect two leaders in one term. So the first start writes down who the directory
//! belongs to, and every later start compares. The file also says which segments the log has, so that a log whose
//! newest file (or oldest, or every file) was removed is noticed: nothing in what remains would show it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use palisade_spec::raft::NodeId;
use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::{SegmentNumber, StorageError, files};

/// The file's name.
pub(super) const FILE_NAME: &str = "identity.json";

/// The only format this program writes and reads.
const FORMAT: u32 = 3;

/// The number of a data directory, drawn at random when it is made: it tells a node from another one that was started
/// under its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Incarnation {
    type Err = NoIncarnation;

    fn from_str(digits: &str) -> Result<Incarnation, NoIncarnation> {
        let is_whole = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u64::from_str_radix(digits, 16).ok().filter(|_| is_whole);
        number.map(Incarnation).ok_or(NoIncarnation)
    }
}

/// What is not 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoIncarnation;

/// Who a data directory belongs to. Fixed at the first start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's id.
    pub cluster: u64,
    /// The node: the number that the operator gave it, and how often it has come back without its directory.
    pub node: NodeId,
    /// The directory's number.
    pub incarnation: Incarnation,
    /// The voters with which the cluster was founded, and where they were then. Empty if the node joined it later.
    pub founders: BTreeMap<NodeId, String>,
    /// The hash of the snapshot with which the cluster was founded, if it was.
    pub restored: Option<String>,
}

impl Identity {
    /// Of a node that no other one is needed to tell from: the only founder of its cluster. For tests and tools.
    pub fn of(cluster: u64, node: NodeId) -> Identity {
        let founders = BTreeMap::from([(node, String::new())]);
        Identity { cluster, node, incarnation: Incarnation(0), founders, restored: None }
    }
}

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    cluster: u64,
    node: u16,
    generation: u16,
    incarnation: Incarnation,
    founders: BTreeMap<NodeId, String>,
    restored: Option<String>,
    segments: Segments,
}

/// The segments that the log needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Segments {
    /// What stood in those before this one, a snapshot includes. They are removed, or about to be.
    pub(super) first: SegmentNumber,
    /// Segments up to this one have been created; 0 before the first.
    pub(super) last: SegmentNumber,
}

impl Segments {
    /// Those of a log that was never written to.
    pub(super) const NONE: Segments = Segments { first: SegmentNumber::FIRST, last: SegmentNumber::NONE };
}

/// Just enough to tell the format of a file, whatever else is in it.
#[derive(Deserialize)]
pub(crate) struct Versioned {
    pub(crate) format: u32,
}

/// Where the file is.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

/// Reads the directory's identity and which segments its log has. `None` if there is no such file.
pub(super) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<(Identity, Segments)>, StorageError> {
    let path = path(directory);
    let bytes = match disk.read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StorageError::io("read", path)(error)),
    };
    let unreadable =
        |error: serde_json::Error| StorageError::IdentityUnreadable { path: path.clone(), reason: error.to_string() };
    let found: Versioned = serde_json::from_slice(&bytes).map_err(unreadable)?;
    if found.format != FORMAT {
        return Err(StorageError::UnknownFormat { path, found: found.format, known: FORMAT });
    }
    let record: Record = serde_json::from_slice(&bytes).map_err(unreadable)?;
    let Record { cluster, node, generation, incarnation, founders, restored, segments, .. } = record;
    let node = NodeId::new(node, generation);
    Ok(Some((Identity { cluster, node, incarnation, founders, restored }, segments)))
}

/// Writes the file, durably and as a whole.
pub(super) fn write(
    disk: &dyn Disk,
    directory: &Path,
    identity: &Identity,
    segments: Segments,
) -> Result<(), StorageError> {
    let path = path(directory);
    let Identity { cluster, node, incarnation, founders, restored } = identity.clone();
    let (node, generation) = (node.number(), node.generation());
    let record = Record { format: FORMAT, cluster, node, generation, incarnation, founders, restored, segments };
    let mut content = serde_json::to_vec_pretty(&record)
        .map_err(|error| StorageError::IdentityUnreadable { path: path.clone(), reason: error.to_string() })?;
    content.push(b'\n');
    files::replace(disk, &path, directory, &content)
}

/// Allocates space for the next [`write()`].
pub(super) fn preallocate(disk: &dyn Disk, directory: &Path) -> Result<(), StorageError> {
    files::preallocate(disk, &path(directory))
}
