//! Tests that are special to one Redis.

use std::sync::Arc;
use std::time::Duration;

use palisade_lab::dlock::redis::{Redis, ReleaseHow};
use palisade_lab::dlock::tokens::Tokens;
use palisade_lab::dlock::{Backend, Locks, Options, Released, connect};
use palisade_lab::servers;
use tokio::sync::Notify;

use crate::entries::entries;
use crate::suite::suite;
use crate::support::{Bench, MINUTE, acquire, assert_held, bench, bench_with, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn redis_keeps_the_rules() {
    let Some(bench) = bench(Backend::Redis).await else { return };
    suite(&bench).await;
}

async fn command<T: redis::FromRedisValue>(bench: &Bench, arguments: &[&str]) -> T {
    let client = redis::Client::open(format!("redis://{}/", bench.cluster.address(0))).unwrap();
    let config =
        redis::AsyncConnectionConfig::new().set_connection_timeout(Some(MINUTE)).set_response_timeout(Some(MINUTE));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let mut command = redis::cmd(arguments[0]);
    command.arg(&arguments[1..]);
    command.query_async(&mut connection).await.unwrap()
}

/// The scripts are loaded again when the server has forgotten them.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_loaded_again() {
    let Some(bench) = bench(Backend::Redis).await else { return };
    let locks = bench.locks();
    let mut handle = acquire(&*locks, "scripts", "worker", MINUTE).await;
    command::<()>(&bench, &["SCRIPT", "FLUSH"]).await;
    assert!(handle.renew().await.unwrap());
    command::<()>(&bench, &["SCRIPT", "FLUSH"]).await;
    assert_eq!(handle.release().await.unwrap(), Released::Done);
    let value: Option<String> = command(&bench, &["GET", "scripts"]).await;
    assert_eq!(value, None);
}

/// The counter of the token stands under the documented name, and the lock's value begins with the owner.
#[tokio::test(flavor = "multi_thread")]
async fn each_source_of_tokens_counts_where_it_says() {
    let Some(bench) = bench(Backend::Redis).await else { return };
    let sources = [
        (Tokens::Default, "fence:source", [1, 2, 1]),
        (Tokens::Global, "fences", [1, 2, 3]),
        (Tokens::Sharded(1), "fences:0", [1, 2, 3]),
    ];
    for (tokens, counter, expected) in sources {
        command::<()>(&bench, &["FLUSHALL"]).await;
        let locks = bench.locks_with(&Options { tokens, ..bench.patient() });
        let mut seen = Vec::new();
        for key in ["source", "source", "source-2"] {
            let handle = acquire(&*locks, key, "worker-7", MINUTE).await;
            let value: String = command(&bench, &["GET", key]).await;
            assert!(value.starts_with("worker-7:"), "{value}");
            seen.push(handle.fence());
            assert_eq!(handle.release().await.unwrap(), Released::Done);
        }
        assert_eq!(seen, expected, "{tokens}");
        let count: u64 = command(&bench, &["GET", counter]).await;
        assert_eq!(count, if tokens == Tokens::Default { 2 } else { 3 }, "{tokens}");
    }
}

/// GET, then DEL deletes another owner's lock if the first owner's ends in between. The script does not.
#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_release_deletes_another_owners_lock() {
    let Some(bench) = bench(Backend::Redis).await else { return };
    let (compared, may_delete) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let between = {
        let (compared, may_delete) = (Arc::clone(&compared), Arc::clone(&may_delete));
        Arc::new(move |key: String| -> futures_util::future::BoxFuture<'static, ()> {
            assert_eq!(key, "wrong");
            let (compared, may_delete) = (Arc::clone(&compared), Arc::clone(&may_delete));
            Box::pin(async move {
                compared.notify_one();
                may_delete.notified().await;
            })
        })
    };
    let wrong =
        Redis::new(bench.cluster.address(0), &bench.patient()).unwrap().release_how(ReleaseHow::GetThenDel { between });
    let right = bench.locks();

    let ends = || async { bench.cluster.redis(0, &["DEL", "wrong"]).await.unwrap() };
    let first = acquire(&wrong, "wrong", "first", MINUTE).await;
    let release = tokio::spawn(first.release());
    compared.notified().await;
    ends().await;
    let mut second = acquire(&*right, "wrong", "second", MINUTE).await;
    may_delete.notify_one();
    assert_eq!(release.await.unwrap().unwrap(), Released::Done, "the wrong release believes that it was right");
    assert_eq!(entries(&bench, "wrong").await, 0, "the second owner's lock should be gone");
    assert!(!second.renew().await.unwrap(), "the second owner should have lost its lock");

    // The same with the script: the second owner's lock stays.
    let first = acquire(&*right, "wrong", "first", MINUTE).await;
    ends().await;
    let second = acquire(&*right, "wrong", "second", MINUTE).await;
    assert_eq!(first.release().await.unwrap(), Released::NotOwner);
    assert_held(&*right, "wrong").await;
    assert_eq!(second.release().await.unwrap(), Released::Done);
}

/// An acquire over a connection that a restart of the server has broken fails once, and then works again.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_made_again_after_a_restart() {
    let Some(bench) = bench(Backend::Redis).await else { return };
    let locks: Arc<dyn Locks> = bench.locks();
    acquire(&*locks, "restart", "worker", MINUTE).await.release().await.unwrap();
    bench.cluster.kill(0).await.unwrap();
    bench.cluster.restart(0).await.unwrap();
    let failed = locks.acquire("restart", &crate::support::request("worker", MINUTE, Duration::ZERO)).await;
    if let Ok(handle) = failed {
        handle.release().await.unwrap();
    }
    let handle = acquire(&*locks, "restart", "worker", MINUTE).await;
    assert_eq!(handle.release().await.unwrap(), Released::Done);
}

/// A client that knows the replica as well finds it when it is the primary, with a lock that it holds already too.
#[tokio::test(flavor = "multi_thread")]
async fn promoted_replica_is_found() {
    let options = servers::Options { replicas: 1, ..servers::Options::default() };
    let Some(bench) = bench_with(Backend::Redis, options).await else { return };
    let cluster = &bench.cluster;
    // In either order: the server that comes first need not be the primary.
    let addresses = [cluster.address(1).to_owned(), cluster.address(0).to_owned()];
    let locks = connect(Backend::Redis, &addresses, &bench.patient()).unwrap();
    let mut renewed = acquire(&*locks, "renewed", "worker", MINUTE).await;
    let released = acquire(&*locks, "released", "worker", MINUTE).await;
    assert_eq!(cluster.leader().await.unwrap(), 0);
    eventually("replicated", "1".to_owned(), || async { cluster.redis(1, &["EXISTS", "released"]).await.unwrap() })
        .await;
    cluster.kill(0).await.unwrap();
    cluster.redis(1, &["REPLICAOF", "NO", "ONE"]).await.unwrap();
    assert!(renewed.renew().await.unwrap());
    assert_eq!(released.release().await.unwrap(), Released::Done);
    assert_held(&*locks, "renewed").await;
    assert_eq!(acquire(&*locks, "released", "other", MINUTE).await.fence(), 2);
    cluster.restart(0).await.unwrap();
    cluster.replicate(0, cluster.address(1)).await.unwrap();
    assert_eq!(cluster.leader().await.unwrap(), 1);
}
