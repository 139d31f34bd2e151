//! One Rust client, that is one connection, for thousands of tasks: a program that shares one
//! `Client`.
//!
//! Waiters repeat their acquires. No repetition may cost a waiter its queue position, or a guard of
//! the same client its lock.

use std::time::{Duration, Instant};

use palisade_client::{Client, Error, Guard, LockOptions, Options};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::cluster::Cluster;
use crate::support::locks::{holder_and_queue, lock};
use crate::support::metrics;

const TASKS: usize = 2_000;
const PATIENCE: Duration = Duration::from_secs(120);
/// The first pause before a wait is asked for again; each one is twice as long as the one before.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Goal: two thousand tasks wait for one lock and two thousand hold another, on one connection,
/// while every waiter asks two more times on average. The queue stays as it was, all guards hold, and
/// the lock is granted in queue order.
#[test]
fn many_tasks_on_one_connection_keep_order_and_locks() {
    let cluster = Cluster::start_calm(3);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, many_tasks(&cluster)).await }).expect("in time");
}

async fn many_tasks(cluster: &Cluster) {
    let options =
        Options { ask_again: ASK_AGAIN, request_timeout: PATIENCE, connect_timeout: PATIENCE, ..Options::default() };
    let client = Client::connect(&cluster.endpoints(), options).await.expect("a leader answers");
    // Short enough that every guard, and every waiter, is kept alive several times.
    let ttl = LockOptions::default().ttl(Duration::from_secs(12));

    let mut asked = JoinSet::new();
    for number in 0..TASKS {
        let (client, ttl) = (client.clone(), ttl.clone());
        asked.spawn(async move { client.lock(format!("guard-{number}"), ttl).await });
    }
    let guards: Vec<Guard> = asked.join_all().await.into_iter().collect::<Result<_, _>>().expect("they are free");

    let holder = client.lock("key", ttl.clone()).await.expect("it is free");
    let (granted, mut turns) = mpsc::unbounded_channel();
    let mut waiting = JoinSet::new();
    for _ in 0..TASKS {
        let (client, ttl, granted) = (client.clone(), ttl.clone(), granted.clone());
        waiting.spawn(async move {
            let guard = client.lock("key", ttl.wait_forever()).await?;
            let _ = granted.send((guard.token(), guard.session().number()));
            guard.release().await
        });
    }
    let queue = || holder_and_queue(&lock(cluster, "key")).1;
    let begin = Instant::now();
    while queue().len() < TASKS {
        assert!(begin.elapsed() < PATIENCE, "only {} of {TASKS} wait", queue().len());
        sleep(Duration::from_millis(50)).await;
    }
    let before = queue();

    let leader = cluster.client_addr(cluster.wait_ready());
    let entries = || metrics::value(&leader, "palisade_entries_applied_total");
    let (begin, applied) = (Instant::now(), entries());
    // Each repetition is an entry.
    while entries() - applied < 2.0 * TASKS as f64 {
        assert!(begin.elapsed() < PATIENCE, "they do not ask again");
        assert!(queue() == before, "the queue has changed");
        sleep(Duration::from_millis(200)).await;
    }
    assert!(queue() == before, "the queue has changed");
    assert_eq!(guards.iter().filter(|guard| !guard.is_valid()).count(), 0, "guards were lost");

    holder.release().await.expect("it was held");
    let ended: Vec<Result<(), Error>> = waiting.join_all().await;
    assert!(ended.iter().all(Result::is_ok), "{:?}", ended.iter().find(|ended| ended.is_err()));
    let mut order = Vec::new();
    while let Ok(turn) = turns.try_recv() {
        order.push(turn);
    }
    order.sort_unstable();
    assert!(order.iter().map(|(_, session)| session).eq(&before), "the lock did not go through the queue in its order");
    for guard in guards {
        guard.release().await.expect("no other session took it");
    }
    client.close().await;
}
