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
//! | `identity.json` | cluster, node, founders, the directory's own number: fixed at the first start; which segments the log has |
//! | `peers.json` | which directories' nodes this one has met (see `peers::identity`) |
//! | `wal-00000000000000000001.log`… | the log's segments |
//! | `snapshot-00000000000000000700-3.snap`… | the state after entry 700, which is of term 3 |
//! | `return.json` | this node has lost its log, and is on its way to a new identity (see `set_aside`) |
//! | `damaged-0-…` | the files of such a node, of its generation 0; never read |
//! | `….tmp` | a file in the making; means nothing |
//!
//! # Why recovery is right
//!
//! 1. [`Wal::write`] puts a batch into one frame, and returns when it is synced. The next frame is written after
//!    that, so only the last frame of a log can be torn. A start makes sure of the last frame that it finds: it
//!    writes it again and syncs it before anybody acts on it. (The process that wrote it may have died between write
//!    and sync; or its sync failed, which leaves in memory what is not on the disk.)
//! 2. A segment is full of durable zeros before it gets its name, so what was not written of a torn frame is zero, and a
//!    segment file that is shorter than its header says is damaged.
//! 3. An intact frame never looks torn: its first byte and its last are not zero, and no full sector of it is (the
//!    payload is masked to that end).
//! 4. Frames are numbered without a gap over all segments, each segment names its first frame and what the log has come
//!    to before it, and `identity.json` says which segments there must be. So a missing piece shows, wherever it is but
//!    at the log's end.
//! 5. When a frame is synced, evidence of it is written to another place of its segment, and becomes durable with the next
//!    frame at the latest. So a log whose end is missing shows, too, unless nothing is missing but the last frame, and the
//!    evidence of it had not become durable (see `evidence`).
//! 6. A segment is removed only when the log has lost every entry that it had when the next segment began, and the log
//!    loses only what a durable snapshot includes. `identity.json` ceases to count it first. So whatever a crash leaves
//!    of a removal is of no use, and is not read.
//! 7. A snapshot has its name only once it is whole and durable. A leader's snapshot gets its name after the writes before
//!    it are durable, and before the log has a record of it: a crash in between leaves it beside the old log, and the
//!    next start ends what was begun, as the model's disk does ([`Durable::settle`](palisade_spec::raft::Durable::settle)).
//!
//! From 1, 2, 3 and 5 follows what may be cut off: the remains of one frame, at the end of the last segment, with no sound
//! frame behind them and no evidence of them, and zero where a crash leaves zeros. All else is damage.
//!
//! What cannot be noticed: damage to the last frame that looks like a torn write (or removes it), when its evidence is
//! not durable. After a mere end of the process the evidence is there; after a power failure it is if another frame was
//! synced since, or the system has written it back by itself. And a segment whose sectors are *all* put back to what they
//! held at one earlier moment is a log of that moment.
//!
//! # Where to look
//!
//! `disk`: what all of it is done with. `directory` and `identity`: whose it is. `wal`: writing. `frame`, `record`,
//! `mask`, `segment`, `evidence`: the format. `outline`: what the writer knows of the log. `prepare`, `remove`, `files`: new
//! files, durably, and old ones; `space`: whether there is room for them. `recover`, `tail`, `replay`: reading back; torn
//! or damaged; possible or not. `snapshots`, `snapshot_file`, `snapshot_names`: the state beside the log. `set_aside`: a
//! directory that has lost its log becomes another member's.
//!
//! Deliberately absent: retries, repair of damage, compression, encryption, reuse of old segments (their old frames
//! would end the argument above), falling back to an older snapshot.

mod directory;
mod disk;
mod error;
mod evidence;
#[cfg(test)]
mod failing;
pub(crate) mod files;
mod frame;
mod identity;
mod log_summary;
mod mask;
mod preallocate;
mod record;
mod recover;
mod replay;
mod segment;
mod segment_gc;
mod set_aside;
mod snapshot_file;
mod snapshot_names;
mod snapshots;
mod space;
mod tail;
#[cfg(test)]
mod testing;
mod wal;

pub use directory::{DataDir, LockedDir};
pub use disk::{Access, Beside, Disk, DiskFile, Lock, Locking, SystemDisk};
pub use error::StorageError;
pub(crate) use identity::Versioned;
pub use identity::{Identity, Incarnation};
pub use recover::{Cut, RecoveryReport};
pub use snapshot_file::{SnapshotFlaw, SnapshotHash, SnapshotInfo, read as read_snapshot};
pub use snapshots::{Incoming, Snapshots};
pub use space::{Space, SpaceView};
pub use wal::{DEFAULT_SEGMENT_BYTES, Wal, Written};

pub(crate) use segment::FRAMES_AT;

use segment::SegmentNumber;
