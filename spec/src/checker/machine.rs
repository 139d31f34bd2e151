//! The part of the checker that is specific to the state machine that the cluster replicates.

use crate::invariants::Check;
use crate::raft::{Payload, Stamp, StateMachine};

/// A state machine with invariants of its own.
pub trait Checked: StateMachine {
    /// What an observer of the entries keeps between them.
    type Observer: core::fmt::Debug;

    /// An observer of the entries that follow this state.
    fn observer(&self) -> Self::Observer;

    /// The work of checking the whole state.
    fn size(&self) -> usize;

    /// Checks the effect of one entry; `whole` if the whole states may be compared.
    ///
    /// # Errors
    /// The first violation.
    fn check_entry(observer: &mut Self::Observer, entry: &Execution<'_, Self>, whole: bool) -> Check;

    /// Checks a whole state by itself.
    ///
    /// # Errors
    /// The first violation.
    fn check_state(&self) -> Check;
}

/// The execution of one entry, with the states before and after it.
#[derive(Debug)]
pub struct Execution<'a, S: StateMachine> {
    /// The state before.
    pub before: &'a S,
    /// The entry's stamp.
    pub at: Stamp,
    /// The entry's command; `None` for an entry that only lets time pass.
    pub command: Option<&'a S::Command>,
    /// The effect.
    pub outcome: &'a S::Outcome,
    /// The state after.
    pub after: &'a S,
}

impl<'a, S: StateMachine> Execution<'a, S> {
    /// The execution of an entry with this payload.
    pub fn new(
        before: &'a S,
        at: Stamp,
        payload: &'a Payload<S::Command>,
        outcome: &'a S::Outcome,
        after: &'a S,
    ) -> Execution<'a, S> {
        let command = match payload {
            Payload::Command(command) => Some(command),
            Payload::Noop | Payload::Members(_) => None,
        };
        Execution { before, at, command, outcome, after }
    }
}

/// Executes an entry. Deliberately not [`StateMachine::apply_payload`]: a check must not rely on
/// the code it checks.
pub fn execute<S: StateMachine>(machine: &mut S, at: Stamp, payload: &Payload<S::Command>) -> S::Outcome {
    match payload {
        Payload::Noop | Payload::Members(_) => machine.advance(at),
        Payload::Command(command) => machine.apply(at, command),
    }
}
