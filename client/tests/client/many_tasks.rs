//! One client in a process of a thousand tasks: they share its one connection, and no task
//! starves.

use std::time::Duration;

use palisade_client::wire::Op;
use palisade_client::{Client, Guard, LockOptions, Options};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::{Cluster, options};

/// More than the window has room for.
const TASKS: usize = 1_000;
/// The client's window, `WINDOW` in `client/src/engine/link.rs`.
const WINDOW: usize = 900;

fn lock(client: &Client, key: String, options: LockOptions) -> JoinHandle<Guard> {
    let client = client.clone();
    tokio::spawn(async move { client.lock(key, options).await.expect("every task gets a lock") })
}

/// Makes many tasks hold a lock each, on separate keys.
async fn hold(client: &Client) -> Vec<Guard> {
    let asked: Vec<_> =
        (0..TASKS).map(|number| lock(client, format!("guard-{number}"), LockOptions::default())).collect();
    let mut guards = Vec::new();
    for guard in asked {
        guards.push(guard.await.unwrap());
    }
    guards
}

/// Options with long timeouts, for a busy machine.
fn patient() -> Options {
    let patience = Duration::from_secs(60);
    Options { request_timeout: patience, attempt_timeout: patience, ..options() }
}

/// Goal: of a thousand requests at once, the window limits how many are under way, and the others
/// are queued; keep-alives are not limited.
#[tokio::test]
async fn window_limits_requests_under_way() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(&cluster.endpoints, patient()).await.unwrap();
    let ttl = LockOptions::default().ttl(Duration::from_secs(3));
    let _guard = client.lock("key", ttl).await.unwrap();
    cluster.state().faults.hold = true;
    let asked = tokio::spawn({
        let client = client.clone();
        async move { hold(&client).await }
    });
    let opened = || cluster.seen(|op| matches!(op, Op::OpenSession(_)).then_some(())).len() - 1;
    while opened() < WINDOW {
        sleep(Duration::from_millis(10)).await;
    }
    let kept_alive = |op: &Op| matches!(op, Op::KeepAlive { .. }).then_some(());
    while cluster.seen(kept_alive).is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(opened(), WINDOW, "no other request was sent meanwhile");
    cluster.let_go();
    assert_eq!(asked.await.unwrap().len(), TASKS);
}

/// Goal: a thousand waiters that repeat their acquires keep their order, and cost no guard of the
/// same client its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_keep_order_and_guards_keep_locks() {
    let cluster = Cluster::start(1).await;
    let client = Client::connect(&cluster.endpoints, patient()).await.unwrap();
    let guards = hold(&client).await;
    let holder = client.lock("key", LockOptions::default()).await.unwrap();
    let waiting: Vec<_> = (0..TASKS)
        .map(|_| {
            let guard = lock(&client, "key".to_owned(), LockOptions::default().wait_forever());
            tokio::spawn(async move { guard.await.unwrap().release().await })
        })
        .collect();
    cluster.until("they all wait", |state| state.table.queue("key") == TASKS).await;

    let queue = |cluster: &Cluster| cluster.state().table.locks["key"].queue.clone();
    let (before, connections) = (queue(&cluster), cluster.state().connections);
    let acquires = || cluster.seen(|op| matches!(op, Op::Acquire { .. }).then_some(())).len();
    let asked = acquires();
    while acquires() < asked + 3 * TASKS {
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(queue(&cluster), before, "every waiter has kept its queue position");

    // The waiters are granted one after the other, in their order.
    holder.release().await.unwrap();
    for turn in waiting {
        turn.await.unwrap().unwrap();
    }
    let state = cluster.state();
    let turns = state.table.grants.iter().filter(|(key, ..)| key == "key").map(|(_, session, _)| session);
    assert!(turns.skip(1).eq(before.iter().map(|(session, _)| session)), "not in the order of the queue");
    assert!(guards.iter().all(Guard::is_valid));
    assert_eq!(state.connections, connections, "one connection for all of it");
}
