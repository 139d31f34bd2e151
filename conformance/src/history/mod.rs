//! What clients saw, and whether a correct lock service could have shown it to them.
//!
//! A **history** is a list of operations: who asked for what, when the request left, when the answer came, and what it
//! was. It knows nothing of nodes, terms or logs, so it judges whatever is behind the interface: the server, the
//! simulation, another service. It also has what the fenced resource saw, since that is where the promise is redeemed.
//!
//! An operation ends in one of three ways, which are Jepsen's: `ok`, it was done; `fail`, it was **certainly** not done;
//! `info`, nobody knows, and it may be done at any later time. One that never ended was under way when the record did.
//! A recorder must not write `fail` for a lost connection: a checker would believe it. Nor for an operation that was sent more
//! than once, unless its number makes all sendings one: such a record is refused.
//!
//! # What a recorder owes
//!
//! The checkers are sound (they accuse no correct history) under three conditions:
//!
//! 1. **The times enclose.** An invocation's time is taken before the request can have left, a completion's after the
//!    answer has come, all on one monotonic clock. A time that is too early at the beginning or too late at the end
//!    makes a history say less; the other way round it lies.
//! 2. **Whatever may end a claim is on record**: every release, withdrawal and close, also those that a dropped guard
//!    sends in the background, and every connection that a waiting acquire lost ([`Note::Disconnected`]). What keeps
//!    claims alive may be left out: a checker that does not know of a keepalive believes that a lease could have ended
//!    earlier, and accuses less.
//! 3. **A session is used by what is on record only.**
//!
//! Where an operation has been repeated under its own number, it is one operation, from its first sending to its answer.
//!
//! # Where things are
//!
//! [`event`] has the lines of a record, [`operation`] the history that is put together from them, [`record`] what writes
//! one, [`knossos`] and [`porcupine`] the forms that other checkers read, [`check`] our own checkers.

pub mod check;
pub mod command;
pub mod edn;
pub mod event;
pub mod knossos;
pub mod operation;
pub mod porcupine;
pub mod processes;
pub mod record;

pub use event::{Answer, Call, Client, Event, Holder, Key, Note, OpId, Refusal, Session, Time};
pub use operation::{BadHistory, End, History, Operation};
pub use record::{Pending, Recorder};
