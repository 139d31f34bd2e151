//! Recordings: the steps of a node, so that the validator can replay and check them.
//!
//! `palisade serve --record DIR` writes one file for each run of the process. The node is
//! deterministic, so its recovered state and its inputs determine everything else; of the outputs
//! only a digest is kept, for comparison. docs/conformance/recordings.md describes the
//! validation of recordings.
//!
//! # Guarantees
//!
//! **A recording has no gap, and ends where the node ended**, also after `kill -9`. A step has left
//! the process before any of its outputs is executed; and the record that a write is durable has
//! left it before any output that waits for the write is executed. So everything that other
//! processes received from the node, and everything on its disk, is in the recording; and the
//! validator knows exactly which states a restart may find.
//!
//! **The core never waits for the recording's disk.** It writes to a pipe, which the *keeper*
//! reads. The keeper is a process of its own, so that the contents of the pipe survive a `kill -9`
//! of the node. It reads as fast as it can, and writes from its memory. If more than [`QUEUE`]
//! bytes wait there for a slow disk, or a write fails, or the recording reaches its maximum length,
//! the keeper drops all later records and creates a file beside the recording as a mark: the
//! recording is **cut**, and is never taken for a complete one.
//!
//! [`mod@format`] is the file format, [`recorder`] the driver's observer, [`keeper`] the process at
//! the other end of the pipe.

pub mod format;
pub mod keeper;
pub mod recorder;

pub use format::{Digest, Flaw, Header, Reading, Record, cut_mark};
pub use keeper::{LENGTH, QUEUE, keep, mark_as_cut};
pub use recorder::{Recorder, start};
