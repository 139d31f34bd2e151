//! Makes the attempts of a run.
//!
//! In the open model, attempts start when the schedule says so, whether earlier ones have ended or not,
//! and all latencies count from the intended start. So an attempt that stands behind a slow one shows
//! the delay in its own latency. The bound on attempts in flight is the number of contenders: an arrival
//! that finds them all busy is not started, is counted as an overflow, and has no latency. Only a run
//! without overflow leaves no delay out (coordinated omission): give it more contenders than can wait.
//!
//! In the closed model each contender makes one attempt after the other. With a rate, each has a
//! schedule of its own, and latencies count from the intended start as well.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::attempt::{Attempt, Contender, Outcome, Release};
use super::schedule::{Gaps, Schedule};
use crate::event::micros;

/// Where attempts come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Model {
    /// Attempts arrive at so many a second, whatever becomes of the earlier ones.
    Open {
        /// Arrivals a second, above zero.
        rate: f64,
    },
    /// Each contender starts an attempt after its last one has ended.
    Closed {
        /// Attempts a second that all contenders together make at most; none: without a pause.
        rate: Option<f64>,
    },
}

/// The load of a run.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Where attempts come from.
    pub model: Model,
    /// The gaps between arrivals.
    pub gaps: Gaps,
    /// Attempts in flight at most.
    pub contenders: usize,
    /// Number of keys.
    pub keys: u64,
    /// How long attempts arrive. Those in flight then come to their ends.
    pub duration: Duration,
    /// Seed of arrivals and keys.
    pub seed: u64,
}

/// Ends the arrivals of a run before its time; attempts in flight come to their ends.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<bool>);

impl Default for Stop {
    fn default() -> Stop {
        Stop(watch::Sender::new(false))
    }
}

impl Stop {
    /// Ends the arrivals.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Waits for the moment; false if the arrivals ended before.
    async fn sleep_until(&self, moment: Instant) -> bool {
        let mut stopped = self.0.subscribe();
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => false,
            () = tokio::time::sleep_until(moment) => true,
        }
    }
}

/// Makes the attempts, and waits until all of them have ended. They are in the order of their numbers.
pub async fn run(contender: Arc<Contender>, load: &Load, stop: &Stop) -> Vec<Attempt> {
    let mut attempts = match load.model {
        Model::Open { rate } => open(contender, load, rate, stop).await,
        Model::Closed { rate } => closed(contender, load, rate, stop).await,
    };
    attempts.sort_by_key(|attempt| (attempt.intended_us, attempt.number));
    attempts
}

async fn open(contender: Arc<Contender>, load: &Load, rate: f64, stop: &Stop) -> Vec<Attempt> {
    let free = Arc::new(Semaphore::new(load.contenders));
    let mut attempts = Vec::new();
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    let schedule = Schedule::new(rate, load.gaps, load.keys, load.seed);
    for (number, arrival) in (0..).zip(schedule.take_while(|arrival| arrival.at < load.duration)) {
        if !stop.sleep_until(start + arrival.at).await {
            break;
        }
        match free.clone().try_acquire_owned() {
            Ok(busy) => {
                let contender = contender.clone();
                tasks.spawn(async move {
                    let attempt = contender.attempt(number, arrival.key, start, arrival.at).await;
                    drop(busy);
                    attempt
                });
            }
            Err(_) => attempts.push(overflow(number, arrival.key, arrival.at, start)),
        }
        while let Some(ended) = tasks.try_join_next() {
            attempts.push(attempt_of(ended));
        }
    }
    while let Some(ended) = tasks.join_next().await {
        attempts.push(attempt_of(ended));
    }
    attempts
}

async fn closed(contender: Arc<Contender>, load: &Load, rate: Option<f64>, stop: &Stop) -> Vec<Attempt> {
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    let count = load.contenders as u64;
    for index in 0..count {
        let (contender, load, stop) = (contender.clone(), *load, stop.clone());
        tasks.spawn(async move {
            let mut attempts = Vec::new();
            // Without a rate only the keys of this schedule are used.
            let each = rate.map_or(1.0, |rate| rate / count as f64);
            let schedule = Schedule::new(each, load.gaps, load.keys, load.seed.wrapping_add(index));
            for arrival in schedule {
                let at = if rate.is_some() { arrival.at } else { start.elapsed() };
                if at >= load.duration || !stop.sleep_until(start + at).await {
                    break;
                }
                let number = index + count * attempts.len() as u64;
                attempts.push(contender.attempt(number, arrival.key, start, at).await);
            }
            attempts
        });
    }
    let mut attempts = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(some) => attempts.extend(some),
            Err(error) => attempts.push(attempt_of(Err(error))),
        }
    }
    attempts
}

fn overflow(number: u64, key: u64, at: Duration, start: Instant) -> Attempt {
    let now = micros(start.elapsed());
    Attempt {
        number,
        key,
        intended_us: micros(at),
        arrived_us: now,
        ended_us: now,
        finished_us: now,
        outcome: Outcome::Overflow,
        release: Release::None,
    }
}

/// The attempt of a task. A task that panicked is a failure, not a gap in the figures.
fn attempt_of(ended: Result<Attempt, JoinError>) -> Attempt {
    ended.unwrap_or_else(|error| Attempt {
        number: u64::MAX,
        key: 0,
        intended_us: 0,
        arrived_us: 0,
        ended_us: 0,
        finished_us: 0,
        outcome: Outcome::Failed { error: format!("a bug of the lab: {error}") },
        release: Release::None,
    })
}
