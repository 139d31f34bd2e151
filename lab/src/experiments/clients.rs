//! Clients of this process for the experiments `failover` and `clocks`, each of which does a step when the experiment
//! says so. Here the servers break, and not the clients.
//!
//! A client acquires the key and reads the value, later writes the value back with a line of its own, and releases. An
//! acquire that finds no server is repeated, as usual clients do.

mod jobs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_history::{Answer, Call, Client, Key, Recorder, Refusal, Session};

pub use self::jobs::{Grant, Job, Wrote, tokens_not_above, whole};
use crate::contend::attempt::Release;
use crate::dlock::{Error, Handle, Locks, Request};
use crate::event::{micros, millis};
use crate::history::{self, Judgement};
use crate::metrics::Metrics;
use crate::resource::client::{self, Client as Resource};
use crate::resource::log::Op;
use crate::worker::job;

/// The pause before an acquire that has failed is repeated.
const RETRY: Duration = Duration::from_millis(10);

/// The clients of one key. The key's history is recorded on its own: the tokens of some backends compare within one key
/// only.
pub struct Clients {
    locks: Arc<dyn Locks>,
    metrics: Arc<Metrics>,
    /// `http://HOST:PORT` of the resource.
    resource: String,
    key: String,
    ttl: Duration,
    wait: Duration,
    origin: Instant,
    recorder: Recorder,
}

/// A client that holds the lock, as far as it knows.
#[derive(Debug)]
pub struct Holder {
    /// Its job so far.
    pub job: Job,
    handle: Handle,
    /// The value as it was read after the grant.
    value: String,
}

impl Holder {
    /// The client ends like a process that is killed: it neither writes nor releases.
    #[must_use]
    pub fn leave(self) -> Job {
        self.job
    }
}

impl Clients {
    /// Clients of a key, of the lock and of the resource.
    #[must_use]
    pub fn new(
        (locks, metrics): (&Arc<dyn Locks>, &Arc<Metrics>),
        resource: &str,
        key: &str,
        (ttl, wait): (Duration, Duration),
        origin: Instant,
    ) -> Arc<Clients> {
        let recorder = history::in_memory();
        let (locks, metrics) = (locks.clone(), metrics.clone());
        let (resource, key) = (resource.to_owned(), key.to_owned());
        Arc::new(Clients { locks, metrics, resource, key, ttl, wait, origin, recorder })
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    fn now(&self) -> u64 {
        micros(self.origin.elapsed())
    }

    fn resource(&self, owner: &str) -> Result<Resource, String> {
        Resource::new(&self.resource, owner)
    }

    /// Acquires the lock and reads the value. The inner error is a job that was not granted the lock.
    ///
    /// # Errors
    /// The resource fails.
    pub async fn acquire(&self, owner: &str) -> Result<Result<Holder, Job>, String> {
        let mut job = Job { owner: owner.to_owned(), asked_us: self.now(), ..Job::default() };
        let (client, begun) = (Client::from(owner), Instant::now());
        loop {
            let wait = self.wait.saturating_sub(begun.elapsed());
            let call = Call::acquire_one(Key::from(self.key.as_str()), millis(wait), Some(millis(self.ttl)));
            let pending = self.recorder.invoke(&client, call);
            self.metrics.attempts.inc();
            let request = Request { owner: owner.to_owned(), ttl: self.ttl, wait };
            match self.locks.acquire(&self.key, &request).await {
                Ok(handle) => {
                    self.metrics.acquired.inc();
                    self.metrics.acquire_seconds.observe(begun.elapsed().as_secs_f64());
                    let token = handle.fence();
                    pending.ok(Answer::Granted { session: Session::from(owner), token });
                    job.granted = Some(Grant { at_us: self.now(), token });
                    let value = self.resource(owner)?.read(&self.key).await?;
                    let value = value.map(|value| value.value).unwrap_or_default();
                    return Ok(Ok(Holder { job, handle, value }));
                }
                Err(Error::Timeout { .. }) => {
                    self.metrics.timeouts.inc();
                    pending.info("the wait is over");
                    return Ok(Err(job));
                }
                Err(error) => {
                    pending.info(error.to_string());
                    job.error.get_or_insert(error.to_string());
                    if begun.elapsed() >= self.wait {
                        return Ok(Err(job));
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Writes the value that was read, with the client's line.
    ///
    /// # Errors
    /// The resource fails.
    pub async fn write(&self, holder: &mut Holder) -> Result<(), String> {
        let (owner, token) = (holder.job.owner.as_str(), holder.handle.fence());
        let body = format!("{}{}", holder.value, job::line(owner, 1, token));
        let call = Call::write(Key::from(self.key.as_str()), token);
        let pending = self.recorder.invoke(&Client::from(owner), call);
        let answer = self.resource(owner)?.write(&self.key, Op::Put, token, &body).await?;
        let at_us = self.now();
        holder.job.wrote = Some(match answer {
            client::Answer::Accepted { .. } => {
                self.metrics.writes.inc();
                pending.ok(Answer::Accepted);
                Wrote::Accepted { at_us }
            }
            client::Answer::Stale { seen } => {
                self.metrics.stale_tokens.inc();
                pending.fail(Refusal::Refused);
                Wrote::Refused { at_us, seen }
            }
            client::Answer::Untrusted { error } => return Err(error),
        });
        Ok(())
    }

    /// Releases the lock. A release that fails is a part of the result.
    pub async fn release(&self, holder: Holder) -> Job {
        let Holder { mut job, handle, .. } = holder;
        let granted = handle.granted_at;
        let (session, token) = (Session::from(job.owner.as_str()), handle.fence());
        let call = Call::Release { keys: Key::from(self.key.as_str()).into(), session, token, number: None };
        let pending = self.recorder.invoke(&Client::from(job.owner.as_str()), call);
        job.release_us = Some(self.now());
        let release = Release::recorded(pending, handle.release().await);
        self.metrics.held_seconds.observe(granted.elapsed().as_secs_f64());
        self.metrics.not_owner.inc_by((release == Release::NotOwner).into());
        job.release = Some(release);
        job
    }

    /// Acquires, holds the lock, writes and releases.
    ///
    /// # Errors
    /// The resource fails.
    pub async fn job(&self, owner: &str, hold: Duration) -> Result<Job, String> {
        match self.acquire(owner).await? {
            Err(job) => Ok(job),
            Ok(mut holder) => {
                tokio::time::sleep(hold).await;
                self.write(&mut holder).await?;
                Ok(self.release(holder).await)
            }
        }
    }

    /// What the checkers say of the key's history.
    ///
    /// # Errors
    /// The history is not well-formed, which is a bug of the lab.
    pub fn judge(&self) -> Result<Judgement, String> {
        let history = self.recorder.history().map_err(|error| format!("the history of {}: {error}", self.key))?;
        Ok(Judgement::of(&history))
    }

    /// The value at the end.
    ///
    /// # Errors
    /// The resource fails.
    pub async fn value(&self) -> Result<String, String> {
        let value = self.resource("experiment")?.read(&self.key).await?;
        Ok(value.map(|value| value.value).unwrap_or_default())
    }
}
