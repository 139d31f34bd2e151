//! The interface of docs/api.md, on a real cluster of three nodes: every path, every documented
//! status and code, as a program that speaks HTTP by hand meets them.

mod breaks;
mod hosts;
mod keys;
mod leaders;
mod lists;
mod locks;
mod modes;
mod numbers;
mod records;
mod refusals;
mod sessions;
mod values;
mod watchers;
mod watches;
mod websocket;

use palisade_client::wire::SessionId;
use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::http::{self, Response};

/// A cluster whose leader stays, and where that leader serves clients.
fn calm() -> (Cluster, Node) {
    let cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let node = Node(cluster.client_addr(leader));
    (cluster, node)
}

/// A node that is asked over HTTP.
#[derive(Clone, Debug)]
struct Node(String);

impl Node {
    fn get(&self, path: &str) -> Response {
        self.send("GET", path, "")
    }

    fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, &body.to_string())
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Response {
        http::send(&self.0, method, path, body).expect("the node answers")
    }

    fn acquire(&self, key: &str, body: &Value) -> Response {
        self.post(&format!("/v1/locks/{key}/acquire"), body)
    }

    fn release(&self, key: &str, session: &Value, token: &Value) -> Response {
        self.post(&format!("/v1/locks/{key}/release"), &json!({ "session": session, "token": token }))
    }

    fn lock(&self, key: &str) -> Value {
        self.get(&format!("/v1/locks/{key}")).ok()
    }

    fn open_session(&self, owner: &str) -> Value {
        self.post("/v1/sessions", &json!({ "ttl_ms": 60_000, "owner": owner })).ok()["session"].clone()
    }

    /// Asks in the background, as a client that waits does.
    fn acquire_later(&self, key: &str, body: Value) -> std::thread::JoinHandle<Response> {
        let (node, key) = (self.clone(), key.to_string());
        std::thread::spawn(move || node.acquire(&key, &body))
    }

    /// Waits until so many stand in a lock's queue, and returns the queue.
    fn wait_for_queue(&self, key: &str, length: usize) -> Vec<Value> {
        crate::support::eventually("the queue has the expected length", || {
            let queue = self.lock(key)["queue"].as_array().expect("a lock has a queue").clone();
            (queue.len() == length).then_some(queue)
        })
    }
}

/// The names of an object's fields, in alphabetical order.
fn fields(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// The public number in a session's credential.
fn number(session: &Value) -> Value {
    let credential: SessionId = session.as_str().expect("a credential is a text").parse().expect("a UUID");
    json!(credential.number())
}

fn session_path(session: &Value) -> String {
    format!("/v1/sessions/{}", session.as_str().expect("a session is a text"))
}
