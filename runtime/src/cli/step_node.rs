//! `palisade step-node`: a node that takes each step on a command from standard input.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use palisade::stepper;

use super::complain;

/// Run a node that takes a step only on a command: for tests that step live nodes.
#[derive(Debug, Args)]
pub(super) struct StepNode {
    /// The node's directory: created at the first start; `palisade serve` refuses it
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl StepNode {
    pub(super) fn run(self) -> ExitCode {
        match stepper::run(&self.data) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&error);
                ExitCode::from(error.exit_code())
            }
        }
    }
}
