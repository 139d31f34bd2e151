//! Locks as a client sees them: over plain HTTP, at any node that answers.

use std::thread::sleep;
use std::time::{Duration, Instant};

use palisade_client::wire::{Acquired, LockView, SessionId, SessionLease};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::eventually;
use super::http::{self, Response};

/// The body of the first answer 200 to `GET path` of these nodes.
pub fn read(nodes: &[String], path: &str) -> String {
    eventually(&format!("a node answers GET {path}"), || {
        let answers = nodes.iter().filter_map(|node| http::get(node, path).ok());
        answers.into_iter().find(|response| response.status == 200).map(|response| response.body)
    })
}

/// The lock on `key`, as the leader has it.
pub fn lock(cluster: &Cluster, key: &str) -> LockView {
    serde_json::from_str(&read(&cluster.endpoints(), &format!("/v1/locks/{key}"))).expect("a lock")
}

/// The lock on `key`, as node `id` has it, if it answers. Nothing is written into the log for that.
pub fn lock_at(cluster: &Cluster, id: u16, key: &str) -> Option<LockView> {
    let path = format!("/v1/locks/{key}?consistency=stale");
    let response = http::get(&cluster.client_addr(id), &path).ok().filter(|response| response.status == 200)?;
    serde_json::from_str(&response.body).ok()
}

/// The lock's holder and token, and its waiters in order: sessions by their public numbers.
pub fn holder_and_queue(lock: &LockView) -> (Option<(u64, u64)>, Vec<u64>) {
    let holder = lock.holder.as_ref().map(|holder| (holder.session, holder.token));
    (holder, lock.queue.iter().map(|waiter| waiter.session).collect())
}

/// Posts to one endpoint after the other, and where they send it, until a leader answers. That may
/// take long, if the request waits; it is repeated then.
pub fn post_to_leader(endpoints: &[String], path: &str, body: &Value) -> Response {
    let body = body.to_string();
    let mut next = endpoints.iter().cycle();
    let mut named = None;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        let endpoint = named.take().unwrap_or_else(|| next.next().expect("there is an endpoint").clone());
        match http::post(&endpoint, path, &body) {
            Ok(response) if response.status == 307 => {
                let location = response.header("location").expect("a redirect says where to");
                named = location.strip_prefix("http://").and_then(|rest| rest.split('/').next()).map(str::to_owned);
            }
            Ok(response) if response.status != 503 => return response,
            // No leader, or no node at that address.
            _ => {}
        }
        sleep(Duration::from_millis(10));
    }
    panic!("no leader answered a POST to {path}");
}

/// Opens a session that no client keeps alive.
pub fn open_session(cluster: &Cluster, owner: &str, ttl: Duration) -> SessionId {
    let body = json!({"owner": owner, "ttl_ms": ttl.as_millis()});
    let response = post_to_leader(&cluster.endpoints(), "/v1/sessions", &body);
    let lease: SessionLease = serde_json::from_value(response.ok()).expect("a session");
    lease.session
}

/// Takes the lock on `key` for a session; it must be free.
pub fn acquire(cluster: &Cluster, key: &str, session: SessionId) -> Acquired {
    let path = format!("/v1/locks/{key}/acquire");
    let response = post_to_leader(&cluster.endpoints(), &path, &json!({"session": session}));
    serde_json::from_value(response.ok()).expect("a grant")
}

/// Releases it.
pub fn release(cluster: &Cluster, key: &str, session: SessionId, token: u64) {
    let path = format!("/v1/locks/{key}/release");
    post_to_leader(&cluster.endpoints(), &path, &json!({"session": session, "token": token})).ok();
}
