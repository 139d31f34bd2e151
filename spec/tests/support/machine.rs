//! Requirements of scripts on a state machine: a notation for its commands.

use palisade_spec::checker::Checked;
use palisade_spec::raft::Payload;

/// A state machine that scripts can drive and print.
pub(crate) trait Scripted: Checked + Default {
    /// Parses a command of a script.
    fn parse(text: &str) -> Result<Self::Command, String>;

    /// Formats a command as in a script.
    fn show_command(command: &Self::Command) -> String;

    /// Formats the outcome of an entry; empty if there is none.
    fn show_outcome(outcome: &Self::Outcome) -> String;

    /// Formats the state in one line.
    fn show(&self) -> String;

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
