//! The contents with which a backend is filled: keys from a seed, and the locks on them.

use std::time::{Duration, Instant};

use crate::dlock::Backend;

/// A fill ends when the machine has less than this part of its memory left. Servers go on growing behind the fill, and what
/// they map from files counts as available memory until the machine does nothing but read it again. Three etcd nodes with
/// 5.8 million locks grew by a quarter of it while the locks ended.
pub const SPARE_MEMORY: f64 = 0.4;

/// Keys, and the locks on them.
#[derive(Debug, Clone)]
pub struct Fill {
    /// The lock service.
    pub backend: Backend,
    /// Its servers.
    pub endpoints: Vec<String>,
    /// Number of keys.
    pub keys: u64,
    /// What keys begin with.
    pub prefix: String,
    /// Seed of the keys.
    pub seed: u64,
    /// The keys' numbers are the multiples of this.
    pub step: u64,
    /// How long locks last.
    pub lasts: Lasts,
    /// Locks that one session (Palisade) or lease (etcd) holds.
    pub share: u64,
    /// Locks a second at most.
    pub rate: Option<f64>,
    /// When to end although keys are left.
    pub until: Option<Instant>,
}

/// How long locks last.
#[derive(Debug, Clone, Copy)]
pub enum Lasts {
    /// So long, each from its acquire.
    For(Duration),
    /// All until the same moment; a lock that is acquired after it lasts for a second.
    Until(Instant),
}

impl Lasts {
    /// The TTL of a lock that is acquired now.
    #[must_use]
    pub fn ttl(self) -> Duration {
        match self {
            Lasts::For(ttl) => ttl,
            Lasts::Until(end) => end.saturating_duration_since(Instant::now()).max(Duration::from_secs(1)),
        }
    }
}

/// What became of a fill.
#[derive(Debug, Clone, PartialEq)]
pub struct Filled {
    /// Locks that were acquired.
    pub keys: u64,
    /// How long that took.
    pub took: Duration,
    /// Why the fill ended before all keys were locked.
    pub ended: Option<String>,
}

/// The key with this number: distinct for distinct numbers, and in scattered order. The output function of SplitMix64.
#[must_use]
pub fn key(prefix: &str, seed: u64, number: u64) -> String {
    let word = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    format!("{prefix}/{:016x}", word ^ (word >> 31))
}

impl Fill {
    /// The fill's key with this number.
    #[must_use]
    pub fn key(&self, number: u64) -> String {
        key(&self.prefix, self.seed, number * self.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_and_come_from_the_seed() {
        let keys: std::collections::BTreeSet<String> = (0..10_000).map(|number| key("gen", 7, number)).collect();
        assert_eq!(keys.len(), 10_000);
        assert_eq!(key("gen", 7, 3), key("gen", 7, 3));
        assert_ne!(key("gen", 7, 3), key("gen", 8, 3));
        // The first output of SplitMix64 for seed 0, as its authors publish it.
        assert_eq!(key("gen", 0, 0), "gen/e220a8397b1dcdaf");
    }

    #[test]
    fn locks_that_end_together_have_shorter_and_shorter_ttls() {
        let end = Instant::now() + Duration::from_secs(60);
        let ttl = Lasts::Until(end).ttl();
        assert!(ttl <= Duration::from_secs(60) && ttl > Duration::from_secs(50));
        assert_eq!(Lasts::Until(Instant::now()).ttl(), Duration::from_secs(1));
        assert_eq!(Lasts::For(Duration::from_secs(3)).ttl(), Duration::from_secs(3));
    }
}
