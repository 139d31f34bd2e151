//! The incarnation under which the node of a new directory asks a cluster to admit it.
//!
//! The cluster admits one data directory under a node ID, for good. So its incarnation is durable before
//! the node asks: a node that was admitted and could not write its identity asks again with the same
//! incarnation, and is not taken for another server with the same node ID.

use std::io::ErrorKind;

use palisade_spec::raft::NodeId;
use serde::{Deserialize, Serialize};

use super::directory::{DataDir, LockedDir};
use super::{Incarnation, StorageError, files};

/// The file's name.
const FILE_NAME: &str = "join.json";
/// The only format that this program writes and reads.
const FORMAT: u32 = 1;

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    /// The node ID under which the cluster was asked.
    node: u16,
    incarnation: Incarnation,
}

impl LockedDir {
    /// Begins or repeats to join a cluster as this node, and returns the incarnation that the directory
    /// will have: the one of an earlier attempt as the same node, otherwise `drawn`, which becomes
    /// durable.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or may not be durable.
    pub fn begin_join(&self, node: NodeId, drawn: Incarnation) -> Result<Incarnation, StorageError> {
        let (disk, path, node) = (&**self.disk(), self.path().join(FILE_NAME), node.number());
        if let Some(begun) = files::read_record::<Record>(disk, &path, FORMAT)?.filter(|begun| begun.node == node) {
            return Ok(begun.incarnation);
        }
        let record = Record { format: FORMAT, node, incarnation: drawn };
        let content = serde_json::to_vec(&record).expect("numbers can be written");
        files::replace(disk, &path, self.path(), &content)?;
        Ok(drawn)
    }
}

impl DataDir {
    /// Removes the record of an attempt to join: the identity has the incarnation now.
    ///
    /// # Errors
    /// If the file is there and cannot be removed.
    pub fn end_join(&self) -> Result<(), StorageError> {
        let path = self.path().join(FILE_NAME);
        match self.disk().remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(StorageError::io("remove", path)(error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Identity;

    /// Goal: a node asks its cluster with the same incarnation until it has its identity, whatever ends it meanwhile.
    #[test]
    fn incarnation_is_drawn_once_for_a_node() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let begin = |node, drawn| LockedDir::open(path).unwrap().begin_join(NodeId(node), Incarnation(drawn)).unwrap();
        assert_eq!(begin(4, 7), Incarnation(7));
        assert_eq!(begin(4, 8), Incarnation(7), "the cluster may have admitted it already");
        assert_eq!(begin(5, 9), Incarnation(9), "another node of the cluster");
        assert_eq!(begin(5, 1), Incarnation(9));

        let identity = Identity { incarnation: Incarnation(9), ..Identity::of(7, NodeId(5)) };
        let claimed = DataDir::open(path, &identity).unwrap();
        for _ in 0..2 {
            claimed.end_join().unwrap();
            assert!(!path.join(FILE_NAME).exists());
        }
    }
}
