//! Events that a worker prints: one JSON object per line, for people and for experiments.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::history::monotonic;

/// A line of a worker's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Time since the worker started, in microseconds.
    pub at_us: u64,
    /// Time on the machine's monotonic clock, in microseconds: other processes' times compare with it.
    pub clock_us: u64,
    /// Number of the job, from 1.
    pub job: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The worker is about to ask for the lock.
    Acquiring,
    /// The lock was granted.
    Acquired {
        /// The fencing token.
        token: u64,
        /// Time from the request to the grant, in microseconds.
        waited_us: u64,
        /// The TTL as the backend has rounded it, in milliseconds.
        ttl_ms: u64,
    },
    /// The wait for the lock ended without a grant.
    Timeout {
        /// How long the worker has waited, in microseconds.
        waited_us: u64,
    },
    /// A pause begins.
    Paused {
        /// Length of the pause that was asked for, in milliseconds.
        for_ms: u64,
    },
    /// The pause is over.
    Resumed {
        /// Length of the pause, in microseconds.
        paused_us: u64,
    },
    /// A renewal was refused: the lock is no longer the worker's.
    Lost,
    /// The worker gave up its job before the write, because it knew that its lock is lost.
    Abandoned {
        /// The fencing token.
        token: u64,
    },
    /// The resource accepted the write.
    Written {
        /// The fencing token.
        token: u64,
        /// The resource's highest token now. A higher one than the worker's shows a stale write.
        max_fence: u64,
    },
    /// The resource refused the write: the token is stale.
    Refused {
        /// The fencing token.
        token: u64,
        /// The highest token that the resource has seen.
        seen: u64,
    },
    /// The lock was given back.
    Released {
        /// The fencing token.
        token: u64,
        /// Renewals that succeeded.
        renewals: u64,
    },
    /// The lock was no longer the worker's: the release changed nothing.
    NotOwner {
        /// The fencing token.
        token: u64,
        /// Renewals that succeeded before the lock was lost.
        #[serde(default)]
        renewals: u64,
    },
    /// A server could not be reached, or has answered with an error.
    Failed {
        /// What failed.
        error: String,
    },
}

/// Prints lines.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    started: Instant,
}

impl Printer {
    /// Times count from now.
    #[must_use]
    pub fn new() -> Printer {
        Printer { started: Instant::now() }
    }

    /// Prints a line.
    pub fn print(&self, job: u64, event: Event) {
        let line = Line { at_us: micros(self.started.elapsed()), clock_us: monotonic().0 / 1000, job, event };
        // The standard output is flushed at each end of a line. An experiment that does not read any more is no
        // reason to leave a job half done.
        use std::io::Write;
        let text = serde_json::to_string(&line).expect("events have names and numbers only");
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

impl Default for Printer {
    fn default() -> Self {
        Self::new()
    }
}

/// A duration in whole microseconds.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A duration in whole milliseconds.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
