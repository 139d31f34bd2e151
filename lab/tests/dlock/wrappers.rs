//! Reentrant locks and bounded queues, in front of real servers of three kinds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_lab::dlock::bounded::Bounded;
use palisade_lab::dlock::reentrant::Reentrant;
use palisade_lab::dlock::{Backend, Error, Locks, Released};

use crate::entries::entries;
use crate::support::{Bench, MINUTE, SHORT, SOON, acquire, assert_held, bench, eventually, request};

/// Runs a test on each of the lock services: one that spins, one that queues by keys under leases, and one that queues by
/// sessions.
async fn on_each(test: impl AsyncFn(&Bench)) {
    for backend in [Backend::Redis, Backend::Etcd, Backend::Palisade] {
        if let Some(bench) = bench(backend).await {
            test(&bench).await;
        }
    }
}

/// The same owner acquires three times; the lock is free when all three are released, and other owners wait until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_reentrant_lock_is_released_at_zero() {
    on_each(a_reentrant_lock_is_released_at_zero_on).await;
}

async fn a_reentrant_lock_is_released_at_zero_on(bench: &Bench) {
    let locks = Reentrant::new(bench.locks());
    let mut handles = Vec::new();
    for count in 1..=3 {
        handles.push(acquire(&locks, "nested", "worker", MINUTE).await);
        assert_eq!(locks.count("nested", "worker").await, count);
    }
    let token = handles[0].fence();
    assert!(handles.iter().all(|handle| handle.fence() == token), "one grant, one token");
    for (index, handle) in handles.into_iter().enumerate() {
        assert_held(&locks, "nested").await;
        assert_eq!(locks.count("nested", "worker").await, 3 - index);
        assert_eq!(handle.release().await.unwrap(), Released::Done);
    }
    assert_eq!(locks.count("nested", "worker").await, 0);
    let other = acquire(&locks, "nested", "other", MINUTE).await;
    assert!(other.fence() > token, "{} after {token}", other.fence());
    assert_eq!(other.release().await.unwrap(), Released::Done);
}

/// Two acquires of one owner at the same time are one lock at the backend.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_acquires_twice_at_the_same_time() {
    on_each(an_owner_acquires_twice_at_the_same_time_on).await;
}

async fn an_owner_acquires_twice_at_the_same_time_on(bench: &Bench) {
    let locks = Reentrant::new(bench.locks());
    let (one, two) =
        tokio::join!(acquire(&locks, "twice", "worker", MINUTE), acquire(&locks, "twice", "worker", MINUTE));
    assert_eq!(one.fence(), two.fence());
    assert_eq!(one.release().await.unwrap(), Released::Done);
    assert_held(&locks, "twice").await;
    assert_eq!(two.release().await.unwrap(), Released::Done);
    // The entry of the acquire that found the lock held goes in the background.
    eventually("entries after both releases", 0, || entries(bench, "twice")).await;
}

/// A renewal of one handle renews all. A lease that is lost takes all counts with it, whichever handle finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_loses_all_counts() {
    on_each(a_lost_lease_loses_all_counts_on).await;
}

async fn a_lost_lease_loses_all_counts_on(bench: &Bench) {
    let locks = Reentrant::new(bench.locks());
    let mut outer = acquire(&locks, "lost", "worker", SHORT).await;
    let mut inner = acquire(&locks, "lost", "worker", SHORT).await;
    let begin = Instant::now();
    while begin.elapsed() <= SHORT {
        tokio::time::sleep(SHORT / 6).await;
        assert!(inner.renew().await.unwrap());
    }
    assert!(outer.renew().await.unwrap(), "the inner handle's renewals did not hold the outer one's lock");

    // Without renewals the lease ends, and the next owner is granted the lock.
    let thief = acquire(&*bench.locks(), "lost", "thief", Duration::from_secs(1)).await;
    // Re-entry finds the lease lost: the owner queues like any other, and gets a new token.
    let again = acquire(&locks, "lost", "worker", MINUTE).await;
    assert!(again.fence() > thief.fence(), "{} after {}", again.fence(), thief.fence());
    assert_eq!(locks.count("lost", "worker").await, 1);
    assert!(!outer.renew().await.unwrap());
    assert_eq!(outer.release().await.unwrap(), Released::NotOwner);
    assert_eq!(inner.release().await.unwrap(), Released::NotOwner);
    assert_held(&*bench.locks(), "lost").await;
    assert_eq!(again.release().await.unwrap(), Released::Done);
}

/// A first acquire that is cancelled or fails leaves nothing behind that the next one could take for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_first_acquire_counts_nothing() {
    on_each(a_cancelled_first_acquire_counts_nothing_on).await;
}

async fn a_cancelled_first_acquire_counts_nothing_on(bench: &Bench) {
    let locks = Reentrant::new(bench.locks());
    let holder = acquire(&*bench.locks(), "first", "holder", MINUTE).await;
    let request = request("worker", MINUTE, MINUTE);
    assert!(tokio::time::timeout(Duration::from_millis(200), locks.acquire("first", &request)).await.is_err());
    assert_eq!(locks.count("first", "worker").await, 0);
    holder.release().await.unwrap();
    let handle = acquire(&locks, "first", "worker", MINUTE).await;
    assert_eq!(locks.count("first", "worker").await, 1);
    assert_eq!(handle.release().await.unwrap(), Released::Done);
}

/// An acquire waits no longer than it says, also while another acquire of its owner waits for the same lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_reentrant_wait_ends_in_time() {
    on_each(a_reentrant_wait_ends_in_time_on).await;
}

async fn a_reentrant_wait_ends_in_time_on(bench: &Bench) {
    let locks = Arc::new(Reentrant::new(bench.locks()));
    let holder = acquire(&*bench.locks(), "in-time", "holder", MINUTE).await;
    let patient = {
        let locks = Arc::clone(&locks);
        tokio::spawn(async move { locks.acquire("in-time", &request("worker", MINUTE, MINUTE)).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let request = request("worker", MINUTE, Duration::ZERO);
    let at_once = tokio::time::timeout(MINUTE, locks.acquire("in-time", &request)).await.expect("it waits");
    assert!(matches!(at_once, Err(Error::Timeout { .. })), "{at_once:?}");
    holder.release().await.unwrap();
    let handle = patient.await.unwrap().unwrap();
    assert_eq!(locks.count("in-time", "worker").await, 1);
    assert_eq!(handle.release().await.unwrap(), Released::Done);
}

/// The queue has a limit, is served in the order of arrival, and a cancelled waiter gives up its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_queue_is_bounded_and_fair() {
    on_each(a_bounded_queue_is_bounded_and_fair_on).await;
}

async fn a_bounded_queue_is_bounded_and_fair_on(bench: &Bench) {
    let locks = Arc::new(Bounded::new(bench.locks(), 3));
    let holder = acquire(&*locks, "bounded", "holder", MINUTE).await;
    let waiter = |owner: &'static str| {
        let locks = Arc::clone(&locks);
        tokio::spawn(async move { locks.acquire("bounded", &request(owner, MINUTE, MINUTE)).await })
    };
    let mut waiting = Vec::new();
    for (index, owner) in ["one", "two", "three"].into_iter().enumerate() {
        waiting.push(waiter(owner));
        eventually("waiters", index + 1, || async { locks.waiting("bounded") }).await;
    }
    let refused = locks.acquire("bounded", &request("four", MINUTE, MINUTE)).await;
    let Err(Error::QueueFull { key, limit }) = refused else { panic!("{refused:?}") };
    assert_eq!((&*key, limit), ("bounded", 3));

    // The first one waits at the backend, the second one here: both give up their places.
    waiting[1].abort();
    eventually("waiters", 2, || async { locks.waiting("bounded") }).await;
    waiting[0].abort();
    eventually("waiters", 1, || async { locks.waiting("bounded") }).await;
    waiting.push(waiter("five"));
    eventually("waiters", 2, || async { locks.waiting("bounded") }).await;
    holder.release().await.unwrap();
    for (waiter, owner) in waiting.into_iter().skip(2).zip(["three", "five"]) {
        let handle = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap().unwrap();
        assert_eq!(handle.owner(), owner);
        handle.release().await.unwrap();
    }
    assert_eq!(locks.waiting("bounded"), 0);
}

/// The wait in the queue counts: an acquire whose time is over ends there, while the one before it still waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_in_a_bounded_queue_ends_in_time() {
    on_each(a_wait_in_a_bounded_queue_ends_in_time_on).await;
}

async fn a_wait_in_a_bounded_queue_ends_in_time_on(bench: &Bench) {
    let locks = Arc::new(Bounded::new(bench.locks(), 8));
    let holder = acquire(&*locks, "patience", "holder", MINUTE).await;
    let first = {
        let locks = Arc::clone(&locks);
        tokio::spawn(async move { locks.acquire("patience", &request("first", MINUTE, MINUTE)).await })
    };
    eventually("waiters", 1, || async { locks.waiting("patience") }).await;
    let wait = Duration::from_millis(200);
    let second = request("second", MINUTE, wait);
    let outcome = tokio::time::timeout(SOON, locks.acquire("patience", &second)).await.expect("the wait ends");
    let Err(Error::Timeout { waited, .. }) = outcome else { panic!("{outcome:?}") };
    assert!(waited >= wait, "{waited:?} instead of {wait:?}");
    assert!(!first.is_finished() && locks.waiting("patience") == 1);
    holder.release().await.unwrap();
    let handle = tokio::time::timeout(SOON, first).await.unwrap().unwrap().unwrap();
    assert_eq!(handle.release().await.unwrap(), Released::Done);
    assert_eq!(locks.waiting("patience"), 0);
}
