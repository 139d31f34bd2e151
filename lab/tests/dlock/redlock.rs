//! Tests that are special to Redlock: majorities, and that its numbers are no fencing tokens.

use std::time::Duration;

use palisade_lab::dlock::{Backend, Error, Released};
use palisade_lab::servers::{Durability, Options};

use crate::suite::suite;
use crate::support::{MINUTE, acquire, assert_held, bench, bench_with, request};

#[tokio::test(flavor = "multi_thread")]
async fn redlock_keeps_the_rules() {
    let Some(bench) = bench(Backend::Redlock).await else { return };
    suite(&bench).await;
}

/// Two of five may be gone; with three, the error says how many answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_is_enough_and_needed() {
    let Some(bench) = bench(Backend::Redlock).await else { return };
    let locks = bench.locks();
    bench.cluster.kill(0).await.unwrap();
    bench.cluster.kill(1).await.unwrap();
    let mut handle = acquire(&*locks, "majority", "worker", MINUTE).await;
    assert!(handle.renew().await.unwrap());
    assert_held(&*locks, "majority").await;
    assert_eq!(handle.release().await.unwrap(), Released::Done);
    bench.cluster.kill(2).await.unwrap();
    let error = locks.acquire("majority", &request("worker", MINUTE, Duration::ZERO)).await.unwrap_err();
    let Error::Backend { reason, .. } = error else { panic!("{error:?}") };
    assert!(reason.starts_with("2 of 5 servers answered"), "{reason}");
}

/// The validity is TTL − elapsed − (TTL × 0.01 + 2 ms), counted from the beginning of the attempt.
#[tokio::test(flavor = "multi_thread")]
async fn validity_is_that_of_the_page() {
    let Some(bench) = bench(Backend::Redlock).await else { return };
    let locks = bench.locks();
    let handle = acquire(&*locks, "validity", "worker", MINUTE).await;
    assert_eq!(handle.valid_until() - handle.acquired_at(), Duration::from_millis(59_398));
    // A TTL that the drift uses up is never valid, and the instances are free after the attempt.
    let outcome = locks.acquire("no-validity", &request("worker", Duration::from_millis(2), Duration::ZERO)).await;
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    assert_eq!(crate::entries::entries(&bench, "no-validity").await, 0);
}

/// Attempts that win no majority count where they arrive, and an instance that is out of reach counts nothing: the greatest
/// number of the next majority can be lower. Here no instance loses a write.
#[tokio::test(flavor = "multi_thread")]
async fn its_number_falls_when_majorities_change() {
    let Some(bench) = bench(Backend::Redlock).await else { return };
    let fresh = || bench.locks();
    for instance in [2, 3, 4] {
        bench.cluster.kill(instance).await.unwrap();
    }
    for _ in 0..5 {
        let outcome = fresh().acquire("falls", &request("unlucky", MINUTE, Duration::ZERO)).await;
        assert!(matches!(outcome, Err(Error::Backend { .. })), "{outcome:?}");
    }
    for instance in [2, 3, 4] {
        bench.cluster.restart(instance).await.unwrap();
    }
    let first = acquire(&*fresh(), "falls", "first", MINUTE).await;
    assert_eq!(first.fence(), 6, "instances 0 and 1 have counted six times, the others once");
    assert_eq!(first.release().await.unwrap(), Released::Done);
    bench.cluster.kill(0).await.unwrap();
    bench.cluster.kill(1).await.unwrap();
    let second = acquire(&*fresh(), "falls", "second", MINUTE).await;
    assert_eq!(second.fence(), 2, "a later grant has a lower number");
    assert_eq!(second.release().await.unwrap(), Released::Done);
}

/// An instance that crashes without having synced forgets the lock and its counter: two owners hold the lock at the same time,
/// and the later one does not have the higher number.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_without_sync_gives_two_holders_and_no_higher_number() {
    let volatile = Options { durability: Durability::Volatile, ..Options::default() };
    let Some(bench) = bench_with(Backend::Redlock, volatile).await else { return };
    let locks = bench.locks();
    for _ in 0..3 {
        acquire(&*locks, "crash", "warm-up", MINUTE).await.release().await.unwrap();
    }
    // The first owner's majority is 0, 1, 2.
    bench.cluster.pause(3).unwrap();
    bench.cluster.pause(4).unwrap();
    let mut first = acquire(&*locks, "crash", "first", MINUTE).await;
    // Instance 2 crashes; the requests that wait in 3 and 4 go with them.
    for instance in [2, 3, 4] {
        bench.cluster.kill(instance).await.unwrap();
        bench.cluster.restart(instance).await.unwrap();
    }
    let fresh = bench.locks();
    bench.cluster.pause(0).unwrap();
    bench.cluster.pause(1).unwrap();
    let second = acquire(&*fresh, "crash", "second", MINUTE).await;
    bench.cluster.resume(0).unwrap();
    bench.cluster.resume(1).unwrap();
    assert!(first.valid_until() > std::time::Instant::now(), "by its own rules the first owner holds the lock");
    assert_eq!((first.fence(), second.fence()), (4, 1), "the later grant has a lower number");
    // The first owner's lock is in two instances of five. The connection to instance 2 has broken with the crash.
    drop(first.renew().await);
    assert!(!first.renew().await.unwrap());
    assert_eq!(second.release().await.unwrap(), Released::Done);
}
