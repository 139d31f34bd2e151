//! What a state machine must provide for scripts: a notation for its commands, and checks of each
//! applied entry.

use palisade_spec::invariants::Check;
use palisade_spec::raft::{Payload, Stamp, StateMachine};

/// A state machine that scripts can drive and print.
pub(crate) trait Scripted: StateMachine + Default {
    /// The state that its invariants keep between entries.
    type Watch: Default;

    /// Parses a command of a script.
    fn parse(text: &str) -> Result<Self::Command, String>;

    /// Formats a command as in a script.
    fn show_command(command: &Self::Command) -> String;

    /// Formats the outcome of an entry; empty if there is none.
    fn show_outcome(outcome: &Self::Outcome) -> String;

    /// Formats the state in one line.
    fn show(&self) -> String;

    /// Checks the state machine's own invariants over one entry.
    fn watch(watch: &mut Self::Watch, step: &Applied<'_, Self>) -> Check;

    /// Parses a proposal of a script: a command, or `noop`.
    fn parse_payload(text: &str) -> Result<Payload<Self::Command>, String> {
        if text == "noop" { Ok(Payload::Noop) } else { Self::parse(text).map(Payload::Command) }
    }

    /// Formats the content of an entry: a command, or `noop`.
    fn show_payload(payload: &Payload<Self::Command>) -> String {
        match payload {
            Payload::Noop => "noop".into(),
            Payload::Command(command) => Self::show_command(command),
            Payload::Members(members) => super::print::members(members),
        }
    }
}

/// The execution of one entry, with the state before and after it.
pub(crate) struct Applied<'a, S: StateMachine> {
    pub(crate) before: &'a S,
    pub(crate) at: Stamp,
    pub(crate) payload: &'a Payload<S::Command>,
    pub(crate) outcome: &'a S::Outcome,
    pub(crate) after: &'a S,
}
