//! `palisade-conformance`: checks that the running server does what the models checked.

use std::io::{BufWriter, Write, stdout};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use palisade_conformance::{history, mutants, replay, sim, stepper, torture, validate};

/// Check that the running server does what the models checked
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    History(history::Arguments),
    Validate(validate::command::Validate),
    Torture(torture::command::Torture),
    Replay(replay::command::Arguments),
    Sim(sim::Arguments),
    Mutants(mutants::command::Arguments),
    #[command(hide = true)]
    StepNode(stepper::command::StepNode),
}

/// Usage error, as in sysexits.h (`EX_USAGE`): the arguments or files cannot be used.
const UNUSABLE: u8 = 64;

/// Exit codes: 0, no violation; 1, a violation; 2, not everything could be checked; 64, unusable
/// arguments or files.
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = BufWriter::new(stdout().lock());
    let found = match arguments.command {
        Command::History(arguments) => history::run(&arguments, &mut out).map_err(|error| error.to_string()),
        Command::Validate(validate) => return validate.run(),
        Command::Torture(torture) => return torture.run(),
        Command::Replay(arguments) => replay::command::run(&arguments, &mut out).map_err(|error| error.to_string()),
        Command::Sim(arguments) => sim::run(&arguments, &mut out).map_err(|error| error.to_string()),
        Command::Mutants(arguments) => mutants::command::run(&arguments, &mut out).map_err(|error| error.to_string()),
        Command::StepNode(step) => {
            // A stepped node writes to standard output itself.
            drop(out);
            return step.run();
        }
    };
    let written = out.flush();
    match (found, written) {
        (Ok(true), Ok(())) => ExitCode::SUCCESS,
        (Ok(false), Ok(())) => ExitCode::FAILURE,
        (Err(error), _) => {
            eprintln!("palisade-conformance: {error}");
            ExitCode::from(UNUSABLE)
        }
        (_, Err(error)) => {
            eprintln!("palisade-conformance: the report cannot be written: {error}");
            ExitCode::from(UNUSABLE)
        }
    }
}
