//! Tests that are special to Palisade: renewed on request, or by the usual client.

use palisade_lab::dlock::{Backend, Released};

use crate::entries::entries;
use crate::suite::{self, suite};
use crate::support::{MINUTE, acquire, bench, eventually, request};

#[tokio::test(flavor = "multi_thread")]
async fn palisade_keeps_the_rules() {
    let Some(bench) = bench(Backend::Palisade).await else { return };
    suite(&bench).await;
}

/// The usual client renews: a lock outlives its TTL, and goes when its handle is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn the_usual_client_keeps_its_locks() {
    let Some(bench) = bench(Backend::Palisade).await else { return };
    suite::automatic_renewals(&bench).await;
}

/// Waiters and their holder outlive the leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_outlives_the_leader() {
    let Some(bench) = bench(Backend::Palisade).await else { return };
    let locks = bench.locks();
    let mut holder = acquire(&*locks, "failover", "holder", MINUTE).await;
    let waiting = (0..4).map(|number| {
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
    eventually("entries with four waiters", 5, || entries(&bench, "failover")).await;
    let leader = {
        let status = palisade_client::Security::plain().status(bench.cluster.address(0), MINUTE).await.unwrap();
        let leader = status.leader.and_then(|leader| leader.client_addr).unwrap();
        (0..bench.cluster.len()).find(|&node| bench.cluster.address(node) == leader).unwrap()
    };
    bench.cluster.kill(leader).await.unwrap();
    assert!(holder.renew().await.unwrap());
    assert_eq!(holder.release().await.unwrap(), Released::Done);
    for waiter in waiting {
        let released = tokio::time::timeout(MINUTE, waiter).await.expect("every waiter is granted");
        assert_eq!(released.unwrap().unwrap(), Released::Done);
    }
}
