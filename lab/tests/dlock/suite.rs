//! The rules that every backend keeps, each shown on real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use palisade_lab::dlock::{Connections, Error, Locks, Options, Released, Renewal};

use crate::entries::{entries, queues};
use crate::support::{Bench, MINUTE, SHORT, SOON, acquire, assert_held, eventually, request};

/// All rules, for leases that are renewed on request. The last one kills the servers.
pub(crate) async fn suite(bench: &Bench) {
    let patient = bench.patient();
    let locks = bench.locks_with(&patient);
    exclusion_with_growing_tokens(bench, &locks, "own").await;
    let shared = bench.locks_with(&Options { connections: Connections::Shared(2), ..patient });
    exclusion_with_growing_tokens(bench, &shared, "shared").await;
    drop(shared);
    // Each has a key of its own, and waits for TTLs.
    tokio::join!(
        a_wait_ends_in_time(bench, &*locks),
        an_expired_lock_goes_to_the_next_owner(bench, &*locks),
        renewals_hold_the_lock(bench, &*locks),
        an_owner_that_comes_back_does_not_release_its_own_later_lock(&*locks),
        a_cancelled_waiter_leaves_nothing(bench, &locks),
    );
    a_cancelled_acquire_releases_what_it_was_granted(bench, &*locks).await;
    a_server_that_goes_away_is_named(bench).await;
}

/// The rules for leases that the backend's client renews by itself: a lock outlives its TTL, and goes when its handle is
/// dropped.
pub(crate) async fn automatic_renewals(bench: &Bench) {
    for connections in [Connections::Own, Connections::Shared(2)] {
        let locks = bench.locks_with(&Options { renewal: Renewal::Automatic, connections, ..bench.patient() });
        exclusion_with_growing_tokens(bench, &locks, &format!("automatic-{connections}")).await;
        a_wait_ends_in_time(bench, &*locks).await;
        a_cancelled_waiter_leaves_nothing(bench, &locks).await;
        a_cancelled_acquire_releases_what_it_was_granted(bench, &*locks).await;
        let mut handle = acquire(&*locks, "automatic", "holder", SHORT).await;
        // A server may notice the end of a lease late.
        tokio::time::sleep(handle.ttl() * 2 + Duration::from_secs(1)).await;
        assert_held(&*locks, "automatic").await;
        assert!(handle.renew().await.unwrap());
        assert_eq!(handle.release().await.unwrap(), Released::Done);
        let handle = acquire(&*locks, "automatic", "holder", MINUTE).await;
        drop(handle);
        eventually("entries after the handle was dropped", 0, || entries(bench, "automatic")).await;
    }
}

/// Eight contenders: never two holders, and every grant has a higher token than the one before.
async fn exclusion_with_growing_tokens(bench: &Bench, locks: &Arc<dyn Locks>, how: &str) {
    let key = format!("exclusion-{how}");
    let inside = Arc::new(AtomicUsize::new(0));
    let tokens = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let contender = |number: usize| {
        let (locks, key, inside, tokens) = (Arc::clone(locks), key.clone(), Arc::clone(&inside), Arc::clone(&tokens));
        tokio::spawn(async move {
            for _ in 0..5 {
                let request = request(&format!("worker-{number}"), MINUTE, MINUTE);
                let handle = locks.acquire(&key, &request).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{key}: two holders at the same time");
                tokens.lock().push(handle.fence());
                tokio::time::sleep(Duration::from_millis(3)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(handle.release().await.unwrap(), Released::Done);
            }
        })
    };
    for contender in (0..8).map(contender).collect::<Vec<_>>() {
        contender.await.unwrap();
    }
    let tokens = tokens.lock();
    assert_eq!(tokens.len(), 40);
    if bench.backend.fences() {
        assert!(tokens.is_sorted_by(|one, next| one < next), "{key}: tokens do not grow: {tokens:?}");
    }
    assert!(tokens.iter().all(|&token| token > 0), "{key}: {tokens:?}");
}

/// A wait of zero and a wait of 300 ms end long before the lock does, and leave nothing; other keys are free.
async fn a_wait_ends_in_time(bench: &Bench, locks: &dyn Locks) {
    let holder = acquire(locks, "wait", "holder", MINUTE).await;
    assert_eq!((holder.key(), holder.owner()), ("wait", "holder"));
    assert!(holder.ttl() >= MINUTE.min(Duration::from_secs(20)), "{:?}", holder.ttl());
    assert_held(locks, "wait").await;
    let begin = Instant::now();
    let wait = Duration::from_millis(300);
    let request = request("waiter", MINUTE, wait);
    let outcome = tokio::time::timeout(SOON, locks.acquire("wait", &request)).await.expect("the wait ends");
    let Err(Error::Timeout { key, waited }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(key, "wait");
    assert!(waited >= wait && begin.elapsed() >= wait, "{waited:?}");
    let free = acquire(locks, "wait/other", "waiter", MINUTE).await;
    assert_eq!(free.release().await.unwrap(), Released::Done);
    assert_eq!(holder.release().await.unwrap(), Released::Done);
    eventually("entries after the release", 0, || entries(bench, "wait")).await;
}

/// A lock that is not renewed ends with its TTL. Its handle can then neither renew nor release, and the next owner's lock
/// stays untouched by it.
async fn an_expired_lock_goes_to_the_next_owner(bench: &Bench, locks: &dyn Locks) {
    let mut first = acquire(locks, "expiry", "first", SHORT).await;
    let (ttl, valid_until) = (first.ttl(), first.valid_until());
    assert!(ttl >= SHORT && ttl < SHORT * 5, "a TTL of {SHORT:?} became {ttl:?}: do the servers allow it?");
    assert_held(locks, "expiry").await;
    let mut second = locks.acquire("expiry", &request("second", MINUTE, ttl * 5)).await.unwrap();
    let granted = Instant::now();
    assert!(granted >= valid_until, "granted {:?} before the first lease ended", valid_until - granted);
    if bench.backend.fences() {
        assert!(second.fence() > first.fence(), "{} after {}", second.fence(), first.fence());
    }
    assert!(!first.renew().await.unwrap(), "a lost lock was renewed");
    assert_eq!(first.release().await.unwrap(), Released::NotOwner);
    assert_held(locks, "expiry").await;
    assert!(second.renew().await.unwrap(), "the second owner lost its lock by the first one's release");
    assert_eq!(second.release().await.unwrap(), Released::Done);
    eventually("entries after both releases", 0, || entries(bench, "expiry")).await;
}

/// A lock that is renewed outlives its TTL. One whose handle is dropped lasts for its TTL, and not longer.
async fn renewals_hold_the_lock(bench: &Bench, locks: &dyn Locks) {
    let mut handle = acquire(locks, "renew", "holder", SHORT).await;
    let (ttl, begin) = (handle.ttl(), Instant::now());
    let until = begin + ttl * 2;
    while Instant::now() < until {
        tokio::time::sleep(ttl / 6).await;
        let before = handle.valid_until();
        assert!(handle.renew().await.unwrap(), "a held lock was not renewed after {:?}", begin.elapsed());
        assert!(handle.valid_until() > before);
    }
    assert_held(locks, "renew").await;
    drop(handle);
    assert_held(locks, "renew").await;
    eventually("entries after the TTL", 0, || entries(bench, "renew")).await;
}

/// The owner's name is no proof: a stale handle of the same owner changes nothing.
async fn an_owner_that_comes_back_does_not_release_its_own_later_lock(locks: &dyn Locks) {
    let stale = acquire(locks, "again", "worker", SHORT).await;
    let wait = stale.ttl() * 5;
    let fresh = locks.acquire("again", &request("worker", MINUTE, wait)).await.unwrap();
    assert_eq!(stale.release().await.unwrap(), Released::NotOwner);
    assert_held(locks, "again").await;
    assert_eq!(fresh.release().await.unwrap(), Released::Done);
}

/// A waiter that is cancelled leaves the queue; the one behind it is granted the lock.
async fn a_cancelled_waiter_leaves_nothing(bench: &Bench, locks: &Arc<dyn Locks>) {
    let holder = acquire(&**locks, "cancel", "holder", MINUTE).await;
    let waiter = |owner: &'static str| {
        let locks = Arc::clone(locks);
        tokio::spawn(async move { locks.acquire("cancel", &request(owner, MINUTE, MINUTE)).await })
    };
    let queued = with_waiters(bench, entries(bench, "cancel").await);
    let cancelled = waiter("cancelled");
    eventually("entries with a waiter", queued(1), || entries(bench, "cancel")).await;
    let next = waiter("next");
    eventually("entries with two waiters", queued(2), || entries(bench, "cancel")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    cancelled.abort();
    assert!(cancelled.await.unwrap_err().is_cancelled());
    eventually("entries after the cancellation", queued(1), || entries(bench, "cancel")).await;
    assert_eq!(holder.release().await.unwrap(), Released::Done);
    let granted = tokio::time::timeout(SOON, next).await;
    let next = granted.expect("the next waiter is granted the lock").unwrap().unwrap();
    assert_eq!(next.owner(), "next");
    assert_eq!(next.release().await.unwrap(), Released::Done);
    eventually("entries in the end", 0, || entries(bench, "cancel")).await;
}

/// The entries of a key that a holder has so many of, when that many others wait for it.
fn with_waiters(bench: &Bench, holder: usize) -> impl Fn(usize) -> usize {
    let queues = queues(bench.backend);
    move |waiters| if queues { holder + waiters } else { holder }
}

/// Acquires of a free key that are dropped at every point at which they wait: whatever they were granted is released, long
/// before its TTL.
async fn a_cancelled_acquire_releases_what_it_was_granted(bench: &Bench, locks: &dyn Locks) {
    let mut cancelled = 0;
    for round in 0..60 {
        let request = request("hasty", MINUTE, MINUTE);
        match after_polls(round % 20, locks.acquire("race", &request)).await {
            Some(handle) => match handle.unwrap().release().await {
                // A busy server may cut a connection off before it answers; the handle has looked again then.
                Err(Error::Backend { reason, .. }) if reason.contains("the lock is free now") => {}
                released => assert_eq!(released.unwrap(), Released::Done),
            },
            None => cancelled += 1,
        }
    }
    assert!(cancelled >= 3, "only {cancelled} acquires were cancelled");
    let last = acquire(locks, "race", "last", MINUTE).await;
    assert_eq!(last.release().await.unwrap(), Released::Done);
    eventually("entries in the end", 0, || entries(bench, "race")).await;
}

/// Drops the future after it was polled that often without an end.
async fn after_polls<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Pending if left == 0 => Poll::Ready(None),
            polled => polled.map(Some),
        }
    })
    .await
}

/// Every request to servers that are gone fails within its deadline, and names the backend and a server.
async fn a_server_that_goes_away_is_named(bench: &Bench) {
    let options = bench.patient();
    let locks = bench.locks_with(&options);
    let mut renewed = acquire(&*locks, "gone", "holder", MINUTE).await;
    let released = acquire(&*locks, "gone-too", "holder", MINUTE).await;
    let queued = with_waiters(bench, entries(bench, "gone").await);
    // A cluster may have a leader again until the wait ends.
    let wait = options.request_timeout;
    let waiting = {
        let locks = Arc::clone(&locks);
        tokio::spawn(async move { locks.acquire("gone", &request("waiter", MINUTE, wait)).await })
    };
    eventually("entries with a waiter", queued(1), || entries(bench, "gone")).await;
    bench.kill_all().await;
    let address = bench.cluster.address(0);
    let check = |what: &str, error: Error| match error {
        Error::Backend { backend, reason } => {
            assert_eq!(backend, bench.backend.name(), "{what}");
            assert!(reason.contains(address), "{what}: {address} is not named: {reason}");
        }
        other => panic!("{what}: {other:?}"),
    };
    let request = request("late", MINUTE, Duration::ZERO);
    // Of three deadlines, two are for a busy machine.
    let limit = 3 * options.request_timeout;
    let (renewed, released, acquired, waited) = tokio::join!(
        within(limit, renewed.renew()),
        within(limit, released.release()),
        within(limit, locks.acquire("late", &request)),
        within(limit, waiting),
    );
    check("renew", renewed.unwrap_err());
    check("release", released.unwrap_err());
    check("acquire", acquired.unwrap_err());
    check("wait", waited.unwrap().unwrap_err());
}

async fn within<T>(limit: Duration, request: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| panic!("a request did not end within {limit:?}"))
}
