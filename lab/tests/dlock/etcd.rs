//! Tests that are special to etcd: by hand, and by its own lock service.

use std::time::Duration;

use palisade_lab::dlock::tokens::Tokens;
use palisade_lab::dlock::{Backend, Options, Released};

use crate::suite::suite;
use crate::support::{MINUTE, acquire, bench, request};

#[tokio::test(flavor = "multi_thread")]
async fn etcd_keeps_the_rules() {
    let Some(bench) = bench(Backend::Etcd).await else { return };
    suite(&bench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_lock_keeps_the_rules() {
    let Some(bench) = bench(Backend::EtcdLock).await else { return };
    suite(&bench).await;
}

/// Counters in etcd: the version of a key that each acquire writes in the transaction that queues for the lock.
#[tokio::test(flavor = "multi_thread")]
async fn each_source_of_tokens_counts_where_it_says() {
    let Some(bench) = bench(Backend::Etcd).await else { return };
    for (tokens, expected) in
        [(Tokens::PerKey, [1, 2, 1]), (Tokens::Global, [1, 2, 3]), (Tokens::Sharded(1), [1, 2, 3])]
    {
        let locks = bench.locks_with(&Options { tokens, ..bench.patient() });
        let mut seen = Vec::new();
        for key in ["source", "source", "source-2"] {
            let handle = acquire(&*locks, key, "worker", MINUTE).await;
            seen.push(handle.fence());
            assert_eq!(handle.release().await.unwrap(), Released::Done);
        }
        assert_eq!(seen, expected, "{tokens}");
    }
}

/// A waiter whose server is killed goes on at another one, and keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_outlives_a_server() {
    let Some(bench) = bench(Backend::Etcd).await else { return };
    let locks = bench.locks();
    let holder = acquire(&*locks, "failover", "holder", MINUTE).await;
    let waiting = (0..6).map(|number| {
        let locks = bench.locks();
        tokio::spawn(async move {
            locks
                .acquire("failover", &request(&format!("waiter-{number}"), MINUTE, MINUTE))
                .await
                .unwrap()
                .release()
                .await
        })
    });
    let waiting: Vec<_> = waiting.collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench.cluster.kill(0).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(holder.release().await.unwrap(), Released::Done);
    for waiter in waiting {
        let released = tokio::time::timeout(MINUTE, waiter).await.expect("every waiter is granted");
        assert_eq!(released.unwrap().unwrap(), Released::Done);
    }
}
