//! The identity of a data directory: the file `identity.json`.
//!
//! A node that uses another node's log acts as two members of one cluster, and a node whose log is
//! gone has forgotten its votes; both can lead to two leaders in one term. So the first start
//! records the owner of the directory, and every later start verifies it. The file also records
//! which segments the log has, so that the removal of its newest segment (or its oldest, or all of
//! them) is detected: nothing in the remaining files would show it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use palisade_spec::raft::NodeId;
use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::segment_number::Segments;
use super::{StorageError, files};

/// The file's name.
pub(super) const FILE_NAME: &str = "identity.json";

/// The only format that this program writes and reads.
const FORMAT: u32 = 5;

/// The name of a cluster whose founders were given none.
pub const DEFAULT_CLUSTER_NAME: &str = "palisade";

/// The random number of a data directory, drawn when the directory is created: it distinguishes a
/// node from another one that was started with the same node ID.
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

/// The text does not consist of 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoIncarnation;

/// The owner of a data directory. Fixed at the first start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's ID.
    pub cluster: u64,
    /// The cluster's name: later starts need not repeat it, and messages to the operator show it.
    pub cluster_name: String,
    /// The node: the number that the operator gave it, and its generation (how often it has come
    /// back without its directory).
    pub node: NodeId,
    /// The directory's incarnation.
    pub incarnation: Incarnation,
    /// The voters with which the cluster was founded, and their addresses then. Empty if the node
    /// joined the cluster later.
    pub founders: BTreeMap<NodeId, String>,
    /// The hash of the snapshot from which the cluster was founded, if any.
    pub restored: Option<String>,
}

impl Identity {
    /// Identity of a node that is the only founder of its cluster, with incarnation 0. For tests
    /// and tools.
    pub fn of(cluster: u64, node: NodeId) -> Identity {
        let founders = BTreeMap::from([(node, String::new())]);
        let cluster_name = DEFAULT_CLUSTER_NAME.to_owned();
        Identity { cluster, cluster_name, node, incarnation: Incarnation(0), founders, restored: None }
    }
}

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    cluster: u64,
    cluster_name: String,
    node: u16,
    generation: u16,
    incarnation: Incarnation,
    founders: BTreeMap<NodeId, String>,
    restored: Option<String>,
    segments: Segments,
}

/// Path of the file.
pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

/// Reads the directory's identity and the segments of its log. `None` if there is no such file.
pub(super) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<(Identity, Segments)>, StorageError> {
    let Some(record) = files::read_record::<Record>(disk, &path(directory), FORMAT)? else { return Ok(None) };
    let Record { cluster, cluster_name, node, generation, incarnation, founders, restored, segments, .. } = record;
    let node = NodeId::new(node, generation);
    Ok(Some((Identity { cluster, cluster_name, node, incarnation, founders, restored }, segments)))
}

/// Writes the file, durably and as a whole.
pub(super) fn write(
    disk: &dyn Disk,
    directory: &Path,
    identity: &Identity,
    segments: Segments,
) -> Result<(), StorageError> {
    let path = path(directory);
    let Identity { cluster, cluster_name, node, incarnation, founders, restored } = identity.clone();
    let (node, generation) = (node.number(), node.generation());
    let record =
        Record { format: FORMAT, cluster, cluster_name, node, generation, incarnation, founders, restored, segments };
    let mut content = serde_json::to_vec_pretty(&record)
        .map_err(|error| StorageError::IdentityUnreadable { path: path.clone(), reason: error.to_string() })?;
    content.push(b'\n');
    files::replace(disk, &path, directory, &content)
}

/// Allocates space for the next [`write()`].
pub(super) fn preallocate(disk: &dyn Disk, directory: &Path) -> Result<(), StorageError> {
    files::preallocate(disk, &path(directory), files::RESERVE)
}
