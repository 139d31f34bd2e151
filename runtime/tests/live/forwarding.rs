//! One address is enough: a follower forwards requests to the leader, with what it knows of their client.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use palisade_client::{Client, Error, LockOptions, Options};
use serde_json::{Value, json};

use crate::abuse::peers::{Hello, read_frame, welcome};
use crate::abuse::send_and_finish;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::https::block_on;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, https, metrics, ports};

/// The purpose of a connection over which requests are forwarded (`runtime/src/peers`).
const REQUESTS: u32 = 3;

/// A cluster whose leader stays, the leader, and a follower.
fn calm() -> (Cluster, u16, u16) {
    roles(Cluster::start_calm(3))
}

fn roles(cluster: Cluster) -> (Cluster, u16, u16) {
    let (leader, follower) = cluster.roles();
    (cluster, leader, follower)
}

fn post(address: &str, path: &str, body: &Value) -> http::Response {
    http::post(address, path, &body.to_string()).expect("the node answers")
}

fn forwarded(address: &str) -> f64 {
    metrics::value(address, "palisade_requests_forwarded_total")
}

fn queue(address: &str, key: &str) -> usize {
    http::get(address, &format!("/v1/locks/{key}")).unwrap().ok()["queue"].as_array().unwrap().len()
}

/// Goal: a client that knows a follower alone can do everything, over HTTP and over a WebSocket.
#[test]
fn follower_forwards_what_the_leader_answers() {
    let (cluster, leader, follower) = calm();
    let (leader, follower) = (cluster.client_addr(leader), cluster.client_addr(follower));
    let session = post(&follower, "/v1/sessions", &json!({ "ttl_ms": 60_000 })).ok()["session"].clone();
    let own = format!("/v1/sessions/{}", session.as_str().unwrap());
    assert_eq!(http::get(&follower, &own).unwrap().ok()["ttl_ms"], 60_000);
    let grant = post(&follower, "/v1/locks/a%2Fb/acquire", &json!({ "session": session })).ok();
    assert_eq!((&grant["key"], &grant["token"]), (&json!("a/b"), &json!(1)));
    for node in [&leader, &follower] {
        assert_eq!(http::get(node, "/v1/locks/a%2Fb").unwrap().ok()["holder"]["token"], 1);
        assert_eq!(http::get(node, "/v1/locks?prefix=a%2F&limit=7").unwrap().ok()["locks"][0]["key"], "a/b");
    }
    let token = format!("X-Fence-Token: {}\r\n", grant["token"]);
    let put = http::send_with(&follower, "PUT", "/v1/kv/r?lock=a%2Fb", &token, "content").unwrap().ok();
    let read = http::get(&follower, "/v1/kv/r").unwrap();
    assert_eq!((read.status, read.body.as_str()), (200, "content"));
    assert_eq!(read.header("x-version").map(str::to_owned), Some(put["version"].to_string()));
    post(&follower, "/v1/locks/a%2Fb/acquire", &json!({})).refused(409, "held");
    post(&follower, "/v1/locks/k/acquire", &json!({ "ttl_ms": 1 })).refused(400, "invalid");
    post(&follower, "/v1/locks/k/dance", &json!({})).refused(404, "not_found");
    let large = http::post(&follower, "/v1/locks/k/acquire", &"x".repeat(20_000)).unwrap();
    large.refused(413, "too_large");
    let before = forwarded(&follower);

    let mut socket = WebSocket::open_forwarded(&follower);
    assert_eq!(socket.ask(1, &json!("status"))["ok"]["status"]["role"], "leader", "the leader answers");
    let release = json!({ "release": { "key": "a/b", "grant": { "session": session, "token": 1 } } });
    assert_eq!(socket.ask(2, &release)["ok"], "released");
    assert_eq!(forwarded(&follower), before + 1.0);
    assert_eq!(forwarded(&leader), 0.0, "a leader forwards nothing");
    http::send(&follower, "DELETE", &own, "").unwrap().ok();
    // What each node answers itself is not forwarded.
    for path in ["/v1/status", "/v1/members", "/v1/locks/k?consistency=stale", "/healthz", "/readyz"] {
        assert_eq!(http::get(&follower, path).unwrap().status, 200, "{path}");
    }
    assert_eq!(http::get(&leader, "/readyz?leader=1").unwrap().status, 200);
    http::get(&follower, "/readyz?leader=1").unwrap().refused(503, "no_leader");
    http::get(&leader, "/readyz?leader=yes").unwrap().refused(400, "invalid");
}

/// Goal: every node can say what only the others know: the space on the disk of each, and how far all are. One that does
/// not answer is left out, and the others are shown.
#[test]
fn every_node_asks_the_members_for_what_they_know() {
    let (cluster, leader, follower) = calm();
    let members = |id: u16, query: &str| {
        let status = http::get(&cluster.client_addr(id), &format!("/v1/status{query}")).unwrap().ok();
        status["members"].as_array().expect("there are members").clone()
    };
    let commit = |id| http::get(&cluster.client_addr(id), "/v1/status").unwrap().ok()["commit"].as_u64().unwrap();
    let disks = |members: &[Value]| -> Vec<u64> {
        let has_disk = |member: &&Value| member["disk"]["free_bytes"].as_u64().is_some_and(|free| free > 0);
        members.iter().filter(has_disk).filter_map(|member| member["id"].as_u64()).collect()
    };
    let matched = |members: &[Value]| members.iter().filter(|member| member["matched"].is_u64()).count();
    eventually("all have all connections", || {
        let asked = |id| members(id, "?ask=members");
        (1..=3).all(|id| disks(&asked(id)) == [1, 2, 3]).then_some(())
    });
    let is_current = |id| {
        let behind = |member: &Value| member["matched"].as_u64().is_some_and(|matched| matched >= commit(leader));
        members(id, "?ask=members").iter().filter(|member| behind(member)).count() >= 2
    };
    for id in 1..=3 {
        assert_eq!(disks(&members(id, "")), [u64::from(id)], "unasked, it shows its own");
        eventually("it learns how far the others are", || is_current(id).then_some(()));
    }
    assert_eq!(matched(&members(follower, "")), 0);
    http::get(&cluster.client_addr(leader), "/v1/status?ask=all").unwrap().refused(400, "invalid");
    // A member that hangs, with its connections open.
    let third = 6 - leader - follower;
    cluster.freeze(third);
    let others: Vec<u64> = (1..=3).filter(|id| *id != u64::from(third)).collect();
    eventually("the others are shown", || (disks(&members(follower, "?ask=members")) == others).then_some(()));
    cluster.thaw(third);
}

/// Goal: a client that offers another protocol, as `curl --http2` does, is served as if it did not: at the leader and
/// at a follower.
#[test]
fn offer_of_another_protocol_is_ignored() {
    let (cluster, leader, follower) = calm();
    let offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n";
    for id in [leader, follower] {
        let address = cluster.client_addr(id);
        let content = format!("of node {id}");
        http::send_with(&address, "PUT", "/v1/kv/r", offer, &content).unwrap().ok();
        assert_eq!(http::get(&address, "/v1/kv/r").unwrap().body, content);
        let asked = r#"{"ttl_ms":4321,"owner":"it"}"#;
        let path = format!("/v1/locks/k-{id}/acquire");
        assert_eq!(http::send_with(&address, "POST", &path, offer, asked).unwrap().ok()["ttl_ms"], 4321);
    }
}

/// Goal: the leader withdraws the wait of a client that has left, also if the client was at a follower.
#[test]
fn disconnected_client_of_a_follower_leaves_the_queue() {
    let (cluster, leader, follower) = calm();
    let (leader, follower) = (cluster.client_addr(leader), cluster.client_addr(follower));
    post(&leader, "/v1/locks/k/acquire", &json!({ "ttl_ms": 3_600_000 })).ok();
    let mut waiting = TcpStream::connect(&follower).unwrap();
    let body = r#"{"wait_ms":3600000,"ttl_ms":3600000}"#;
    let request =
        format!("POST /v1/locks/k/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    waiting.write_all(request.as_bytes()).unwrap();
    let mut socket = WebSocket::open_forwarded(&follower);
    let session =
        socket.ask(1, &json!({ "open_session": { "ttl_ms": 3_600_000 } }))["ok"]["session"]["session"].clone();
    socket.send(2, &json!({ "acquire": { "key": "k", "options": { "session": session, "wait_ms": 3_600_000 } } }));
    eventually("both wait", || (queue(&leader, "k") == 2).then_some(()));
    drop(waiting);
    eventually("the first one has left", || (queue(&leader, "k") == 1).then_some(()));
    drop(socket);
    eventually("the second one has left", || (queue(&leader, "k") == 0).then_some(()));
}

/// Goal: a follower that is stopped answers the requests that it has forwarded: their clients go to another node at once,
/// and the leader withdraws their waits.
#[test]
fn follower_that_stops_answers_what_it_has_forwarded() {
    let (mut cluster, leader, follower) = calm();
    let (leader, address) = (cluster.client_addr(leader), cluster.client_addr(follower));
    post(&leader, "/v1/locks/k/acquire", &json!({ "ttl_ms": 3_600_000 })).ok();
    let waiting = thread::spawn(move || {
        post(&address, "/v1/locks/k/acquire", &json!({ "ttl_ms": 3_600_000, "wait_ms": 3_600_000 }))
    });
    eventually("it waits", || (queue(&leader, "k") == 1).then_some(()));
    cluster.stop(follower);
    waiting.join().unwrap().refused(503, "shutting_down");
    eventually("the wait has left the queue", || (queue(&leader, "k") == 0).then_some(()));
}

/// Goal: a leader that hangs keeps no client of a follower waiting: its request ends as soon as another node
/// leads, and so does its WebSocket. The next request reaches the new leader.
#[test]
fn change_of_the_leader_ends_what_was_forwarded() {
    let (cluster, leader, follower) = calm();
    let address = cluster.client_addr(follower);
    let grant = post(&address, "/v1/locks/k/acquire", &json!({ "ttl_ms": 3_600_000 })).ok();
    let waiting = thread::spawn({
        let address = address.clone();
        move || post(&address, "/v1/locks/k/acquire", &json!({ "ttl_ms": 3_600_000, "wait_ms": 3_600_000 }))
    });
    eventually("it waits", || (queue(&address, "k") == 1).then_some(()));
    let mut socket = WebSocket::open_forwarded(&address);
    assert_eq!(socket.ask(1, &json!("status"))["ok"]["status"]["node"], leader);
    cluster.freeze(leader);
    let ended = waiting.join().unwrap();
    let message = ended.refused(503, "leadership_lost")["message"].to_string();
    assert!(message.contains(&format!("forwarded to node {leader}")), "{message}");
    socket.expect_end();
    let lock = eventually("another node leads", || {
        http::get(&address, "/v1/locks/k").ok().filter(|response| response.status == 200)
    });
    assert_eq!(lock.ok()["holder"]["token"], grant["token"]);
    cluster.thaw(leader);
}

/// Goal: no client says who another client is: neither to a follower nor to the leader. A client has the same name
/// and rights through a follower, and its address and its limits are its own.
#[test]
fn leader_sees_the_client_of_a_follower() {
    let ours = Certificates::of("billing", 3);
    ours.issue_client("worker", &[]);
    let (alice, worker) = (ours.administrator("alice"), ours.client("worker"));
    let (cluster, leader, follower) = roles(Cluster::start_secured(3, &[], &ours));
    let addresses = [leader, follower].map(|id| cluster.client_addr(id));
    let rules = json!({ "revision": 0, "rules": [{ "subject": "worker", "prefix": "w/", "rights": ["acquire"] }] });
    let set = https::send(&addresses[1], &alice, "PUT", "/v1/access", &rules.to_string()).unwrap();
    assert_eq!(set.ok()["enabled"], true);
    for address in &addresses {
        let claimed = json!({ "principal": "admin/alice", "remote": "127.0.0.9:1", "listener": "Administration" });
        let headers = format!("X-Palisade-Origin: {claimed}\r\n");
        let refused = https::send_with(address, &worker, "GET", "/v1/access", &headers, "").unwrap();
        let message = refused.refused(403, "denied")["message"].to_string();
        assert!(message.contains("worker") && !message.contains("alice"), "{message}");
        let acquire = |key: &str| {
            https::post(address, &worker, &format!("/v1/locks/{key}/acquire"), r#"{"ttl_ms":100}"#).unwrap()
        };
        acquire("x").refused(403, "denied");
        eventually("the lock is free", || (acquire("w%2Fx").status == 200).then_some(()));
        assert_eq!(https::get(address, &ours.anonymous(), "/v1/locks").unwrap().status, 401);
    }
    let reason = r#"{"token":1,"reason":"a try"}"#;
    https::post(&addresses[1], &alice, "/v1/locks/w%2Fx/break", reason).unwrap().refused(409, "not_holder");
    eventually("the leader's log names the operator and its address", || {
        let log = cluster.log(leader);
        let line = log.lines().find(|line| line.contains("an operator's break found no such grant"))?;
        (line.contains("admin/alice") && line.contains("127.0.0.1:")).then_some(())
    });
}

/// Goal: the listener at which a request arrives counts, wherever it is executed.
#[test]
fn administrative_request_at_a_followers_client_address_is_refused() {
    let admin = ports::free(3);
    let cluster = Cluster::start_adjusted(3, &["--election-timeout", "750ms"], move |id, command| {
        // The leader may have one address for all.
        if id != 1 {
            command.args(["--admin-addr", &format!("127.0.0.1:{}", admin[usize::from(id) - 1])]);
        }
    });
    if cluster.wait_ready() != 1 {
        http::post(&cluster.client_addr(1), "/v1/leader/transfer", r#"{"to":1}"#).unwrap().ok();
        assert_eq!(cluster.wait_ready(), 1);
    }
    for id in [2, 3] {
        let refused = http::get(&cluster.client_addr(id), "/v1/access").unwrap();
        refused.refused(421, "wrong_listener");
    }
}

/// Goal: a client that sends through a follower has the limit of one client, not one more for each node.
#[test]
fn requests_through_a_follower_count_once_and_for_their_client() {
    let (cluster, leader, follower) =
        roles(Cluster::start_calm_with(3, &["--max-requests-per-second", "1000", "--max-waiters-per-client", "2"]));
    let follower = cluster.client_addr(follower);
    post(&follower, "/v1/locks/k/acquire", &json!({ "ttl_ms": 3_600_000 })).ok();
    let wait = json!({ "ttl_ms": 3_600_000, "wait_ms": 3_600_000 });
    let mut waiting = Vec::new();
    for count in 1..=2 {
        let mut socket = WebSocket::open_forwarded(&follower);
        let open = json!({ "open_session": { "ttl_ms": 3_600_000 } });
        let session = socket.ask(1, &open)["ok"]["session"]["session"].clone();
        socket.send(2, &json!({ "acquire": { "key": "k", "options": { "session": session, "wait_ms": 3_600_000 } } }));
        waiting.push(socket);
        eventually("it waits", || (queue(&follower, "k") == count).then_some(()));
    }
    let refused = post(&follower, "/v1/locks/k/acquire", &wait);
    let message = refused.refused(429, "limit")["message"].to_string();
    assert!(message.contains("address 127.0.0.1"), "{message}");
    // The leader has one connection of this client: this one.
    post(&cluster.client_addr(leader), "/v1/locks/k/acquire", &wait).refused(429, "limit");
}

/// A connection over which node `from` forwards requests to node `to`, and that the test itself keeps open.
fn line(cluster: &Cluster, from: u16, to: u16) -> TcpStream {
    let hello = Hello { purpose: REQUESTS, ..Hello::between(&cluster.data(from), from, to) };
    let mut line = TcpStream::connect(cluster.peer_addr(to)).unwrap();
    line.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    line.write_all(&hello.frame()).unwrap();
    read_frame(&mut line);
    line
}

/// A forwarded request without a body.
fn request(path: &str) -> String {
    request_with("GET", path, "")
}

/// A forwarded request.
fn request_with(method: &str, path: &str, body: &str) -> String {
    let origin = json!({ "principal": "", "remote": "127.0.0.1:1", "listener": "Only" });
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nX-Palisade-Origin: {origin}\r\n\r\n\
         {body}"
    )
}

/// Asks for a lock over a connection of a node: the beginning of the answer.
fn ask(line: &mut TcpStream) -> String {
    line.write_all(request("/v1/locks/k").as_bytes()).unwrap();
    let mut answer = [0; 4096];
    let length = line.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// What comes over a connection until the leader ends it.
fn rest(line: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    match line.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection does not end: {error}"),
    }
    String::from_utf8_lossy(&rest).into_owned()
}

/// Goal: a node that does not lead does not forward what another node has forwarded to it: no request goes in a circle.
#[test]
fn no_request_is_forwarded_twice() {
    let (cluster, leader, follower) = calm();
    eventually("it answers with the redirect", || {
        let answer = ask(&mut line(&cluster, leader, follower));
        assert!(!answer.starts_with("HTTP/1.1 200"), "it was forwarded again: {answer}");
        answer.starts_with("HTTP/1.1 307").then_some(())
    });
    assert_eq!(forwarded(&cluster.client_addr(follower)), 0.0);
}

/// Goal: only members forward requests, and a node that was removed forwards none any more, not even over a
/// connection that it has.
#[test]
fn only_members_forward_requests() {
    let (mut cluster, leader, follower) = calm();
    let hello = Hello { purpose: REQUESTS, ..Hello::between(&cluster.data(follower), follower, leader) };
    let port = cluster.peer_addr(leader);
    assert!(welcome(&send_and_finish(&port, &hello.frame())).is_ok());
    let stranger = Hello { from: 9, incarnation: 7, ..hello.clone() };
    let refusal = welcome(&send_and_finish(&port, &stranger.frame())).expect_err("it is refused");
    assert!(refusal.contains("node 9 is no member of the cluster, so it may not forward requests"), "{refusal}");

    // A connection that the removed node itself would keep open.
    let mut kept = line(&cluster, follower, leader);
    let answer = ask(&mut kept);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let address = cluster.client_addr(follower);
    let mut socket = WebSocket::open_forwarded(&address);
    assert_eq!(socket.ask(1, &json!("status"))["ok"]["status"]["node"], leader);
    let other = cluster.ids().into_iter().find(|id| ![leader, follower].contains(id)).unwrap();
    cluster.wait_ready();
    let removed = http::send(&cluster.client_addr(other), "DELETE", &format!("/v1/members/{follower}"), "").unwrap();
    removed.ok();
    // It may have ended by now.
    let _ = kept.write_all(request("/v1/locks/k").as_bytes());
    let end = rest(&mut kept);
    assert!(end.is_empty() || end.starts_with("HTTP/1.1 503") && end.contains("was removed from the cluster"), "{end}");
    socket.expect_end();
    let refused = http::get(&address, "/v1/locks/k").unwrap();
    assert_eq!(refused.status, 503, "{}", refused.body);
    cluster.kill(follower);
}

/// Goal: what a removed node has sent before is not executed either, if it was not begun: requests that wait behind the one
/// that is under way have been read, and do not outlive the connection. The wait that is under way ends with it.
#[test]
fn requests_that_a_removed_node_has_pipelined_are_not_executed() {
    const WAIT: Duration = Duration::from_secs(5);
    let (mut cluster, leader, follower) = calm();
    let address = cluster.client_addr(leader);
    let held = post(&address, "/v1/locks/k/acquire", &json!({ "ttl_ms": 3_600_000 })).ok();
    let mut kept = line(&cluster, follower, leader);
    let wait = json!({ "ttl_ms": 3_600_000, "wait_ms": WAIT.as_millis() }).to_string();
    let pipelined = [
        request_with("POST", "/v1/locks/k/acquire", &wait),
        request_with("PUT", "/v1/kv/evil", "x"),
        request_with("POST", "/v1/locks/free/acquire", r#"{"ttl_ms":3600000}"#),
    ];
    kept.write_all(pipelined.concat().as_bytes()).unwrap();
    eventually("it waits", || (queue(&address, "k") == 1).then_some(()));
    let waits = Instant::now();
    cluster.wait_ready();
    http::send(&address, "DELETE", &format!("/v1/members/{follower}"), "").unwrap().ok();
    let answers = rest(&mut kept);
    assert!(!answers.contains("HTTP/1.1 200"), "{answers}");
    eventually("the wait has left the queue", || (queue(&address, "k") == 0).then_some(()));
    // Until the wait would have ended, and the requests behind it would have been next.
    thread::sleep((WAIT + Duration::from_secs(1)).saturating_sub(waits.elapsed()));
    http::get(&address, "/v1/kv/evil").unwrap().refused(404, "no_record");
    assert_eq!(http::get(&address, "/v1/locks/free").unwrap().ok()["held"], false);
    assert_eq!(http::get(&address, "/v1/locks/k").unwrap().ok()["holder"]["token"], held["token"]);
    cluster.kill(follower);
}

/// Goal: a connection of `GET /v1/hold` through a node that is removed is interrupted, and not refused or lost: its client
/// resumes at another node.
#[test]
fn hold_through_a_removed_node_is_resumed() {
    let (mut cluster, leader, follower) = calm();
    let mut holder = WebSocket::open_at(&cluster.client_addr(follower), "/v1/hold");
    holder.send_text(&json!({ "acquire": { "key": "k", "ttl_ms": 3_600_000 } }).to_string());
    assert!(holder.receive().unwrap()["waiting"].is_object());
    let grant = holder.receive().unwrap()["granted"].clone();
    let address = cluster.client_addr(leader);
    cluster.wait_ready();
    http::send(&address, "DELETE", &format!("/v1/members/{follower}"), "").unwrap().ok();
    let interrupted = holder.receive().expect("the leader says why the connection ends");
    assert_eq!(interrupted["interrupted"]["error"], "shutting_down", "{interrupted}");
    let mut resumed = WebSocket::open_at(&address, "/v1/hold");
    let resume = json!({ "key": "k", "session": grant["session"], "token": grant["token"] });
    resumed.send_text(&json!({ "resume": resume }).to_string());
    assert_eq!(resumed.receive().unwrap()["granted"], grant);
    cluster.kill(follower);
}

/// Goal: a node that is asked for its own removal forwards the request, and carries the answer back.
#[test]
fn node_answers_the_request_for_its_own_removal() {
    let (mut cluster, _, follower) = calm();
    let removed = http::send(&cluster.client_addr(follower), "DELETE", &format!("/v1/members/{follower}"), "").unwrap();
    let members = removed.ok()["members"].clone();
    let left: Vec<u64> = members.as_array().unwrap().iter().map(|member| member["id"].as_u64().unwrap()).collect();
    assert!(left.len() == 2 && !left.contains(&follower.into()), "{members}");
    cluster.kill(follower);
}

/// Goal: the Rust client goes to the leader itself. Where the leader's own address leads nowhere, as behind a
/// load balancer, it lets the node that it reaches forward its requests, also at the next leader.
#[test]
fn client_reaches_a_leader_whose_address_leads_nowhere() {
    let nowhere = format!("127.0.0.1:{}", ports::free(1)[0]);
    let mut cluster = Cluster::start_calm_with(3, &["--advertise-client-addr", &nowhere]);
    let (leader, follower) = cluster.roles();
    let address = cluster.client_addr(follower);
    let locked = block_on(async {
        let client = Client::connect(&[&address], Options::default()).await.unwrap();
        let options = LockOptions::default().ttl(Duration::from_secs(20));
        let guard = client.lock("k", options.clone()).await.unwrap();
        let refused = client.lock("k", options).await.unwrap_err();
        assert!(matches!(refused, Error::Held { .. }), "{refused}");
        (client, guard)
    });
    drop(locked);
    assert!(forwarded(&address) >= 1.0);
    let others = Options { forwarded: true, ..Options::default() };
    let before = forwarded(&address);
    block_on(async {
        let client = Client::connect(&[&address], others).await.unwrap();
        let guard = client.lock("l", LockOptions::default().ttl(Duration::from_secs(60))).await.unwrap();
        cluster.kill(leader);
        guard.release().await.unwrap();
    });
    assert!(forwarded(&address) > before);
}
