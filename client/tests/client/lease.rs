//! A guard is the first to detect that its lock can no longer be trusted.

use std::time::Duration;

use palisade_client::wire::{Consistency, Op};
use palisade_client::{Client, Error, Guard, LockOptions, Options};
use tokio::time::{Instant, sleep, timeout};

use crate::support::Cluster;

fn short() -> LockOptions {
    LockOptions::default().ttl(Duration::from_secs(2))
}

/// Goal: the cluster freezes; the guard is lost before the server could expire the session.
#[tokio::test]
async fn lost_before_the_lease_ends() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let guard = client.lock("key", short()).await.unwrap();
    let lost = tokio::spawn(guard.lost());
    assert!(guard.is_valid());
    cluster.state().faults.frozen = true;
    lost.await.unwrap();
    let now = Instant::now();
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    let deadline = cluster.state().table.sessions[&guard.session()].deadline;
    assert!(now < deadline, "lost {:?} after the server's deadline", now - deadline);
}

/// Goal: the cluster renews the session, but the answers come when the guard is lost by the client's clock. They do not
/// restore the guard; but the release still finds the lock held, and succeeds.
#[tokio::test]
async fn late_answers_restore_no_guard() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let guard = client.lock("key", short()).await.unwrap();
    cluster.state().faults.hold_keepalives = true;
    let mut lost = Box::pin(guard.lost());
    while timeout(Duration::from_millis(50), &mut lost).await.is_err() {
        // Without an answer of any kind the client would give up the connection.
        client.show_lock("key", Consistency::Linearizable).await.unwrap();
    }
    assert!(!cluster.state().held.is_empty());
    cluster.let_go();
    // The answer to this comes after those.
    client.show_lock("key", Consistency::Linearizable).await.unwrap();
    assert!(!guard.is_valid());
    guard.release().await.unwrap();
}

/// Goal: a guard lives as long as it is kept, also when answers are lost and connections break.
#[tokio::test]
async fn kept_alive_through_trouble() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let guard = client.lock("key", short()).await.unwrap();
    cluster.state().faults.lose_every = 2;
    let mut lost = Box::pin(guard.lost());
    for leader in [1, 0, 1, 0, 1, 0] {
        assert!(timeout(Duration::from_millis(500), &mut lost).await.is_err(), "it was lost");
        cluster.cut();
        cluster.elect(Some(leader));
    }
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    assert_eq!(cluster.state().table.grants.len(), 1);
}

/// Goal: a session is kept alive while it waits, too.
#[tokio::test]
async fn kept_alive_while_waiting() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let holder = client.lock("key", LockOptions::default()).await.unwrap();
    let waiter = tokio::spawn({
        let client = client.clone();
        async move { client.lock("key", short().wait_forever()).await }
    });
    cluster.until("it waits", |state| state.table.queue("key") == 1).await;
    let queue = cluster.state().table.locks["key"].queue.clone();
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(cluster.state().table.locks["key"].queue, queue);
    holder.release().await.unwrap();
    assert!(waiter.await.unwrap().unwrap().is_valid());
}

/// Goal: the client keeps a guard alive although its holder never looks at it, and no more often
/// than necessary: the holder need not read anything to keep renewals going, or to slow them down
/// (etcd 7446).
#[tokio::test]
async fn unpolled_guards_are_renewed_at_the_usual_pace() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let ttl = LockOptions::default().ttl(Duration::from_secs(6));
    let mut guards = Vec::new();
    for key in ["a", "b", "c"] {
        guards.push(client.lock(key, ttl.clone()).await.unwrap());
    }
    sleep(Duration::from_secs(7)).await;
    assert!(guards.iter().all(Guard::is_valid));
    for guard in &guards {
        let asked = cluster.seen(|op| match op {
            Op::KeepAlive { session } if *session == guard.session() => Some(()),
            _ => None,
        });
        // The client renews every third of a TTL; every half second would be fourteen times.
        assert!((1..=6).contains(&asked.len()), "asked {} times in seven seconds", asked.len());
    }
}

/// Goal: when the server answers that the session is gone, the guard is lost at once, and its
/// release reports that.
#[tokio::test]
async fn the_session_is_gone() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let guard = client.lock("key", short()).await.unwrap();
    cluster.state().table.close(guard.session());
    let remaining = guard.remaining();
    let asked = Instant::now();
    guard.lost().await;
    assert!(asked.elapsed() < remaining, "it waited for the end of the lease");
    assert_eq!(guard.release().await, Err(Error::Lost));

    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    cluster.state().table.close(guard.session());
    assert_eq!(guard.release().await, Err(Error::Lost), "although no renewal has failed yet");
}

/// Goal: the client asks an overloaded node less and less often to keep a session alive, and
/// still often enough.
#[tokio::test]
async fn refused_keepalives_are_asked_for_less_and_less_often() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let guard = client.lock("key", short()).await.unwrap();
    cluster.state().faults.refuse_keepalives = true;
    let asked = || cluster.seen(|op| matches!(op, Op::KeepAlive { .. }).then_some(())).len();
    while asked() < 4 {
        sleep(Duration::from_millis(5)).await;
    }
    cluster.state().faults.refuse_keepalives = false;
    sleep(guard.remaining()).await;
    assert!(guard.is_valid(), "the refusals did not cost the lock");

    cluster.state().faults.refuse_keepalives = true;
    let before = asked();
    guard.lost().await;
    // Over a lease of 2 s, of which two thirds were left when it began: 20 + 40 + 80 + 160 + 250 +
    // 250 ms and so on, or half of each.
    assert!(asked() - before <= 16, "asked {} times", asked() - before);
}

/// Goal: if the answer to an acquire comes so late that the lease may have ended by the client's
/// clock, the client renews the lease before it returns a guard.
#[tokio::test]
async fn a_late_grant_is_renewed_first() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let options = LockOptions::default().ttl(Duration::from_secs(1));
    client.lock("warm", options.clone()).await.unwrap().release().await.unwrap();
    cluster.state().faults.mute = true;
    let asked = tokio::spawn(async move { client.lock("key", options).await });
    sleep(Duration::from_millis(1200)).await;
    cluster.state().faults.mute = false;
    let guard = asked.await.unwrap().unwrap();
    assert!(guard.is_valid());
    let deadline = cluster.state().table.sessions[&guard.session()].deadline;
    assert!(Instant::now() + guard.remaining() < deadline);
    assert_eq!(cluster.state().table.grants.len(), 2);
}

/// Goal: a lease counts from the first attempt of its acquire: that attempt may have been applied,
/// although a later one was answered.
#[tokio::test]
async fn a_repeated_grant_counts_from_its_first_attempt() {
    let cluster = Cluster::start(1).await;
    let options = Options { attempt_timeout: Duration::from_millis(500), ..crate::support::options() };
    let client = Client::connect(&cluster.endpoints, options).await.unwrap();
    let ttl = LockOptions::default().ttl(Duration::from_secs(2));
    client.lock("warm", ttl.clone()).await.unwrap().release().await.unwrap();
    cluster.state().faults.lose_grants = 1;
    let guard = client.lock("key", ttl).await.unwrap();
    let deadline = cluster.state().table.sessions[&guard.session()].deadline;
    assert!(Instant::now() + guard.remaining() < deadline);
}
