//! Figures of the jobs and of the fate of their writes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contend::summary::Latency;
use crate::event::{Event, Line};
use crate::experiments::processes::Counts;
use crate::history::Judgement;

/// The cases of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The machine's load average before the run.
    pub load_average: String,
    /// Acquires without contention.
    pub acquire: Latency,
    /// Releases without contention.
    pub release: Latency,
    /// The cases.
    pub cases: Vec<WorkCase>,
}

/// A length of the work with a TTL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkCase {
    /// How long a job works between its read and its write.
    pub work_ms: u64,
    /// The TTL that was asked for.
    pub asked_ttl_ms: u64,
    /// The TTL that the backend granted.
    pub granted_ttl_ms: u64,
    /// Whether jobs show the resource their token before they read.
    pub fenced_read: bool,
    /// All jobs, in the order of their grants.
    pub jobs: Vec<Job>,
    /// Lines of jobs in the value at the end.
    pub kept: usize,
    /// What the resource counted. A fenced read counts as a write.
    pub counts: Counts,
    /// What the checkers say of the workers' history.
    pub workers_judged: Judgement,
    /// What the checkers say of the grants as the workers saw them, and the accesses as the resource did.
    pub resource_judged: Judgement,
}

/// A job. Times are in microseconds; moments count from the first request of the case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The worker's number.
    pub worker: usize,
    /// When it asked for the lock.
    pub asked_us: u64,
    /// When it was granted.
    pub granted_us: u64,
    /// From the grant to the answer to its write.
    pub used_us: u64,
    /// The fencing token.
    pub token: u64,
    /// What became of its write.
    pub write: Write,
    /// Whether the release found that the lock was not the job's any more.
    pub lost: bool,
}

/// What became of a job's write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Write {
    /// The resource accepted it.
    Accepted,
    /// The fence refused it, or the fenced read before it.
    Refused,
}

impl WorkCase {
    /// Whether the granted TTL is below the work.
    #[must_use]
    pub fn is_below(&self) -> bool {
        self.granted_ttl_ms < self.work_ms
    }

    fn count(&self, like: impl Fn(&Job) -> bool) -> usize {
        self.jobs.iter().filter(|job| like(job)).count()
    }

    /// Jobs whose lock was another's when they released it.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.count(|job| job.lost)
    }

    /// Jobs whose write the resource accepted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.count(|job| job.write == Write::Accepted)
    }

    /// Jobs whose write the resource refused.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.count(|job| job.write == Write::Refused)
    }

    /// Accepted writes whose line is not in the value at the end.
    #[must_use]
    pub fn dropped(&self) -> usize {
        self.accepted().saturating_sub(self.kept)
    }

    /// Jobs that took less than two thirds of the TTL. A waiter's lease is renewed once in a third of it, so two thirds are
    /// left at the grant on every backend.
    #[must_use]
    pub fn in_time(&self) -> usize {
        self.count(|job| self.is_in_time(job))
    }

    /// Of those, the jobs that have lost their lock.
    #[must_use]
    pub fn lost_in_time(&self) -> usize {
        self.count(|job| job.lost && self.is_in_time(job))
    }

    fn is_in_time(&self, job: &Job) -> bool {
        3 * job.used_us < 2 * 1000 * self.granted_ttl_ms
    }

    /// Whether both histories have as many violations as the resource has counted stale writes.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let found = [&self.workers_judged, &self.resource_judged].map(|judged| judged.resource.len() as u64);
        found == [self.counts.stale_accepted; 2]
    }

    /// Hand-overs a second, between the first grant and the last.
    #[must_use]
    pub fn handovers_per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.jobs.first(), self.jobs.last()) else { return 0.0 };
        (self.jobs.len() - 1) as f64 * 1e6 / last.granted_us.saturating_sub(first.granted_us).max(1) as f64
    }

    /// From the requests to the grants.
    #[must_use]
    pub fn waits(&self) -> Latency {
        Latency::of(self.jobs.iter().map(|job| job.granted_us.saturating_sub(job.asked_us)))
    }
}

impl Figures {
    /// Hand-overs a second if no two holders overlap: 1 / (work + acquire + release), of medians.
    #[must_use]
    pub fn ceiling(&self, work_ms: u64) -> f64 {
        1e6 / (work_ms * 1000 + self.acquire.p50_us + self.release.p50_us) as f64
    }
}

/// The jobs of all workers in the order of their grants, and the granted TTL.
///
/// # Errors
/// A job has no grant or no write.
pub(super) fn jobs(lines_of_workers: &[Vec<Line>]) -> Result<(u64, Vec<Job>), String> {
    let origin = lines_of_workers.iter().flatten().map(|line| line.clock_us).min().unwrap_or_default();
    let (mut granted_ttl_ms, mut jobs) = (0, Vec::new());
    for (worker, lines) in (1..).zip(lines_of_workers) {
        let mut by_job: BTreeMap<u64, Vec<&Line>> = BTreeMap::new();
        lines.iter().for_each(|line| by_job.entry(line.job).or_default().push(line));
        for lines in by_job.values() {
            let (ttl_ms, job) =
                job(worker, origin, lines).ok_or_else(|| format!("a job came to no write: {lines:?}"))?;
            granted_ttl_ms = ttl_ms;
            jobs.push(job);
        }
    }
    jobs.sort_by_key(|job| job.granted_us);
    Ok((granted_ttl_ms, jobs))
}

fn job(worker: usize, origin: u64, lines: &[&Line]) -> Option<(u64, Job)> {
    let find = |like: fn(&Event) -> bool| lines.iter().find(|line| like(&line.event)).copied();
    let asked = find(|event| matches!(event, Event::Acquiring))?;
    let granted = find(|event| matches!(event, Event::Acquired { .. }))?;
    let Event::Acquired { token, ttl_ms, .. } = granted.event else { return None };
    let ended = find(|event| matches!(event, Event::Written { .. } | Event::Refused { .. }))?;
    let write = if matches!(ended.event, Event::Written { .. }) { Write::Accepted } else { Write::Refused };
    let lost = find(|event| matches!(event, Event::NotOwner { .. })).is_some();
    let used_us = ended.clock_us.saturating_sub(granted.clock_us);
    let (asked_us, granted_us) = (asked.clock_us - origin, granted.clock_us - origin);
    Some((ttl_ms, Job { worker, asked_us, granted_us, used_us, token, write, lost }))
}
