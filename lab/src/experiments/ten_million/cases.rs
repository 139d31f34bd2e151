//! A fill whose locks all end at the same moment, and what becomes of them then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Case;
use super::sample::{RIVAL, Record};
use super::watch::Watch;
use crate::dlock::Backend;
use crate::event::micros;
use crate::generate::fill::{Fill, Lasts};
use crate::generate::taken::Taken;
use crate::metrics::Metrics;
use crate::servers::Cluster;

/// How long the locks of the calibration run may take to end.
const CALIBRATION_ENDS: Duration = Duration::from_secs(5);
/// Time between the estimated end of the fill and the end of all TTLs.
const SLACK: Duration = Duration::from_secs(15);
/// How long the waiters of the second client may count as locks.
const WAITERS_END: Duration = Duration::from_secs(5);

/// What to fill.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The case's name, and what keys begin with.
    pub name: &'a str,
    /// The lock service.
    pub backend: Backend,
    /// Its servers.
    pub cluster: &'a Cluster,
    /// Number of locks.
    pub keys: u64,
    /// Locks on each session or lease.
    pub share: u64,
    /// How long the fill may take.
    pub fill_limit: Duration,
    /// How many times as long as the calibration run promises, because the system slows down as it grows.
    pub margin: f64,
    /// How long to wait for the expiry after all TTLs have passed; zero: the caller waits.
    pub expiry_limit: Duration,
    /// Seed of the keys.
    pub seed: u64,
    /// Counts the acquires.
    pub metrics: &'a Arc<Metrics>,
}

impl Plan<'_> {
    /// Keys of this case, whose locks last so long.
    #[must_use]
    pub fn fill(&self, prefix: &str, keys: u64, lasts: Lasts) -> Fill {
        Fill {
            backend: self.backend,
            endpoints: self.cluster.endpoints().to_vec(),
            keys,
            prefix: prefix.to_owned(),
            seed: self.seed,
            step: 1,
            lasts,
            share: self.share,
            rate: None,
            until: None,
        }
    }

    /// Time between two samples: some hundred of them in a case.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_millis((self.keys / 5_000).clamp(100, 2_000))
    }

    /// Acquires the locks and waits until all TTLs have passed, and then until no lock is left.
    ///
    /// # Errors
    /// The servers cannot be used.
    pub async fn run(&self) -> Result<Case, String> {
        self.run_after_calibration(async || Ok(())).await
    }

    /// As [`Plan::run`], with a change of the servers between the calibration run and the fill.
    ///
    /// # Errors
    /// As [`Plan::run`], and those of the change.
    pub async fn run_after_calibration(&self, change: impl AsyncFn() -> Result<(), String>) -> Result<Case, String> {
        let Plan { name, backend, keys, .. } = *self;
        eprintln!("ten-million: {backend}: {name}: {keys} locks");
        // The calibration run measures the backend's speed, from which the TTL is computed.
        let calibration = (keys / 100).clamp(1_000, 50_000).min(keys);
        let calibration = self.fill(&format!("calibration-{name}"), calibration, Lasts::For(Duration::from_secs(1)));
        let filled = calibration.run(&Taken::new(self.metrics, None)).await?;
        let estimate = filled.took.mul_f64(self.margin * keys as f64 / filled.keys.max(1) as f64);
        // The locks of the calibration run end, so that they count in no sample.
        tokio::time::sleep(CALIBRATION_ENDS).await;
        change().await?;
        let watch = Watch::new(self.cluster, name).await?;
        let begin = Instant::now();
        let passed = begin + estimate.min(self.fill_limit) + SLACK;
        let recording = watch.record(self.interval());
        tokio::time::sleep(self.interval()).await;
        let mut fill = self.fill(name, keys, Lasts::Until(passed));
        fill.until = Some(begin + self.fill_limit);
        let record = Record::new(keys, self.metrics);
        let filled = fill.run(&record.of_fill()).await?;
        let seconds = filled.took.as_secs_f64();
        eprintln!(
            "ten-million: {backend}: {name}: {} locks after {seconds:.1} s{}",
            filled.keys,
            because(&filled.ended)
        );
        let in_time = Instant::now() < passed;
        // A fill that was slower than its calibration run ends after its first locks: the moment at which all have ended is
        // later.
        let all_passed = passed.max(Instant::now() + Duration::from_secs(1));
        let asked_from_ms = watch.elapsed_ms();
        let rivals = if in_time { Some(record.ask(RIVAL, &fill, filled.keys).await?) } else { None };
        // A lock whose TTL was over is no answer to the question.
        let rivals = rivals.filter(|_| Instant::now() < passed);
        let passed = all_passed;
        // Waiters of the second client count as locks with some backends: no sample of that time is kept.
        watch.until_left(filled.keys, WAITERS_END.min(passed.saturating_duration_since(Instant::now()))).await;
        let asked = asked_from_ms..=watch.elapsed_ms();
        tokio::time::sleep_until(passed.into()).await;
        let passed_ms = micros(passed - begin) / 1_000;
        let at_passed = watch.sample().await;
        let gone_ms = watch.until_left(0, self.expiry_limit).await;
        if !self.expiry_limit.is_zero() {
            let gone = gone_ms.map_or_else(
                || "not in time".to_owned(),
                |ms| format!("{} ms after their TTL", ms.saturating_sub(passed_ms)),
            );
            eprintln!("ten-million: {backend}: {name}: all locks gone: {gone}");
        }
        let last = watch.sample().await?;
        let mut samples = recording.end();
        samples.extend(at_passed.ok());
        samples.push(last);
        samples.retain(|sample| !asked.contains(&sample.at_ms));
        samples.sort_by_key(|sample| sample.at_ms);
        let mut again = None;
        if gone_ms.is_some() {
            again = Some(record.ask("next", &fill, filled.keys).await?.0);
            watch.until_left(0, self.expiry_limit).await;
        }
        let sampled = Some(record.judge(rivals, again, filled.keys)?);
        Ok(Case {
            name: name.to_owned(),
            asked: keys,
            taken: filled.keys,
            fill_ms: micros(filled.took) / 1_000,
            ended: filled.ended,
            in_time,
            passed_ms,
            gone_ms,
            samples,
            sampled,
        })
    }
}

fn because(ended: &Option<String>) -> String {
    ended.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
}
