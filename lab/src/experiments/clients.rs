//! What the experiments `failover` and `clocks` share: clients of this process, each of which does a step when the
//! experiment says so. Here the servers break, and not the clients.
//!
//! A client acquires the key and reads the value, later writes the value back with a line of its own, and releases. An
//! acquire that finds no server is repeated, as usual clients do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_history::{Answer, Call, Client, Key, Recorder, Refusal, Session};
use serde::{Deserialize, Serialize};

use crate::contend::attempt::Release;
use crate::dlock::{Error, Handle, Locks, Released, Request};
use crate::history::{DRIFT_PPM, Judgement};
use crate::resource::client::{self, Client as Resource};
use crate::resource::log::Op;
use crate::worker::event::{micros, millis};
use crate::worker::job;

/// The pause before an acquire that has failed is repeated.
const RETRY: Duration = Duration::from_millis(10);

/// The clients of one key. The key's history is recorded on its own: the tokens of some backends compare within one key
/// only.
pub struct Clients {
    locks: Arc<dyn Locks>,
    /// `http://HOST:PORT` of the resource.
    resource: String,
    key: String,
    ttl: Duration,
    wait: Duration,
    origin: Instant,
    recorder: Recorder,
}

/// What became of a client's job. Times are in microseconds since the start of the round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The client's name.
    pub owner: String,
    /// When it asked for the lock first.
    pub asked_us: u64,
    /// Its grant.
    pub granted: Option<Grant>,
    /// What the resource said to its write.
    pub wrote: Option<Wrote>,
    /// When it asked for the release.
    pub release_us: Option<u64>,
    /// What the release did.
    pub release: Option<Release>,
    /// Acquires that failed and were repeated: the first error.
    pub error: Option<String>,
}

/// A grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// When the client had it.
    pub at_us: u64,
    /// Its fencing token.
    pub token: u64,
}

/// What the resource said to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrote {
    /// Accepted.
    Accepted {
        /// When the client had the answer.
        at_us: u64,
    },
    /// Refused: the resource has seen a token that is not lower.
    Refused {
        /// When the client had the answer.
        at_us: u64,
        /// The highest token seen.
        seen: u64,
    },
}

impl Job {
    /// The grant's token and time.
    fn grant(&self) -> Option<(u64, u64)> {
        self.granted.map(|grant| (grant.at_us, grant.token))
    }

    /// Whether it was granted the lock.
    #[must_use]
    pub fn granted(&self) -> bool {
        self.granted.is_some()
    }

    /// Whether another client was granted the lock before this one asked for its release.
    #[must_use]
    pub fn overlaps(&self, other: &Job) -> bool {
        let (Some(held), Some(other)) = (self.granted, other.granted) else { return false };
        held.at_us < other.at_us && self.release_us.is_none_or(|release| other.at_us < release)
    }

    /// The token of an accepted write.
    #[must_use]
    pub fn accepted(&self) -> Option<u64> {
        matches!(self.wrote, Some(Wrote::Accepted { .. })).then(|| self.granted.map(|grant| grant.token))?
    }

    /// Whether its write was refused.
    #[must_use]
    pub fn refused(&self) -> bool {
        matches!(self.wrote, Some(Wrote::Refused { .. }))
    }
}

/// Grants whose token is not above those of all grants before it.
#[must_use]
pub fn tokens_not_above<'a>(jobs: impl IntoIterator<Item = &'a Job>) -> usize {
    let mut grants: Vec<_> = jobs.into_iter().filter_map(Job::grant).collect();
    grants.sort_unstable();
    let (mut highest, mut not_above) = (0, 0);
    for (_, token) in grants {
        not_above += usize::from(token <= highest);
        highest = highest.max(token);
    }
    not_above
}

/// Whether the value has the line of each accepted write.
#[must_use]
pub fn whole<'a>(value: &str, jobs: impl IntoIterator<Item = &'a Job>) -> bool {
    let mut accepted: Vec<_> = jobs.into_iter().filter_map(Job::accepted).collect();
    let mut stored = job::lines(value);
    accepted.sort_unstable();
    stored.sort_unstable();
    stored == accepted
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
        locks: &Arc<dyn Locks>,
        resource: &str,
        key: &str,
        (ttl, wait): (Duration, Duration),
        origin: Instant,
    ) -> Arc<Clients> {
        let recorder = Recorder::in_memory();
        recorder.drift(DRIFT_PPM);
        let (locks, resource, key) = (locks.clone(), resource.to_owned(), key.to_owned());
        Arc::new(Clients { locks, resource, key, ttl, wait, origin, recorder })
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
            let call = Call::Acquire {
                key: Key::from(self.key.as_str()),
                session: None,
                number: None,
                wait_ms: millis(wait),
                ttl_ms: Some(millis(self.ttl)),
            };
            let pending = self.recorder.invoke(&client, call);
            let request = Request { owner: owner.to_owned(), ttl: self.ttl, wait };
            match self.locks.acquire(&self.key, &request).await {
                Ok(handle) => {
                    let token = handle.fence();
                    pending.ok(Answer::Granted { session: Session::from(owner), token });
                    job.granted = Some(Grant { at_us: self.now(), token });
                    let value = self.resource(owner)?.read(&self.key).await?;
                    let value = value.map(|value| value.value).unwrap_or_default();
                    return Ok(Ok(Holder { job, handle, value }));
                }
                Err(Error::Timeout { .. }) => {
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
        let call = Call::Access { key: Key::from(self.key.as_str()), token };
        let pending = self.recorder.invoke(&Client::from(owner), call);
        let answer = self.resource(owner)?.write(&self.key, Op::Put, token, &body).await?;
        let at_us = self.now();
        holder.job.wrote = Some(match answer {
            client::Answer::Accepted { .. } => {
                pending.ok(Answer::Accepted);
                Wrote::Accepted { at_us }
            }
            client::Answer::Stale { seen } => {
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
        let (session, token) = (Session::from(job.owner.as_str()), handle.fence());
        let call = Call::Release { key: Key::from(self.key.as_str()), session, token, number: None };
        let pending = self.recorder.invoke(&Client::from(job.owner.as_str()), call);
        job.release_us = Some(self.now());
        job.release = Some(match handle.release().await {
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
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn job(at_us: u64, token: u64, release_us: u64) -> Job {
        let granted = Some(Grant { at_us, token });
        let wrote = Some(Wrote::Accepted { at_us });
        Job { granted, wrote, release_us: Some(release_us), ..Job::default() }
    }

    #[test]
    fn grant_before_the_release_of_another_overlaps() {
        let held = job(10, 1, 50);
        assert!(held.overlaps(&job(49, 2, 90)) && !held.overlaps(&job(50, 2, 90)));
        assert!(!job(49, 2, 90).overlaps(&held), "the earlier grant is no second holder");
        assert!(!held.overlaps(&Job::default()), "a job without a grant holds nothing");
        assert!(Job { release_us: None, ..held }.overlaps(&job(60, 2, 90)));
    }

    #[test]
    fn tokens_that_do_not_grow_are_counted_in_the_order_of_grants() {
        assert_eq!(tokens_not_above(&[job(3, 9, 0), job(1, 4, 0), job(2, 8, 0)]), 0);
        assert_eq!(tokens_not_above(&[job(1, 4, 0), job(2, 5, 0), job(3, 4, 0), job(4, 5, 0), job(5, 6, 0)]), 2);
    }

    #[test]
    fn lost_line_is_found() {
        let jobs = [job(1, 4, 0), job(2, 5, 0)];
        assert!(whole("a job 1 token 4\nb job 1 token 5\n", &jobs));
        assert!(!whole("a job 1 token 4\n", &jobs));
        let refused = Job { wrote: Some(Wrote::Refused { at_us: 1, seen: 9 }), ..job(3, 6, 0) };
        assert!(whole("a job 1 token 4\nb job 1 token 5\n", jobs.iter().chain([&refused])));
    }
}
