//! Contenders of this process on a backend's servers, for the experiments `contention` and `fairness`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use palisade_history::Recorder;

use super::Context;
use crate::contend;
use crate::contend::attempt::{Attempt, Contender};
use crate::contend::load::{self, Load, Stop};
use crate::contend::summary::Latency;
use crate::dlock::{self, Locks, Request};
use crate::event::micros;
use crate::history::{self, Judgement};

/// A lock outlasts a case, so that only releases end it.
pub const TTL: Duration = Duration::from_secs(30);

/// Connects to the servers of the experiment; each contender has a connection of its own.
///
/// # Errors
/// The endpoints do not fit the backend.
pub fn connect(context: &Context) -> Result<Arc<dyn Locks>, String> {
    let options = dlock::Options::default();
    dlock::connect(context.backend, &context.endpoints, &options).map_err(|error| error.to_string())
}

/// Makes as many connections as there will be contenders: each takes a lock of its own while the others hold theirs.
/// Returns the number of those that failed, and the first error.
pub async fn warm_up(locks: &Arc<dyn Locks>, contenders: u64) -> (u64, Option<String>) {
    let one = async |number: u64| {
        let wait = Duration::from_secs(10);
        let request = Request { owner: format!("warm-up-{number}"), ttl: TTL, wait };
        locks.acquire(&format!("warm-up-{number}"), &request).await
    };
    let (handles, errors): (Vec<_>, Vec<_>) =
        join_all((0..contenders).map(one)).await.into_iter().partition(Result::is_ok);
    // A lock that is not released here ends with its TTL: no other attempt uses its key.
    join_all(handles.into_iter().flatten().map(dlock::Handle::release)).await;
    let first = errors.iter().find_map(|error| error.as_ref().err().map(ToString::to_string));
    (errors.len() as u64, first)
}

/// The parts of a lock's use without contention, measured one after the other, each round on a key of its own: what a
/// failed round leaves behind delays no other. The latencies count the rounds that did not fail.
///
/// # Errors
/// All rounds failed; the first error.
pub async fn uncontended(
    locks: &Arc<dyn Locks>,
    name: &str,
    work: Duration,
    rounds: u64,
) -> Result<[Latency; 3], String> {
    let [mut acquire, mut held, mut release] = [const { Vec::new() }; 3];
    let mut error = None;
    for number in 0..rounds {
        match round(locks, &format!("{name}-{number}"), work).await {
            Ok(round) => {
                acquire.push(round[0]);
                held.push(round[1]);
                release.push(round[2]);
            }
            Err(failed) => error = error.or(Some(failed)),
        }
    }
    match error {
        Some(error) if acquire.is_empty() => Err(error.to_string()),
        _ => Ok([acquire, held, release].map(|values| Latency::of(values.into_iter()))),
    }
}

/// Acquire, work and release, in microseconds.
async fn round(locks: &Arc<dyn Locks>, key: &str, work: Duration) -> Result<[u64; 3], dlock::Error> {
    let request = Request { owner: key.to_owned(), ttl: TTL, wait: Duration::from_secs(10) };
    let begun = Instant::now();
    let handle = locks.acquire(key, &request).await?;
    let granted = Instant::now();
    tokio::time::sleep(work).await;
    let ended = Instant::now();
    handle.release().await?;
    Ok([micros(granted - begun), micros(ended - granted), micros(ended.elapsed())])
}

/// What makes the attempts on keys whose names begin with the first of `names`, by owners whose names begin with the
/// second.
#[must_use]
pub fn contender(
    context: &Context,
    locks: &Arc<dyn Locks>,
    recorder: &Recorder,
    names: (&str, &str),
    (work, wait): (Duration, Duration),
) -> Contender {
    Contender {
        locks: locks.clone(),
        metrics: context.metrics.clone(),
        recorder: recorder.clone(),
        numbers: contend::numbers(context.backend),
        keys: names.0.to_owned(),
        owners: names.1.to_owned(),
        ttl: TTL,
        wait,
        work,
    }
}

/// Makes the attempts of a case on keys that no other case uses, and judges their history.
///
/// # Errors
/// The history is not well-formed, which is a bug of the lab.
pub async fn case(
    context: &Context,
    locks: &Arc<dyn Locks>,
    name: &str,
    (work, wait): (Duration, Duration),
    load: &Load,
) -> Result<(Vec<Attempt>, Judgement), String> {
    let recorder = history::in_memory();
    let contender = contender(context, locks, &recorder, (name, &format!("{name}-contender")), (work, wait));
    let attempts = load::run(Arc::new(contender), load, &Stop::default()).await;
    let history = recorder.history().map_err(|error| format!("the history of {name}: {error}"))?;
    Ok((attempts, Judgement::of(&history)))
}

/// The machine's load average over the last minute, before a run. Above zero, other work ran beside it.
#[must_use]
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().filter(|text| !text.is_empty()).unwrap_or("unknown").to_owned()
}
