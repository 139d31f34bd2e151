//! Refusals on a hold connection: frames that are none, requests out of bounds, and clients at
//! their limits.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{Client, get, lock, node};
use crate::support::cluster::Cluster;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, metrics};

fn rejected(address: &str) -> f64 {
    metrics::value(address, "palisade_frames_rejected_total")
}

/// Goal: a first frame that is no acquire and no resume, or has values out of bounds, is refused and counted, and
/// the connection ends. It opens no session.
#[test]
fn first_frame_out_of_form_is_refused() {
    let (_cluster, address) = node();
    let long = "k".repeat(513);
    let bad = [
        json!("acquire"),
        json!({ "dance": {} }),
        json!({ "here": 1 }),
        json!({ "release": {} }),
        json!({ "acquire": {} }),
        json!({ "acquire": { "key": "" } }),
        json!({ "acquire": { "key": long, "wait_ms": 1_000 } }),
        json!({ "acquire": { "key": "k", "reentrant": true } }),
        json!({ "acquire": { "key": "k", "ttl_ms": 99 } }),
        json!({ "acquire": { "key": "k", "ttl_ms": 99, "wait_ms": 1 } }),
        json!({ "acquire": { "key": "k", "wait_ms": 86_400_001 } }),
        json!({ "acquire": { "key": "k", "padding": "p".repeat(1_000) } }),
        json!({ "resume": { "key": "k" } }),
        json!({ "resume": { "key": "k", "session": "me" } }),
    ];
    for frame in bad {
        let before = rejected(&address);
        let mut client = Client::begin(&address, &frame);
        let refused = client.last("error");
        assert_eq!(refused["error"], "invalid", "{frame}");
        assert!(refused["message"].as_str().unwrap().contains(' '));
        assert_eq!(rejected(&address), before + 1.0, "{frame}");
    }
    assert_eq!(get(&address, "/v1/status").ok()["sessions"], 0);
}

/// Goal: a frame that no client may send ends the connection of a holder, and not its session.
#[test]
fn frame_out_of_form_ends_the_connection_and_not_the_session() {
    let (_cluster, address) = node();
    let (mut client, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    let text = |text: &str| Message::text(text);
    let bad = [
        text("{}"),
        text(r#"{"here":1}"#),
        text(r#"{"acquire":{"key":"other"}}"#),
        text(&json!({ "value": { "n": 1, "value": "v".repeat(20_000) } }).to_string()),
        Message::binary(vec![0; 8]),
    ];
    for frame in bad {
        let before = rejected(&address);
        client.0.0.send(frame).unwrap();
        assert_eq!(client.last("error")["error"], "invalid");
        assert_eq!(rejected(&address), before + 1.0);
        let resume = json!({ "resume": { "key": "k", "session": grant["session"], "token": grant["token"] } });
        client = Client::begin(&address, &resume);
        assert_eq!(client.next("granted"), grant);
    }
    client.release();
}

/// Goal: a request that is no WebSocket is refused with a sentence, and a connection that says nothing ends.
#[test]
fn connection_needs_a_websocket_and_a_first_frame() {
    let (_cluster, address) = node();
    get(&address, "/v1/hold").refused(400, "invalid");
    let mut client = Client(WebSocket::open_at(&address, "/v1/hold"));
    let refused = client.last("error");
    assert!(refused["message"].as_str().unwrap().contains("within 10 s"), "{refused}");
}

/// Goal: a lock that is held is refused at once without a wait, as over HTTP, and no session stays.
#[test]
fn held_lock_is_refused_without_a_wait() {
    let (_cluster, address) = node();
    let (holder, grant) = Client::granted(&address, json!({ "key": "k", "owner": "worker-7" }));
    let mut late = Client::begin(&address, &json!({ "acquire": { "key": "k" } }));
    let refused = late.last("error");
    assert_eq!((&refused["error"], &refused["queue"]), (&json!("held"), &json!(0)));
    assert_eq!(refused["holder"], json!({ "owner": "worker-7", "token": grant["token"] }));
    assert_eq!(get(&address, "/v1/status").ok()["sessions"], 1);
    holder.release();
}

/// Goal: acquires count towards the requests that a client may send in a second. Renewals, the resume of a grant, and
/// releases are never refused.
#[test]
fn acquires_are_limited_and_renewals_are_not() {
    let cluster = Cluster::start_calm_with(1, &["--max-requests-per-second", "2"]);
    let address = cluster.client_addr(1);
    let acquire = |key: String| json!({ "acquire": { "key": key, "ttl_ms": 3_000 } });
    let first = eventually("the client may acquire", || {
        let mut client = Client::begin(&address, &acquire("k".into()));
        let (kind, _) = client.receive();
        (kind == "waiting").then(|| (client.next("granted"), client))
    });
    let (grant, mut holder) = first;
    let refused = eventually("the limit is reached", || {
        let mut client = Client::begin(&address, &acquire(unused_key()));
        let (kind, value) = client.receive();
        (kind == "error").then_some(value)
    });
    assert_eq!(refused["error"], "too_soon");
    holder.be_renewed(2);
    for _ in 0..4 {
        let resume = json!({ "resume": { "key": "k", "session": grant["session"], "token": grant["token"] } });
        holder = Client::begin(&address, &resume);
        assert_eq!(holder.next("granted"), grant);
    }
    holder.release();
}

/// A key that no other request has.
fn unused_key() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static KEYS: AtomicU32 = AtomicU32::new(0);
    format!("key-{}", KEYS.fetch_add(1, Ordering::Relaxed))
}

/// Goal: thousands of frames that answer nothing end the connection at the first of them.
#[test]
fn client_that_answers_unasked_is_cut_off() {
    let (_cluster, address) = node();
    let (mut client, _) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    for _ in 0..2_000 {
        if client.0.0.send(Message::text(r#"{"here":0}"#)).is_err() {
            break;
        }
    }
    let refused: Value = client.last("error");
    assert_eq!(refused["error"], "invalid");
    assert_eq!(lock(&address, "k")["held"], true);
}
