//! One attempt: acquire, hold, release; and what is recorded about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_history::{Answer, Call, Client, Key, Pending, Recorder, Refusal, Session};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::dlock::{Error, Handle, Locks, Released, Request};
use crate::event::{micros, millis};
use crate::metrics::Metrics;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The lock was granted.
    Granted {
        /// The fencing token.
        token: u64,
    },
    /// It waited in vain.
    Timeout,
    /// A server could not be reached or has refused.
    Failed {
        /// The backend, the server and what it answered.
        error: String,
    },
    /// It was not started: as many attempts were in flight as there are contenders.
    Overflow,
}

/// What the release did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// There was nothing to release.
    None,
    /// The lock was released.
    Done,
    /// The lock was lost before.
    NotOwner,
    /// A server could not be reached or has refused.
    Failed {
        /// The backend, the server and what it answered.
        error: String,
    },
}

impl Release {
    /// What a release did. It also ends the operation in the history.
    pub(crate) fn recorded(pending: Pending, released: Result<Released, Error>) -> Release {
        match released {
            Ok(Released::Done) => {
                pending.ok(Answer::Released);
                Release::Done
            }
            Ok(Released::NotOwner) => {
                pending.fail(Refusal::NotHolder);
                Release::NotOwner
            }
            Err(error) => {
                let error = error.to_string();
                pending.info(&error);
                Release::Failed { error }
            }
        }
    }
}

/// What became of an arrival. Times are in microseconds since the start of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number, in the order of the schedule.
    pub number: u64,
    /// The number of its key.
    pub key: u64,
    /// When it was meant to start.
    pub intended_us: u64,
    /// When it started.
    pub arrived_us: u64,
    /// When it was granted, timed out or failed.
    pub ended_us: u64,
    /// When its release was answered.
    pub finished_us: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What its release did.
    pub release: Release,
}

impl Attempt {
    /// Whether it was granted.
    #[must_use]
    pub fn granted(&self) -> bool {
        matches!(self.outcome, Outcome::Granted { .. })
    }

    /// Whether it was in the queue until its end, as far as its client knows.
    #[must_use]
    pub fn waited(&self) -> bool {
        matches!(self.outcome, Outcome::Granted { .. } | Outcome::Timeout)
    }

    /// From the intended start to the end of the acquire.
    #[must_use]
    pub fn latency_us(&self) -> u64 {
        self.ended_us.saturating_sub(self.intended_us)
    }
}

/// What all attempts of a run use.
pub struct Contender {
    /// The lock service.
    pub locks: Arc<dyn Locks>,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
    /// Records what happens.
    pub recorder: Recorder,
    /// Numbers the grants in the history, if the backend has no tokens that order them.
    pub numbers: Option<AtomicU64>,
    /// What the keys' names begin with.
    pub keys: String,
    /// What the owners' names begin with: unique to the process.
    pub owners: String,
    /// How long a lock lasts.
    pub ttl: Duration,
    /// How long an attempt waits.
    pub wait: Duration,
    /// How long a lock is held.
    pub work: Duration,
}

impl std::fmt::Debug for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contender").field("locks", &self.locks).field("owners", &self.owners).finish_non_exhaustive()
    }
}

impl Contender {
    /// Makes an attempt. `start` is the start of the run, `intended` the attempt's own.
    pub async fn attempt(&self, number: u64, key: u64, start: Instant, intended: Duration) -> Attempt {
        let name = format!("{}-{key}", self.keys);
        let owner = format!("{}-{number}", self.owners);
        let since = || micros(start.elapsed());
        let request = Request { owner: owner.clone(), ttl: self.ttl, wait: self.wait };
        let client = Client::from(owner.as_str());
        let pending = self.recorder.invoke(&client, self.acquire_call(&name));
        self.metrics.attempts.inc();
        let arrived_us = since();
        let acquired = self.locks.acquire(&name, &request).await;
        let ended_us = since();
        let (outcome, release) = match acquired {
            Ok(handle) => {
                self.metrics.acquired.inc();
                self.metrics.acquire_seconds.observe(ended_us.saturating_sub(micros(intended)) as f64 / 1e6);
                let token = handle.fence();
                (Outcome::Granted { token }, self.hold(handle, &client, pending).await)
            }
            Err(Error::Timeout { .. }) => {
                self.metrics.timeouts.inc();
                // An acquire that does not wait would have to name the holder's token, which backends do not tell.
                match self.wait.is_zero() {
                    true => pending.info("the lock is held"),
                    false => pending.fail(Refusal::Timeout),
                }
                (Outcome::Timeout, Release::None)
            }
            Err(error) => {
                let error = error.to_string();
                pending.info(&error);
                (Outcome::Failed { error }, Release::None)
            }
        };
        let intended_us = micros(intended);
        Attempt { number, key, intended_us, arrived_us, ended_us, finished_us: since(), outcome, release }
    }

    fn acquire_call(&self, key: &str) -> Call {
        let (wait_ms, ttl_ms) = (millis(self.wait), Some(millis(self.ttl)));
        Call::acquire_one(Key::from(key), wait_ms, ttl_ms)
    }

    /// Works under the lock and releases it. In the history, each grant is a session of its own.
    async fn hold(&self, handle: Handle, client: &Client, acquire: Pending) -> Release {
        let granted = Instant::now();
        let session = Session::from(&*client.0);
        let token = match &self.numbers {
            Some(numbers) => numbers.fetch_add(1, Ordering::Relaxed),
            None => handle.fence(),
        };
        acquire.ok(Answer::Granted { session: session.clone(), token });
        if !self.work.is_zero() {
            tokio::time::sleep(self.work).await;
        }
        let call = Call::Release { keys: Key::from(handle.key()).into(), session, token, number: None };
        let pending = self.recorder.invoke(client, call);
        let released = handle.release().await;
        self.metrics.held_seconds.observe(granted.elapsed().as_secs_f64());
        let release = Release::recorded(pending, released);
        if release == Release::NotOwner {
            self.metrics.not_owner.inc();
        }
        release
    }
}
