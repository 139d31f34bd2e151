//! Detects a node that has lost its disk: it returns under its node ID with another data directory.
//!
//! Such a node has lost its promises: it could vote twice in one term, or lack entries that it has
//! acknowledged. To its peers it looks like a node of a new cluster at its first start, above all
//! when it is started with the command line of its first start. So each data directory has a random
//! number, drawn when the directory is created: its **incarnation**. Every node pins, on its disk,
//! the incarnation under which it first met each other node, and permanently rejects any other one.
//! A server that has lost its disk returns as a new member: under its number in the next
//! generation, or under another number.
//!
//! A copy of a directory has its incarnation, too. So a node also pins the newest start of each
//! other node that it has seen, and rejects a start that does not come after that one
//! ([`Start::is_or_follows`]).
//!
//! The file also records the peers' addresses: a node that has lost its log, and the members'
//! addresses with it, asks there to be admitted again.
//!
//! A node whose disk is full still records the next start of a peer: the space of the next file is
//! allocated before. Otherwise one full disk would keep out every peer that restarts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use palisade_spec::raft::NodeId;
use serde::{Deserialize, Serialize};

use crate::storage::{Disk, Incarnation, Start, StorageError, SystemDisk, files};
use crate::sync::Mutex;

/// The file's name.
const FILE_NAME: &str = "peers.json";
/// The only format that this program writes and reads.
const FORMAT: u32 = 3;

/// The incarnations of the nodes that this node has met.
#[derive(Debug)]
pub struct PinnedPeers {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    /// The content of the file.
    met: Mutex<BTreeMap<NodeId, PinnedPeer>>,
    /// Held while the file is written; `met` remains readable.
    writing: Mutex<()>,
}

/// A pinned node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PinnedPeer {
    incarnation: Incarnation,
    /// The newest start that this node has seen.
    start: Start,
    peer_addr: String,
}

/// Why a server is not accepted as the node that it claims to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotPinned {
    /// It has another data directory, or a copy of it: the sentence that refuses it.
    Refused(String),
    /// This node could not make the record of it durable: why.
    NotRecorded(String),
}

impl NotPinned {
    /// The sentence for the operator of `node`, which node `by` does not accept.
    pub(super) fn sentence(self, by: NodeId, node: NodeId) -> String {
        match self {
            NotPinned::Refused(sentence) => sentence,
            NotPinned::NotRecorded(why) => format!(
                "node {by} cannot record on its own disk that node {node} was started, and accepts node {node} only then: \
                 {why}. Free space in the file system of the data directory of node {by}, or repair that disk; node {node} \
                 itself needs no repair, and is accepted soon afterwards"
            ),
        }
    }
}

/// A pinned node, as stored in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    node: u16,
    generation: u16,
    incarnation: Incarnation,
    start: Start,
    peer_addr: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    met: Vec<Entry>,
}

impl PinnedPeers {
    /// Reads the pinned nodes from the data directory.
    ///
    /// # Errors
    /// If the file cannot be read or decoded.
    pub fn load(directory: impl Into<PathBuf>) -> Result<PinnedPeers, StorageError> {
        PinnedPeers::load_on(SystemDisk::shared(), directory.into())
    }

    fn load_on(disk: Arc<dyn Disk>, directory: PathBuf) -> Result<PinnedPeers, StorageError> {
        let record = files::read_record::<Record>(&*disk, &directory.join(FILE_NAME), FORMAT)?;
        let met = |Entry { node, generation, incarnation, start, peer_addr }| {
            (NodeId::new(node, generation), PinnedPeer { incarnation, start, peer_addr })
        };
        let met: BTreeMap<_, _> = record.into_iter().flat_map(|record| record.met).map(met).collect();
        let length = encode(&met).len();
        let pinned = PinnedPeers { disk, directory, met: Mutex::new(met), writing: Mutex::default() };
        pinned.preallocate(length);
        Ok(pinned)
    }

    /// Allocates space for the next file, in case the disk is full by then. `length` is that of the
    /// present one, in bytes. Without the space, only a full disk keeps the next one from being written.
    fn preallocate(&self, length: usize) {
        let _ = files::preallocate(&*self.disk, &self.directory.join(FILE_NAME), files::RESERVE.max(2 * length));
    }

    /// The address at which this node last reached each other node.
    pub fn addresses(&self) -> Vec<(NodeId, String)> {
        self.met.lock().iter().map(|(&node, met)| (node, met.peer_addr.clone())).collect()
    }

    /// The pinned data directory of a node.
    pub(super) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.met.lock().get(&node).map(|met| met.incarnation)
    }

    /// Whether this very start of a node is pinned: then [`PinnedPeers::verify_or_pin`] accepts it,
    /// and changes nothing.
    pub(super) fn is_pinned(&self, node: NodeId, incarnation: Incarnation, start: &Start) -> bool {
        let met = self.met.lock();
        met.get(&node).is_some_and(|known| known.incarnation == incarnation && known.start == start.alone())
    }

    /// The pinned start of a node, if this is a later one of the same directory.
    pub(super) fn earlier_start(&self, node: NodeId, incarnation: Incarnation, start: &Start) -> Option<Start> {
        let met = self.met.lock();
        let known = met.get(&node).filter(|known| known.incarnation == incarnation)?;
        (known.start != start.alone() && start.is_or_follows(&known.start)).then(|| known.start.clone())
    }

    /// Checks the data directory and the start of a server that claims to be `node`. The first
    /// directory is pinned, and so is each later start, durably, before any message of the server is
    /// processed. If the log names a directory (`expected`), that one is valid: another server may
    /// have claimed the identity before.
    pub(super) fn verify_or_pin(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        start: &Start,
        peer_addr: &str,
        expected: Option<Incarnation>,
    ) -> Result<(), NotPinned> {
        let _writing = self.writing.lock();
        if self.is_pinned(node, incarnation, start) {
            return Ok(());
        }
        let known = self.met.lock().get(&node).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.incarnation == incarnation) {
            if !start.is_or_follows(&known.start) {
                return Err(NotPinned::Refused(copied(node, start, &known.start)));
            }
            let now = PinnedPeer { start: start.alone(), ..known.clone() };
            return self.remember(node, now).map_err(NotPinned::NotRecorded);
        }
        if known.is_some() && expected != Some(incarnation) {
            return Err(NotPinned::Refused(format!(
                "node {node} was here before with another data directory, and has lost its votes and acknowledgements. \
                 Restore that directory, or remove node {node} from the cluster and join a server with a new node ID \
                 (docs/operations.md)"
            )));
        }
        let now = PinnedPeer { incarnation, start: start.alone(), peer_addr: peer_addr.to_owned() };
        self.remember(node, now).map_err(NotPinned::NotRecorded)
    }

    /// Forgets a node. The file has it until it is written for another node.
    pub(super) fn forget(&self, node: NodeId) {
        let _writing = self.writing.lock();
        self.met.lock().remove(&node);
    }

    /// Records the address at which a pinned node has answered.
    pub(super) fn reached(&self, node: NodeId, peer_addr: &str) -> Result<(), String> {
        let _writing = self.writing.lock();
        let known = self.met.lock().get(&node).filter(|met| met.peer_addr != peer_addr).cloned();
        known.map_or(Ok(()), |known| self.remember(node, PinnedPeer { peer_addr: peer_addr.to_owned(), ..known }))
    }

    /// Makes a node's record durable, and only then visible. The caller holds `writing`.
    fn remember(&self, node: NodeId, now: PinnedPeer) -> Result<(), String> {
        let mut updated = self.met.lock().clone();
        updated.insert(node, now);
        let content = encode(&updated);
        let path = self.directory.join(FILE_NAME);
        let written = files::replace(&*self.disk, &path, &self.directory, &content);
        written.map_err(|error| error.of_attempt().to_string())?;
        *self.met.lock() = updated;
        self.preallocate(content.len());
        Ok(())
    }
}

/// The content of the file with these nodes.
fn encode(met: &BTreeMap<NodeId, PinnedPeer>) -> Vec<u8> {
    let entry = |(node, met): (&NodeId, &PinnedPeer)| Entry {
        node: node.number(),
        generation: node.generation(),
        incarnation: met.incarnation,
        start: met.start.clone(),
        peer_addr: met.peer_addr.clone(),
    };
    let record = Record { format: FORMAT, met: met.iter().map(entry).collect() };
    serde_json::to_vec_pretty(&record).expect("numbers and texts can be written")
}

/// The refusal of a start whose predecessor still runs.
pub(super) fn copied_while_it_ran(node: NodeId, start: &Start, running: &Start, address: &str) -> String {
    format!(
        "node {node} runs on a copy of its data directory, or on an older state of it: its start number {} still answers at \
         {address}, and this is start number {}. Stop the process that runs on the copy, and remove the copy; the process \
         at {address} has the original (docs/trust-boundaries.md)",
        running.count, start.count
    )
}

/// The refusal of a start that does not come after the one that was seen.
fn copied(node: NodeId, start: &Start, seen: &Start) -> String {
    format!(
        "node {node} runs on a copy of its data directory, or on an older state of it: this node has met its start number \
         {}, and this is start number {}, which does not come after that one. Stop the process that runs on the copy, and \
         remove the copy. If the original is lost, remove node {node} from the cluster and join a server with a new node \
         ID (docs/trust-boundaries.md)",
        seen.count, start.count
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::storage::LayeredDisk;
    use crate::storage::failing::FullDisk;

    #[test]
    fn first_incarnation_stays_pinned() {
        let directory = tempfile::tempdir().unwrap();
        let pinned = PinnedPeers::load(directory.path()).unwrap();
        let (two, first, second) = (NodeId(2), Incarnation(7), Incarnation(8));
        for pinned in [pinned, PinnedPeers::load(directory.path()).unwrap()] {
            assert_eq!(pinned.verify_or_pin(two, first, &Start::default(), "two:1", None), Ok(()));
            let refusal = pinned.verify_or_pin(two, second, &Start::default(), "two:1", None).unwrap_err();
            let refusal = refusal.sentence(NodeId(1), two);
            assert!(refusal.starts_with("node 2 was here before with another data directory"), "{refusal}");
        }
        let later = PinnedPeers::load(directory.path()).unwrap();
        assert!(
            later.verify_or_pin(two, second, &Start::default(), "two:1", Some(first)).is_err(),
            "the pinned incarnation survives a restart"
        );
        assert_eq!(
            later.verify_or_pin(NodeId::new(2, 1), second, &Start::default(), "two:2", None),
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
        assert_eq!(pinned.verify_or_pin(two, stranger, &Start::default(), "nowhere:1", None), Ok(()));
        assert_eq!(pinned.verify_or_pin(two, meant, &Start::default(), "two:1", Some(meant)), Ok(()));
        assert!(pinned.verify_or_pin(two, stranger, &Start::default(), "nowhere:1", Some(meant)).is_err());
        assert_eq!(PinnedPeers::load(directory.path()).unwrap().incarnation(two), Some(meant));
    }

    #[test]
    fn address_at_which_a_node_answered_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let pinned = PinnedPeers::load(directory.path()).unwrap();
        let two = NodeId(2);
        assert_eq!(pinned.reached(two, "nowhere:1"), Ok(()));
        assert_eq!(pinned.addresses(), [], "only the address of a known node is remembered");
        assert_eq!(pinned.verify_or_pin(two, Incarnation(7), &Start::default(), "two:1", None), Ok(()));
        assert_eq!(pinned.reached(two, "moved:1"), Ok(()));
        let later = PinnedPeers::load(directory.path()).unwrap();
        assert_eq!(later.addresses(), [(two, "moved:1".to_owned())]);
    }

    /// Goal: the next start of a peer is recorded although this node's disk is full. If it cannot be, the refused
    /// node's operator reads whose disk is full.
    #[test]
    fn start_of_a_peer_is_recorded_on_a_full_disk() {
        let directory = tempfile::tempdir().unwrap();
        let disk = FullDisk::default();
        let layered = Arc::new(LayeredDisk::new(disk.clone(), SystemDisk::shared()));
        let (two, directory) = (NodeId(2), directory.path());
        let pinned = PinnedPeers::load_on(layered, directory.to_owned()).unwrap();
        let starts = [1, 2, 3].map(|count| Start { count, recent: (1..=count).rev().collect() });
        let [first, second, third] = &starts;
        let pin = |start: &Start| pinned.verify_or_pin(two, Incarnation(7), start, "two:1", None);
        assert_eq!(pin(first), Ok(()));
        disk.is_full.store(true, Ordering::Relaxed);
        assert_eq!(pin(second), Ok(()));

        // On this disk, what the earlier file took is not free for the next one.
        let refusal = pin(third).unwrap_err().sentence(NodeId(1), two);
        assert!(refusal.starts_with("node 1 cannot record on its own disk that node 2 was started"), "{refusal}");
        assert!(refusal.contains("Free space") && !refusal.contains("must stop"), "{refusal}");
        let later = PinnedPeers::load(directory).unwrap();
        assert!(later.is_pinned(two, Incarnation(7), second), "the second start is durable");
        disk.is_full.store(false, Ordering::Relaxed);
        assert_eq!(pin(third), Ok(()));
    }
}
