//! `palisade-conformance step-node`, hidden: `replay` starts it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

/// Run a node that takes a step only on a request from standard input
#[derive(Debug, Args)]
pub struct StepNode {
    /// The node's data directory; created at the first start, and refused by `palisade serve`
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl StepNode {
    /// Runs the node until its standard input ends.
    pub fn run(self) -> ExitCode {
        match super::run(&self.data) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("palisade-conformance: {error}");
                ExitCode::from(error.exit_code())
            }
        }
    }
}
