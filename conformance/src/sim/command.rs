//! The command `palisade-conformance sim`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Outcome, Tally, simulate};

/// Run simulated clusters with faults of every kind
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds to run, counting up from the first
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Virtual time of each cluster, in hours
    #[arg(long, default_value_t = 0.1)]
    hours: f64,
    /// Start no further seed after this many seconds
    #[arg(long, value_name = "SECONDS")]
    within: Option<u64>,
    /// Clusters to run at a time, one thread each
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Write the clients' history here, as `palisade-conformance history` reads it: that of the
    /// failed seed, or of the only seed
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Print only the violated property of a failure
    #[arg(long)]
    brief: bool,
}

/// Runs clusters and prints a report. Returns `true` if no property was violated, and starts no
/// further seed after the first violation.
///
/// # Errors
/// Errors of `out` and of the history file; no time for a single seed.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> io::Result<bool> {
    if arguments.brief {
        // The report names the failure; suppress the panic message.
        std::panic::set_hook(Box::new(|_| {}));
    }
    let started = Instant::now();
    let time = Duration::from_secs_f64(arguments.hours * 3600.0);
    let is_over = || arguments.within.is_some_and(|within| started.elapsed() >= Duration::from_secs(within));
    let next = AtomicU64::new(arguments.seed);
    let end = arguments.seed.saturating_add(arguments.seeds);
    let (sum, shown) = (Mutex::new((Tally::default(), 0_u64)), Mutex::new(None::<Outcome>));
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| {
                while shown.lock().is_none() && !is_over() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let outcome = simulate(seed, time);
                    let mut sum = sum.lock();
                    sum.0 += outcome.tally;
                    sum.1 += 1;
                    if outcome.failure.is_some() || arguments.seeds == 1 {
                        let mut shown = shown.lock();
                        // The lowest failing seed wins, so that the report does not depend on
                        // thread timing.
                        if shown.as_ref().is_none_or(|other| outcome.seed < other.seed) {
                            *shown = Some(outcome);
                        }
                    }
                }
            });
        }
    });
    let (tally, seeds) = sum.into_inner();
    report(out, arguments, shown.into_inner().as_ref(), tally, seeds, started.elapsed())
}

fn report(
    out: &mut impl Write,
    arguments: &Arguments,
    shown: Option<&Outcome>,
    tally: Tally,
    seeds: u64,
    elapsed: Duration,
) -> io::Result<bool> {
    if let (Some(outcome), Some(file)) = (shown, &arguments.history) {
        let mut lines = BufWriter::new(File::create(file)?);
        for event in &outcome.history {
            serde_json::to_writer(&mut lines, event)?;
            writeln!(lines)?;
        }
        lines.flush()?;
    }
    if let Some(Outcome { seed, failure: Some(failure), .. }) = shown {
        if !arguments.brief {
            writeln!(out, "{}", failure.events)?;
        }
        writeln!(out, "seed {seed}: {} is violated: {}", failure.property, failure.what)?;
        writeln!(out, "again: palisade-conformance sim --seed {seed} --hours {}", arguments.hours)?;
        return Ok(false);
    }
    let (rate, seconds) = (tally.time.as_secs_f64() / elapsed.as_secs_f64(), elapsed.as_secs_f64());
    if seeds == 0 {
        return Err(io::Error::other("no seed was started before the time limit; raise --within"));
    }
    writeln!(out, "{tally}{seeds} seeds in {seconds:.0} s: {rate:.0} cluster-hours per hour; no violations")?;
    Ok(true)
}
