//! Sessions: one guard at a time, many guards one after the other.

use std::time::Duration;

use palisade_client::wire::{Consistency, Op};
use palisade_client::{Error, LockOptions};

use crate::support::Cluster;

fn opened(cluster: &Cluster) -> usize {
    cluster.seen(|op| matches!(op, Op::OpenSession(_)).then_some(())).len()
}

/// Goal: two tasks of one client that lock the same key exclude one another.
#[tokio::test]
async fn tasks_of_one_client_exclude_one_another() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let first = client.lock("key", LockOptions::default()).await.unwrap();
    let clone = client.clone();
    assert!(matches!(clone.lock("key", LockOptions::default()).await, Err(Error::Held { .. })));
    let waiting = tokio::spawn(async move { clone.lock("key", LockOptions::default().wait_forever()).await });
    cluster.until("the other waits", |state| state.table.queue("key") == 1).await;
    let session = first.session();
    first.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    assert_ne!(second.session(), session);
}

/// Goal: ten locks in a row open one session; another owner or time-to-live needs another one.
#[tokio::test]
async fn sessions_are_used_again() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    for _ in 0..10 {
        client.lock("key", LockOptions::default()).await.unwrap().release().await.unwrap();
    }
    assert_eq!(opened(&cluster), 1);
    client.lock("key", LockOptions::default().owner("me")).await.unwrap().release().await.unwrap();
    client.lock("key", LockOptions::default().ttl(Duration::from_secs(9))).await.unwrap().release().await.unwrap();
    assert_eq!(opened(&cluster), 3);
}

/// Goal: an idle session whose lease may be over is not used; one that is gone is replaced.
#[tokio::test]
async fn idle_sessions_that_are_gone_are_replaced() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    client.lock("key", LockOptions::default()).await.unwrap().release().await.unwrap();
    let session = *cluster.state().table.sessions.first_key_value().unwrap().0;
    cluster.state().table.close(session);
    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    assert_ne!(guard.session(), session);
    guard.release().await.unwrap();

    let short = LockOptions::default().ttl(Duration::from_secs(1));
    client.lock("key", short.clone()).await.unwrap().release().await.unwrap();
    let before = opened(&cluster);
    tokio::time::sleep(Duration::from_millis(700)).await;
    drop(client.lock("key", short).await.unwrap());
    assert_eq!(opened(&cluster), before + 1);
}

/// Goal: a client knows the sessions with which it waits for a lock, so that it finds them in the
/// queue; it does not know those of other clients, or of its guards.
#[tokio::test]
async fn waiters_know_their_sessions() {
    let cluster = Cluster::start(1).await;
    let (client, other) = (cluster.client().await, cluster.client().await);
    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    for (client, queued) in [(&other, 1), (&client, 2)] {
        let client = client.clone();
        tokio::spawn(async move { client.lock("key", LockOptions::default().wait_forever()).await });
        cluster.until("it waits", |state| state.table.queue("key") == queued).await;
    }
    let queue: Vec<_> = cluster.state().table.locks["key"].queue.iter().map(|(session, _)| session.number()).collect();
    assert_eq!(client.waiting_sessions("key").await.unwrap(), queue[1..]);
    assert_eq!(other.waiting_sessions("key").await.unwrap(), queue[..1]);
    assert!(client.waiting_sessions("other").await.unwrap().is_empty());
    client.close().await;
    drop(guard);
}

/// Goal: a client can end a session that another one opened: the lock is released, and the guard is
/// lost at its next renewal. A session that has ended already is no error.
#[tokio::test]
async fn sessions_of_others_can_be_closed() {
    let cluster = Cluster::start(1).await;
    let (holder, other) = (cluster.client().await, cluster.client().await);
    let guard = holder.lock("key", LockOptions::default().ttl(Duration::from_secs(1))).await.unwrap();
    for _ in 0..2 {
        other.close_session(guard.session()).await.unwrap();
        assert!(!cluster.state().table.locks.contains_key("key"));
    }
    guard.lost().await;
    assert_eq!(guard.release().await, Err(Error::Lost));
}

/// Goal: a caller that waits for the answer to a read gets an error at once when the client is
/// closed.
#[tokio::test]
async fn close_ends_reads_under_way() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    cluster.state().faults.hold = true;
    let reading = tokio::spawn({
        let client = client.clone();
        async move { client.show_lock("key", Consistency::Linearizable).await }
    });
    cluster.until("it is asked", |state| !state.held.is_empty()).await;
    client.close().await;
    assert_eq!(reading.await.unwrap(), Err(Error::Closed));
}

/// Goal: closing a client ends its idle sessions and its waits, refuses new calls, and lets guards
/// live.
#[tokio::test]
async fn close() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    client.lock("idle", LockOptions::default().owner("idle")).await.unwrap().release().await.unwrap();
    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.lock("key", LockOptions::default().wait_forever()).await }
    });
    cluster.until("it waits", |state| state.table.queue("key") == 1).await;

    client.close().await;
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(client.lock("key", LockOptions::default()).await, Err(Error::Closed)));
    let sessions: Vec<_> = cluster.state().table.sessions.keys().copied().collect();
    assert_eq!(sessions, [guard.session()]);
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    client.close().await;
    assert!(cluster.state().table.sessions.is_empty());
}
