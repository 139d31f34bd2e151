//! Refusals that many operations have in common, each of each.

use palisade_client::Security;
use serde_json::json;

use super::{Example, Walk, examples};
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::{eventually, http, https, ports};

/// Sends each example that may be refused by this code until it is, and expects the refusal.
pub(super) fn each_is_refused(walk: &mut Walk, address: &str, code: &str, headers: &str) {
    // Without TLS no client may set the rules, at any node.
    let of_all = |example: &Example| example.id != "setAccess" || code.starts_with("wrong");
    let cluster_id = cluster_id(walk, address);
    for example in examples().into_iter().filter(|example| example.has(code) && of_all(example)) {
        let body = body_for(&cluster_id, &example);
        let response = walk.send(address, &example.method, &example.path, headers, &body);
        assert_eq!(response.json()["error"], code, "{}: {}", example.id, response.body);
    }
}

/// The ID of the cluster of the node at this address.
fn cluster_id(walk: &mut Walk, address: &str) -> String {
    walk.send(address, "GET", "/v1/status", "", "").ok()["cluster"].as_str().expect("a status names it").to_owned()
}

/// The body of an example for a node of this cluster: it refuses a directory that was lost by another one, leader or not.
fn body_for(cluster_id: &str, example: &Example) -> String {
    example.body.replace(super::OTHER_CLUSTER, cluster_id)
}

/// What the server cannot parse, in place of the example.
fn invalid(example: &Example) -> Option<(String, String)> {
    let (path, query) = example.path.split_once('?').unwrap_or((&example.path, ""));
    Some(match example.id.as_str() {
        "requests" | "hold" => (example.path.clone(), String::new()),
        "promoteMember" | "removeMember" => (path.replace("/9", "/x"), String::new()),
        "showSession" | "closeSession" | "keepAlive" => (path.replace(super::UNKNOWN_SESSION, "x"), String::new()),
        _ if example.body.is_empty() => (format!("{path}?{query}&colour=red"), String::new()),
        _ => (example.path.clone(), json!({ "colour": "red" }).to_string()),
    })
}

pub(super) fn of_requests(walk: &mut Walk, cluster: &Cluster) {
    let (leader, follower) = cluster.roles();
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
        let response = walk.send_as(&anonymous, address, &example, "");
        let is_open = !example.has("unauthenticated");
        assert_eq!(is_open, response.status != 401, "{}: {}", example.id, response.body);
    }
}

/// An example that asks what another client may do.
fn about_another(mut example: Example) -> Example {
    if example.id == "testAccess" {
        example.path += "&principal=ann";
    }
    example
}

/// A client without rights.
pub(super) fn without_rights(walk: &mut Walk, address: &str, client: &Security) {
    let cluster = https::status(address, client).expect("the node answers").cluster;
    for mut example in examples().into_iter().filter(|example| example.has("denied")).map(about_another) {
        // A directory of another cluster is refused before the client's rights are looked at.
        example.body = example.body.replace("0000000000000001", &cluster);
        walk.send_as(client, address, &example, "").refused(403, "denied");
    }
}

/// The address for clients, of a node that has another one for administration.
pub(super) fn at_the_wrong_address(walk: &mut Walk) {
    let admin = format!("127.0.0.1:{}", ports::free(1)[0]);
    let cluster = Cluster::start_calm_with(1, &["--admin-addr", &admin]);
    cluster.wait_ready();
    for example in examples().into_iter().filter(|example| example.has("wrong_listener")).map(about_another) {
        walk.example(&cluster.client_addr(1), &example, "").refused(421, "wrong_listener");
    }
}

/// A store that is nearly full.
pub(super) fn without_room(walk: &mut Walk) {
    let cluster = Cluster::start_calm_with(1, &["--max-store-bytes", "100000"]);
    let address = cluster.client_addr(1);
    cluster.wait_ready();
    let content = "c".repeat(60_000);
    walk.send(&address, "PUT", "/v1/kv/kept", "", &content).ok();
    for mut example in examples().into_iter().filter(|example| example.has("store_full")) {
        example.body = match example.id.as_str() {
            "transact" => json!({ "changes": [{ "put": { "key": "k", "value": content } }] }).to_string(),
            _ => content.clone(),
        };
        walk.example(&address, &example, "").refused(507, "store_full");
    }
}

/// A node whose client has sent as many requests as it may.
pub(super) fn too_many(walk: &mut Walk) {
    let cluster = Cluster::start_calm_with(1, &["--max-requests-per-second", "1"]);
    let address = cluster.client_addr(1);
    for example in examples().into_iter().filter(|example| example.has("too_soon")) {
        let refused = eventually("the limit is reached", || {
            http::get(&address, "/v1/locks/other").expect("the node answers");
            let response = match example.id.as_str() {
                // A watch that is served does not end.
                "watch" => walk.refused_watch(&address, &example)?,
                _ => walk.example(&address, &example, ""),
            };
            (response.status == 429).then_some(response)
        });
        assert_eq!(refused.json()["error"], "too_soon", "{}: {}", example.id, refused.body);
        assert!(refused.header("retry-after").is_some(), "{}: {}", example.id, refused.head);
    }
}

/// One of three nodes, without the others.
pub(super) fn without_a_leader(walk: &mut Walk, cluster: &mut Cluster) {
    let (_, alone) = cluster.roles();
    cluster.others(alone).into_iter().for_each(|id| cluster.kill(id));
    let address = cluster.client_addr(alone);
    eventually("the node knows no leader", || cluster.status(alone)?.leader.is_none().then_some(()));
    let cluster_id = cluster_id(walk, &address);
    let of_no_leader = examples().into_iter().filter(|example| example.has("no_leader"));
    // A WebSocket is opened, and a snapshot is of what the node has applied.
    for example in of_no_leader.filter(|example| !["requests", "takeSnapshot", "setAccess"].contains(&&*example.id)) {
        let query = if example.id == "ready" { "?leader=1" } else { "" };
        let response = walk.send(
            &address,
            &example.method,
            &format!("{}{query}", example.path),
            "",
            &body_for(&cluster_id, &example),
        );
        assert_eq!(response.json()["error"], "no_leader", "{}: {}", example.id, response.body);
    }
}
