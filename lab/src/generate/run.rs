//! Fills a backend: workers take batches of keys, at a rate or as fast as the backend goes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::backends::Filler;
use super::fill::{Fill, Filled, SPARE_MEMORY};
use super::taken::Taken;

/// So many keys take no memory to speak of: a sample is also taken of a machine that a fill has left with little.
const SAMPLE: u64 = 10_000;

impl Fill {
    /// Locks the keys. `taken` counts the locks while they are acquired.
    ///
    /// # Errors
    /// The servers could not be reached at the start. A refusal later is the end of the fill, and its reason.
    pub async fn run(&self, taken: &Arc<Taken>) -> Result<Filled, String> {
        let fillers = Filler::connect(self).await?;
        let batch = self.rate.map_or(fillers.batch, |rate| fillers.batch.min(whole(rate / 10.0).max(1)));
        let source = Arc::new(Source {
            begin: Instant::now(),
            next: AtomicU64::new(0),
            ended: Mutex::new(None),
            batch,
            fill: self.clone(),
            meminfo,
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
        Ok(Filled { keys: taken.count(), took: source.begin.elapsed(), ended })
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
    meminfo: fn() -> String,
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
        if let Some(spare) = self.low_memory(first) {
            self.ended.lock().get_or_insert(format!("the machine had only {spare} of memory left"));
            return None;
        }
        Some(first..self.fill.keys.min(first + self.batch))
    }

    /// The machine's memory, if it is too low for a fill that comes to this key.
    fn low_memory(&self, first: u64) -> Option<Memory> {
        let memory = (first >= SAMPLE).then(|| Memory::of(&(self.meminfo)()))?;
        memory.filter(Memory::is_low)
    }
}

fn meminfo() -> String {
    std::fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// The machine's memory, in MiB.
#[derive(Debug, PartialEq)]
struct Memory {
    available: u64,
    total: u64,
}

impl Memory {
    /// What /proc/meminfo says; none where the system does not say so.
    fn of(meminfo: &str) -> Option<Memory> {
        let mib = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? >> 10)
        };
        Some(Memory { available: mib("MemAvailable:")?, total: mib("MemTotal:")? })
    }

    fn is_low(&self) -> bool {
        (self.available as f64) < self.total as f64 * SPARE_MEMORY
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory { available, total } = self;
        write!(f, "{available} of {total} MiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dlock::Backend;
    use crate::generate::fill::Lasts;

    fn source(rate: Option<f64>, until: Option<Instant>) -> Source {
        let fill = Fill {
            backend: Backend::Redis,
            endpoints: Vec::new(),
            keys: 25,
            prefix: String::new(),
            seed: 1,
            step: 1,
            lasts: Lasts::For(Duration::ZERO),
            share: 1,
            rate,
            until,
        };
        Source { begin: Instant::now(), next: AtomicU64::new(0), ended: Mutex::new(None), batch: 10, fill, meminfo }
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

    #[test]
    fn available_memory_is_read_from_the_system() {
        let memory =
            |mib: u64| Memory::of(&format!("MemTotal:  5120000 kB\nMemAvailable:  {} kB\n", mib << 10)).unwrap();
        assert_eq!(memory(2000), Memory { available: 2000, total: 5000 });
        assert!(!memory(2000).is_low() && memory(1999).is_low());
        assert_eq!(memory(2000).to_string(), "2000 of 5000 MiB");
        assert_eq!(Memory::of("MemTotal: 1 kB\n"), None);
        assert!(Memory::of(&meminfo()).is_some(), "Linux says so");
    }

    /// Goal: a machine with little memory ends a fill, and lets a sample of keys be taken.
    #[tokio::test]
    async fn a_fill_ends_when_memory_is_low_and_a_sample_does_not() {
        let mut source = source(None, None);
        (source.fill.keys, source.batch) = (2 * SAMPLE, SAMPLE / 2);
        source.meminfo = || "MemTotal: 5120000 kB\nMemAvailable: 1024 kB\n".to_owned();
        assert_eq!(source.next().await, Some(0..SAMPLE / 2));
        assert_eq!(source.next().await, Some(SAMPLE / 2..SAMPLE));
        assert_eq!(source.next().await, None);
        assert_eq!(source.ended.lock().as_deref(), Some("the machine had only 1 of 5000 MiB of memory left"));
    }

    #[tokio::test]
    async fn a_fill_ends_when_its_time_is_over() {
        let source = source(None, Some(Instant::now()));
        assert_eq!(source.next().await, None);
        assert_eq!(source.ended.lock().as_deref(), Some("the time for it was over after 0 s"));
    }
}
