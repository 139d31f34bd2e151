//! The node's two timers, and the clock it is told about.
//!
//! Jitter, stalls and lateness are this file's; the protocol is safe whatever it does (docs/protocol.md, "What the
//! driver may decide").

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::SmallRng;

/// How the driver times elections.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A follower that has heard nothing for this long, or up to twice as long, asks for an election.
    pub election: Duration,
    /// How often a leader shows that it is there.
    pub heartbeat: Duration,
}

impl Timing {
    /// Heartbeats five times in the shortest election timeout.
    pub fn with_election_timeout(election: Duration) -> Timing {
        Timing { election, heartbeat: election / 5 }
    }
}

/// A timer that is looked at later than this was not late by itself: the process stood still, and what its peers said
/// meanwhile may not have been read yet. It gets that long again, once.
const STALL: Duration = Duration::from_millis(25);

/// The timers of one node.
#[derive(Debug)]
pub(super) struct Timers {
    timing: Timing,
    jitter: SmallRng,
    election: Option<Instant>,
    /// Whether the election timer has had its grace.
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

    /// The election timeout is random, so that one node is the first (§3.4).
    pub(super) fn arm_election(&mut self, now: Instant) {
        let jitter = self.jitter.random_range(0.0..1.0);
        self.election = Some(now + self.timing.election.mul_f64(1.0 + jitter));
        self.stalled = false;
    }

    pub(super) fn arm_heartbeat(&mut self, now: Instant) {
        self.heartbeat = Some(now + self.timing.heartbeat);
    }

    /// The longest that an election timeout can be.
    pub(super) fn longest_election(&self) -> Duration {
        self.timing.election * 2
    }

    /// When the next of them fires.
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

    /// The node was elected: cluster time counts what it measures from now on. What is left over from before, a fraction
    /// of a millisecond, is not its time: another leader may have measured that.
    pub(super) fn start_clock(&mut self, now: Instant) {
        self.clock = now;
    }

    /// Whole milliseconds that passed since this was last asked; what is left over counts the next time.
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
    fn a_timer_that_is_seen_late_gets_a_moment_more() {
        let start = Instant::now();
        let mut timers = timers(start);
        let late = start + Duration::from_millis(500);
        assert!(!timers.election_is_due(late));
        assert!(!timers.election_is_due(late + STALL / 2));
        assert!(timers.election_is_due(late + STALL));
    }

    /// However slow the rounds are, the timer fires: a leader that is cut off must step down some time.
    #[test]
    fn slow_rounds_do_not_put_it_off_for_ever() {
        let start = Instant::now();
        let mut timers = timers(start);
        let mut round = start;
        let fired = (0..).find(|_| {
            round += 3 * STALL;
            timers.election_is_due(round)
        });
        assert!(fired.is_some_and(|rounds| rounds < 10));
        timers.arm_election(round);
        assert!(!timers.election_is_due(round + Duration::from_secs(1)), "a new timer has its own grace");
    }

    #[test]
    fn fractions_of_a_millisecond_are_not_lost() {
        let start = Instant::now();
        let mut timers = timers(start);
        let told: u64 = (1..=10).map(|step| timers.elapsed(start + step * Duration::from_micros(1700))).sum();
        assert_eq!(told, 17);
    }
}
