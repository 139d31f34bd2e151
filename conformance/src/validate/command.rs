//! `palisade-conformance validate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::{Failure, Options, Progress, validate_each};

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

/// Who waits is told now and then how far it is.
const PATIENCE: Duration = Duration::from_secs(5);

impl Validate {
    /// Does it.
    pub fn run(self) -> ExitCode {
        let (begun, mut told) = (Instant::now(), Instant::now());
        let watch = |progress: Progress<'_>| {
            if told.elapsed() >= PATIENCE {
                let Progress { directory, cluster, of, report } = progress;
                let (directory, inputs) = (directory.display(), report.inputs);
                eprintln!("at cluster {cluster} of {of}, {directory}: {inputs} inputs so far");
                told = Instant::now();
            }
        };
        let (report, failures) = match validate_each(&self.directory, Options { clock_rate: self.clock_rate }, watch) {
            Ok(judged) => judged,
            Err(failure) => {
                eprintln!("palisade-conformance: {failure}");
                return ExitCode::from(2);
            }
        };
        println!("{report}\n{:.1} s", begun.elapsed().as_secs_f64());
        if report.runs == 0 {
            eprintln!("palisade-conformance: there are no recordings in {}", self.directory.display());
        }
        failures.iter().for_each(|failure| eprintln!("palisade-conformance: {failure}"));
        let is_broken = failures.iter().any(|failure| matches!(failure, Failure::Violation { .. }));
        let is_whole = report.runs > 0 && report.cut.is_empty() && failures.is_empty();
        ExitCode::from(if is_broken {
            1
        } else if is_whole {
            0
        } else {
            2
        })
    }
}
