//! Errors of a node's disk, each with a message for the operator who has to act on it.
//!
//! No failed write of the log is retried. An error during startup keeps the node from starting; a
//! later failure of a log write stops it: after a failed write the content of the disk is unknown,
//! and a node that does not know what it has acknowledged must not acknowledge anything more.
//!
//! Three operations are repeated from scratch, because nothing builds on them yet: the preparation
//! of a segment, a snapshot of the node's own state, and the record of a peer. Their failures do not
//! stop the node ([`StorageError::AttemptFailed`]).

use std::io;
use std::path::PathBuf;

use palisade_spec::raft::NodeId;

/// Why the data directory cannot be used, or can no longer be used.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused something while the directory was opened.
    #[error("could not {action} {}: {source}. Check the path, its permissions and the disk, then start the node again", .path.display())]
    Io {
        /// The attempted action, as a verb: "open", "read".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// Another process holds the lock on the directory.
    #[error("the data directory {} is in use by {}. Two processes must never write one log: stop the other process, or give this node a directory of its own", .path.display(), process(*.holder))]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The other process's ID, if the lock file holds it.
        holder: Option<u32>,
    },

    /// A directory without an identity file has files of other programs.
    #[error("{} is no node's data directory: it has no identity.json, and has files of other programs, such as {foreign}. Nothing in it was changed. Give --data a new or an empty directory", .path.display())]
    ForeignFiles {
        /// The directory.
        path: PathBuf,
        /// The name of one of the files.
        foreign: String,
    },

    /// There is a log, or an unfinished return, but no identity file.
    #[error("{} holds a node's files, but no identity.json, which names the node that owns them. Restore the whole directory as the node left it, or start the node with a new node ID and an empty directory", .path.display())]
    IdentityMissing {
        /// The directory.
        path: PathBuf,
    },

    /// The identity file cannot be parsed.
    #[error("{} cannot be understood: {reason}. Restore the whole directory as the node left it, or replace this node by one with a new node ID and an empty directory", .path.display())]
    IdentityUnreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// The directory belongs to another node.
    #[error("{} belongs to node {found}, but this is node {expected}. Start node {expected} with its own data directory: correct --data, or --id; never copy one node's directory to another", .path.display())]
    WrongNode {
        /// The identity file, or the segment.
        path: PathBuf,
        /// The node that the directory belongs to.
        found: NodeId,
        /// The node that was started.
        expected: NodeId,
    },

    /// A file of another cluster's node lies in the directory.
    #[error("{} was written by a node of another cluster, and was copied into this data directory. Restore the whole directory as the node left it, or start the node with the directory that is its own (--data); never copy files from one data directory to another", .path.display())]
    WrongCluster {
        /// The segment, the snapshot or the identity file.
        path: PathBuf,
    },

    /// The command line names another cluster than the directory's.
    #[error("{} belongs to cluster `{found}`, but --cluster names `{given}`. If this is the right data directory, leave out --cluster, which only the first start needs; otherwise correct --data", .path.display())]
    WrongClusterName {
        /// The identity file.
        path: PathBuf,
        /// The name of the cluster that the directory belongs to.
        found: String,
        /// The name on the command line.
        given: String,
    },

    /// The founders in the identity file differ from those on the command line.
    #[error("{} says that the cluster was founded by {}, but --peers names {}. The log lists the members of the cluster now (palisade members list): start the node with the --peers of its first start, or without --peers", .path.display(), list(.found), list(.expected))]
    WrongFounders {
        /// The identity file.
        path: PathBuf,
        /// The founders in the identity file.
        found: Vec<NodeId>,
        /// The founders on the command line.
        expected: Vec<NodeId>,
    },

    /// A file is in a format that this program does not know.
    #[error("{} is in format {found}; this program (Palisade {}) reads format {known}. Start the node with the version of Palisade that wrote the file", .path.display(), env!("CARGO_PKG_VERSION"))]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The file's format.
        found: u32,
        /// The format that this program reads.
        known: u32,
    },

    /// A segment that the log needs does not exist.
    #[error("the log segment {} is missing", .path.display())]
    MissingSegment {
        /// The missing file.
        path: PathBuf,
    },

    /// The snapshot that the log builds on is missing, or contradicts the log.
    #[error("the snapshots in {} do not fit the log: {what}", .path.display())]
    SnapshotUnfit {
        /// The directory.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },

    /// A file does not hold what was written to it, and no crash explains the difference.
    #[error("{} is damaged at byte {offset}: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the damage, in bytes from the beginning of the file.
        offset: u64,
        /// Description of the damage.
        what: String,
    },

    /// A frame is intact, but another version of the program wrote it.
    #[error("{} holds at byte {offset} content that this program does not understand: {what}. Its checksum is right, so it is not damaged: start the node with the version of Palisade that wrote it", .path.display())]
    NotUnderstood {
        /// The file.
        path: PathBuf,
        /// Offset of the frame, in bytes from the beginning of the file.
        offset: u64,
        /// Description of the content that is not understood.
        what: String,
    },

    /// A write did not become durable, or may not have become durable.
    #[error("could not {action} {}: {source}. The process must stop now: the last write may or may not be on the disk, and a retry would not reveal which. Look after the disk, then start the node again", .path.display())]
    WriteFailed {
        /// The attempted action, as a verb: "write to", "sync".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// A write on which nothing builds yet did not become durable. The node goes on, and repeats it from
    /// scratch.
    #[error("could not {action} {}: {source}", .path.display())]
    AttemptFailed {
        /// The attempted action, as a verb: "write to", "sync".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// One batch is larger than any frame can be.
    #[error(
        "one write of {bytes} bytes is more than a log frame can hold ({limit} bytes). The process must stop: the write cannot be made durable. Lower the limits on batches"
    )]
    TooLarge {
        /// The batch's size, in bytes.
        bytes: usize,
        /// Maximum payload of a frame, in bytes.
        limit: usize,
    },

    /// The log rejects all writes since an earlier one failed.
    #[error("the log accepts no writes since an earlier one failed: {first}")]
    Poisoned {
        /// Message of the first failure.
        first: String,
    },
}

impl StorageError {
    /// Builds the error of a failure while the directory is opened; for `map_err`.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StorageError {
        let path = path.into();
        move |source| StorageError::Io { action, path, source }
    }

    /// Whether the directory has lost state that the node has acknowledged. True only for errors
    /// that are found once the directory's owner is known.
    pub fn is_damage(&self) -> bool {
        use StorageError::{Damaged, MissingSegment, SnapshotUnfit};
        matches!(self, MissingSegment { .. } | SnapshotUnfit { .. } | Damaged { .. })
    }

    /// Builds the error of a failed durable write; for `map_err`.
    pub(super) fn write(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StorageError {
        let path = path.into();
        move |source| StorageError::WriteFailed { action, path, source }
    }

    /// The error of a failed attempt that the node repeats from scratch, for `map_err`: a failed write
    /// in it does not stop the node.
    pub(crate) fn of_attempt(self) -> StorageError {
        match self {
            StorageError::WriteFailed { action, path, source } => StorageError::AttemptFailed { action, path, source },
            other => other,
        }
    }
}

/// Names the process that holds the lock.
fn process(holder: Option<u32>) -> String {
    holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// Lists nodes.
fn list(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    format!("[{}]", names.join(", "))
}
