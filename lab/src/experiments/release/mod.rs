//! Experiment `release`: a release of a lock that is no longer the releaser's.
//!
//! Owner a acquires, its lease ends, b acquires, and a releases. On every backend that must change
//! nothing for b. The wrong release of Redis (GET, then DEL) is forced as well: a's lease ends between
//! its GET and its DEL, which then deletes b's lock, so that c is granted the lock that b holds.

mod page;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
pub use page::page;
use palisade_history::{Answer, Call, Client, Key, Recorder, Refusal, Session};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Context, Found};
use crate::dlock::redis::{Redis, ReleaseHow};
use crate::dlock::{Backend, Error, Handle, Locks, Options, Released, Request, connect};
use crate::history::{self, Judgement};
use crate::metrics::Metrics;
use crate::report::Prediction;

pub(super) const TTL_MS: u64 = 1_000;
/// b's and c's TTL: they hold their locks until the end of the round.
const LONG_TTL_MS: u64 = 30_000;
const WAIT_MS: u64 = 20_000;
pub(super) const ROUNDS: u64 = 5;

/// The rounds of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The rounds.
    pub rounds: Vec<Round>,
}

/// How a releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// As the backend does: it compares and deletes in one step.
    Safe,
    /// GET, compare, then DEL, with a lease that ends between the two.
    GetThenDel,
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// How a released.
    pub how: How,
    /// The round's number.
    pub round: u64,
    /// a's, b's and, if it was granted the lock beside b, c's token.
    pub tokens: (u64, u64, Option<u64>),
    /// Whether a's release reported that it released something.
    pub a_released: bool,
    /// Whether b's renewal after a's release found its lock.
    pub b_renewed: bool,
    /// What the checkers say of the history.
    pub judged: Judgement,
}

impl Round {
    /// Whether a's release changed nothing for b.
    #[must_use]
    pub fn harmless(&self) -> bool {
        !self.a_released && self.b_renewed && self.tokens.2.is_none() && self.judged.service.is_empty()
    }

    /// Whether a's release deleted b's lock, so that c was granted it beside b.
    #[must_use]
    pub fn deleted(&self) -> bool {
        self.a_released && !self.b_renewed && self.tokens.2.is_some() && !self.judged.service.is_empty()
    }
}

/// Records what an owner does.
#[derive(Clone)]
struct Owner {
    locks: Arc<dyn Locks>,
    name: &'static str,
    recorder: Recorder,
    metrics: Arc<Metrics>,
}

impl Owner {
    fn client(&self) -> Client {
        Client::from(self.name)
    }

    fn session(&self) -> Session {
        Session::from(self.name)
    }

    async fn acquire(&self, key: &str, ttl_ms: u64, wait_ms: u64) -> Result<Option<Handle>, String> {
        let call = Call::acquire_one(Key::from(key), wait_ms, Some(ttl_ms));
        let pending = self.recorder.invoke(&self.client(), call);
        let request = Request {
            owner: self.name.to_owned(),
            ttl: Duration::from_millis(ttl_ms),
            wait: Duration::from_millis(wait_ms),
        };
        self.metrics.attempts.inc();
        let begun = Instant::now();
        match self.locks.acquire(key, &request).await {
            Ok(handle) => {
                self.metrics.acquired.inc();
                self.metrics.acquire_seconds.observe(begun.elapsed().as_secs_f64());
                pending.ok(Answer::Granted { session: self.session(), token: handle.fence() });
                Ok(Some(handle))
            }
            Err(Error::Timeout { .. }) => {
                self.metrics.timeouts.inc();
                pending.info("the lock is held");
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    async fn release(&self, handle: Handle) -> Result<bool, String> {
        let (session, token) = (self.session(), handle.fence());
        let call = Call::Release { keys: Key::from(handle.key()).into(), session, token, number: None };
        let pending = self.recorder.invoke(&self.client(), call);
        let granted = handle.granted_at;
        let released = handle.release().await.map_err(|error| error.to_string())?;
        self.metrics.held_seconds.observe(granted.elapsed().as_secs_f64());
        match released {
            Released::Done => {
                pending.ok(Answer::Released);
                Ok(true)
            }
            Released::NotOwner => {
                self.metrics.not_owner.inc();
                pending.fail(Refusal::NotHolder);
                Ok(false)
            }
        }
    }

    async fn renew(&self, handle: &mut Handle) -> Result<bool, String> {
        let pending = self.recorder.invoke(&self.client(), Call::KeepAlive { session: self.session() });
        let renewed = handle.renew().await.map_err(|error| error.to_string())?;
        if renewed {
            self.metrics.renewals.inc();
            pending.ok(Answer::KeptAlive)
        } else {
            pending.fail(Refusal::NoSession)
        }
        Ok(renewed)
    }
}

/// Runs all rounds on one backend.
///
/// # Errors
/// A server cannot be reached.
pub async fn run(context: &Context) -> Result<Found<Figures>, String> {
    let hows = if context.backend == Backend::Redis { &[How::Safe, How::GetThenDel][..] } else { &[How::Safe] };
    let mut rounds = Vec::new();
    for &how in hows {
        for round in 1..=context.rounds.unwrap_or(ROUNDS) {
            eprintln!("release: {}: {how:?}, round {round}", context.backend);
            rounds.push(one(context, how, round).await?);
        }
    }
    let of = |how| rounds.iter().filter(|round| round.how == how).collect::<Vec<_>>();
    let (safe, forced) = (of(How::Safe), of(How::GetThenDel));
    let harmless = safe.iter().filter(|round| round.harmless()).count();
    let mut predictions = vec![Prediction::all("a release by a former owner changes nothing", safe.len(), harmless)];
    if !forced.is_empty() {
        let deleted = forced.iter().filter(|round| round.deleted()).count();
        let what = "GET, then DEL: the former owner deletes the holder's lock, and two owners hold it";
        predictions.push(Prediction::all(what, forced.len(), deleted));
    }
    Ok((Figures { rounds }, predictions))
}

async fn one(context: &Context, how: How, round: u64) -> Result<Round, String> {
    let options = Options::default();
    let failed = |error: Error| error.to_string();
    let locks = connect(context.backend, &context.endpoints, &options).map_err(failed)?;
    let recorder = history::in_memory();
    let owner = |name, locks: &Arc<dyn Locks>| Owner {
        locks: locks.clone(),
        name,
        recorder: recorder.clone(),
        metrics: context.metrics.clone(),
    };
    let (b, c) = (owner("b", &locks), owner("c", &locks));
    let key = format!("release-{how:?}-{round}").to_lowercase();
    let b_handle = Arc::new(Mutex::new(None));
    let a = match how {
        How::Safe => owner("a", &locks),
        How::GetThenDel => {
            let between = b_acquires(b.clone(), b_handle.clone());
            let wrong = Redis::new(&context.endpoints[0], &options).map_err(failed)?;
            let wrong: Arc<dyn Locks> = Arc::new(wrong.release_how(ReleaseHow::GetThenDel { between }));
            owner("a", &wrong)
        }
    };
    let a_handle = a.acquire(&key, TTL_MS, 0).await?.ok_or("a was not granted a free lock")?;
    let a_token = a_handle.fence();
    if how == How::Safe {
        b_acquires(b.clone(), b_handle.clone())(key.clone()).await;
    }
    let a_released = a.release(a_handle).await?;
    let mut b_handle = b_handle.lock().take().ok_or("b was not granted the lock after a's lease had ended")??;
    let c_handle = c.acquire(&key, LONG_TTL_MS, 0).await?;
    let b_renewed = b.renew(&mut b_handle).await?;
    let tokens = (a_token, b_handle.fence(), c_handle.as_ref().map(Handle::fence));
    b.release(b_handle).await?;
    if let Some(handle) = c_handle {
        c.release(handle).await?;
    }
    let judged = Judgement::of(&recorder.history().map_err(|error| error.to_string())?);
    Ok(Round { how, round, tokens, a_released, b_renewed, judged })
}

type Slot = Arc<Mutex<Option<Result<Handle, String>>>>;

/// b waits until a's lease has ended, and is granted the lock.
fn b_acquires(b: Owner, slot: Slot) -> Arc<dyn Fn(String) -> BoxFuture<'static, ()> + Send + Sync> {
    Arc::new(move |key| {
        let (b, slot) = (b.clone(), slot.clone());
        Box::pin(async move {
            let acquired = b.acquire(&key, LONG_TTL_MS, WAIT_MS).await;
            let handle = acquired.and_then(|handle| handle.ok_or_else(|| "b's wait has ended in vain".to_owned()));
            *slot.lock() = Some(handle);
        })
    })
}
