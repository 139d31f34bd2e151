//! Clocks that do not agree on how long a second is.
//!
//! Virtual time is the fair one. Each node's monotonic clock runs at its own rate, at most one per cent off: what
//! docs/protocol.md ("Cluster time") assumes of a leader. That clients bear it for every time-to-live, by clocks that are
//! off themselves, is a property of the client's margin, and tested there (`client/src/lease/tests.rs`).

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::SmallRng;

/// By how much a clock may be off, as a part of one.
const DRIFT: f64 = 0.01;
/// The same for those who know nothing of milliseconds that are rounded: of the shortest time-to-live here that is a
/// quarter of one per cent.
pub(super) const DRIFT_PPM: u32 = 13_000;

/// How long a session lives at the least: its time-to-live by the fastest clock, less the millisecond that stamps are
/// rounded to.
pub(super) fn slowest(ttl: Duration) -> Duration {
    ttl.div_f64(1.0 + DRIFT).saturating_sub(Duration::from_millis(1))
}

/// How much a node measures at the most in this time: by the fastest clock, and the millisecond that stamps are rounded to.
pub(super) fn most(time: Duration) -> Duration {
    time.mul_f64(1.0 + DRIFT) + Duration::from_millis(1)
}

/// How long a node takes at the most to measure this time.
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
    /// A clock that is a little off. `zero` stands for the beginning of virtual time; nothing depends on what it is.
    pub(super) fn new(zero: Instant, rng: &mut SmallRng) -> Clock {
        Clock { zero, rate: 1.0 + rng.random_range(-DRIFT..DRIFT) }
    }

    /// What it shows.
    pub(super) fn at(&self, now: Duration) -> Instant {
        self.zero + now.mul_f64(self.rate)
    }

    /// When it will show that.
    pub(super) fn when(&self, shown: Instant) -> Duration {
        shown.saturating_duration_since(self.zero).div_f64(self.rate) + Duration::from_nanos(1)
    }
}
