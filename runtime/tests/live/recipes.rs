//! The recipes of the Rust client: a latch, a barrier, and an observer of elections.

use std::time::Duration;

use palisade_client::recipes::{Barrier, Latch, Leader, Observer};
use palisade_client::wire::Consistency;
use palisade_client::{Client, Error, Guard, LockOptions, Options};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::cluster::Cluster;

/// No test expects anything to take so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// So long a wait goes on that must not end.
const WHILE: Duration = Duration::from_millis(200);

async fn client(cluster: &Cluster) -> Client {
    let options = Options { connect_timeout: PATIENCE, request_timeout: PATIENCE, ..Options::default() };
    Client::connect(&cluster.endpoints(), options).await.expect("the cluster serves")
}

/// All of them end without an error.
async fn all(mut tasks: JoinSet<Result<(), Error>>) {
    while let Some(ended) = timeout(PATIENCE, tasks.join_next()).await.expect("they end in time") {
        ended.expect("no task panics").expect("no task fails");
    }
}

/// No task passes before it is opened; then all do, also those that come later, and to open it again changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latch_opens_once_for_all() {
    let cluster = Cluster::start_calm(3);
    let client = client(&cluster).await;
    let latch = Latch::new(&client, "schema/7");
    let mut waiters = JoinSet::new();
    for _ in 0..5 {
        let latch = latch.clone();
        waiters.spawn(async move { latch.wait().await });
    }
    assert!(timeout(WHILE, waiters.join_next()).await.is_err(), "it is closed");
    assert!(!latch.is_open().await.unwrap());
    Latch::new(&client, "schema/8").open().await.unwrap();
    assert!(timeout(WHILE, waiters.join_next()).await.is_err(), "another one was opened");
    latch.open().await.unwrap();
    all(waiters).await;
    let opened = client.record("schema/7", Consistency::Linearizable).await.unwrap();
    latch.open().await.unwrap();
    timeout(PATIENCE, latch.wait()).await.expect("it is open").unwrap();
    assert!(latch.is_open().await.unwrap());
    let still = client.record("schema/7", Consistency::Linearizable).await.unwrap();
    assert_eq!(opened, still);
    latch.remove().await.unwrap();
    assert!(!latch.is_open().await.unwrap());
    client.close().await;
}

/// A group passes when all have arrived, each counted once under its name, whatever arrives at other keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barrier_passes_when_all_have_arrived() {
    const PARTIES: usize = 40;
    let cluster = Cluster::start_calm(3);
    let client = client(&cluster).await;
    let barrier = Barrier::new(&client, "import", PARTIES);
    let mut waiters = JoinSet::new();
    for _ in 0..3 {
        let barrier = barrier.clone();
        waiters.spawn(async move { barrier.wait().await });
    }
    for number in 0..PARTIES - 1 {
        barrier.arrive(format!("{number:02}")).await.unwrap();
        barrier.arrive(format!("{number:02}")).await.unwrap();
    }
    Barrier::new(&client, "import/part", 1).arrive("other").await.unwrap();
    Latch::new(&client, "import").open().await.unwrap();
    for name in ["", "a/b"] {
        assert!(matches!(barrier.arrive(name).await, Err(Error::Refused(_))), "{name:?} is no name");
    }
    assert!(timeout(WHILE, waiters.join_next()).await.is_err(), "one is missing");
    assert_eq!(barrier.arrived().await.unwrap().len(), PARTIES - 1);
    barrier.arrive("last").await.unwrap();
    all(waiters).await;
    timeout(PATIENCE, barrier.wait()).await.expect("a client that comes later passes, too").unwrap();
    assert_eq!(barrier.arrived().await.unwrap().last().map(String::as_str), Some("last"));
    barrier.remove().await.unwrap();
    assert_eq!(barrier.arrived().await.unwrap(), [""; 0]);
    assert_eq!(Barrier::new(&client, "import/part", 1).arrived().await.unwrap(), ["other"], "it is another one's");
    client.close().await;
}

/// The leader dies while some have arrived and all wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn barrier_survives_a_failover() {
    const PARTIES: usize = 6;
    let mut cluster = Cluster::start_calm(3);
    let leader = tokio::task::block_in_place(|| cluster.wait_ready());
    let mut clients = Vec::new();
    for _ in 0..PARTIES {
        clients.push(client(&cluster).await);
    }
    let mut parties = JoinSet::new();
    let arrive = |client: Client, number: usize| async move {
        let barrier = Barrier::new(&client, "round-1", PARTIES);
        barrier.arrive(format!("party-{number}")).await?;
        barrier.wait().await
    };
    let first = Barrier::new(&clients[0], "round-1", PARTIES);
    let (early, late) = clients.split_at(PARTIES / 2);
    for (number, client) in (0..).zip(early) {
        parties.spawn(arrive(client.clone(), number));
    }
    timeout(PATIENCE, async {
        while first.arrived().await.unwrap().len() < PARTIES / 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("half of them arrive");
    cluster.kill(leader);
    for (number, client) in (early.len()..).zip(late) {
        parties.spawn(arrive(client.clone(), number));
    }
    all(parties).await;
    assert_eq!(first.arrived().await.unwrap().len(), PARTIES);
}

/// An observer that comes first, one that comes late, and one that is interrupted again and again see each leader, each
/// value and each end of a leadership, in order, although the node that leads the cluster dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_see_every_leader_and_value() {
    let mut cluster = Cluster::start_calm(3);
    let serving = tokio::task::block_in_place(|| cluster.wait_ready());
    let client = client(&cluster).await;
    let candidacy = |name: &str| {
        let options = LockOptions::default().wait(PATIENCE).ttl(Duration::from_secs(30)).owner(name);
        options.value(format!("{name}-1"))
    };
    let leader = |guard: &Guard, owner: &str, value: &str| {
        let (owner, value) = (owner.to_owned(), Some(value.to_owned()));
        Some(Leader { owner, session: guard.session().number(), token: guard.token(), value })
    };
    let mut early = Observer::new(&client, "group");
    assert_eq!(next(&mut early).await, None);

    let mut first = client.lock("group", candidacy("first")).await.unwrap();
    let waiting = {
        let (client, candidacy) = (client.clone(), candidacy("second"));
        tokio::spawn(async move { client.lock("group", candidacy).await })
    };
    // Another lock, and a record of the same key, are no leaders.
    client.lock("group/1", candidacy("another")).await.unwrap().release().await.unwrap();
    Latch::new(&client, "group").open().await.unwrap();
    first.proclaim("first-2").await.unwrap();
    let mut late = Observer::new(&client, "group");
    let second_value = leader(&first, "first", "first-2");
    // Its node may lag behind, and show what was before.
    while next(&mut late).await != second_value {}
    assert_eq!(next(&mut early).await, leader(&first, "first", "first-1"));
    assert_eq!(next(&mut early).await, second_value);

    cluster.kill(serving);
    first.proclaim("first-3").await.unwrap();
    let third = leader(&first, "first", "first-3");
    first.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    let elected = leader(&second, "second", "second-1");
    client.break_lock("group", second.token(), "for the test").await.unwrap();
    for observer in [&mut early, &mut late] {
        for expected in [&third, &None, &elected, &None] {
            // A call that is dropped loses nothing.
            let seen = match timeout(Duration::from_millis(1), observer.next()).await {
                Ok(seen) => seen.expect("the watch is permitted"),
                Err(_) => next(observer).await,
            };
            assert_eq!(seen, *expected);
        }
        assert!(timeout(WHILE, observer.next()).await.is_err(), "nothing more has happened");
    }
    client.close().await;
}

async fn next(observer: &mut Observer) -> Option<Leader> {
    timeout(PATIENCE, observer.next()).await.expect("it is told in time").expect("the watch is permitted")
}
