//! Whether what runs does what was checked.
//!
//! The models explore `spec`; the server executes `spec`; this crate looks at the seams between the two, and at what
//! comes out at the far end. A checker of histories shares no code with what it judges: one that reused the lock table to
//! say what a lock table may answer would forgive the table its own mistakes.
//!
//! - [`replay`]: the model's traces on live nodes, compared after every step.
//! - [`validate`]: what nodes recorded, stepped again through the spec and judged as one run.
//! - [`torture`]: real processes under load, while everything goes wrong that can on one machine.
//! - [`sim`]: whole clusters of the server's own code in one thread, on a network and on disks that fail, in virtual time.
//! - [`mutants`]: known bugs of the server, each of which one of the above must find.
//! - [`history`]: what clients saw, and whether one correct lock service could have shown it to them.
//!
//! docs/conformance.md says what each part claims, what it costs and what it cannot see.

pub mod history;
pub mod mutants;
mod panics;
pub mod replay;
pub mod sim;
pub mod torture;
pub mod validate;
