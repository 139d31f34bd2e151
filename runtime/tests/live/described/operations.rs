//! Each operation and each status that is described.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Case, Example, UNKNOWN_SESSION, Walk, examples, refusals};
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::events::Events;
use crate::support::eventually;

/// Codes that this test does not provoke, of an operation or (`*`) of each, and why not. Other tests provoke most of them
/// at one operation.
const NOT_PROVOKED: [(&str, &str, &str); 14] = [
    ("*", "leadership_lost", "the leader must lose its majority within a request: `forwarding`"),
    ("*", "overloaded", "too much work must wait at the node: `scarcity`"),
    ("*", "shutting_down", "the node must stop within a request: a unit test of `http`"),
    ("*", "audit_unavailable", "the audit log's disk must be full: `scarcity::disk`"),
    ("*", "limit", "the client must have all that it may have: `abuse::hoarders`"),
    ("*", "withdrawn", "another request must withdraw the claim meanwhile: `api::locks`"),
    ("*", "change_not_ready", "another change must be under way: `durability::returns`"),
    ("*", "no_majority", "most voters must be away, and the leader must not have noticed: `founding`"),
    ("transferLeadership", "not_transferred", "the successor must not answer: a test of `core/driver/tests.rs`"),
    ("promoteMember", "not_caught_up", "a learner must lack many entries: `membership`"),
    ("requests", "no_leader", "a follower must lose its leader while a client opens a WebSocket through it"),
    ("takeSnapshot", "no_leader", "the node must never have applied anything"),
    ("requests", "101", "`messages` opens it"),
    ("hold", "101", "`messages` opens it"),
];

/// Goal: the server does what is described, with each status and each code of each operation.
#[test]
fn each_code_of_each_operation_is_seen() {
    let mut walk = Walk::default();
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    refusals::of_requests(&mut walk, &cluster);
    locks(&mut walk, &address);
    records(&mut walk, &address);
    sessions(&mut walk, &address);
    the_node(&mut walk, &address);
    members(&mut walk, &address, leader);
    page(&mut walk, &address);
    refusals::without_a_leader(&mut walk, &mut cluster);
    drop(cluster);
    refusals::too_many(&mut walk);
    refusals::at_the_wrong_address(&mut walk);
    refusals::without_room(&mut walk);
    full(&mut walk);
    secured(&mut walk);

    let described: BTreeSet<Case> = examples()
        .into_iter()
        .flat_map(|Example { id, cases, .. }| cases.into_iter().map(move |(status, code)| (id.clone(), status, code)))
        .collect();
    let unseen: BTreeSet<Case> = described.difference(&walk.seen).cloned().collect();
    let excuses = |(id, of, _): &(&str, &str, &str), (operation, status, code): &Case| {
        let name = code.clone().unwrap_or_else(|| status.to_string());
        [operation, "*"].contains(id) && *of == name
    };
    let missing: Vec<_> = unseen.iter().filter(|case| !NOT_PROVOKED.iter().any(|it| excuses(it, case))).collect();
    assert!(missing.is_empty(), "described, and not seen: {missing:?}");
    let needless: Vec<_> = NOT_PROVOKED.iter().filter(|it| !unseen.iter().any(|case| excuses(it, case))).collect();
    assert!(needless.is_empty(), "seen, or not described, and yet excused: {needless:?}");
    let undescribed: Vec<_> = walk.seen.difference(&described).collect();
    assert!(undescribed.is_empty(), "seen, and not described: {undescribed:?}");
}

/// The same session's number with another secret.
fn forged(session: &Value) -> String {
    let session = session.as_str().expect("a credential");
    let last = if session.ends_with('0') { "1" } else { "0" };
    format!("{}{last}", &session[..session.len() - 1])
}

fn locks(walk: &mut Walk, address: &str) {
    let one = walk.post(address, "/v1/locks/k/acquire", &json!({ "owner": "w", "value": "v" })).ok();
    let (session, token) = (&one["session"], &one["token"]);
    walk.post(address, "/v1/locks/k/acquire", &json!({})).refused(409, "held");
    walk.post(address, "/v1/locks/k/acquire", &json!({ "wait_ms": 1 })).refused(408, "timeout");
    walk.post(address, "/v1/locks/k/acquire", &json!({ "session": UNKNOWN_SESSION })).refused(404, "no_session");
    let several = walk.post(address, "/v1/acquire", &json!({ "keys": ["b", "a"] })).ok();
    walk.post(address, "/v1/acquire", &json!({ "keys": ["b", "k"] })).refused(409, "held");
    walk.post(address, "/v1/acquire", &json!({ "keys": ["b", "k"], "wait_ms": 1 })).refused(408, "timeout");
    walk.post(address, "/v1/acquire", &json!({ "keys": ["b"], "session": UNKNOWN_SESSION })).refused(404, "no_session");

    for path in ["/v1/locks/k", "/v1/locks/free", "/v1/locks/k?consistency=stale", "/v1/locks?prefix=k&limit=10"] {
        walk.send(address, "GET", path, "", "").ok();
    }
    walk.send(address, "GET", "/v1/locks?consistency=stale", "", "").ok();

    let grant = json!({ "session": session, "token": token, "value": "w" });
    walk.post(address, "/v1/locks/k/proclaim", &grant).ok();
    let stranger = json!({ "session": forged(session), "token": token });
    let stranger_proclaims = json!({ "session": forged(session), "token": token, "value": "w" });
    walk.post(address, "/v1/locks/k/proclaim", &stranger_proclaims).refused(404, "no_session");
    walk.post(address, "/v1/locks/free/proclaim", &grant).refused(409, "not_holder");
    walk.post(address, "/v1/locks/k/release", &stranger).refused(404, "no_session");
    let grant = json!({ "session": session, "token": token });
    walk.post(address, "/v1/locks/free/release", &grant).refused(409, "not_holder");
    walk.post(address, "/v1/locks/k/release", &grant).ok();

    let of_both = json!({ "keys": ["a", "b"], "session": several["session"], "token": several["token"] });
    let stranger = json!({ "keys": ["a", "b"], "session": forged(&several["session"]), "token": several["token"] });
    walk.post(address, "/v1/release", &stranger).refused(404, "no_session");
    walk.post(address, "/v1/release", &of_both).ok();
    walk.post(address, "/v1/release", &of_both).refused(409, "not_holder");

    let hung = walk.post(address, "/v1/locks/hung/acquire", &json!({})).ok();
    let order = json!({ "token": hung["token"], "reason": "a test" });
    walk.post(address, "/v1/locks/hung/break", &order).ok();
    walk.post(address, "/v1/locks/hung/break", &order).refused(409, "not_holder");
}

fn records(walk: &mut Walk, address: &str) {
    walk.send(address, "GET", "/v1/kv/none", "", "").refused(404, "no_record");
    let fence = "X-Fence-Token: 999999\r\n";
    for (method, path) in [("PUT", "/v1/kv/r"), ("POST", "/v1/kv/r/append"), ("DELETE", "/v1/kv/r")] {
        walk.send(address, method, path, fence, "").refused(409, "stale fencing token");
    }
    walk.send(address, "PUT", "/v1/kv/r?if_version=0", "", "content").ok();
    walk.send(address, "PUT", "/v1/kv/r?if_version=0", "", "content").refused(409, "other_version");
    walk.send(address, "POST", "/v1/kv/r/append?if_version=0", "", "more").refused(409, "other_version");
    walk.send(address, "DELETE", "/v1/kv/r?if_version=0", "", "").refused(409, "other_version");
    walk.send(address, "POST", "/v1/kv/r/append", "", "more").ok();
    for path in ["/v1/kv/r", "/v1/kv/r?consistency=stale", "/v1/kv", "/v1/kv?prefix=r&consistency=stale&limit=1"] {
        assert_eq!(walk.send(address, "GET", path, "", "").status, 200);
    }
    let put = json!([{ "put": { "key": "r", "value": "text" } }, { "append": { "key": "r", "value": { "base64": "/wA=" } } }]);
    walk.post(address, "/v1/kv", &json!({ "changes": put })).ok();
    let new = json!([{ "version": { "key": "r", "version": 0 } }]);
    walk.post(address, "/v1/kv", &json!({ "conditions": new, "changes": put })).refused(409, "other_version");
    let held = json!([{ "held": { "lock": "r", "token": 999_999 } }]);
    walk.post(address, "/v1/kv", &json!({ "conditions": held, "changes": put })).refused(409, "stale fencing token");
    walk.post(address, "/v1/kv", &json!({ "session": UNKNOWN_SESSION, "changes": put })).refused(404, "no_session");
    walk.send(address, "DELETE", "/v1/kv/r", "", "").ok();
}

fn sessions(walk: &mut Walk, address: &str) {
    let opened = walk.post(address, "/v1/sessions", &json!({ "ttl_ms": 60_000, "owner": "w" })).ok();
    let path = format!("/v1/sessions/{}", opened["session"].as_str().unwrap());
    let strange = format!("/v1/sessions/{}", forged(&opened["session"]));
    walk.send(address, "POST", &format!("{path}/keepalive"), "", "").ok();
    walk.send(address, "GET", &path, "", "").ok();
    walk.send(address, "POST", &format!("{strange}/keepalive"), "", "").refused(404, "no_session");
    walk.send(address, "GET", &strange, "", "").refused(404, "no_session");
    walk.send(address, "DELETE", &strange, "", "").refused(404, "no_session");
    walk.send(address, "DELETE", &path, "", "").ok();
}

fn the_node(walk: &mut Walk, address: &str) {
    walk.send(address, "GET", "/v1/snapshot", "", "").refused(404, "not_found");
    for path in ["/v1/status", "/v1/members", "/v1/access", "/v1/access/test?right=read&key=k"] {
        walk.send(address, "GET", path, "", "").ok();
    }
    walk.send(address, "POST", "/v1/snapshot", "", "").ok();
    walk.send(address, "GET", "/v1/status", "", "").ok();
    for path in ["/v1/snapshot", "/metrics", "/readyz", "/readyz?leader=1", "/healthz"] {
        assert_eq!(walk.send(address, "GET", path, "", "").status, 200, "{path}");
    }
    for (path, file) in [
        ("openapi", include_str!("../../../../docs/openapi.json")),
        ("messages", include_str!("../../../../docs/messages.json")),
    ] {
        assert_eq!(walk.send(address, "GET", &format!("/v1/{path}.json"), "", "").body, file);
    }
    walk.note(Events::open(address, "prefix=").seen);
    walk.send(address, "GET", "/v1/watch", "", "").refused(400, "invalid");
}

fn members(walk: &mut Walk, address: &str, leader: u16) {
    let cluster = walk.send(address, "GET", "/v1/status", "", "").ok()["cluster"].clone();
    let (lost, new) = ("00000000000000aa", "00000000000000bb");
    let nine = json!({ "id": 9, "peer_addr": "127.0.0.1:1", "incarnation": lost });
    walk.post(address, "/v1/members/9/promote", &json!({})).refused(404, "no_member");
    walk.send(address, "DELETE", "/v1/members/9", "", "").refused(404, "no_member");
    walk.post(address, "/v1/members", &nine).ok();
    walk.post(address, "/v1/members", &json!({ "id": 9, "peer_addr": "127.0.0.1:2" })).refused(409, "node_id_in_use");
    let replacement =
        |lost: &str| json!({ "generation": 0, "cluster": cluster, "lost_incarnation": lost, "incarnation": new });
    walk.post(address, "/v1/members/9/replace", &replacement("00000000000000cc")).refused(409, "node_id_in_use");
    walk.post(address, "/v1/members/9/replace", &replacement(lost)).ok();
    walk.send(address, "DELETE", "/v1/members/9", "", "").ok();
    walk.post(address, &format!("/v1/members/{leader}/promote"), &json!({})).ok();
    walk.post(address, "/v1/leader/transfer", &json!({ "to": 9 })).refused(404, "no_member");
    eventually("leadership is transferred", || {
        (walk.post(address, "/v1/leader/transfer", &json!({})).status == 200).then_some(())
    });

    let single = Cluster::start_calm(1);
    walk.send(&single.client_addr(1), "DELETE", "/v1/members/1", "", "").refused(409, "last_voter");
}

fn page(walk: &mut Walk, address: &str) {
    for example in examples() {
        if example.path == "/" || example.path.starts_with("/ui") {
            walk.example(address, &example, "");
        }
    }
}

/// A disk that is nearly full, as the operator says.
fn full(walk: &mut Walk) {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(1);
    let grant = walk.post(&address, "/v1/locks/k/acquire", &json!({})).ok();
    let mut cluster = cluster;
    cluster.add_flags(&["--min-free-bytes", "1000000000000000"]);
    cluster.stop(1);
    cluster.restart(1);
    cluster.wait_ready();
    for id in ["acquire", "acquireKeys", "openSession", "putRecord", "appendRecord", "transact"] {
        let example = examples().into_iter().find(|example| example.id == id).unwrap();
        walk.example(&address, &example, "").refused(507, "no_space");
    }
    let value = json!({ "session": grant["session"], "token": grant["token"], "value": "v" });
    walk.post(&address, "/v1/locks/k/proclaim", &value).refused(507, "no_space");
}

/// Nodes with TLS, where clients and administrators have names.
fn secured(walk: &mut Walk) {
    let certificates = Certificates::of("billing", 3);
    let admin = certificates.administrator("eve");
    let mut cluster = Cluster::start_secured(3, &[], &certificates);
    let (leader, follower) = cluster.roles();
    let (at_leader, at_follower) = (cluster.client_addr(leader), cluster.client_addr(follower));
    refusals::without_identity(walk, &at_leader, &certificates);
    let example = || examples().into_iter().find(|example| example.id == "setAccess").unwrap();
    let set = |walk: &mut Walk, address: &str, headers: &str, body: &Value| {
        walk.send_as(&admin, address, &Example { body: body.to_string(), ..example() }, headers)
    };
    let rules = json!([{ "subject": "role:ops", "prefix": "", "rights": ["read"] }]);
    let of_ops = |revision: u64| json!({ "revision": revision, "roles": { "ops": ["ann"] }, "rules": rules });
    set(walk, &at_follower, "X-Forward: never\r\n", &json!({ "revision": 0 })).refused(307, "not_leader");
    set(walk, &at_leader, "", &of_ops(7)).refused(409, "access_changed");
    set(walk, &at_leader, "", &of_ops(0)).ok();
    certificates.issue_client("bob", &[]);
    refusals::without_rights(walk, &at_leader, &certificates.client("bob"));
    cluster.others(follower).into_iter().for_each(|id| cluster.kill(id));
    eventually("the node knows no leader", || cluster.status(follower)?.leader.is_none().then_some(()));
    set(walk, &at_follower, "", &json!({ "revision": 0 })).refused(503, "no_leader");
}
