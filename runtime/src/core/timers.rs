//! The node's election and heartbeat timers, and the measurement of elapsed time for its clock.
//!
//! This file decides jitter, stalls and lateness; the protocol is safe under any choice
//! (docs/protocol.md, "What the driver may decide").

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::SmallRng;

/// Election timeout and heartbeat interval.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Minimum election timeout. A follower that hears no leader for this long, up to twice as
    /// long, starts an election.
    pub election: Duration,
    /// Interval between a leader's heartbeats.
    pub heartbeat: Duration,
}

impl Timing {
    /// Five heartbeats in the minimum election timeout.
    pub fn with_election_timeout(election: Duration) -> Timing {
        Timing { election, heartbeat: election / 5 }
    }
}

/// A timer that is checked later than this after its deadline indicates that the process was
/// stalled, and messages of its peers may not have been read yet. The timer gets this much more
/// time, once.
const STALL: Duration = Duration::from_millis(25);

/// The timers of one node.
#[derive(Debug)]
pub(super) struct Timers {
    timing: Timing,
    jitter: SmallRng,
    election: Option<Instant>,
    /// Whether the election timer has had its grace period.
    stalled: bool,
    heartbeat: Option<Instant>,
    clock: Instant,
}

impl Timers {
    pub(super) fn start(timing: Timing, jitter: SmallRng, now: Instant) -> Timers {
        let mut timers = Timers { timing, jitter, election: None, stalled: false, heartbeat: None, clock: now };
        timers.arm_election(now);
        timers
    }

    /// The election timeout is random, so that one node usually starts its election before the
    /// others (§3.4).
    pub(super) fn arm_election(&mut self, now: Instant) {
        let jitter = self.jitter.random_range(0.0..1.0);
        self.election = Some(now + self.timing.election.mul_f64(1.0 + jitter));
        self.stalled = false;
    }

    pub(super) fn arm_heartbeat(&mut self, now: Instant) {
        self.heartbeat = Some(now + self.timing.heartbeat);
    }

    /// Maximum election timeout.
    pub(super) fn longest_election(&self) -> Duration {
        self.timing.election * 2
    }

    /// When the next timer fires.
    pub(super) fn next(&self) -> Option<Instant> {
        [self.election, self.heartbeat].into_iter().flatten().min()
    }

    pub(super) fn heartbeat_is_due(&mut self, now: Instant) -> bool {
        let due = self.heartbeat.is_some_and(|at| at <= now);
        if due {
            self.heartbeat = None;
        }
        due
    }

    pub(super) fn election_is_due(&mut self, now: Instant) -> bool {
        let Some(at) = self.election.filter(|&at| at <= now) else { return false };
        if now - at > STALL && !self.stalled {
            (self.election, self.stalled) = (Some(now + STALL), true);
            return false;
        }
        self.election = None;
        true
    }

    /// The node was elected: cluster time counts the time that it measures from now on. The
    /// fraction of a millisecond measured before the election is discarded: another leader may have
    /// counted it.
    pub(super) fn start_clock(&mut self, now: Instant) {
        self.clock = now;
    }

    /// Whole milliseconds since the last call; the remaining fraction counts in the next call.
    pub(super) fn elapsed(&mut self, now: Instant) -> u64 {
        let whole = u64::try_from(now.saturating_duration_since(self.clock).as_millis()).unwrap_or(u64::MAX);
        self.clock += Duration::from_millis(whole);
        whole
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn timers(now: Instant) -> Timers {
        Timers::start(Timing::with_election_timeout(Duration::from_millis(100)), SmallRng::seed_from_u64(1), now)
    }

    #[test]
    fn late_timer_gets_one_grace_period() {
        let start = Instant::now();
        let mut timers = timers(start);
        let late = start + Duration::from_millis(500);
        assert!(!timers.election_is_due(late));
        assert!(!timers.election_is_due(late + STALL / 2));
        assert!(timers.election_is_due(late + STALL));
    }

    /// However slow the iterations are, the timer fires: a leader that is partitioned must step
    /// down eventually.
    #[test]
    fn slow_iterations_do_not_postpone_election_forever() {
        let start = Instant::now();
        let mut timers = timers(start);
        let mut iteration = start;
        let fired = (0..).find(|_| {
            iteration += 3 * STALL;
            timers.election_is_due(iteration)
        });
        assert!(fired.is_some_and(|iterations| iterations < 10));
        timers.arm_election(iteration);
        assert!(!timers.election_is_due(iteration + Duration::from_secs(1)), "a new timer has its own grace period");
    }

    #[test]
    fn fractions_of_a_millisecond_accumulate() {
        let start = Instant::now();
        let mut timers = timers(start);
        let total: u64 = (1..=10).map(|step| timers.elapsed(start + step * Duration::from_micros(1700))).sum();
        assert_eq!(total, 17);
    }
}
