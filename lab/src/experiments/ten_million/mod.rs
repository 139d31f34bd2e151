//! Experiment `ten-million`: very many short-lived locks, which are never released: what they take while they are held, and
//! what becomes of them when their TTLs have passed.
//!
//! | module | contents |
//! |---|---|
//! | [`cases`] | a fill whose locks all end at the same moment |
//! | [`etcd`], [`redis`], [`redlock`], [`zookeeper`], [`palisade`] | what is asked of each backend |
//! | [`watch`] | samples of memory, disk and number of locks |
//! | [`sample`] | the history of a sample of the keys |
//! | [`page`] | the page |

pub mod cases;
pub mod etcd;
pub mod page;
pub mod palisade;
pub mod redis;
pub mod redlock;
pub mod sample;
pub mod watch;
pub mod zookeeper;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::sample::Sampled;
use self::watch::Sample;
use super::{Context, Found};
use crate::dlock::Backend;

/// The number of keys of the committed page.
pub const KEYS: u64 = 10_000_000;

/// What was found on one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Number of keys that were asked for.
    pub keys: u64,
    /// The cases.
    pub cases: Vec<Case>,
    /// Limits and steps, with what the backend answered.
    pub notes: Vec<Note>,
}

/// A fill, and the expiry of its locks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Locks that were asked for.
    pub asked: u64,
    /// Locks that were acquired.
    pub taken: u64,
    /// How long acquiring them took.
    pub fill_ms: u64,
    /// Why not all were acquired.
    pub ended: Option<String>,
    /// Whether acquiring ended before the first TTLs were over: then all locks were held at the same time.
    pub in_time: bool,
    /// When all TTLs had passed, since the beginning.
    pub passed_ms: u64,
    /// When the backend had no lock any more; none: it still had some when the case was ended.
    pub gone_ms: Option<u64>,
    /// Memory, disk and locks over time.
    pub samples: Vec<Sample>,
    /// What the checkers say of a sample of the keys; none in runs that recorded no history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Sampled>,
}

/// A finding in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What was done.
    pub what: String,
    /// What came of it.
    pub found: String,
}

impl Note {
    fn new(what: impl Into<String>, found: impl Into<String>) -> Note {
        Note { what: what.into(), found: found.into() }
    }
}

impl Case {
    /// Locks a second while they were acquired.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.taken as f64 * 1e3 / self.fill_ms.max(1) as f64
    }

    /// From the end of all TTLs until no lock was left, in milliseconds.
    #[must_use]
    pub fn reclaim_ms(&self) -> Option<u64> {
        Some(self.gone_ms?.saturating_sub(self.passed_ms))
    }

    /// Bytes for each lock: the growth of a value from the first sample to its greatest before the TTLs had passed.
    #[must_use]
    pub fn per_lock(&self, value: impl Fn(&Sample) -> u64) -> Option<u64> {
        let held = || self.samples.iter().filter(|sample| sample.at_ms <= self.passed_ms);
        let (first, most) = (value(held().next()?), held().map(&value).max()?);
        let locks = held().map(|sample| sample.locks).max()?;
        (locks > 0).then(|| most.saturating_sub(first) / locks)
    }

    /// The first sample after all TTLs had passed.
    #[must_use]
    pub fn at_passed(&self) -> Option<&Sample> {
        self.samples.iter().find(|sample| sample.at_ms >= self.passed_ms)
    }
}

/// Runs the cases of one backend.
///
/// # Errors
/// The servers cannot be used.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    match context.backend {
        Backend::Redis => redis::run(context).await,
        Backend::Etcd => etcd::run(context).await,
        Backend::Palisade => palisade::run(context).await,
        Backend::Redlock => redlock::run(context).await,
        Backend::ZooKeeper => zookeeper::run(context).await,
        Backend::EtcdLock => Err("ten-million has no case for etcd-lock: its leases are those of etcd".to_owned()),
    }
}

/// How long a fill may take.
fn fill_limit(context: &Context, limit: Duration) -> Duration {
    context.duration.unwrap_or(limit)
}

/// How long the cases of a backend take, in seconds, by the rates of the committed page: fills end at their limits, and then
/// all locks must end.
pub(super) fn seconds(backend: Backend, keys: Option<u64>, duration: Option<Duration>) -> f64 {
    let part = keys.unwrap_or(KEYS) as f64 / KEYS as f64;
    let fill = |seconds: f64, limit: Duration| (seconds * part).min(duration.unwrap_or(limit).as_secs_f64());
    match backend {
        Backend::Redis => fill(41.0, Duration::from_secs(300)) + 60.0 * part + 63.0,
        Backend::Redlock => fill(11.0, redlock::LIMIT) + 24.0,
        Backend::ZooKeeper => {
            fill(19.0, zookeeper::LIMIT) + 29.0 + zookeeper::LATER.iter().sum::<Duration>().as_secs_f64()
        }
        Backend::Palisade => fill(456.0, palisade::LIMIT) + fill(12.0, palisade::LIMIT) + 600.0 * part + 68.0,
        Backend::Etcd | Backend::EtcdLock => {
            let (each, shared) = (fill(28.0, etcd::EACH_LIMIT), fill(860.0, etcd::SHARED_LIMIT));
            // As many locks end a second as are acquired.
            each + 50.0 * part + 1.2 * shared + shared + 78.0
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_summed_up() {
        let sample = |at_ms, locks, resident| Sample { at_ms, locks, resident, ..Sample::default() };
        let case = Case {
            taken: 100,
            fill_ms: 50,
            passed_ms: 300,
            gone_ms: Some(500),
            samples: vec![sample(0, 0, 1_000), sample(200, 100, 21_000), sample(310, 80, 50_000)],
            ..Case::default()
        };
        assert!((case.rate() - 2_000.0).abs() < 1e-9);
        assert_eq!(case.reclaim_ms(), Some(200));
        // What the process takes after the TTLs have passed is no longer the price of held locks.
        assert_eq!(case.per_lock(|sample| sample.resident), Some(200));
        assert_eq!(case.at_passed().map(|sample| sample.locks), Some(80));
        assert_eq!(Case::default().per_lock(|sample| sample.resident), None);
    }
}
