//! What can be wrong with a node's disk, each as a sentence for the person who has to act on it.
//!
//! Nothing here is ever retried. While a node starts, an error means that it does not start; afterwards, that it
//! stops. A disk that has once answered wrongly may have kept anything or nothing, and a node that is not sure of
//! what it has promised must not promise again.

use std::io;
use std::path::PathBuf;

use palisade_spec::raft::NodeId;

/// Why the data directory cannot be used, or can no longer be.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused something while the directory was opened.
    #[error("could not {action} {}: {source}. Check the path, its permissions and the disk, then start the node again", .path.display())]
    Io {
        /// What was tried, as a verb: "open", "read".
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// Another process holds the lock on the directory.
    #[error("the data directory {} is in use by {}. Two processes must never write one log: stop the other one, or give this node a directory of its own", .path.display(), process(*.holder))]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The other process, if it left its number.
        holder: Option<u32>,
    },

    /// There is a log, but nothing that says whose.
    #[error("{} holds log segments, but no identity.json that says which node's they are. Bring back the whole directory as the node left it, or give the node a new number and an empty directory", .path.display())]
    IdentityMissing {
        /// The directory.
        path: PathBuf,
    },

    /// The identity file cannot be understood.
    #[error("{} cannot be understood: {reason}. Bring back the whole directory as the node left it, or replace this node by one with a new number and an empty directory", .path.display())]
    IdentityUnreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// The directory is another node's.
    #[error("{} belongs to node {found}, but this is node {expected}. Start the node with its own directory (or the number it had); never copy one node's directory to another", .path.display())]
    WrongNode {
        /// The identity file, or the segment.
        path: PathBuf,
        /// The node it belongs to.
        found: NodeId,
        /// The node that was started.
        expected: NodeId,
    },

    /// The directory is from another cluster.
    #[error("{} belongs to cluster {found:#018x}, but this node was started for cluster {expected:#018x}. Start it with the directory of this cluster, or an empty one if the node is new in it", .path.display())]
    WrongCluster {
        /// The identity file, or the segment.
        path: PathBuf,
        /// The cluster it belongs to.
        found: u64,
        /// The cluster that the node was started for.
        expected: u64,
    },

    /// The cluster was founded by others than the command line says.
    #[error("{} says that the cluster was founded by {}, but --peers names {}. Who belongs to the cluster is in its log now (palisade members list): start the node with the --peers of its first start, or without", .path.display(), list(.found), list(.expected))]
    WrongFounders {
        /// The identity file.
        path: PathBuf,
        /// The founders, as it says.
        found: Vec<NodeId>,
        /// The founders, as the command line says.
        expected: Vec<NodeId>,
    },

    /// A file in a format that this program does not know.
    #[error("{} is in format {found}; this program knows format {known}. Start the node with the version of Palisade that wrote it", .path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The only format known.
        known: u32,
    },

    /// A segment that must be there is not.
    #[error("the log segment {} is missing", .path.display())]
    MissingSegment {
        /// The file that should be there.
        path: PathBuf,
    },

    /// The snapshot that the log builds on is not there.
    #[error("the snapshots in {} do not fit the log: {what}", .path.display())]
    SnapshotUnfit {
        /// The directory.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },

    /// A file does not hold what was written to it, in a way that no crash explains.
    #[error("{} is damaged at byte {offset}: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes from its beginning.
        offset: u64,
        /// What is wrong there.
        what: String,
    },

    /// A frame is as it was written, but another program wrote it.
    #[error("{} holds at byte {offset} what this program does not understand: {what}. Its checksum is right, so it is not damaged: start the node with the version of Palisade that wrote it", .path.display())]
    NotUnderstood {
        /// The file.
        path: PathBuf,
        /// Where the frame begins, in bytes from the beginning of the file.
        offset: u64,
        /// What is not understood.
        what: String,
    },

    /// A write did not become durable, or may not have.
    #[error("could not {action} {}: {source}. The process must stop now: what was just written may or may not be on the disk, and asking again would not tell. Look after the disk, then start the node again", .path.display())]
    WriteFailed {
        /// What was tried, as a verb: "write to", "sync".
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// One batch is larger than any frame can be.
    #[error(
        "one write of {bytes} bytes is more than a log frame can hold ({limit} bytes). The process must stop: what it was about to promise cannot be kept. Lower the limits on batches"
    )]
    TooLarge {
        /// The batch's size.
        bytes: usize,
        /// What a frame can hold.
        limit: usize,
    },

    /// The log refuses everything since an earlier failure.
    #[error("the log takes no more writes since an earlier one failed: {first}")]
    Poisoned {
        /// That first failure.
        first: String,
    },
}

impl StorageError {
    /// A failure while the directory is opened; for `map_err`.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StorageError {
        let path = path.into();
        move |source| StorageError::Io { action, path, source }
    }

    /// Whether the directory has lost what the node has promised. It is known whose directory it is.
    pub fn is_damage(&self) -> bool {
        use StorageError::{Damaged, MissingSegment, SnapshotUnfit};
        matches!(self, MissingSegment { .. } | SnapshotUnfit { .. } | Damaged { .. })
    }

    /// A failure to make something durable; for `map_err`.
    pub(super) fn write(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StorageError {
        let path = path.into();
        move |source| StorageError::WriteFailed { action, path, source }
    }
}

/// The other process, as the message names it.
fn process(holder: Option<u32>) -> String {
    holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// Nodes, as the message lists them.
fn list(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    format!("[{}]", names.join(", "))
}
