//! `palisade step-node`, hidden: a node that takes each step on a command from standard input.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use palisade::stepper;

use super::print_error;

/// Run a node that takes each step on a command from standard input: for tests
#[derive(Debug, Args)]
pub(super) struct StepNode {
    /// The node's data directory; created at the first start, and refused by `palisade serve`
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl StepNode {
    pub(super) fn run(self) -> ExitCode {
        match stepper::run(&self.data) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print_error(&error);
                ExitCode::from(error.exit_code())
            }
        }
    }
}
