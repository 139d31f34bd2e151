//! Detects a node that has forgotten: one that comes back under its number with another data directory.
//!
//! Such a node has lost what it promised: it could vote twice in one term, or acknowledge what it does not have any more.
//! It looks just like a new cluster's node on its first start, above all when it is started with the command line of its
//! first start. So each data directory has a number, drawn when it is made, its **incarnation**; every node remembers,
//! on its disk, under which incarnation it first met each other node, and refuses any other one for ever. A server that has
//! lost its disk comes back as a new member: under its number in the next generation, or under another number.
//!
//! It also remembers where it met them: a node that has lost its log, and with it the members' addresses, asks there to be
//! taken back.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use palisade_spec::raft::NodeId;
use serde::{Deserialize, Serialize};

use crate::storage::{Incarnation, StorageError, SystemDisk, Versioned, files};
use crate::sync::Mutex;

/// The file's name.
const FILE_NAME: &str = "peers.json";
/// The only format this program writes and reads.
const FORMAT: u32 = 2;

/// Under which incarnation this node has met others.
#[derive(Debug)]
pub struct PinnedPeers {
    directory: PathBuf,
    /// What the file says.
    met: Mutex<BTreeMap<NodeId, PinResult>>,
    /// Held while the file is written: `met` is read meanwhile.
    writing: Mutex<()>,
}

/// Another node, as this one knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PinResult {
    incarnation: Incarnation,
    peer_addr: String,
}

/// The same, in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    node: u16,
    generation: u16,
    incarnation: Incarnation,
    peer_addr: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    met: Vec<Entry>,
}

impl PinnedPeers {
    /// Reads the nodes that this one has met from its data directory.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn load(directory: impl Into<PathBuf>) -> Result<PinnedPeers, StorageError> {
        let directory = directory.into();
        let path = directory.join(FILE_NAME);
        let met = match std::fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(StorageError::io("read", path)(error)),
            Ok(bytes) => {
                let unreadable = |error: serde_json::Error| StorageError::IdentityUnreadable {
                    path: path.clone(),
                    reason: error.to_string(),
                };
                let found: Versioned = serde_json::from_slice(&bytes).map_err(unreadable)?;
                if found.format != FORMAT {
                    return Err(StorageError::UnknownFormat { path, found: found.format, known: FORMAT });
                }
                let record: Record = serde_json::from_slice(&bytes).map_err(unreadable)?;
                let met = |Entry { node, generation, incarnation, peer_addr }| {
                    (NodeId::new(node, generation), PinResult { incarnation, peer_addr })
                };
                record.met.into_iter().map(met).collect()
            }
        };
        Ok(PinnedPeers { directory, met: Mutex::new(met), writing: Mutex::default() })
    }

    /// Where each node was when this one last reached it.
    pub fn addresses(&self) -> Vec<(NodeId, String)> {
        self.met.lock().iter().map(|(&node, met)| (node, met.peer_addr.clone())).collect()
    }

    /// The data directory with which this node has met another one.
    pub(super) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.met.lock().get(&node).map(|met| met.incarnation)
    }

    /// A server says that it is `node`. The first time its directory becomes durable here, before anything that it says is heard.
    /// If the log says which directory is `meant`, the log is right: a stranger may have taken that identity before.
    pub(super) fn verify_or_pin(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        peer_addr: &str,
        meant: Option<Incarnation>,
    ) -> Result<(), String> {
        let _writing = self.writing.lock();
        let known = self.incarnation(node);
        if known == Some(incarnation) {
            return Ok(());
        }
        if known.is_some() && meant != Some(incarnation) {
            return Err(format!(
                "node {node} was here before with another data directory, and has forgotten what it promised. Bring that \
                 directory back, or remove node {node} from the cluster and join a server with a new number (docs/operations.md)"
            ));
        }
        self.remember(node, PinResult { incarnation, peer_addr: peer_addr.to_owned() })
    }

    /// A known node has answered at this address.
    pub(super) fn reached(&self, node: NodeId, peer_addr: &str) -> Result<(), String> {
        let _writing = self.writing.lock();
        let known = self.met.lock().get(&node).filter(|met| met.peer_addr != peer_addr).cloned();
        known.map_or(Ok(()), |known| self.remember(node, PinResult { peer_addr: peer_addr.to_owned(), ..known }))
    }

    /// Makes durable what is known of a node; only then it is known. The caller holds `writing`.
    fn remember(&self, node: NodeId, now: PinResult) -> Result<(), String> {
        let mut updated = self.met.lock().clone();
        updated.insert(node, now);
        let entry = |(node, met): (&NodeId, &PinResult)| Entry {
            node: node.number(),
            generation: node.generation(),
            incarnation: met.incarnation,
            peer_addr: met.peer_addr.clone(),
        };
        let record = Record { format: FORMAT, met: updated.iter().map(entry).collect() };
        let content = serde_json::to_vec_pretty(&record).map_err(|error| error.to_string())?;
        let path = self.directory.join(FILE_NAME);
        files::replace(&SystemDisk, &path, &self.directory, &content).map_err(|error| error.to_string())?;
        *self.met.lock() = updated;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_acquaintance_counts_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let pinned = PinnedPeers::load(directory.path()).unwrap();
        let (two, first, second) = (NodeId(2), Incarnation(7), Incarnation(8));
        for pinned in [pinned, PinnedPeers::load(directory.path()).unwrap()] {
            assert_eq!(pinned.verify_or_pin(two, first, "two:1", None), Ok(()));
            let refusal = pinned.verify_or_pin(two, second, "two:1", None).unwrap_err();
            assert!(refusal.starts_with("node 2 was here before with another data directory"), "{refusal}");
        }
        let later = PinnedPeers::load(directory.path()).unwrap();
        assert!(later.verify_or_pin(two, second, "two:1", Some(first)).is_err(), "it is remembered over a restart");
        assert_eq!(
            later.verify_or_pin(NodeId::new(2, 1), second, "two:2", None),
            Ok(()),
            "the next generation is another node"
        );
        assert_eq!(later.addresses(), [(two, "two:1".to_owned()), (NodeId::new(2, 1), "two:2".to_owned())]);
    }

    #[test]
    fn committed_incarnation_replaces_a_strangers() {
        let directory = tempfile::tempdir().unwrap();
        let (two, stranger, meant) = (NodeId::new(2, 1), Incarnation(7), Incarnation(8));
        let pinned = PinnedPeers::load(directory.path()).unwrap();
        assert_eq!(pinned.verify_or_pin(two, stranger, "nowhere:1", None), Ok(()));
        assert_eq!(pinned.verify_or_pin(two, meant, "two:1", Some(meant)), Ok(()));
        assert!(pinned.verify_or_pin(two, stranger, "nowhere:1", Some(meant)).is_err());
        assert_eq!(PinnedPeers::load(directory.path()).unwrap().incarnation(two), Some(meant));
    }

    #[test]
    fn address_at_which_a_node_answered_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let pinned = PinnedPeers::load(directory.path()).unwrap();
        let two = NodeId(2);
        assert_eq!(pinned.reached(two, "nowhere:1"), Ok(()));
        assert_eq!(pinned.addresses(), [], "only the address of a known node is remembered");
        assert_eq!(pinned.verify_or_pin(two, Incarnation(7), "two:1", None), Ok(()));
        assert_eq!(pinned.reached(two, "moved:1"), Ok(()));
        let later = PinnedPeers::load(directory.path()).unwrap();
        assert_eq!(later.addresses(), [(two, "moved:1".to_owned())]);
    }

    #[test]
    fn broken_memory_is_no_blank_one() {
        let directory = tempfile::tempdir().unwrap();
        for (content, complaint) in [("{", "cannot be understood"), ("{\"format\":9,\"met\":{}}", "is in format 9")] {
            std::fs::write(directory.path().join(FILE_NAME), content).unwrap();
            let refusal = PinnedPeers::load(directory.path()).unwrap_err().to_string();
            assert!(refusal.contains(complaint), "{refusal}");
        }
    }
}
