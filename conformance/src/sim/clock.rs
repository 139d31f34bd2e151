//! Clocks that drift.
//!
//! Virtual time is the reference. Each node's monotonic clock has its own constant rate, at most 1%
//! off: the bound that docs/protocol.md ("Cluster time") assumes for a leader. That clients
//! tolerate this for every time-to-live, with drifting clocks of their own, is a property of the
//! client's margin and tested there (`client/src/lease/tests.rs`).

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::SmallRng;

/// Maximum clock drift, as a fraction.
const DRIFT: f64 = 0.01;
/// Drift for checkers that ignore rounding, in millionths: of the shortest time-to-live here,
/// rounding to a millisecond is 0.25%.
pub(super) const DRIFT_PPM: u32 = 13_000;

/// Minimum lifetime of a session: its time-to-live by the fastest clock, less the millisecond that
/// stamps are rounded to.
pub(super) fn slowest(ttl: Duration) -> Duration {
    ttl.div_f64(1.0 + DRIFT).saturating_sub(Duration::from_millis(1))
}

/// Maximum time that a node measures in this time: by the fastest clock, plus the millisecond that
/// stamps are rounded to.
pub(super) fn most(time: Duration) -> Duration {
    time.mul_f64(1.0 + DRIFT) + Duration::from_millis(1)
}

/// Maximum time until a node has measured this time.
pub(super) fn longest(time: Duration) -> Duration {
    time.div_f64(1.0 - DRIFT) + Duration::from_millis(1)
}

/// A node's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero: Instant,
    rate: f64,
}

impl Clock {
    /// A clock with a random drift. `zero` is the start of virtual time; its value has no effect on
    /// the run.
    pub(super) fn new(zero: Instant, rng: &mut SmallRng) -> Clock {
        Clock { zero, rate: 1.0 + rng.random_range(-DRIFT..DRIFT) }
    }

    /// The clock's reading at `now`.
    pub(super) fn at(&self, now: Duration) -> Instant {
        self.zero + now.mul_f64(self.rate)
    }

    /// The time at which the clock will read `shown`.
    pub(super) fn when(&self, shown: Instant) -> Duration {
        shown.saturating_duration_since(self.zero).div_f64(self.rate) + Duration::from_nanos(1)
    }
}
