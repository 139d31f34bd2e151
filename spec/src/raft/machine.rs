//! What Raft asks of the state machine it replicates.

use core::fmt::Debug;
use core::hash::Hash;

use super::{Payload, Stamp};

/// A deterministic state machine: equal states given equal entries give equal states and equal outcomes.
///
/// It never reads a clock. The time at which an entry happens is the entry's stamp, the same on every replica, and
/// stamps never decrease from one call to the next.
pub trait StateMachine: Clone + Eq + Hash + Debug {
    /// What clients ask for; the content of a log entry.
    type Command: Clone + Eq + Hash + Debug;
    /// What an entry did: the answer to whoever asked, and events for whoever watches.
    type Outcome: Clone + Eq + Hash + Debug;

    /// Executes `command` at the moment `at`. Infallible: a client's mistake is an outcome.
    fn apply(&mut self, at: Stamp, command: &Self::Command) -> Self::Outcome;

    /// Lets time pass to `at` without a command: a no-op entry. What is due may take several of them.
    fn advance(&mut self, at: Stamp) -> Self::Outcome;

    /// Whether no number that it counts on from is beyond [`MAX_NUMBER`](super::MAX_NUMBER).
    fn in_range(&self) -> bool {
        true
    }

    /// Executes an entry: its stamp, and what it does.
    fn apply_payload(&mut self, at: Stamp, payload: &Payload<Self::Command>) -> Self::Outcome {
        match payload {
            Payload::Noop | Payload::Members(_) => self.advance(at),
            Payload::Command(command) => self.apply(at, command),
        }
    }

    /// The earliest moment *after* which time alone changes the state; `None` if it never will. The leader appends
    /// no-ops from when its clock has passed this moment until it is a later one.
    fn next_deadline(&self) -> Option<Stamp>;
}
