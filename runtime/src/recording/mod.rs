//! Recordings: what a node did, step by step, so that it can be stepped again elsewhere and judged.
//!
//! `palisade serve --record DIR` writes one file for each run of the process. The node is deterministic, so its recovered
//! state and its inputs are enough to have all of it again; of the outputs a digest is kept, to be compared. What is made of
//! recordings is in docs/conformance.md ("Recordings").
//!
//! # What a recording promises
//!
//! **It has no gap, and its end is the node's end**, also after `kill -9`. Before anything that a step asked for is
//! carried out, the step has left the process; before anything that waits for a write is carried out, so has the word that
//! the write is done. So whatever others heard of the node, or its disk has, is in the recording; and the validator may say
//! exactly which states a restart may find.
//!
//! **The core never waits for the disk because of it.** It writes to a pipe. At the other end is the *keeper*, a process of
//! its own, so that what is in the pipe survives a `kill -9`. It reads as fast as it can and writes from its memory. If a
//! disk is so slow that more than [`QUEUE`] bytes pile up there, or a write fails, or the recording is as long as it may be, it
//! throws away what follows, and leaves a file beside the recording that says so: such a run is **cut**, and is never taken
//! for a whole one.
//!
//! [`mod@format`] has the bytes, [`recorder`] what the driver shows to, [`keeper`] the other end of the pipe.

pub mod format;
pub mod keeper;
pub mod recorder;

pub use format::{Digest, Flaw, Header, Reading, Record, cut_mark};
pub use keeper::{LENGTH, QUEUE, keep};
pub use recorder::{Recorder, start};
