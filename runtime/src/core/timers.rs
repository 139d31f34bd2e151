//! The node's two timers, and the clock it is told about.
//!
//! Jitter, stalls and lateness are this file's; the protocol is safe whatever it does (docs/protocol.md, "What the
//! driver may decide").

use std::time::{Duration, Instant};

use rand::Rng;

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
/// meanwhile may not have been read yet. It gets that long again.
const STALL: Duration = Duration::from_millis(25);

/// The timers of one node.
#[derive(Debug)]
pub(super) struct Timers {
    timing: Timing,
    election: Option<Instant>,
    heartbeat: Option<Instant>,
    clock: Instant,
}

impl Timers {
    pub(super) fn start(timing: Timing, now: Instant) -> Timers {
        let mut timers = Timers { timing, election: None, heartbeat: None, clock: now };
        timers.arm_election(now);
        timers
    }

    /// The election timeout is random, so that one node is the first (§3.4).
    pub(super) fn arm_election(&mut self, now: Instant) {
        let jitter = rand::rng().random_range(0.0..1.0);
        self.election = Some(now + self.timing.election.mul_f64(1.0 + jitter));
    }

    pub(super) fn arm_heartbeat(&mut self, now: Instant) {
        self.heartbeat = Some(now + self.timing.heartbeat);
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
        if now - at > STALL {
            self.election = Some(now + STALL);
            return false;
        }
        self.election = None;
        true
    }

    /// Whole milliseconds that passed since this was last asked; what is left over counts the next time.
    pub(super) fn elapsed(&mut self, now: Instant) -> u64 {
        let whole = u64::try_from(now.saturating_duration_since(self.clock).as_millis()).unwrap_or(u64::MAX);
        self.clock += Duration::from_millis(whole);
        whole
    }
}
