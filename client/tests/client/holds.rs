//! Several guards of one grant, each with a hold of its own.

use std::time::Duration;

use palisade_client::{Error, LockOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::timeout;

use crate::support::{Cluster, Faults};

/// Goal: a guard's owner holds its lock again, while another caller of the same client waits, and the lock is free when
/// the last guard has gone, whichever that is. One keep-alive serves them all.
#[tokio::test]
async fn lock_is_free_when_its_last_guard_has_gone() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let options = LockOptions::default().ttl(Duration::from_secs(6));
    let first = client.lock("key", options.clone()).await.unwrap();
    let second = first.hold_again().await.unwrap();
    let third = second.hold_again().await.unwrap();
    assert_eq!(cluster.state().table.locks["key"].holds, 3);
    assert_eq!([second.token(), third.token()], [first.token(); 2]);
    let waiting = tokio::spawn(async move { client.lock("key", options.wait_forever()).await });
    cluster.until("the other waits", |state| state.table.queue("key") == 1).await;

    first.release().await.unwrap();
    assert_eq!(cluster.state().table.locks["key"].holds, 2);
    drop(third);
    cluster.until("a hold is given back", |state| state.table.locks["key"].holds == 1).await;
    for _ in 0..2 {
        let before = second.trusted_until();
        cluster.until("it is kept alive", |_| second.trusted_until() > before).await;
    }
    assert!(!waiting.is_finished());
    let token = second.token();
    second.release().await.unwrap();
    assert!(waiting.await.unwrap().unwrap().token() > token);
}

/// Goal: what ends the session is a loss for all guards of the grant.
#[tokio::test]
async fn loss_is_told_to_all_guards() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let first = client.lock("key", LockOptions::default()).await.unwrap();
    let second = first.hold_again().await.unwrap();
    cluster.state().table.close(first.session());
    assert_eq!(second.hold_again().await.err(), Some(Error::Lost));
    assert!(!first.is_valid() && !second.is_valid());
    first.lost().await;
    second.lost().await;
    assert_eq!((first.release().await, second.release().await), (Err(Error::Lost), Err(Error::Lost)));
}

/// Goal: every guard that a caller has is one hold, and no other hold stays, although requests arrive twice, answers are
/// lost, connections break, and callers drop their futures before the answer.
#[tokio::test]
async fn holds_are_counted_once_through_trouble() {
    const SEED: u64 = 11;
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let mut random = StdRng::seed_from_u64(SEED);
    cluster.state().faults = Faults { repeat: true, lose_every: 5, ..Faults::default() };
    for _ in 0..4 {
        let mut guards = vec![client.lock("key", LockOptions::default()).await.unwrap()];
        for _ in 0..25 {
            match random.random_range(0..5) {
                0 => cluster.cut(),
                1 => drop(timeout(Duration::from_millis(1), guards[0].hold_again()).await),
                2 if guards.len() > 1 => drop(guards.swap_remove(0)),
                3 if guards.len() > 1 => guards.swap_remove(0).release().await.unwrap(),
                _ => guards.push(guards[0].hold_again().await.unwrap()),
            }
        }
        let held = guards.len();
        cluster
            .until("each guard has one hold", |state| state.table.locks["key"].holds == u32::try_from(held).unwrap())
            .await;
        assert!(guards.iter().all(palisade_client::Guard::is_valid));
        for guard in guards {
            guard.release().await.unwrap();
        }
        assert!(cluster.state().table.locks.is_empty());
    }
    let state = cluster.state();
    let granted: Vec<u64> = state.table.grants.iter().map(|(_, _, token)| *token).collect();
    assert_eq!(state.table.releases, granted, "every grant was given back once");
}
