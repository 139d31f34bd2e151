//! Histories of what clients observed, and checkers that tell whether a correct lock service could have given these
//! answers.
//!
//! A **history** is a list of operations: the client, the request, the times at which the request
//! was sent and answered, and the answer. It contains no nodes, terms or logs, so it can judge any
//! implementation of the interface: the server, the simulation, another service. It also contains
//! the accesses to the fenced resource, because there fencing takes effect.
//!
//! An operation ends in one of Jepsen's three ways: `ok`, it was done; `fail`, it was **certainly**
//! not done; `info`, the outcome is unknown, and the operation may be done at any later time. An
//! operation without an end was under way when the record ended. A recorder must not write `fail`
//! for a lost connection, because a checker would believe it; nor for an operation that was sent
//! more than once, unless its exactly-once number makes all sendings one. Such a record is
//! rejected.
//!
//! # What a recorder must guarantee
//!
//! The checkers are sound (they never accuse a correct history) under three conditions:
//!
//! 1. **The times enclose the operation.** An invocation's time is taken before the request can be
//!    sent, a completion's after the answer has arrived, all on one monotonic clock. An
//!    invocation's time that is too early, or a completion's that is too late, only weakens the
//!    history; the opposite makes it false.
//! 2. **Everything that may end a claim is recorded**: every release, withdrawal and close,
//!    including those that a dropped guard sends in the background, and every connection that a
//!    waiting acquire lost ([`Note::Disconnected`]). What keeps claims alive may be left out: a
//!    checker that does not know of a keepalive assumes that the lease could have ended earlier,
//!    and accuses less.
//! 3. **Only recorded operations use a session.**
//!
//! An operation that was repeated under its own number is one operation, from its first sending to
//! its answer.
//!
//! # Modules
//!
//! [`event`] has the lines of a record, [`claim`] the keys and modes in them, [`operation`] the history
//! built from them, [`record`] the recorder, [`knossos`] and [`porcupine`] the export formats for other
//! checkers, [`check`] our own checkers.

pub mod check;
pub mod claim;
pub mod edn;
pub mod event;
pub mod knossos;
pub mod names;
pub mod operation;
pub mod porcupine;
pub mod processes;
pub mod record;

pub use claim::{Keys, Mode};
pub use event::{Answer, Call, Change, Condition, Event, Holder, Note, OpId, RecordChange, Refusal, Time};
pub use names::{Client, Key, Session};
pub use operation::{BadHistory, End, History, Operation};
pub use record::{Pending, Recorder};
