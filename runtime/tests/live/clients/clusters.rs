//! Clusters for the scenarios, and what the replicated state says while they run.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::program::Program;
use super::shared::Shared;
use crate::support::cluster::Cluster;
use crate::support::locks::{lock, post_to_leader};
use crate::support::{eventually, http};

/// A TTL within which a client must keep its lock on a busy machine.
pub const KEPT: Duration = Duration::from_secs(5);
/// The TTL of a lock that is to be lost: short, as the scenario waits for its end, and long enough
/// that the lock is not lost before the fault.
pub const LOST: Duration = Duration::from_secs(3);
/// A TTL that no scenario lives to see the end of: what is free in the end was released.
pub const LONG: Duration = Duration::from_secs(600);
/// A wait that a scenario does not live to see the end of.
pub const WAIT: Duration = LONG;
/// No wait.
pub const NOW: Duration = Duration::ZERO;

/// The cluster of all scenarios that do its nodes no harm. Its leader stays.
pub fn calm_cluster() -> Arc<Cluster> {
    static CALM: Shared<Cluster> = Shared::new();
    let Ok(cluster) = CALM.get_or_make(|| Ok::<_, Infallible>(Cluster::start_calm(3)));
    cluster
}

/// A key of this client's in this scenario: others use the same cluster.
pub fn key(program: &Program, scenario: &str) -> String {
    format!("{:?}-{scenario}", program.kind)
}

/// The token of the lock's only holder, as the leader has it.
pub fn holder(cluster: &Cluster, key: &str) -> Option<u64> {
    let lock = lock(cluster, key);
    assert!(lock.holders.len() <= 1, "an exclusive lock has one holder: {lock:?}");
    lock.holder.map(|holder| holder.token)
}

/// Waits until so many sessions wait for a lock.
pub fn await_queue(cluster: &Cluster, key: &str, sessions: usize) {
    eventually("the queue has that length", || (lock(cluster, key).queue.len() == sessions).then_some(()));
}

/// Waits until a lock has no holder and no waiter.
pub fn await_free(cluster: &Cluster, key: &str) {
    eventually("the lock is free", || {
        let lock = lock(cluster, key);
        (!lock.held && lock.queue.is_empty()).then_some(())
    });
}

/// An operator takes a lock from its holder, at these nodes.
pub fn break_lock(endpoints: &[String], key: &str, token: u64) {
    let order = json!({"token": token, "reason": "a scenario needs it"});
    post_to_leader(endpoints, &format!("/v1/locks/{key}/break"), &order).ok();
}

/// The address of a node that does not lead, and sends clients to the leader.
pub fn follower(cluster: &Cluster) -> String {
    let (_, follower) = cluster.roles();
    let address = cluster.client_addr(follower);
    eventually("it knows where the leader is", || {
        http::get(&address, "/v1/locks/any").ok().filter(|response| response.status != 503)
    });
    address
}
