//! The summary of a run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::attempt::{Attempt, Outcome, Release};
use super::order::Order;

/// Different error texts that are listed at most; further ones are counted together.
const REASONS: usize = 32;
/// The greatest latency that is told from greater ones: a day, in microseconds.
const DAY_US: u64 = 86_400_000_000;

/// Percentiles of an HDR histogram with three significant digits, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of values.
    pub count: u64,
    /// The median.
    pub p50_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
    /// The 99.9th percentile.
    pub p999_us: u64,
    /// The greatest value.
    pub max_us: u64,
}

impl Latency {
    /// Percentiles of values in microseconds.
    #[must_use]
    pub fn of(values: impl Iterator<Item = u64>) -> Latency {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, DAY_US, 3).expect("the bounds are in order");
        for value in values {
            histogram.saturating_record(value);
        }
        let at = |quantile| histogram.value_at_quantile(quantile);
        let max_us = histogram.max();
        Latency { count: histogram.len(), p50_us: at(0.5), p99_us: at(0.99), p999_us: at(0.999), max_us }
    }
}

/// Errors with the same text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The backend.
    pub backend: String,
    /// The server that the error names; none if it names none, or several.
    pub server: Option<String>,
    /// What failed.
    pub error: String,
    /// How often.
    pub count: u64,
}

/// What a run amounts to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Arrivals of the schedule.
    pub arrivals: u64,
    /// Attempts that were granted.
    pub granted: u64,
    /// Attempts that waited in vain.
    pub timeouts: u64,
    /// Attempts that a server did not answer, or refused.
    pub failed: u64,
    /// Arrivals that were not started, because all contenders were busy.
    pub overflow: u64,
    /// Releases of locks that were lost before.
    pub not_owner: u64,
    /// Releases that a server did not answer, or refused.
    pub failed_releases: u64,
    /// From the intended start to the grant, of what was granted.
    pub latency: Latency,
    /// From the intended start to the grant, the timeout or the error.
    pub ended: Latency,
    /// From the intended to the actual start: what the load generator itself adds.
    pub lag: Latency,
    /// From the first arrival to the end of the last attempt, in microseconds.
    pub elapsed_us: u64,
    /// Grants a second in this time.
    pub handovers_per_second: f64,
    /// Arrival order against grant order.
    pub order: Order,
    /// The errors, the most frequent first.
    pub failures: Vec<Failure>,
}

impl Summary {
    /// Adds up attempts. `servers` are the backend's addresses.
    #[must_use]
    pub fn of(attempts: &[Attempt], backend: &str, servers: &[String]) -> Summary {
        let count = |of: fn(&Attempt) -> bool| attempts.iter().filter(|attempt| of(attempt)).count() as u64;
        let started = || attempts.iter().filter(|attempt| attempt.outcome != Outcome::Overflow);
        let granted = count(Attempt::granted);
        let first = started().map(|attempt| attempt.intended_us).min().unwrap_or(0);
        let last = started().map(|attempt| attempt.finished_us).max().unwrap_or(0);
        let elapsed_us = last.saturating_sub(first);
        Summary {
            arrivals: attempts.len() as u64,
            granted,
            timeouts: count(|attempt| attempt.outcome == Outcome::Timeout),
            failed: count(|attempt| matches!(attempt.outcome, Outcome::Failed { .. })),
            overflow: count(|attempt| attempt.outcome == Outcome::Overflow),
            not_owner: count(|attempt| attempt.release == Release::NotOwner),
            failed_releases: count(|attempt| matches!(attempt.release, Release::Failed { .. })),
            latency: Latency::of(started().filter(|attempt| attempt.granted()).map(Attempt::latency_us)),
            ended: Latency::of(started().map(Attempt::latency_us)),
            lag: Latency::of(started().map(|attempt| attempt.arrived_us.saturating_sub(attempt.intended_us))),
            elapsed_us,
            handovers_per_second: if elapsed_us == 0 {
                0.0
            } else {
                thousandths(granted as f64 * 1e6 / elapsed_us as f64)
            },
            order: Order::of(attempts, 0),
            failures: failures(attempts, backend, servers),
        }
    }

    /// Attempts and releases that failed.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.failed + self.failed_releases
    }
}

/// Three digits after the point: JSON with more of them may read back as a neighbouring number.
fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn failures(attempts: &[Attempt], backend: &str, servers: &[String]) -> Vec<Failure> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let errors = attempts.iter().flat_map(|attempt| {
        let acquire = if let Outcome::Failed { error } = &attempt.outcome { Some(error) } else { None };
        let release = if let Release::Failed { error } = &attempt.release { Some(error) } else { None };
        acquire.into_iter().chain(release)
    });
    for error in errors {
        *counts.entry(error).or_default() += 1;
    }
    let mut failures: Vec<_> = counts
        .into_iter()
        .map(|(error, count)| {
            let mut named = servers.iter().filter(|server| error.contains(server.as_str()));
            let server = named.next().filter(|_| named.next().is_none()).cloned();
            Failure { backend: backend.to_owned(), server, error: error.to_owned(), count }
        })
        .collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure.count));
    let further: u64 = failures.drain(REASONS.min(failures.len())..).map(|failure| failure.count).sum();
    if further > 0 {
        let error = format!("other texts than the {REASONS} above");
        failures.push(Failure { backend: backend.to_owned(), server: None, error, count: further });
    }
    failures
}
