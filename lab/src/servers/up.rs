//! `palisade-lab up`.

use std::process::ExitCode;

/// To be written
#[derive(Debug, clap::Args)]
pub struct Up {}

impl Up {
    /// Runs the command.
    ///
    /// # Errors
    /// What failed.
    pub async fn run(self) -> Result<ExitCode, String> {
        Err("to be written".to_owned())
    }
}
