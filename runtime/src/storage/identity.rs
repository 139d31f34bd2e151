//! Whose directory this is: the file `identity.json`.
//!
//! A node that takes up another node's log speaks with two voices in one cluster, and a node whose log is gone has
//! forgotten its votes; both can elect two leaders in one term. So the first start writes down who the directory
//! belongs to, and every later start compares. The file also says which segments the log has, so that a log whose
//! newest file (or oldest, or every file) was removed is noticed: nothing in what remains would show it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use palisade_spec::raft::NodeId;
use serde::{Deserialize, Serialize};

use super::{SegmentNumber, StorageError, files};

/// The file's name.
pub(super) const FILE_NAME: &str = "identity.json";

/// The only format this program writes and reads.
const FORMAT: u32 = 2;

/// Who a data directory belongs to. Fixed at the first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster's id.
    pub cluster: u64,
    /// The node's number.
    pub node: NodeId,
    /// The cluster's voters, in any order.
    pub voters: Vec<NodeId>,
}

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    cluster: u64,
    node: NodeId,
    voters: Vec<NodeId>,
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
struct Versioned {
    format: u32,
}

impl Identity {
    /// The voters in order, each once.
    fn sorted_voters(&self) -> Vec<NodeId> {
        let mut voters = self.voters.clone();
        voters.sort_unstable();
        voters.dedup();
        voters
    }
}

/// Reads the directory's identity and which segments its log has. `None` if there is no such file.
pub(super) fn read(directory: &Path) -> Result<Option<(Identity, Segments)>, StorageError> {
    let path = directory.join(FILE_NAME);
    let bytes = match fs::read(&path) {
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
    Ok(Some((Identity { cluster: record.cluster, node: record.node, voters: record.voters }, record.segments)))
}

/// Writes the file, durably and as a whole.
pub(super) fn write(directory: &Path, identity: &Identity, segments: Segments) -> Result<(), StorageError> {
    let path = directory.join(FILE_NAME);
    let voters = identity.sorted_voters();
    let record = Record { format: FORMAT, cluster: identity.cluster, node: identity.node, voters, segments };
    let mut content = serde_json::to_vec_pretty(&record)
        .map_err(|error| StorageError::IdentityUnreadable { path: path.clone(), reason: error.to_string() })?;
    content.push(b'\n');
    files::replace(&path, directory, &content)
}

/// Refuses a directory that is not this node's in this cluster.
pub(super) fn verify(directory: &Path, found: &Identity, expected: &Identity) -> Result<(), StorageError> {
    let path = directory.join(FILE_NAME);
    if found.cluster != expected.cluster {
        return Err(StorageError::WrongCluster { path, found: found.cluster, expected: expected.cluster });
    }
    if found.node != expected.node {
        return Err(StorageError::WrongNode { path, found: found.node, expected: expected.node });
    }
    let (found, expected) = (found.sorted_voters(), expected.sorted_voters());
    if found != expected {
        return Err(StorageError::WrongVoters { path, found, expected });
    }
    Ok(())
}
