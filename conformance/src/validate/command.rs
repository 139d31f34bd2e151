//! `palisade-conformance validate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::{Failure, Options, Progress, validate_each};

/// Replay recordings of live nodes through the spec, and check them as one run
///
/// Exit code 0 if everything holds, 1 if a property is violated, 2 if the check was incomplete: a
/// recording was cut or cannot be read.
#[derive(Debug, Args)]
pub struct Validate {
    /// Directory of the recordings (palisade serve --record); includes its subdirectories
    directory: PathBuf,
    /// Rate of the fastest node's clock, if a test has given a node a fast clock
    #[arg(long, value_name = "RATE", default_value_t = 1.0)]
    clock_rate: f64,
}

/// Interval between progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

impl Validate {
    /// Validates the recordings and prints a report.
    pub fn run(self) -> ExitCode {
        let (started, mut last_report) = (Instant::now(), Instant::now());
        let watch = |progress: Progress<'_>| {
            if last_report.elapsed() >= PROGRESS_INTERVAL {
                let Progress { directory, cluster, of, report } = progress;
                let (directory, inputs) = (directory.display(), report.inputs);
                eprintln!("at cluster {cluster} of {of}, {directory}: {inputs} inputs so far");
                last_report = Instant::now();
            }
        };
        let (report, failures) = match validate_each(&self.directory, Options { clock_rate: self.clock_rate }, watch) {
            Ok(judged) => judged,
            Err(failure) => {
                eprintln!("palisade-conformance: {failure}");
                return ExitCode::from(2);
            }
        };
        println!("{report}\n{:.1} s", started.elapsed().as_secs_f64());
        if report.runs == 0 {
            eprintln!(
                "palisade-conformance: there are no recordings in {}; record with `palisade serve --record`",
                self.directory.display()
            );
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
