//! `palisade puppet`: a node that does nothing but what it is told on standard input.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use palisade::puppet;

use super::complain;

/// Run a node that moves only when its strings are pulled: for tests that step live nodes.
#[derive(Debug, Args)]
pub(super) struct Puppet {
    /// The puppet's directory; made at the first start, and never served from
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

impl Puppet {
    pub(super) fn run(self) -> ExitCode {
        match puppet::run(&self.data) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&error);
                ExitCode::from(error.exit_code())
            }
        }
    }
}
