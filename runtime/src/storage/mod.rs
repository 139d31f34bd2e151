//! The node's disk: a directory that is one node's for ever, and in it a log of everything the node must remember.
//!
//! The log recovers exactly to [`Durable`](palisade_spec::raft::Durable), the disk of the model. What the model may
//! assume of its disk, this module makes true of a real one: a write that was reported done is there after any crash,
//! a write that was not reported done is there wholly or not at all, and a disk that has lost or changed anything
//! else is never taken for a disk that has not. In doubt the node does not start; a cluster can do without a node, but
//! not with one that has forgotten its vote.
//!
//! # The directory
//!
//! | file | what it is |
//! |---|---|
//! | `lock` | locked while a process uses the directory; holds its number |
//! | `identity.json` | cluster, node and voters, fixed at the first start; how many segments the log has |
//! | `wal-00000000000000000001.log`… | the log's segments |
//! | `….tmp` | a file in the making; means nothing |
//!
//! # Why recovery is right
//!
//! 1. [`Wal::write`] puts a batch into one frame, and returns when it is synced. The next frame is written after
//!    that, so only the last frame of a log can be torn. A start makes sure of the last frame that it finds: it
//!    writes it again and syncs it before anybody acts on it. (The process that wrote it may have died between write
//!    and sync; or its sync failed, which leaves in memory what is not on the disk.)
//! 2. A segment is full of durable zeros before it gets its name, so what was not written of a torn frame is zero.
//! 3. An intact frame never looks torn: its first byte and its last are not zero, and no full sector of it is (the
//!    payload is masked to that end).
//! 4. Frames are numbered without a gap over all segments, each segment names its first frame, and `identity.json`
//!    counts the segments. So a missing piece shows, wherever it is.
//!
//! From 1 to 3 follows what may be cut off: the remains of one frame, at the end of the last segment, with no sound
//! frame behind them, and zero where a crash leaves zeros. All else is damage.
//!
//! # Where to look
//!
//! `directory` and `identity`: whose it is. `wal`: writing. `frame`, `mask`, `segment`: the format. `prepare`,
//! `files`: new files, durably. `recover`, `tail`, `replay`: reading back; torn or damaged; possible or not.
//!
//! Deliberately absent: retries, repair of damage, compression, encryption, reuse of old segments (their old frames
//! would end the argument above), removal of segments (it comes with snapshots, which will say where the log begins).

mod directory;
mod error;
pub(crate) mod files;
mod frame;
mod identity;
mod mask;
mod prepare;
mod recover;
mod replay;
mod segment;
mod tail;
#[cfg(test)]
mod testing;
mod wal;

pub use directory::DataDir;
pub use error::StorageError;
pub use identity::Identity;
pub use recover::{Cut, RecoveryReport};
pub use wal::{DEFAULT_SEGMENT_BYTES, Wal, Written};

use segment::SegmentNumber;
