//! `palisade-conformance validate`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{Failure, Options, validate};

/// Step recordings of live nodes again through the spec, and judge them as one run
///
/// Exit code 0 if everything holds, 1 if something does not, 2 if not all could be looked at: a recording was cut, or
/// cannot be read.
#[derive(Debug, Args)]
pub struct Validate {
    /// Where the recordings are (palisade serve --record), also in the directories below
    directory: PathBuf,
    /// How fast the fastest node's clock runs, if a test has made one run fast
    #[arg(long, value_name = "RATE", default_value_t = 1.0)]
    clock_rate: f64,
}

impl Validate {
    /// Does it.
    pub fn run(self) -> ExitCode {
        match validate(&self.directory, Options { clock_rate: self.clock_rate }) {
            Ok(report) => {
                println!("{report}");
                if report.runs == 0 {
                    eprintln!("palisade-conformance: there are no recordings in {}", self.directory.display());
                }
                ExitCode::from(if report.cut.is_empty() && report.runs > 0 { 0 } else { 2 })
            }
            Err(failure) => {
                eprintln!("palisade-conformance: {failure}");
                ExitCode::from(if matches!(failure, Failure::Violation { .. }) { 1 } else { 2 })
            }
        }
    }
}
