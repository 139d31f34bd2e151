//! `/v1/sessions`: open, keep alive, look, end.

use serde_json::json;

use super::{calm, fields, number, session_path};
use crate::support::eventually;

/// A session from its beginning to its end, with all that hangs on it.
#[test]
fn closed_session_releases_its_locks_and_leaves_its_queues() {
    let (_cluster, node) = calm();
    let lease = node.post("/v1/sessions", &json!({ "ttl_ms": 45_000, "owner": "worker-7" })).ok();
    assert_eq!(fields(&lease), ["session", "ttl_ms"]);
    assert_eq!(lease["ttl_ms"], 45_000);
    let session = &lease["session"];
    assert_eq!(session.as_str().unwrap().len(), 36, "a UUID in its usual form");

    node.acquire("mine", &json!({ "session": session })).ok();
    let other = node.acquire("theirs", &json!({ "owner": "other" })).ok();
    let waiting = node.acquire_later("theirs", json!({ "session": session, "wait_ms": 60_000 }));
    node.wait_for_queue("theirs", 1);

    let view = node.get(&session_path(session)).ok();
    assert_eq!(fields(&view), ["expires_in_ms", "keys", "owner", "session", "ttl_ms"]);
    assert_eq!(view["session"], number(session));
    assert_eq!((&view["owner"], &view["ttl_ms"]), (&json!("worker-7"), &json!(45_000)));
    assert_eq!(view["keys"], json!(["mine", "theirs"]), "what it holds and what it waits for");
    assert!(view["expires_in_ms"].as_u64().unwrap() <= 45_000);

    assert_eq!(node.send("DELETE", &session_path(session), "").ok(), json!({ "closed": true }));
    assert_eq!(node.lock("mine")["held"], false, "what it held is released");
    assert_eq!(node.lock("theirs")["queue"], json!([]), "what it waited for is withdrawn");
    assert_eq!(node.lock("theirs")["holder"]["session"], number(&other["session"]));
    waiting.join().unwrap().refused(404, "no_session");

    node.get(&session_path(session)).refused(404, "no_session");
    node.post(&format!("{}/keepalive", session_path(session)), &json!({})).refused(404, "no_session");
    node.acquire("mine", &json!({ "session": session })).refused(404, "no_session");
    // To end what has ended is no mistake: the answer to the first request may have been lost.
    assert_eq!(node.send("DELETE", &session_path(session), "").ok(), json!({ "closed": true }));
}

/// A keepalive gives a whole TTL again; without one the session ends, and its lock with it, but not
/// before its time.
#[test]
fn a_keepalive_renews_the_deadline_and_silence_ends_the_session() {
    let (_cluster, node) = calm();
    let lease = node.post("/v1/sessions", &json!({ "ttl_ms": 2_000, "owner": "short" })).ok();
    let path = session_path(&lease["session"]);
    node.acquire("k", &json!({ "session": lease["session"] })).ok();

    // All in cluster time, so that a test that stands still is not mistaken for a node that
    // forgets.
    let now = || node.get("/v1/status").ok()["cluster_time_ms"].as_u64().unwrap();
    let begin = now();
    let mut renewed = begin;
    while renewed < begin + 5_000 {
        let response = node.send("POST", &format!("{path}/keepalive"), "");
        if response.status == 404 && now() > renewed + 2_000 {
            // The test itself was asleep for longer than the TTL: it has shown nothing, and nothing
            // is wrong.
            eprintln!("skipped: the machine stood still for a whole TTL");
            return;
        }
        renewed = now();
        assert_eq!(response.ok(), lease);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // By now it has outlived its first TTL more than twice. From here on the client sends nothing.
    let ended = eventually("the lock is free", || (node.lock("k")["held"] == false).then(now));
    assert!(ended >= renewed + 2_000 - 100, "it ended {} ms after its last sign of life", ended - renewed);
    node.get(&path).refused(404, "no_session");
}

/// The bounds of a TTL themselves are allowed, and an empty body means the defaults.
#[test]
fn the_bounds_and_the_defaults_are_as_documented() {
    let (_cluster, node) = calm();
    for ttl in [100, 86_400_000] {
        assert_eq!(node.post("/v1/sessions", &json!({ "ttl_ms": ttl })).ok()["ttl_ms"], ttl);
    }
    let lease = node.send("POST", "/v1/sessions", "").ok();
    assert_eq!(lease["ttl_ms"], 30_000);
    assert_eq!(node.get(&session_path(&lease["session"])).ok()["owner"], "");
    let owner = "ä".repeat(128);
    let session = node.open_session(&owner);
    assert_eq!(node.get(&session_path(&session)).ok()["owner"], owner.as_str(), "256 bytes of an owner");
    assert_eq!(node.send("POST", "/v1/locks/k/acquire", "").ok()["ttl_ms"], 30_000);
    node.acquire("w", &json!({ "wait_ms": 86_400_000 })).ok();
}
