//! Runs against locks in memory whose speed the test decides, on a clock that moves when all tasks wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use palisade_history::{Answer, End, Recorder};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::attempt::{Attempt, Contender, Outcome, Release};
use super::load::{Load, Model, Stop, run};
use super::schedule::Gaps;
use super::summary::Summary;
use crate::dlock::{Error, Handle, Held, Locks, Released, Request};
use crate::history::{self, Judgement};
use crate::metrics::Metrics;

/// A lock of one key, first come, first served.
#[derive(Debug)]
struct Memory {
    lock: Arc<Semaphore>,
    grants: AtomicU64,
    /// How long each grant takes on its way to the client.
    delay: Duration,
    /// The number of the grant that takes a second longer.
    stall: Option<u64>,
    /// The grants from this one on are errors.
    gone_after: u64,
}

impl Memory {
    fn new() -> Memory {
        let lock = Arc::new(Semaphore::new(1));
        Memory { lock, grants: AtomicU64::new(0), delay: Duration::ZERO, stall: None, gone_after: u64::MAX }
    }
}

#[derive(Debug)]
struct HeldInMemory(Option<OwnedSemaphorePermit>);

impl Held for HeldInMemory {
    fn renew(&mut self, _ttl: Duration) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async { Ok(self.0.is_some()) })
    }

    fn release(&mut self) -> BoxFuture<'_, Result<Released, Error>> {
        let released = if self.0.take().is_some() { Released::Done } else { Released::NotOwner };
        Box::pin(async move { Ok(released) })
    }
}

impl Locks for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn acquire<'a>(&'a self, key: &'a str, request: &'a Request) -> BoxFuture<'a, Result<Handle, Error>> {
        Box::pin(async move {
            let sent = std::time::Instant::now();
            let Ok(permit) = tokio::time::timeout(request.wait, self.lock.clone().acquire_owned()).await else {
                return Err(Error::Timeout { key: key.to_owned(), waited: request.wait });
            };
            let number = self.grants.fetch_add(1, Ordering::Relaxed) + 1;
            if number > self.gone_after {
                let reason = "no answer from 127.0.0.1:7".to_owned();
                return Err(Error::Backend { backend: "memory", reason });
            }
            let stall = if self.stall == Some(number) { Duration::from_secs(1) } else { Duration::ZERO };
            tokio::time::sleep(self.delay + stall).await;
            let held = Box::new(HeldInMemory(Some(permit.expect("the semaphore is never closed"))));
            Ok(Handle {
                key: key.to_owned(),
                owner: request.owner.clone(),
                fence: number,
                ttl: request.ttl,
                acquired_at: sent,
                granted_at: sent,
                leased_at: sent,
                held,
            })
        })
    }
}

fn contender(locks: Memory, recorder: Recorder) -> Arc<Contender> {
    Arc::new(Contender {
        locks: Arc::new(locks),
        metrics: Arc::new(Metrics::default()),
        recorder,
        numbers: None,
        keys: "key".to_owned(),
        owners: "contender".to_owned(),
        ttl: Duration::from_secs(60),
        wait: Duration::from_secs(30),
        work: Duration::ZERO,
    })
}

const LOAD: Load = Load {
    model: Model::Open { rate: 200.0 },
    gaps: Gaps::Exponential,
    contenders: 10_000,
    keys: 1,
    duration: Duration::from_secs(1),
    seed: 5,
};

async fn attempts(locks: Memory, load: Load) -> Vec<Attempt> {
    run(contender(locks, history::discard()), &load, &Stop::default()).await
}

#[tokio::test(start_paused = true)]
async fn slow_answers_delay_no_arrival() {
    let fast = attempts(Memory::new(), LOAD).await;
    // A tenth of the offered rate: the queue builds.
    let slow = attempts(Memory { delay: Duration::from_millis(20), ..Memory::new() }, LOAD).await;
    let schedule = |attempts: &[Attempt]| -> Vec<_> {
        attempts.iter().map(|attempt| (attempt.number, attempt.intended_us)).collect()
    };
    assert!(fast.len() > 150, "{} attempts", fast.len());
    assert_eq!(schedule(&fast), schedule(&slow));
    // Started at the intended moments: long before their predecessors were granted.
    let late = slow.iter().map(|attempt| attempt.arrived_us - attempt.intended_us).max().unwrap();
    let longest = slow.iter().map(Attempt::latency_us).max().unwrap();
    assert!(late < 2_000 && longest > 2_000_000, "{late} µs late, the longest latency is {longest} µs");
    assert!(slow.iter().all(Attempt::granted));
}

#[tokio::test(start_paused = true)]
async fn a_stall_shows_in_the_attempts_behind_it() {
    let attempts = attempts(Memory { stall: Some(20), ..Memory::new() }, LOAD).await;
    let summary = Summary::of(&attempts, "memory", &[]);
    // One answer is late. About 180 attempts arrive during the second that it takes and wait behind it, so
    // that not only the maximum shows it, but the median.
    assert!(summary.latency.p50_us > 200_000, "{summary:?}");
    assert!(summary.latency.p99_us > 900_000, "{summary:?}");
    assert_eq!(summary.granted, summary.arrivals);
}

#[tokio::test(start_paused = true)]
async fn a_closed_loop_with_a_rate_counts_from_the_intended_start() {
    let model = Model::Closed { rate: Some(200.0) };
    let load = Load { model, contenders: 1, gaps: Gaps::Even, duration: Duration::from_millis(500), ..LOAD };
    let some = attempts(Memory { stall: Some(20), ..Memory::new() }, load).await;
    // The contender is stopped for a second: the 80 attempts after it start late, and their latencies say so.
    let summary = Summary::of(&some, "memory", &[]);
    assert_eq!(summary.arrivals, 99, "5, 10, … 495 ms");
    assert!(summary.latency.p50_us > 500_000, "{summary:?}");
    // Without a rate there is no intended start to be late for.
    let model = Model::Closed { rate: None };
    let some = attempts(Memory { delay: Duration::from_millis(5), ..Memory::new() }, Load { model, ..load }).await;
    let summary = Summary::of(&some, "memory", &[]);
    assert!((80..=100).contains(&summary.granted) && summary.lag.p99_us < 2_000, "{summary:?}");
}

#[tokio::test(start_paused = true)]
async fn attempts_beyond_the_contenders_are_counted() {
    let load = Load { contenders: 3, ..LOAD };
    let attempts = attempts(Memory { stall: Some(1), ..Memory::new() }, load).await;
    let summary = Summary::of(&attempts, "memory", &[]);
    assert!(summary.overflow > 100, "{summary:?}");
    assert_eq!(summary.arrivals, summary.granted + summary.overflow);
    // Not started, they have no latency.
    assert_eq!(summary.ended.count, summary.granted);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_run_ends_its_attempts() {
    let stop = Stop::default();
    stop.stop();
    let begun = Instant::now();
    let load = Load { duration: Duration::from_secs(60), ..LOAD };
    assert!(run(contender(Memory::new(), history::discard()), &load, &stop).await.is_empty());
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_goes_away_is_an_error_with_its_address() {
    let attempts = attempts(Memory { gone_after: 50, ..Memory::new() }, LOAD).await;
    let servers = ["127.0.0.1:6".to_owned(), "127.0.0.1:7".to_owned()];
    let summary = Summary::of(&attempts, "memory", &servers);
    assert_eq!((summary.granted, summary.failed), (50, summary.arrivals - 50));
    assert_eq!(summary.failures.len(), 1, "{summary:?}");
    let failure = &summary.failures[0];
    assert_eq!((failure.server.as_deref(), failure.count), (Some("127.0.0.1:7"), summary.failed));
    assert!(super::describe(&summary).contains("(127.0.0.1:7): memory: no answer from 127.0.0.1:7"));
    assert!(super::csv(&attempts).contains("failed,,none,memory: no answer from 127.0.0.1:7"));
}

#[tokio::test(start_paused = true)]
async fn waiters_give_up_in_time() {
    let mut one = contender(Memory { stall: Some(1), ..Memory::new() }, history::discard());
    Arc::get_mut(&mut one).unwrap().wait = Duration::from_millis(100);
    let load = Load { duration: Duration::from_millis(500), ..LOAD };
    let attempts = run(one, &load, &Stop::default()).await;
    let summary = Summary::of(&attempts, "memory", &[]);
    assert_eq!((summary.granted, summary.timeouts), (1, summary.arrivals - 1), "{summary:?}");
    assert!(attempts.iter().all(|attempt| attempt.granted() || attempt.outcome == Outcome::Timeout));
    // Nothing to release after a timeout.
    let none = attempts.iter().filter(|attempt| attempt.release == Release::None).count() as u64;
    assert_eq!(none, summary.timeouts);
}

#[tokio::test(start_paused = true)]
async fn the_checkers_accept_a_run_and_refuse_a_corrupted_one() {
    let recorder = Recorder::in_memory();
    run(contender(Memory::new(), recorder.clone()), &LOAD, &Stop::default()).await;
    let mut history = recorder.history().unwrap();
    let judgement = Judgement::of(&history);
    assert!(judgement.operations > 300 && judgement.service.is_empty(), "{judgement:?}");
    // Two grants exchange their tokens.
    let tokens = |operation: &mut palisade_history::Operation| match &mut operation.end {
        Some((_, End::Ok(Answer::Granted { token, .. }))) => Some(std::mem::take(token)),
        _ => None,
    };
    let grants: Vec<_> = (0..history.operations.len())
        .filter(|index| matches!(history.operations[*index].end, Some((_, End::Ok(Answer::Granted { .. })))))
        .collect();
    let (first, last) = (grants[0], grants[grants.len() - 1]);
    let (low, high) = (tokens(&mut history.operations[first]), tokens(&mut history.operations[last]));
    for (index, token) in [(first, high), (last, low)] {
        if let Some((_, End::Ok(Answer::Granted { token: swapped, .. }))) = &mut history.operations[index].end {
            *swapped = token.unwrap();
        }
    }
    assert!(!Judgement::of(&history).service.is_empty());
}
