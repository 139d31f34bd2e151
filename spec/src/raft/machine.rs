//! The interface between Raft and the state machine it replicates.

use core::fmt::Debug;
use core::hash::Hash;

use super::{Payload, Stamp};

/// A deterministic state machine: equal states given equal entries give equal states and equal
/// outcomes.
///
/// It never reads a clock. The time at which an entry happens is the entry's stamp, the same on
/// every replica, and stamps never decrease from one call to the next.
pub trait StateMachine: Clone + Eq + Hash + Debug {
    /// A client's command; the content of a log entry.
    type Command: Clone + Eq + Hash + Debug;
    /// The effect of an entry: the reply to the proposer, and events for observers.
    type Outcome: Clone + Eq + Hash + Debug;

    /// Executes `command` at the moment `at`. Infallible: an invalid command produces an outcome.
    fn apply(&mut self, at: Stamp, command: &Self::Command) -> Self::Outcome;

    /// Advances time to `at` without a command: a no-op entry. Several may be needed for everything
    /// that is due.
    fn advance(&mut self, at: Stamp) -> Self::Outcome;

    /// Whether none of its counters is beyond [`MAX_NUMBER`](super::MAX_NUMBER).
    fn in_range(&self) -> bool {
        true
    }

    /// Executes an entry's payload at the entry's stamp.
    fn apply_payload(&mut self, at: Stamp, payload: &Payload<Self::Command>) -> Self::Outcome {
        match payload {
            Payload::Noop | Payload::Members(_) => self.advance(at),
            Payload::Command(command) => self.apply(at, command),
        }
    }

    /// The earliest moment *after* which time alone changes the state; `None` if there is none.
    /// Once its clock has passed this moment, the leader appends no-ops until the moment lies in
    /// the future.
    fn next_deadline(&self) -> Option<Stamp>;
}
