//! Fills a backend: workers take batches of keys, at a rate or as fast as the backend goes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::backends::Filler;
use crate::dlock::Backend;

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
    /// The key with this number.
    #[must_use]
    pub fn key(&self, number: u64) -> String {
        key(&self.prefix, self.seed, number)
    }

    /// Locks the keys. `taken` counts the locks while they are acquired.
    ///
    /// # Errors
    /// The servers could not be reached at the start. A refusal later is the end of the fill, and its reason.
    pub async fn run(&self, taken: &Arc<AtomicU64>) -> Result<Filled, String> {
        let fillers = Filler::connect(self).await?;
        let batch = self.rate.map_or(fillers.batch, |rate| fillers.batch.min(whole(rate / 10.0).max(1)));
        let source = Arc::new(Source {
            begin: Instant::now(),
            next: AtomicU64::new(0),
            ended: Mutex::new(None),
            batch,
            fill: self.clone(),
        });
        let mut tasks = JoinSet::new();
        for mut filler in fillers.workers {
            let (source, taken) = (source.clone(), taken.clone());
            tasks.spawn(async move {
                while let Some(numbers) = source.next().await {
                    if let Some(refusal) = filler.take(numbers, &taken).await {
                        source.ended.lock().get_or_insert(refusal);
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(|error| format!("a bug of the lab: {error}"))?;
        }
        let ended = source.ended.lock().take();
        Ok(Filled { keys: taken.load(Ordering::Relaxed), took: source.begin.elapsed(), ended })
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(number: f64) -> u64 {
    number as u64
}

/// Hands out batches of keys.
struct Source {
    begin: Instant,
    next: AtomicU64,
    ended: Mutex<Option<String>>,
    batch: u64,
    fill: Fill,
}

impl Source {
    /// The next batch, when the rate allows it.
    async fn next(&self) -> Option<Range<u64>> {
        if self.ended.lock().is_some() {
            return None;
        }
        let first = self.next.fetch_add(self.batch, Ordering::Relaxed);
        if first >= self.fill.keys {
            return None;
        }
        if let Some(rate) = self.fill.rate {
            tokio::time::sleep_until((self.begin + Duration::from_secs_f64(first as f64 / rate)).into()).await;
        }
        if self.fill.until.is_some_and(|until| Instant::now() >= until) {
            let after = self.begin.elapsed().as_secs();
            self.ended.lock().get_or_insert(format!("the time for it was over after {after} s"));
            return None;
        }
        Some(first..self.fill.keys.min(first + self.batch))
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

    fn source(rate: Option<f64>, until: Option<Instant>) -> Source {
        let fill = Fill {
            backend: Backend::Redis,
            endpoints: Vec::new(),
            keys: 25,
            prefix: String::new(),
            seed: 1,
            lasts: Lasts::For(Duration::ZERO),
            share: 1,
            rate,
            until,
        };
        Source { begin: Instant::now(), next: AtomicU64::new(0), ended: Mutex::new(None), batch: 10, fill }
    }

    #[tokio::test]
    async fn batches_cover_all_keys_at_the_rate() {
        let source = source(Some(200.0), None);
        let mut batches = Vec::new();
        while let Some(batch) = source.next().await {
            batches.push(batch);
        }
        assert_eq!(batches, [0..10, 10..20, 20..25]);
        assert!(source.begin.elapsed() >= Duration::from_millis(100), "20 keys at 200 a second take 100 ms");
        assert_eq!(*source.ended.lock(), None);
    }

    #[tokio::test]
    async fn a_fill_ends_when_its_time_is_over() {
        let source = source(None, Some(Instant::now()));
        assert_eq!(source.next().await, None);
        assert_eq!(source.ended.lock().as_deref(), Some("the time for it was over after 0 s"));
    }
}
