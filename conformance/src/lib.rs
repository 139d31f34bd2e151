//! Checks that the running server does what the models checked.
//!
//! The models explore `spec`; the server executes `spec`; this crate checks the connection between
//! the two, and the answers that clients get. The checkers of histories share no code with what
//! they judge: a checker that reused the lock table would not see the lock table's own mistakes.
//!
//! - [`replay`]: replays the models' traces on live nodes and compares after every step.
//! - [`validate`]: steps recorded inputs through the spec again and judges all nodes' recordings as
//!   one run.
//! - [`torture`]: runs real processes under load, with every fault that one machine can provide.
//! - [`sim`]: runs whole clusters of the server's code in one thread, in virtual time, on a faulty
//!   network and faulty disks.
//! - [`mutants`]: known bugs of the server, each of which one of the parts above must find.
//! - [`stepper`]: the nodes of a replay, which take a step only on request.
//! - [`history`]: the command that checks what clients observed. The checkers are a crate of their own,
//!   `palisade-history` in `conformance/history/`, which depends on nothing that they judge.
//!
//! docs/conformance/README.md says what each part claims, what it costs and what it cannot find.

pub mod history;
pub mod mutants;
pub mod replay;
mod shown;
pub mod sim;
pub mod stepper;
pub mod torture;
mod transactions;
pub mod validate;
mod watched_state;
