//! Leader and followers: redirects, and 503 while no node can lead.

use serde_json::{Value, json};

use super::{Node, calm, fields};
use crate::support::cluster::Cluster;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http};

const UNKNOWN_SESSION: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// A client that asks for it is redirected to the leader for everything that only the leader can answer, path,
/// query and all; the rest each node answers itself.
#[test]
fn a_follower_sends_clients_to_the_leader() {
    let (cluster, leader) = calm();
    for id in cluster.ids().into_iter().filter(|&id| cluster.client_addr(id) != leader.0) {
        let node = Node(cluster.client_addr(id));
        let session = format!("/v1/sessions/{UNKNOWN_SESSION}");
        let keepalive = format!("{session}/keepalive");
        let release = format!(r#"{{"session":"{UNKNOWN_SESSION}","token":1}}"#);
        let for_the_leader = [
            ("POST", "/v1/locks/a%2Fb/acquire", "{}"),
            ("POST", "/v1/locks/a%2Fb/release", &release),
            ("GET", "/v1/locks/a%2Fb", ""),
            ("GET", "/v1/locks?prefix=a%2F&limit=7", ""),
            ("POST", "/v1/sessions", "{}"),
            ("GET", &session, ""),
            ("DELETE", &session, ""),
            ("POST", &keepalive, ""),
        ];
        for (method, path, body) in for_the_leader {
            let response = http::send_unforwarded(&node.0, method, path, body).unwrap();
            let refused = response.refused(307, "not_leader");
            assert_eq!(refused["leader"]["client_addr"], leader.0.as_str());
            let expected = format!("http://{}{path}", leader.0);
            assert_eq!(response.header("location"), Some(expected.as_str()), "{method} {path}");
        }
        // A wrong request is wrong everywhere.
        node.send("POST", "/v1/locks/k/acquire", r#"{"ttl_ms":1}"#).refused(400, "invalid");
    }
}

/// The status page: every node's own view, and the same cluster in all of them.
#[test]
fn every_node_tells_its_own_view() {
    let (cluster, leader) = calm();
    leader.acquire("k", &json!({})).ok();
    for id in cluster.ids() {
        let node = Node(cluster.client_addr(id));
        let status = eventually("the node has applied the grant and knows every member", || {
            let status = node.get("/v1/status").ok();
            let is_known = |member: &Value| member["client_addr"].is_string() && member["connected"] == true;
            let known = status["members"].as_array().unwrap().iter().all(is_known);
            (status["locks"] == 1 && known).then_some(status)
        });
        let expected = [
            "applied",
            "cluster",
            "cluster_name",
            "cluster_time_ms",
            "commit",
            "disk",
            "generation",
            "leader",
            "locks",
            "members",
            "node",
            "role",
            "sessions",
            "snapshot",
            "term",
            "version",
            "waiting_for",
        ];
        assert_eq!(fields(&status), expected);
        assert_eq!(fields(&status["disk"]), ["free_bytes", "low", "low_water_bytes", "obstacle"]);
        assert!(status["snapshot"].is_null(), "no snapshot was taken yet");
        assert_eq!((&status["node"], &status["sessions"]), (&json!(id), &json!(1)));
        let leads = node.0 == leader.0;
        assert_eq!(status["role"], if leads { "leader" } else { "follower" });
        assert_eq!(status["leader"]["client_addr"], leader.0.as_str());
        for member in status["members"].as_array().unwrap() {
            let known = [
                "client_addr",
                "connected",
                "disk",
                "generation",
                "id",
                "matched",
                "peer_addr",
                "protocol",
                "returning",
            ];
            assert_eq!(fields(member), [&known[..], &["version", "voter"]].concat());
            assert_eq!((&member["version"], &member["protocol"]), (&json!(env!("CARGO_PKG_VERSION")), &json!(11)));
            let other = u16::try_from(member["id"].as_u64().unwrap()).unwrap();
            assert_eq!(member["client_addr"], cluster.client_addr(other).as_str());
            assert_eq!(member["peer_addr"], cluster.peer_addr(other).as_str());
            assert_eq!(member["connected"], true);
            assert_eq!(member["matched"].is_u64(), leads && other != id, "{member}");
            assert_eq!(member["disk"].is_object(), other == id, "{member}");
        }
        assert_eq!(node.get("/healthz").body, "ok\n");
        assert_eq!(node.get("/readyz").body, "ok\n");
    }
}

/// One node of three cannot decide anything, and reports it; it still shows what it has applied.
/// With a second one there is a leader again, and held locks are held.
#[test]
fn a_node_without_a_majority_has_no_leader() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_ready();
    let session = Node(cluster.client_addr(leader)).open_session("holder");
    let body = json!({ "session": session });
    let grant = eventually("a grant by the node that leads by now", || {
        let leader = Node(cluster.client_addr(cluster.agreed_leader()?));
        let response = leader.acquire("k", &body);
        (response.status == 200).then(|| response.json())
    });
    // The leader itself loses its followers to a pause; then a follower is left behind by two
    // crashes.
    let leader = cluster.wait_ready();
    let others = cluster.others(leader);
    others.iter().for_each(|&id| cluster.freeze(id));
    alone(&Node(cluster.client_addr(leader)));
    others.iter().for_each(|&id| cluster.thaw(id));
    let leader = cluster.wait_ready();
    assert_eq!(cluster.ids().len(), 3);
    let left = cluster.others(leader)[0];
    let killed = cluster.others(left);
    killed.iter().for_each(|&id| cluster.kill(id));
    alone(&Node(cluster.client_addr(left)));
    cluster.restart(killed[0]);
    let held = eventually("the grant is found again", || {
        let leader = Node(cluster.client_addr(cluster.agreed_leader()?));
        let response = leader.acquire("k", &body);
        (response.status == 200).then(|| response.json())
    });
    assert_eq!(held["token"], grant["token"], "the lock was held all the time");
}

/// The answers of a node that knows no leader.
fn alone(node: &Node) {
    eventually("the node notices that it is alone", || (node.get("/readyz").status == 503).then_some(()));
    let unready = node.get("/readyz");
    unready.refused(503, "no_leader");
    assert_eq!(unready.header("retry-after"), Some("1"));
    let requests = [
        ("POST", "/v1/locks/k/acquire", "{}"),
        ("POST", "/v1/locks/k/acquire", r#"{"wait_ms":1000}"#),
        ("GET", "/v1/locks/k", ""),
        ("GET", "/v1/locks", ""),
        ("POST", "/v1/sessions", ""),
        ("GET", &format!("/v1/sessions/{UNKNOWN_SESSION}"), ""),
        ("DELETE", &format!("/v1/sessions/{UNKNOWN_SESSION}"), ""),
        ("POST", &format!("/v1/sessions/{UNKNOWN_SESSION}/keepalive"), ""),
    ];
    for (method, path, body) in requests {
        let response = node.send(method, path, body);
        response.refused(503, "no_leader");
        assert_eq!(response.header("retry-after"), Some("1"));
    }
    let mut socket = WebSocket::open(&node.0);
    socket.send(1, &json!({ "open_session": {} }));
    assert_eq!(socket.receive().unwrap()["result"]["error"]["error"], "no_leader");
    assert_eq!(socket.receive(), None);
    // The process is healthy, knows that there is no leader, and knows what it has applied.
    assert_eq!(node.get("/healthz").status, 200);
    assert_eq!(node.get("/v1/status").ok()["leader"], json!(null));
    assert_eq!(node.get("/v1/locks/k?consistency=stale").ok()["held"], true);
}
