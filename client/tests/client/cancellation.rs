//! Dropping a future or a guard withdraws its claim or releases its lock, in the background.

use std::time::Duration;

use futures_util::FutureExt;
use palisade_client::LockOptions;
use palisade_client::wire::Op;
use tokio::time::timeout;

use crate::support::Cluster;

fn withdrawals(cluster: &Cluster) -> usize {
    cluster.seen(|op| matches!(op, Op::Withdraw { .. }).then_some(())).len()
}

/// Goal: dropping a `lock` future that waits withdraws its claim, and its session serves the next
/// lock.
#[tokio::test]
async fn a_dropped_wait_is_withdrawn() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let holder = client.lock("key", LockOptions::default()).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.lock("key", LockOptions::default().wait_forever()).await }
    });
    cluster.until("it waits", |state| state.table.queue("key") == 1).await;
    waiting.abort();
    cluster.until("it does not wait any more", |state| state.table.queue("key") == 0).await;
    assert_eq!(withdrawals(&cluster), 1);

    let sessions = cluster.state().table.sessions.len();
    drop(client.lock("other", LockOptions::default()).await.unwrap());
    assert_eq!(cluster.state().table.sessions.len(), sessions, "the session is used again");
    holder.release().await.unwrap();
}

/// Goal: a lock that is granted while its future is dropped does not stay held, whenever the future
/// is dropped.
#[tokio::test]
async fn a_grant_to_a_dropped_future_is_released() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    for micros in (0..2000).step_by(100) {
        let asked = client.lock("key", LockOptions::default().wait_forever());
        drop(timeout(Duration::from_micros(micros), asked).await);
    }
    cluster.until("all is given back", |state| state.table.locks.is_empty()).await;
    // The client still works afterwards.
    client.lock("key", LockOptions::default()).await.unwrap().release().await.unwrap();
}

/// Goal: a withdrawal outlives a lost connection: the claim of a caller that cancelled during an
/// outage ends with it.
#[tokio::test]
async fn a_withdrawal_survives_an_outage() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let _holder = client.lock("key", LockOptions::default()).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.lock("key", LockOptions::default().wait_forever()).await }
    });
    cluster.until("it waits", |state| state.table.queue("key") == 1).await;
    cluster.elect(None);
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(cluster.state().table.queue("key"), 1);
    cluster.state().leader = Some(1);
    cluster.until("it does not wait any more", |state| state.table.queue("key") == 0).await;
}

/// Goal: dropping a guard releases its lock.
#[tokio::test]
async fn a_dropped_guard_is_released() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    drop(client.lock("key", LockOptions::default()).await.unwrap());
    cluster.until("it is free", |state| state.table.locks.is_empty()).await;
    assert_eq!(cluster.state().table.releases, [1]);
}

/// Goal: a `release` future that is dropped, before or after its first step, releases all the same.
#[tokio::test]
async fn a_dropped_release_goes_on() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    drop(client.lock("unpolled", LockOptions::default()).await.unwrap().release());
    let guard = client.lock("polled", LockOptions::default()).await.unwrap();
    assert!(guard.release().now_or_never().is_none());
    cluster.until("both are free", |state| state.table.locks.is_empty()).await;
}

/// Goal: the last handle is dropped right after a guard: the background task still releases the
/// lock.
#[tokio::test]
async fn releases_continue_without_handles() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    drop(client);
    assert!(guard.is_valid());
    drop(guard);
    cluster
        .until("lock and session are gone", |state| state.table.locks.is_empty() && state.table.sessions.is_empty())
        .await;
}
