//! The node's disk: a directory that belongs to one node for its lifetime, and in it a log of
//! everything that the node must remember.
//!
//! The log recovers exactly to [`Durable`](palisade_spec::raft::Durable), the disk of the model.
//! This module makes true of a real disk what the model assumes of its own:
//!
//! - a write that was reported as done is there after any crash;
//! - a write that was not reported as done is there as a whole or not at all;
//! - a disk that has lost or changed anything else is never taken for a sound one.
//!
//! In doubt the node does not start: a cluster can do without one node, but not with a node that
//! has forgotten its vote.
//!
//! # The directory
//!
//! | file | content |
//! |---|---|
//! | `lock` | locked while a process uses the directory; holds its process ID |
//! | `identity.json` | cluster (ID and name), node, founders, the directory's incarnation: fixed at the first start; which segments the log has |
//! | `peers.json` | the directory incarnations of the peers that this node has met (see `peers::pinned_peers`) |
//! | `start.json` | how often the node was started, and a random number of each of its latest starts (see `start`) |
//! | `join.json` | the incarnation under which the node of a new directory asks a cluster to admit it (see `joining`) |
//! | `wal-00000000000000000001.log`… | the log's segments |
//! | `snapshot-00000000000000000700-3.snap`… | the state after entry 700, which is of term 3 |
//! | `return.json` | this node has lost its log and is about to get a new identity (see `set_aside`) |
//! | `damaged-0-…` | the files of such a node, of its generation 0; never read |
//! | `stepper` | only in the directory of a stepped node: no server may serve it (see `stepped`) |
//! | `….tmp` | an unfinished file, or space allocated for a small one; never read (a start removes those of segments and snapshots) |
//!
//! # Why recovery is right
//!
//! 1. [`Wal::write`] puts a batch into one frame, and returns once the frame is synced. The next
//!    frame is written after that, so only the last frame of a log can be torn. A start writes the
//!    last frame that it finds again and syncs it before the node acts on it. (The process that
//!    wrote it may have died between write and sync; or its sync failed, which leaves content in
//!    memory that is not on the disk.)
//! 2. A segment is full of durable zeros before it gets its name. So the unwritten part of a torn
//!    frame is zero, and a segment file that is shorter than its header says is damaged.
//! 3. An intact frame never looks torn: its first byte and its last byte are not zero, and no full
//!    sector of it is zero (the payload is masked to that end).
//! 4. Frames are numbered without a gap over all segments. Each segment names its first frame and
//!    the state of the log before it, and `identity.json` names the segments that must exist. So a
//!    missing piece is detected anywhere but at the log's end.
//! 5. When a frame is synced, evidence of it is written to another place of its segment, and
//!    becomes durable with the next frame at the latest. So a missing end of the log is detected,
//!    too, unless only the last frame is missing and its evidence had not become durable (see
//!    `evidence`).
//! 6. A segment is removed only when the log has lost every entry that it had when the next segment
//!    began, and the log loses only what a durable snapshot includes. `identity.json` ceases to
//!    count the segment first. So the segments that an interrupted removal leaves behind are not
//!    needed, and are not read.
//! 7. A snapshot gets its name only once it is whole and durable. A leader's snapshot gets its name
//!    after the writes before it are durable, and before the log has a record of it. A crash in
//!    between leaves the snapshot beside the old log; the next start finishes the installation, as
//!    the model's disk does ([`Durable::settle`](palisade_spec::raft::Durable::settle)).
//!
//! From 1, 2, 3 and 5 follows what recovery may cut off: the remains of one frame at the end of the
//! last segment, with no sound frame behind them, no evidence of that frame, and zeros where a
//! crash leaves zeros. All else is damage.
//!
//! Undetectable: damage to the last frame that looks like a torn write (or removes the frame),
//! while its evidence is not durable. After a process exit the evidence is there. After a power
//! failure it is there if another frame was synced since, or if the system has written it back by
//! itself. And a segment whose sectors are *all* put back to their content at one earlier moment is
//! indistinguishable from the log at that moment.
//!
//! # Where to look
//!
//! - `disk`: the interface to files and threads; `layer`: a disk over another one.
//! - `directory`, `identity`: which node and cluster own the directory.
//! - `wal`: writing.
//! - `frame`, `record`, `mask`, `segment`, `segment_number`, `evidence`: the format.
//! - `log_summary`: what the writer knows of the log.
//! - `preallocate`, `segment_gc`, `files`: creating files durably, and removing old ones; `space`:
//!   free space.
//! - `recover`, `tail`, `replay`: reading back; torn or damaged; possible or impossible records.
//! - `snapshots`, `snapshot_file`, `snapshot_names`: the snapshots beside the log.
//! - `set_aside`: a directory that has lost its log becomes another member's.
//! - `joining`: what a new directory keeps until its node has joined a cluster.
//! - `start`: the starts of the node, which show a copied directory to its peers.
//! - `stepped`: the directory of a node that a test steps, which no server may serve.
//!
//! Deliberately absent: retries, repair of damage, compression, encryption, reuse of old segments
//! (their old frames would invalidate the argument above), falling back to an older snapshot.

mod directory;
mod disk;
mod error;
mod evidence;
#[cfg(test)]
pub(crate) mod failing;
pub(crate) mod files;
mod frame;
mod identity;
mod joining;
mod layer;
mod log_summary;
mod mask;
mod preallocate;
mod record;
mod recover;
mod replay;
mod segment;
mod segment_gc;
mod segment_number;
mod set_aside;
mod snapshot_file;
mod snapshot_names;
mod snapshots;
mod space;
mod start;
mod stepped;
mod tail;
#[cfg(test)]
mod testing;
mod wal;

pub(crate) use directory::first_foreign;
pub use directory::{DataDir, LockedDir};
pub use disk::{Access, Beside, Disk, DiskFile, Lock, Locking, SystemDisk};
pub use error::StorageError;
pub use identity::{DEFAULT_CLUSTER_NAME, Identity, Incarnation};
pub use layer::{DiskLayer, FileLayer, LayeredDisk, LayeredFile};
pub use recover::{Cut, RecoveryReport};
pub use segment::FRAMES_AT;
pub use snapshot_file::{SnapshotFlaw, SnapshotHash, SnapshotInfo, read as read_snapshot};
pub use snapshots::{Incoming, Snapshots};
pub use space::{Space, SpaceView};
pub use start::Start;
pub use wal::{DEFAULT_SEGMENT_BYTES, Wal, Written};
