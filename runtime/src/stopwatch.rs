//! Measures durations for the metrics.
//!
//! Code that gets the time as a value (docs/architecture.md) must not read the clock for a
//! decision. A stopwatch reads it and tells only a histogram, so no decision can depend on it.

use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;

/// The begin of a duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// The duration begins now.
    pub(crate) fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// The duration began at this moment.
    pub(crate) fn since(begin: Instant) -> Stopwatch {
        Stopwatch(begin)
    }

    /// Ends the duration now, and adds it to a histogram.
    pub(crate) fn observe(self, histogram: &Histogram) {
        histogram.observe(self.0.elapsed().as_secs_f64());
    }
}
