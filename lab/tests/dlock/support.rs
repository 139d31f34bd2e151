//! Servers for the tests, and small steps that all of them take.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_lab::dlock::{Backend, Error, Handle, Locks, Options, Request, connect};
use palisade_lab::servers::{self, Cluster, Kind};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::skipped::installed;

/// Two tests at a time: the machine is small, and the rules are about time.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Servers that are used by one test.
pub(crate) struct Bench {
    pub(crate) cluster: Cluster,
    pub(crate) backend: Backend,
    _turn: SemaphorePermit<'static>,
}

/// Starts the backend's servers. `None`, and a line on standard error that no capture hides, if their packages are missing;
/// with `LAB_REQUIRE=all` that is a failure.
pub(crate) async fn bench(backend: Backend) -> Option<Bench> {
    bench_with(backend, servers::Options::default()).await
}

pub(crate) async fn bench_with(backend: Backend, options: servers::Options) -> Option<Bench> {
    let turn = TURNS.acquire().await.expect("the semaphore is never closed");
    let started = servers::start(Kind::of(backend), &servers::Options { allow_tmpfs: true, ..options }).await;
    installed(backend.name(), started).map(|cluster| Bench { cluster, backend, _turn: turn })
}

impl Bench {
    pub(crate) fn locks(&self) -> Arc<dyn Locks> {
        self.locks_with(&self.patient())
    }

    pub(crate) fn locks_with(&self, options: &Options) -> Arc<dyn Locks> {
        connect(self.backend, self.cluster.endpoints(), options).unwrap()
    }

    /// Options with so much patience for the instances of Redlock that a busy machine is no reason to give one up.
    pub(crate) fn patient(&self) -> Options {
        Options {
            instance_timeout: Duration::from_secs(5),
            // Three servers that sync each write, beside other programs, may need longer than the default of 5 s for one answer.
            request_timeout: Duration::from_secs(30),
            ..Options::default()
        }
    }

    pub(crate) async fn kill_all(&self) {
        for node in 0..self.cluster.len() {
            self.cluster.kill(node).await.unwrap();
        }
    }
}

/// An acquire by this owner.
pub(crate) fn request(owner: &str, ttl: Duration, wait: Duration) -> Request {
    Request { owner: owner.to_owned(), ttl, wait }
}

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
/// A TTL that ends during a test, and that a process which gets no processor time for a second or two still renews in time.
pub(crate) const SHORT: Duration = Duration::from_secs(3);
/// A bound for what happens at once, on a machine that other programs keep busy for seconds; well below [`MINUTE`].
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// An acquire that does not wait, and that finds the lock held.
pub(crate) async fn assert_held(locks: &dyn Locks, key: &str) {
    let request = request("bystander", MINUTE, Duration::ZERO);
    let outcome = tokio::time::timeout(SOON, locks.acquire(key, &request)).await;
    let outcome = outcome.unwrap_or_else(|_| panic!("{}: an acquire of {key} that does not wait waited", locks.name()));
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{}: {key} is not held: {outcome:?}", locks.name());
}

/// An acquire that gets the lock soon.
pub(crate) async fn acquire(locks: &dyn Locks, key: &str, owner: &str, ttl: Duration) -> Handle {
    let outcome = locks.acquire(key, &request(owner, ttl, SOON)).await;
    outcome.unwrap_or_else(|error| panic!("{}: {key} was not granted to {owner}: {error}", locks.name()))
}

/// Repeats a question until its answer is the expected one, for at most a minute.
pub(crate) async fn eventually<T, F>(what: &str, expected: T, mut ask: impl FnMut() -> F)
where
    T: PartialEq + std::fmt::Debug,
    F: Future<Output = T>,
{
    let begin = Instant::now();
    loop {
        let answer = ask().await;
        if answer == expected {
            return;
        }
        assert!(begin.elapsed() < MINUTE, "{what}: {answer:?} instead of {expected:?} after a minute");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
