//! Refusals that many operations have in common, each of each.

use serde_json::json;

use super::{Example, Walk, examples};
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::{description, eventually, http, https};

/// Sends each example that may be refused by this code until it is, and expects the refusal.
pub(super) fn each_is_refused(walk: &mut Walk, address: &str, code: &str, headers: &str) {
    // Without TLS nobody may set the rules, at any node.
    let of_all = |example: &Example| example.id != "setAccess" || code.starts_with("wrong");
    for example in examples().into_iter().filter(|example| example.has(code) && of_all(example)) {
        let response = walk.example(address, &example, headers);
        assert_eq!(response.json()["error"], code, "{}: {}", example.id, response.body);
    }
}

/// What the server cannot parse, in place of the example.
fn invalid(example: &Example) -> Option<(String, String)> {
    let (path, query) = example.path.split_once('?').unwrap_or((&example.path, ""));
    Some(match example.id.as_str() {
        "requests" | "hold" => (example.path.clone(), String::new()),
        "promoteMember" | "removeMember" => (path.replace("/9", "/x"), String::new()),
        "showSession" | "closeSession" | "keepAlive" => (path.replace(super::NOBODY, "x"), String::new()),
        _ if example.body.is_empty() => (format!("{path}?{query}&colour=red"), String::new()),
        _ => (example.path.clone(), json!({ "colour": "red" }).to_string()),
    })
}

pub(super) fn of_requests(walk: &mut Walk, cluster: &Cluster) {
    let leader = cluster.wait_ready();
    let follower = cluster.ids().into_iter().find(|&id| id != leader).expect("there are followers");
    let (leader, follower) = (cluster.client_addr(leader), cluster.client_addr(follower));
    each_is_refused(walk, &follower, "not_leader", "X-Forward: never\r\n");
    each_is_refused(walk, &leader, "wrong_host", "Host: evil.example\r\n");
    each_is_refused(walk, &leader, "wrong_origin", "Origin: http://evil.example\r\n");
    for example in examples().into_iter().filter(|example| example.has("invalid")) {
        let (path, body) = invalid(&example).expect("a request");
        walk.send(&leader, &example.method, &path, "", &body).refused(400, "invalid");
    }
    for example in examples().into_iter().filter(|example| example.has("too_large")) {
        let body = if example.id == "transact" {
            let large = "x".repeat(40_000);
            let put = |key: &str| json!({ "put": { "key": key, "value": large } });
            json!({ "changes": [put("a"), put("b")] }).to_string()
        } else {
            " ".repeat(70_000)
        };
        walk.send(&leader, &example.method, &example.path, "", &body).refused(413, "too_large");
    }
}

/// A node with TLS, and clients that prove nothing.
pub(super) fn without_identity(walk: &mut Walk, address: &str, certificates: &Certificates) {
    let anonymous = certificates.anonymous();
    for example in examples() {
        let Example { method, path, body, .. } = &example;
        let response = https::send(address, &anonymous, method, path, body).expect("the node answers");
        let request = description::Request { method: method.clone(), target: path.clone(), ..Default::default() };
        walk.note(description::check(Some(request), &response));
        let is_open = !example.has("unauthenticated");
        assert_eq!(is_open, response.status != 401, "{}: {}", example.id, response.body);
    }
}

/// A node whose client has sent as many requests as it may.
pub(super) fn too_many(walk: &mut Walk) {
    let cluster = Cluster::start_calm_with(1, &["--max-requests-per-second", "1"]);
    let address = cluster.client_addr(1);
    for example in examples().into_iter().filter(|example| example.has("too_soon")) {
        let refused = eventually("the limit is reached", || {
            http::get(&address, "/v1/locks/other").expect("the node answers");
            let response = walk.example(&address, &example, "");
            (response.status == 429).then_some(response)
        });
        assert_eq!(refused.json()["error"], "too_soon", "{}: {}", example.id, refused.body);
        assert!(refused.header("retry-after").is_some(), "{}: {}", example.id, refused.head);
    }
}

/// One of three nodes, without the others.
pub(super) fn without_a_leader(walk: &mut Walk, cluster: &mut Cluster) {
    let leader = cluster.wait_ready();
    let alone = cluster.ids().into_iter().find(|&id| id != leader).expect("there are followers");
    cluster.ids().into_iter().filter(|&id| id != alone).for_each(|id| cluster.kill(id));
    let address = cluster.client_addr(alone);
    eventually("the node knows no leader", || cluster.status(alone)?.leader.is_none().then_some(()));
    let of_no_leader = examples().into_iter().filter(|example| example.has("no_leader"));
    // A WebSocket is opened, and a snapshot is of what the node has applied.
    for example in of_no_leader.filter(|example| !["requests", "takeSnapshot", "setAccess"].contains(&&*example.id)) {
        let query = if example.id == "ready" { "?leader=1" } else { "" };
        let response = walk.send(&address, &example.method, &format!("{}{query}", example.path), "", &example.body);
        assert_eq!(response.json()["error"], "no_leader", "{}: {}", example.id, response.body);
    }
}
