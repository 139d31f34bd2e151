//! Tests that are special to ZooKeeper: sessions that are left, and sessions that renew themselves.

use palisade_lab::dlock::Backend;

use crate::suite::{self, suite};
use crate::support::bench;

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_keeps_the_rules() {
    let Some(bench) = bench(Backend::ZooKeeper).await else { return };
    suite(&bench).await;
}

/// With heartbeats a lock outlives its TTL without a renewal, and goes when its handle is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_with_heartbeats_keep_their_locks() {
    let Some(bench) = bench(Backend::ZooKeeper).await else { return };
    suite::automatic_renewals(&bench).await;
}
