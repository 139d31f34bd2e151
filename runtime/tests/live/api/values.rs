//! Values of claims: what a holder says to other clients, as a leader that campaigns and proclaims.

use serde_json::{Value, json};

use super::{Node, calm, session_path};
use crate::support::{eventually, http};

fn proclaim(node: &Node, key: &str, grant: &Value, value: &str) -> http::Response {
    let (session, token) = (&grant["session"], &grant["token"]);
    node.post(&format!("/v1/locks/{key}/proclaim"), &json!({ "session": session, "token": token, "value": value }))
}

/// Candidates acquire a lock with their values. The lock has the value of its holder, who replaces it, and
/// passes on with that of the next.
#[test]
fn leader_says_its_value_and_passes_on() {
    let (_cluster, node) = calm();
    let leader = node.acquire("group", &json!({ "owner": "first", "value": "host-1:80" })).ok();
    let next = node.acquire_later("group", json!({ "owner": "second", "value": "host-2:80", "wait_ms": 60_000 }));
    node.wait_for_queue("group", 1);
    assert_eq!(node.lock("group")["holder"]["value"], "host-1:80");
    assert_eq!(proclaim(&node, "group", &leader, "host-1:443").ok(), json!({ "proclaimed": true }));
    assert_eq!(node.lock("group")["holders"][0]["value"], "host-1:443");
    // Asked again, an acquire keeps the value, or replaces it.
    for (value, expected) in [(Value::Null, "host-1:443"), (json!("host-1:8080"), "host-1:8080"), (json!(""), "")] {
        let body = json!({ "session": leader["session"], "value": value });
        assert_eq!(node.acquire("group", &body).ok()["token"], leader["token"]);
        assert_eq!(node.lock("group")["holder"]["value"], expected);
    }
    node.release("group", &leader["session"], &leader["token"]).ok();
    let next = next.join().unwrap().ok();
    let holder = &node.lock("group")["holder"];
    assert_eq!((&holder["owner"], &holder["value"]), (&json!("second"), &json!("host-2:80")));
    proclaim(&node, "group", &leader, "late").refused(409, "not_holder");
    assert_eq!(node.lock("group")["holder"]["value"], "host-2:80");
    assert!(leader["token"].as_u64() < next["token"].as_u64());
    // A lock without a value has none.
    node.acquire("plain", &json!({})).ok();
    assert_eq!(node.lock("plain")["holder"]["value"], Value::Null);
}

/// Members of a group hold a lock together, each with a value; a claim on several keys shows its value at
/// each.
#[test]
fn each_holder_has_a_value_of_its_own() {
    let (_cluster, node) = calm();
    let [first, _] = ["a", "b"].map(|value| node.acquire("group", &json!({ "mode": "shared", "value": value })).ok());
    proclaim(&node, "group", &first, "c").ok();
    let values = |key: &str| -> Vec<Value> {
        node.lock(key)["holders"].as_array().unwrap().iter().map(|holder| holder["value"].clone()).collect()
    };
    assert_eq!(values("group"), ["c", "b"]);
    let pair = node.post("/v1/acquire", &json!({ "keys": ["l", "k"], "value": "both" })).ok();
    assert_eq!((values("k"), values("l")), (vec![json!("both")], vec![json!("both")]));
    proclaim(&node, "l", &pair, "changed").ok();
    assert_eq!((values("k"), values("l")), (vec![json!("changed")], vec![json!("changed")]));
}

/// A value that is too long, of a session that is gone, or of no value at all, is refused in a sentence.
#[test]
fn values_that_cannot_be_set_are_refused() {
    let (_cluster, node) = calm();
    let (most, long) = ("ä".repeat(2_048), "v".repeat(4_097));
    let refused = node.acquire("k", &json!({ "value": long })).refused(400, "invalid");
    assert_eq!(refused["message"], "the value has 4097 bytes; it may have 4096");
    assert_eq!(node.lock("k")["held"], false);
    let grant = node.acquire("k", &json!({ "value": most })).ok();
    proclaim(&node, "k", &grant, &long).refused(400, "invalid");
    for body in [
        json!({ "session": grant["session"], "token": grant["token"] }),
        json!({ "session": grant["session"], "value": "v" }),
        json!({ "session": grant["session"], "token": grant["token"], "value": 7 }),
    ] {
        node.post("/v1/locks/k/proclaim", &body).refused(400, "invalid");
    }
    proclaim(&node, "another", &grant, "v").refused(409, "not_holder");
    node.post("/v1/locks//proclaim", &json!({})).refused(400, "invalid");
    assert_eq!(node.lock("k")["holder"]["value"], most.as_str());
    node.send("DELETE", &session_path(&grant["session"]), "").ok();
    proclaim(&node, "k", &grant, "v").refused(409, "not_holder");
    assert_eq!(node.lock("k")["held"], false);
}

/// A value outlives the death of the cluster's leader, as the grant does.
#[test]
fn value_survives_a_failover() {
    let (mut cluster, node) = calm();
    let session = node.open_session("candidate");
    let grant = node.acquire("group", &json!({ "session": session, "value": "first" })).ok();
    proclaim(&node, "group", &grant, "second").ok();
    let leader = cluster.agreed_leader().unwrap();
    cluster.kill(leader);
    let next = eventually("another node leads", || cluster.agreed_leader().filter(|id| *id != leader));
    let node = Node(cluster.client_addr(next));
    eventually("it serves", || {
        let lock = http::get(&node.0, "/v1/locks/group").ok().filter(|answer| answer.status == 200)?;
        let lock: Value = serde_json::from_str(&lock.body).ok()?;
        (lock["holder"]["value"] == "second").then_some(())
    });
    proclaim(&node, "group", &grant, "third").ok();
    assert_eq!(node.lock("group")["holder"]["value"], "third");
}
