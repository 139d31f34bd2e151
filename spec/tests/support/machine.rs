//! What a state machine needs in order to be scripted: words for its commands, and a watch over its applies.

use palisade_spec::invariants::Check;
use palisade_spec::raft::{Payload, Stamp, StateMachine};

/// A state machine that scripts can drive and print.
pub(crate) trait Scripted: StateMachine + Default {
    /// What its invariants remember from one entry to the next.
    type Watch: Default;

    /// Reads a command as a script writes it.
    fn parse(text: &str) -> Result<Self::Command, String>;

    /// Writes a command as a script would.
    fn show_command(command: &Self::Command) -> String;

    /// What an entry did; empty if there is nothing to say.
    fn show_outcome(outcome: &Self::Outcome) -> String;

    /// The state, in one line.
    fn show(&self) -> String;

    /// Checks the state machine's own invariants over one entry.
    fn watch(watch: &mut Self::Watch, step: &Applied<'_, Self>) -> Check;

    /// Reads what a script proposes: a command, or `noop`.
    fn parse_payload(text: &str) -> Result<Payload<Self::Command>, String> {
        if text == "noop" { Ok(Payload::Noop) } else { Self::parse(text).map(Payload::Command) }
    }

    /// Writes what an entry asks for: a command, or `noop`.
    fn show_payload(payload: &Payload<Self::Command>) -> String {
        match payload {
            Payload::Noop => "noop".into(),
            Payload::Command(command) => Self::show_command(command),
            Payload::Members(members) => super::print::members(members),
        }
    }
}

/// One entry's execution: before, what, when, and after.
pub(crate) struct Applied<'a, S: StateMachine> {
    pub(crate) before: &'a S,
    pub(crate) at: Stamp,
    pub(crate) payload: &'a Payload<S::Command>,
    pub(crate) outcome: &'a S::Outcome,
    pub(crate) after: &'a S,
}
