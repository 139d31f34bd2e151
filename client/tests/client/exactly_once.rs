//! Every operation takes effect once, whatever happens to requests and answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade_client::wire::{Code, Op};
use palisade_client::{Error, LockOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::sleep;

use crate::support::{Cluster, Faults};

/// Goal: each lock is acquired once and released once, although every request arrives twice and
/// every third answer is lost.
#[tokio::test]
async fn repeated_requests_and_lost_answers() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    cluster.state().faults = Faults { repeat: true, lose_every: 3, ..Faults::default() };
    let mut tokens = Vec::new();
    for _ in 0..20 {
        let guard = client.lock("key", LockOptions::default()).await.unwrap();
        tokens.push(guard.token());
        guard.release().await.unwrap();
    }
    let state = cluster.state();
    let granted: Vec<u64> = state.table.grants.iter().map(|(_, _, token)| *token).collect();
    assert_eq!(granted, tokens, "every grant has reached its caller");
    assert_eq!(state.table.releases, tokens);
    assert!(state.table.locks.is_empty());
}

/// Goal: an operation that is sent again on another connection keeps its number; the numbers of a
/// session only grow.
#[tokio::test]
async fn numbers_stay_and_grow() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    cluster.state().faults.lose_every = 2;
    for _ in 0..5 {
        let guard = client.lock("key", LockOptions::default()).await.unwrap();
        cluster.cut();
        guard.release().await.unwrap();
    }
    let numbers = cluster.seen(|op| match op {
        Op::Acquire { options, number, .. } => Some((options.session.unwrap(), number.unwrap(), "acquire")),
        Op::Release { grant, number, .. } => Some((grant.session, number.unwrap(), "release")),
        Op::Withdraw { .. } => panic!("nothing was withdrawn"),
        _ => None,
    });
    for pair in numbers.windows(2) {
        let [(session, number, what), (next_session, next_number, next_what)] = pair else { unreachable!() };
        let repeated = (number, what) == (next_number, next_what);
        assert!(session != next_session || repeated || next_number > number, "{pair:?}");
    }
    assert_eq!(cluster.state().table.grants.len(), 5);
}

/// Goal: a release that an overloaded node refuses is tried again, as the same operation.
#[tokio::test]
async fn a_refused_release_is_tried_again() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    cluster.state().faults.refuse_releases = vec![Code::Overloaded, Code::Limit, Code::Overloaded];
    guard.release().await.unwrap();
    let numbers = cluster.seen(|op| if let Op::Release { number, .. } = op { *number } else { None });
    assert_eq!(numbers, [2, 2, 2, 2]);
}

/// Goal: a caller whose release was executed gets no error that the lock was lost, although the
/// answer was lost and the repetition was refused.
#[tokio::test]
async fn a_release_that_was_done_and_then_refused_is_not_a_loss() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let guard = client.lock("key", LockOptions::default()).await.unwrap();
    cluster.state().faults.lose_releases = 1;
    let released = tokio::spawn(guard.release());
    cluster.until("it is done, unheard", |state| state.table.releases.len() == 1).await;
    cluster.state().faults.refuse_releases = vec![Code::Overloaded];
    released.await.unwrap().unwrap();
    assert!(cluster.state().faults.refuse_releases.is_empty(), "it was refused in between");
}

/// Goal: with many tasks, few keys, and a cluster that loses answers, repeats requests, cuts
/// connections and changes its leader, there are never two holders at once, tokens grow, and no
/// session or claim is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm() {
    const SEED: u64 = 7;
    const TASKS: usize = 12;
    const LOCKS_EACH: usize = 15;
    let cluster = Cluster::start(3).await;
    let clients = [cluster.client().await, cluster.client().await, cluster.client().await];
    let busy: Arc<[AtomicBool; 3]> = Arc::default();
    cluster.state().faults = Faults { repeat: true, lose_every: 7, ..Faults::default() };

    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (client, busy) = (clients[task % clients.len()].clone(), busy.clone());
        let mut random = StdRng::seed_from_u64(SEED + task as u64);
        tasks.push(tokio::spawn(async move {
            for round in 0..LOCKS_EACH {
                let key = random.random_range(0..busy.len());
                let options = match round % 3 {
                    0 => LockOptions::default(),
                    1 => LockOptions::default().wait(Duration::from_millis(random.random_range(1..60))),
                    _ => LockOptions::default().wait_forever(),
                };
                let patience = Duration::from_millis(random.random_range(1..80));
                let asked = client.lock(key.to_string(), options.ttl(Duration::from_secs(20)));
                let outcome = if random.random_bool(0.3) {
                    tokio::time::timeout(patience, asked).await.unwrap_or(Err(Error::Closed))
                } else {
                    asked.await
                };
                let Ok(guard) = outcome else { continue };
                assert!(guard.is_valid());
                assert!(!busy[key].swap(true, Ordering::SeqCst), "two hold {key}");
                sleep(Duration::from_millis(random.random_range(0..5))).await;
                assert!(busy[key].swap(false, Ordering::SeqCst));
                match random.random_range(0..3) {
                    0 => drop(guard),
                    1 => drop(tokio::time::timeout(Duration::from_millis(1), guard.release()).await),
                    _ => guard.release().await.unwrap(),
                }
            }
        }));
    }
    let storm = tokio::spawn({
        let cluster = cluster.clone();
        async move {
            let mut random = StdRng::seed_from_u64(SEED);
            loop {
                sleep(Duration::from_millis(random.random_range(5..120))).await;
                if random.random_bool(0.5) {
                    cluster.cut();
                } else {
                    cluster.elect(Some(random.random_range(0..3)));
                }
            }
        }
    });
    for task in tasks {
        task.await.unwrap();
    }
    storm.abort();
    for client in &clients {
        client.close().await;
    }
    let state = cluster.state();
    assert!(state.table.locks.is_empty(), "locks are left behind");
    let mut released = state.table.releases.clone();
    released.sort_unstable();
    let granted: Vec<u64> = state.table.grants.iter().map(|(_, _, token)| *token).collect();
    assert_eq!(released, granted, "every grant was given back, none by expiry");
}
