//! What is special to ZooKeeper: sessions that are left, and sessions that renew themselves.

use std::time::Duration;

use palisade_lab::dlock::{Backend, Connections, Options, Released, Renewal};

use crate::entries::entries;
use crate::suite::{self, suite};
use crate::support::{MINUTE, SHORT, acquire, assert_held, bench, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_keeps_the_rules() {
    let Some(bench) = bench(Backend::ZooKeeper).await else { return };
    suite(&bench).await;
}

/// With heartbeats a lock outlives its TTL without a renewal, and goes when its handle is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_with_heartbeats_keep_their_locks() {
    let Some(bench) = bench(Backend::ZooKeeper).await else { return };
    for connections in [Connections::Own, Connections::Shared(2)] {
        let locks = bench.locks_with(&Options { renewal: Renewal::Automatic, connections, ..bench.patient() });
        suite::exclusion_with_growing_tokens(&bench, &locks, &format!("heartbeats-{connections}")).await;
        suite::a_wait_ends_in_time(&bench, &*locks).await;
        suite::a_cancelled_waiter_leaves_nothing(&bench, &locks).await;
        suite::a_cancelled_acquire_releases_what_it_was_granted(&bench, &*locks).await;
        let mut handle = acquire(&*locks, "heartbeats", "holder", SHORT).await;
        tokio::time::sleep(handle.ttl() * 2 + Duration::from_secs(1)).await;
        assert_held(&*locks, "heartbeats").await;
        assert!(handle.renew().await.unwrap());
        assert_eq!(handle.release().await.unwrap(), Released::Done);
        let handle = acquire(&*locks, "heartbeats", "holder", MINUTE).await;
        drop(handle);
        eventually("entries after the handle was dropped", 0, || entries(&bench, "heartbeats")).await;
    }
}
