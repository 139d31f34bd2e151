//! The parameters that a seed determines before the run: cluster size, settings, and the rate of
//! faults.

use std::time::Duration;

use palisade::core::{SnapshotPolicy, Timing};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The parameters of one cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Number of founders.
    pub(super) founders: u16,
    pub(super) timing: Timing,
    pub(super) policy: SnapshotPolicy,
    /// Size of a log segment, in bytes.
    pub(super) segment_bytes: u64,
    pub(super) clients: u16,
    /// Maximum entries in one message.
    pub(super) max_batch: usize,
    /// Maximum entries in flight to a follower: a few messages' worth. A message that arrives out
    /// of order makes the leader resend its whole window, and here every message may.
    pub(super) max_inflight: u64,
    /// Maximum entries that a step commits.
    pub(super) max_commits: u64,
    /// Mean time between two faults.
    pub(super) fault_interval: Duration,
    /// Snapshot chunk size, in bytes.
    pub(super) chunk: usize,
    /// Time that a follower needs to load a received snapshot: longer than the interval to the next
    /// one, in some clusters.
    pub(super) loading: Duration,
    /// Bytes of the events that a node keeps for watchers.
    pub(super) watch_bytes: usize,
    /// Whether the clients have names, and set access rules.
    pub(super) has_access_control: bool,
}

/// Duration of a storm, in which faults happen.
pub(super) const STORM: Duration = Duration::from_secs(40);
/// Duration of a calm without faults. This is the bound within which the cluster must recover.
pub(super) const CALM: Duration = Duration::from_secs(10);
/// Bound after the last calm within which every waiter has its lock or has given up.
pub(super) const CLOSING: Duration = Duration::from_secs(30);

impl Plan {
    /// Draws the parameters.
    pub(super) fn draw(rng: &mut SmallRng) -> Plan {
        let election = Duration::from_millis([150, 150, 250, 400][rng.random_range(0..4)]);
        let (max_batch, window): (u64, u64) = (rng.random_range(1..64), rng.random_range(1..6));
        let max_inflight = max_batch * window;
        // Drawn apart, so that nothing else depends on it.
        let mut apart = SmallRng::seed_from_u64(rng.clone().random::<u64>().rotate_left(32));
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
            fault_interval: Duration::from_millis(rng.random_range(300..4000)),
            chunk: rng.random_range(64..2048),
            // Drawn from a copy of the generator, so that later draws do not depend on it.
            loading: Duration::from_millis(rng.clone().random_range(0..3000_u64).saturating_sub(1500)),
            watch_bytes: [1_500, 8_000, 1 << 20][apart.random_range(0..3)],
            has_access_control: rng.random_bool(0.4),
        }
    }
}
