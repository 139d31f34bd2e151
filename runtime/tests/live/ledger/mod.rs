//! Failures that other lock services are known for, caused in a live cluster. docs/bug-ledger.md
//! describes each and names its test; each has one file.

mod dead_waiter;
mod lost_reply;
mod mass_expiry;
mod partial_partition;
mod retried_unlock;
mod slow_consumer;
mod stalled_leader;

use std::thread::JoinHandle;
use std::time::Duration;

use palisade_client::wire::SessionId;
use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::http::Response;
use crate::support::locks::{holder_and_queue, lock, post_to_leader};
use crate::support::{eventually, websocket::WebSocket};

/// Longer than any of these tests: such a session does not end by itself.
const LONG: Duration = Duration::from_secs(600);
/// The lock that all of these tests use.
const KEY: &str = "nightly";

/// A connection to the leader.
fn connect(cluster: &Cluster) -> WebSocket {
    WebSocket::open(&cluster.client_addr(cluster.wait_ready()))
}

/// Waits for the lock in the background, as a program that calls and is answered later.
fn wait_for_lock(cluster: &Cluster, session: SessionId) -> JoinHandle<Response> {
    let endpoints = cluster.endpoints();
    std::thread::spawn(move || {
        let body = json!({ "session": session, "wait_ms": LONG.as_millis() });
        post_to_leader(&endpoints, &format!("/v1/locks/{KEY}/acquire"), &body)
    })
}

/// Waits until exactly these wait for the lock, in this order.
fn await_queue(cluster: &Cluster, expected: &[SessionId]) {
    let expected: Vec<u64> = expected.iter().map(|session| session.number()).collect();
    eventually("these stand in the queue", || (holder_and_queue(&lock(cluster, KEY)).1 == expected).then_some(()));
}
