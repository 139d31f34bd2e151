//! What a seed decides before anything happens: how large the cluster is, how it is set, how fast things go wrong.

use std::time::Duration;

use palisade::core::{SnapshotPolicy, Timing};
use rand::Rng;
use rand::rngs::SmallRng;

/// How one cluster is set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// How many nodes found it.
    pub(super) founders: u16,
    pub(super) timing: Timing,
    pub(super) policy: SnapshotPolicy,
    /// How long the segments of a log are.
    pub(super) segment_bytes: u64,
    pub(super) clients: u16,
    /// How many entries go into one message at the most.
    pub(super) max_batch: usize,
    /// How many entries are on their way to a follower at the most. A few messages: whatever arrives out of order makes a leader
    /// send all of its window again, and here everything may.
    pub(super) max_inflight: u64,
    /// How many entries a step commits at the most.
    pub(super) max_commits: u64,
    /// The time between two faults, on average.
    pub(super) pace: Duration,
    /// How much of a snapshot is sent at once.
    pub(super) piece: usize,
    /// How long a follower takes to load a snapshot that has arrived: longer than the next one is away, in some clusters.
    pub(super) loading: Duration,
}

/// How long faults last before the cluster is left in peace.
pub(super) const STORM: Duration = Duration::from_secs(40);
/// How long it is left in peace. At the end of it all is well again: this is the stated bound.
pub(super) const CALM: Duration = Duration::from_secs(10);
/// Within this after the last calm every waiter has its lock, or has given up.
pub(super) const CLOSING: Duration = Duration::from_secs(30);

impl Plan {
    /// What the seed decides.
    pub(super) fn draw(rng: &mut SmallRng) -> Plan {
        let election = Duration::from_millis([150, 150, 250, 400][rng.random_range(0..4)]);
        let (max_batch, window): (u64, u64) = (rng.random_range(1..64), rng.random_range(1..6));
        let max_inflight = max_batch * window;
        Plan {
            founders: if rng.random_bool(0.7) { 3 } else { 5 },
            timing: Timing::with_election_timeout(election),
            policy: SnapshotPolicy {
                log_bytes: rng.random_range(2..40) * 1024,
                interval: Duration::from_secs(rng.random_range(5..120)),
                margin: rng.random_range(0..100),
            },
            segment_bytes: rng.random_range(5..34) * 512,
            clients: rng.random_range(3..8),
            max_batch: usize::try_from(max_batch).expect("a small number"),
            max_inflight,
            max_commits: max_inflight.max(64) + rng.random_range(0..200),
            pace: Duration::from_millis(rng.random_range(300..4000)),
            piece: rng.random_range(64..2048),
            // Drawn from a copy: what follows does not depend on it.
            loading: Duration::from_millis(rng.clone().random_range(0..3000_u64).saturating_sub(1500)),
        }
    }
}
