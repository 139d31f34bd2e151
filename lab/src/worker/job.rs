//! One job of a worker: acquire, read, work, pause, write, release.
//!
//! The write is a read-modify-write: the worker reads the value under its lock and puts it back with
//! a line of its own. If two workers do so at the same time, one line is lost, which is how a
//! corrupted value is recognised ([`lines`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_history::{Answer, Call, Client, Key, Recorder, Refusal, Session};

use super::pause::{How, pause};
use super::renewal::{Renewed, Renewer};
use super::target::Target;
use crate::dlock::{Error, Handle, Locks, Released, Request};
use crate::event::{Event, Printer, micros, millis};
use crate::metrics::Metrics;
use crate::resource::client::{self, Token};
use crate::resource::log::Op;

/// What a worker does with each lock.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The key, of the lock and of the resource.
    pub key: String,
    /// The owner's name, and how long to hold and to wait.
    pub request: Request,
    /// How long to work between the read and the write.
    pub work: Duration,
    /// A pause before the write.
    pub pause: Option<(How, Duration)>,
    /// Whether the pause comes after the worker has looked whether its lock is lost.
    pub pause_after_check: bool,
    /// The time between two renewals.
    pub renew: Option<Duration>,
    /// Whether to write although a renewal has found the lock lost.
    pub write_when_lost: bool,
    /// Whether to show the resource the token before the read, so that it refuses lower ones from then on.
    pub fenced_read: bool,
    /// Put the whole value, or append a line.
    pub op: Op,
}

/// What a worker uses for its jobs.
#[derive(Debug)]
pub struct Worker {
    /// The lock service.
    pub locks: Arc<dyn Locks>,
    /// What it writes to; none: the worker only holds the lock.
    pub target: Option<Target>,
    /// Prints what happens.
    pub printer: Printer,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
    /// Records what happens.
    pub recorder: Records,
}

/// The worker's history.
pub struct Records {
    /// The history.
    pub recorder: Recorder,
    /// The worker.
    pub client: Client,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("client", &self.client).finish_non_exhaustive()
    }
}

/// The line that a job adds to the value.
#[must_use]
pub fn line(owner: &str, job: u64, token: u64) -> String {
    format!("{owner} job {job} token {token}\n")
}

/// The tokens in a value's lines, in their order.
#[must_use]
pub fn lines(value: &str) -> Vec<u64> {
    value.lines().filter_map(|line| line.rsplit_once("token ")?.1.parse().ok()).collect()
}

impl Worker {
    /// Does a job. Returns whether it came to its end: a refused write and a lost lock are ends.
    ///
    /// # Errors
    /// A server could not be reached. What was acquired is released, if that is possible.
    pub async fn job(&self, job: u64, plan: &Plan) -> Result<(), String> {
        let Some(handle) = self.acquire(job, plan).await? else { return Ok(()) };
        let (granted, signed) = (handle.granted_at, handle.signed_token().map(str::to_owned));
        let token = Token { number: handle.fence(), signed: signed.as_deref() };
        let session = session_of(plan, job);
        let renewer = Renewer {
            client: self.recorder.client.clone(),
            session: session.clone(),
            recorder: self.recorder.recorder.clone(),
            metrics: self.metrics.clone(),
        };
        let renewed = Renewed::start(handle, plan.renew, renewer);
        let done = self.use_lock(job, plan, token, &renewed).await;
        let renewals = renewed.progress.renewals();
        let handle = renewed.finish().await?;
        let released = self.release(job, handle, session, renewals).await;
        self.metrics.held_seconds.observe(granted.elapsed().as_secs_f64());
        done.and(released)
    }

    async fn acquire(&self, job: u64, plan: &Plan) -> Result<Option<Handle>, String> {
        self.printer.print(job, Event::Acquiring);
        let (wait_ms, ttl_ms) = (millis(plan.request.wait), millis(plan.request.ttl));
        let call = Call::acquire_one(Key::from(plan.key.as_str()), wait_ms, Some(ttl_ms));
        let pending = self.recorder.recorder.invoke(&self.recorder.client, call);
        self.metrics.attempts.inc();
        let begun = Instant::now();
        match self.locks.acquire(&plan.key, &plan.request).await {
            Ok(handle) => {
                let token = handle.fence();
                pending.ok(Answer::Granted { session: session_of(plan, job), token });
                self.metrics.acquired.inc();
                self.metrics.acquire_seconds.observe(begun.elapsed().as_secs_f64());
                let (waited_us, ttl_ms) = (micros(begun.elapsed()), millis(handle.ttl()));
                self.printer.print(job, Event::Acquired { token, waited_us, ttl_ms });
                Ok(Some(handle))
            }
            Err(Error::Timeout { .. }) => {
                // An acquire that does not wait would have to name the holder's token, which backends do not tell.
                match plan.request.wait.is_zero() {
                    true => pending.info("the lock is held"),
                    false => pending.fail(Refusal::Timeout),
                }
                self.metrics.timeouts.inc();
                self.printer.print(job, Event::Timeout { waited_us: micros(begun.elapsed()) });
                Ok(None)
            }
            Err(error) => {
                pending.info(error.to_string());
                Err(self.failed(job, error.to_string()))
            }
        }
    }

    async fn use_lock(&self, job: u64, plan: &Plan, shown: Token<'_>, renewed: &Renewed) -> Result<(), String> {
        let token = shown.number;
        let line = line(&plan.request.owner, job, token);
        if let (Some(target), true) = (&self.target, plan.fenced_read) {
            match self.access(job, target, plan, shown, (Op::Append, "")).await? {
                client::Answer::Accepted { .. } => {}
                refused => return self.wrote(job, token, refused),
            }
        }
        let mut body = match (&self.target, plan.op) {
            (Some(target), Op::Put) => target.read(&plan.key).await.map_err(|error| self.failed(job, error))?,
            _ => String::new(),
        };
        body.push_str(&line);
        tokio::time::sleep(plan.work).await;
        if !plan.pause_after_check {
            self.pause(job, plan).await?;
        }
        if renewed.progress.lost() {
            self.printer.print(job, Event::Lost);
            if !plan.write_when_lost {
                self.printer.print(job, Event::Abandoned { token });
                return Ok(());
            }
        }
        if plan.pause_after_check {
            self.pause(job, plan).await?;
        }
        let Some(target) = &self.target else { return Ok(()) };
        let answer = self.access(job, target, plan, shown, (plan.op, &body)).await?;
        self.wrote(job, token, answer)
    }

    async fn pause(&self, job: u64, plan: &Plan) -> Result<(), String> {
        let Some((how, length)) = plan.pause else { return Ok(()) };
        self.printer.print(job, Event::Paused { for_ms: millis(length) });
        let paused = pause(how, length).await.map_err(|error| self.failed(job, error))?;
        self.printer.print(job, Event::Resumed { paused_us: micros(paused) });
        Ok(())
    }

    /// Prints what became of a write.
    fn wrote(&self, job: u64, token: u64, answer: client::Answer) -> Result<(), String> {
        let event = match answer {
            client::Answer::Accepted { max_fence } => Event::Written { token, max_fence },
            client::Answer::Stale { seen } => Event::Refused { token, seen },
            client::Answer::Untrusted { error } => return Err(self.failed(job, error)),
        };
        self.printer.print(job, event);
        Ok(())
    }

    /// Writes to the target with the token, and records it.
    async fn access(
        &self,
        job: u64,
        target: &Target,
        plan: &Plan,
        token: Token<'_>,
        (op, body): (Op, &str),
    ) -> Result<client::Answer, String> {
        let call = Call::write(Key::from(plan.key.as_str()), token.number);
        let pending = self.recorder.recorder.invoke(&self.recorder.client, call);
        let answer = target.write(&plan.key, op, token, body).await;
        match &answer {
            Ok(client::Answer::Accepted { .. }) => {
                pending.ok(Answer::Accepted);
                self.metrics.writes.inc();
            }
            Ok(client::Answer::Stale { .. }) => {
                pending.fail(Refusal::Refused);
                self.metrics.stale_tokens.inc();
            }
            // In the history, a refusal means that the token is too low.
            Ok(client::Answer::Untrusted { error }) => pending.info(error),
            Err(error) => pending.info(error),
        }
        answer.map_err(|error| self.failed(job, error))
    }

    async fn release(&self, job: u64, handle: Handle, session: Session, renewals: u64) -> Result<(), String> {
        let token = handle.fence();
        let call = Call::Release { keys: Key::from(handle.key()).into(), session, token, number: None };
        let pending = self.recorder.recorder.invoke(&self.recorder.client, call);
        match handle.release().await {
            Ok(Released::Done) => {
                pending.ok(Answer::Released);
                self.printer.print(job, Event::Released { token, renewals });
                Ok(())
            }
            Ok(Released::NotOwner) => {
                pending.fail(Refusal::NotHolder);
                self.metrics.not_owner.inc();
                self.printer.print(job, Event::NotOwner { token, renewals });
                Ok(())
            }
            Err(error) => {
                pending.info(error.to_string());
                Err(self.failed(job, error.to_string()))
            }
        }
    }

    fn failed(&self, job: u64, error: String) -> String {
        self.printer.print(job, Event::Failed { error: error.clone() });
        error
    }
}

/// The name of a grant in the history: each grant is a session of its own.
fn session_of(plan: &Plan, job: u64) -> Session {
    Session::from(format!("{}/{job}", plan.request.owner).as_str())
}
