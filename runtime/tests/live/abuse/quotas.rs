//! Limits of one client at a node, and service to others meanwhile: requests, connections, waits.

use std::io::Read;
use std::thread;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::many_connections::{gather, runtime};
use super::shares::post_from;
use super::{TEXT, UPGRADE, frame};
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::http::Response;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, https, metrics};

/// The address of the other client: that of `gather`.
const OTHER: &str = "127.0.0.77";

fn reached(address: &str, limit: &str) -> f64 {
    metrics::sample(address, &format!("palisade_client_limits_reached_total{{limit=\"{limit}\"}}")).unwrap_or(0.0)
}

/// Repeats a request until it is not refused for its rate.
fn in_time(request: impl Fn() -> std::io::Result<Response>) -> Response {
    eventually("the client may send a request", || {
        let response = request().expect("the node answers");
        (response.json()["error"] != "too_soon").then_some(response)
    })
}

/// Goal: a client that sends more requests than it may is refused, with the limit, its name, and the time
/// to wait, over HTTP and over a WebSocket. It can still renew and give back all that it has, and a client
/// at another address is served.
#[test]
fn requests_are_limited_but_not_those_that_give_back() {
    let cluster = Cluster::start_calm_with(1, &["--max-requests-per-second", "3"]);
    let address = cluster.client_addr(1);
    let session = in_time(|| http::post(&address, "/v1/sessions", "")).ok()["session"].as_str().unwrap().to_owned();
    let body = json!({ "session": session }).to_string();
    let token = in_time(|| http::post(&address, "/v1/locks/k/acquire", &body)).ok()["token"].clone();

    let refused = eventually("the limit is reached", || {
        let response = http::get(&address, "/v1/locks/k").unwrap();
        (response.status == 429).then_some(response)
    });
    let message = refused.refused(429, "too_soon")["message"].to_string();
    assert!(message.contains("3 requests a second of one client is reached by address 127.0.0.1"), "{message}");
    assert!(message.contains("try again in 1 s"), "{message}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let refused = eventually("requests that are none count, too", || {
        let response = http::post(&address, "/v1/locks/k/acquire", "{").unwrap();
        (response.status != 400).then_some(response)
    });
    refused.refused(429, "too_soon");

    let mut socket = WebSocket::open(&address);
    let refusal = eventually("the limit is reached on a WebSocket", || {
        let answer = socket.ask(1, &json!({ "show_lock": { "key": "k" } }));
        answer["error"].is_object().then(|| answer["error"].clone())
    });
    assert_eq!(refusal["error"], "too_soon");
    assert!(refusal["message"].as_str().unwrap().contains("3 requests a second"), "{refusal}");
    for id in 2..22 {
        let renewed = socket.ask(id, &json!({ "keep_alive": { "session": session } }));
        assert!(renewed["ok"].is_object(), "{renewed}");
    }
    let withdrawn = socket.ask(22, &json!({ "withdraw": { "key": "other", "session": session } }));
    assert_eq!(withdrawn["ok"], "withdrawn");
    let keep_alive = format!("/v1/sessions/{session}/keepalive");
    (0..10).for_each(|_| drop(http::post(&address, &keep_alive, "").unwrap().ok()));
    let grant = json!({ "session": session, "token": token }).to_string();
    http::post(&address, "/v1/locks/k/release", &grant).unwrap().ok();
    http::send(&address, "DELETE", &format!("/v1/sessions/{session}"), "").unwrap().ok();

    let granted = post_from(OTHER, &address, "/v1/locks/k/acquire", "");
    assert!(granted["token"].is_u64(), "{granted}");
    assert!(reached(&address, "requests") >= 2.0);
}

/// Goal: with TLS each principal has limits of its own, wherever it connects from.
#[test]
fn principals_have_limits_of_their_own() {
    let ours = Certificates::of("billing", 1);
    ours.issue_client("other", &[]);
    let cluster =
        Cluster::start_secured(1, &["--max-requests-per-second", "3", "--max-sessions-per-client", "2"], &ours);
    let (address, [test, other]) = (cluster.client_addr(1), ["test", "other"].map(|name| ours.client(name)));
    let open = |security| in_time(|| https::post(&address, security, "/v1/sessions", ""));
    (0..2).for_each(|_| drop(open(&test).ok()));
    let message = open(&test).refused(429, "limit")["message"].to_string();
    assert!(message.contains("2 sessions of one client is reached by client `test`"), "{message}");

    let refused = eventually("the limit is reached", || {
        let response = https::get(&address, &test, "/v1/locks/k").unwrap();
        (response.status == 429).then_some(response)
    });
    let message = refused.refused(429, "too_soon")["message"].to_string();
    assert!(message.contains("3 requests a second of one client is reached by client `test`"), "{message}");
    https::post(&address, &other, "/v1/sessions", "").unwrap().ok();
}

/// Goal: a change of leader gives a principal no further sessions. The next leader counts those that it has, until they
/// end.
#[test]
fn sessions_of_a_principal_count_at_the_next_leader() {
    let ours = Certificates::of("billing", 3);
    let cluster = Cluster::start_secured(3, &["--max-sessions-per-client", "2"], &ours);
    let test = ours.client("test");
    let post = |id: u16, path: &str, body: &str| https::post(&cluster.client_addr(id), &test, path, body).unwrap();
    let open = |id: u16| post(id, "/v1/sessions", "{\"ttl_ms\":600000}");
    let first = cluster.wait_ready();
    let sessions = [(); 2].map(|()| open(first).ok()["session"].as_str().unwrap().to_owned());
    open(first).refused(429, "limit");
    let next = eventually("another node leads", || {
        let leader = cluster.agreed_leader()?;
        if leader == first {
            post(first, "/v1/leader/transfer", "{}");
        }
        (leader != first).then_some(leader)
    });
    let address = cluster.client_addr(next);
    eventually("its table has all sessions", || {
        (https::get(&address, &test, "/v1/locks/k").unwrap().status == 200).then_some(())
    });
    let message = open(next).refused(429, "limit")["message"].to_string();
    assert!(message.contains("2 sessions of one client is reached by client `test`"), "{message}");
    https::send(&address, &test, "DELETE", &format!("/v1/sessions/{}", sessions[0]), "").unwrap().ok();
    open(next).ok();
    open(next).refused(429, "limit");
}

/// Whether the node closes the next connection of the other client at once.
fn is_closed_at_once(address: &str) -> bool {
    let connected = async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{OTHER}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(address.parse().unwrap()).await.expect("the system accepts connections");
        // The node may have closed it already.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        !matches!(stream.read(&mut [0; 64]).await, Ok(1..))
    };
    runtime().block_on(connected)
}

/// Goal: a client opens connections without end. It gets as many as one client may have; others are
/// served, and what it closes it may open again.
#[test]
fn connections_of_one_client_leave_room_for_others() {
    let cluster = Cluster::start_calm_with(1, &["--max-connections-per-client", "20"]);
    let address = cluster.client_addr(1);
    let runtime = runtime();
    let connections = runtime.block_on(gather(&address, 20, UPGRADE, true));
    assert!((0..5).all(|_| is_closed_at_once(&address)));
    assert_eq!(reached(&address, "connections"), 5.0);
    http::get(&address, "/v1/locks/k").unwrap().ok();
    let parts = ["a client has reached a limit", OTHER, "most=20", "raise --max-connections-per-client"];
    let is_told = |log: &str| parts.iter().all(|part| log.contains(part));
    assert!(cluster.log(1).lines().any(is_told), "the operator is told");
    drop(connections);
    eventually("there is room again", || (!is_closed_at_once(&address)).then_some(()));
}

/// Goal: a client waits for locks over many connections. It gets as many waits as one client may have;
/// another one may wait, too, and waits that have ended make room.
#[test]
fn waits_of_one_client_leave_room_for_others() {
    let cluster = Cluster::start_calm_with(1, &["--max-waiters-per-client", "3"]);
    let address = cluster.client_addr(1);
    let granted = post_from(OTHER, &address, "/v1/locks/k/acquire", "{\"ttl_ms\":600000}");
    assert!(granted["token"].is_u64(), "{granted}");
    let queue = |length: usize| {
        eventually("so many wait", || {
            let lock = http::get(&address, "/v1/locks/k").unwrap().ok();
            (lock["queue"].as_array()?.len() == length).then_some(())
        });
    };
    let wait = json!({ "acquire": { "key": "k", "options": { "wait_ms": 600_000 } } });
    let [mut one, mut two] = [(); 2].map(|()| WebSocket::open(&address));
    one.send(1, &wait);
    one.send(2, &wait);
    two.send(1, &wait);
    queue(3);
    let refusal = two.ask(2, &wait)["error"].clone();
    assert_eq!(refusal["error"], "limit");
    let message = refusal["message"].as_str().unwrap();
    assert!(message.contains("3 waiting acquires of one client is reached by address 127.0.0.1"), "{message}");
    assert_eq!(reached(&address, "waiters"), 1.0);

    let elsewhere = address.clone();
    let other = thread::spawn(move || post_from(OTHER, &elsewhere, "/v1/locks/k/acquire", "{\"wait_ms\":600000}"));
    queue(4);
    drop(one);
    queue(2);
    two.send(3, &wait);
    queue(3);
    drop(two);
    queue(1);
    let grant = json!({ "session": granted["session"], "token": granted["token"] }).to_string();
    http::post(&address, "/v1/locks/k/release", &grant).unwrap().ok();
    assert!(other.join().unwrap()["token"].is_u64());
}

/// The number of entries that the node has proposed and not committed.
fn uncommitted(address: &str) -> f64 {
    let [last, commit] = ["palisade_last_index", "palisade_commit_index"].map(|name| metrics::value(address, name));
    last - commit
}

/// Goal: one client sends thousands of requests at once over several connections, while the leader can
/// answer none, because its followers stand still. The leader takes a bounded number of them into its log,
/// so that another client's request does not wait behind all of them. When the followers go on, every
/// request is answered.
#[test]
fn unanswered_requests_of_one_client_are_bounded() {
    let cluster = Cluster::start_with(3, &["--election-timeout", "10s"]);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let followers = cluster.others(leader);
    let runtime = runtime();
    let mut flood = runtime.block_on(gather(&address, 4, UPGRADE, true));
    for &follower in &followers {
        cluster.freeze(follower);
    }
    let op = json!({ "acquire": { "key": "flood", "options": {} } });
    let batch = frame(TEXT, json!({ "id": 7, "op": op }).to_string().as_bytes()).repeat(1_000);
    runtime.block_on(async {
        for stream in &mut flood {
            stream.write_all(&batch).await.unwrap();
        }
    });
    // One connection may have all of its requests taken in before the others are read.
    eventually("three connections wait for their turn", || {
        (metrics::value(&address, "palisade_requests_delayed_total") >= 3.0).then_some(())
    });
    // 32 and 1,024 requests of the client that is alone, and the leader's own entries. Requests that wait for
    // their turn do not say that the core has proposed those before them.
    let taken = eventually("as many requests as one client may have unanswered are in the log", || {
        Some(uncommitted(&address)).filter(|taken| *taken >= 1_056.0)
    });
    assert!(taken < 1_100.0, "{taken} of 4,000 requests are in the log");

    // Not the number of those that are not committed: an answer that was under way when the followers were
    // stopped may still commit an entry.
    let last_index = || metrics::value(&address, "palisade_last_index");
    let last = last_index();
    let honest = {
        let address = address.clone();
        thread::spawn(move || http::post(&address, "/v1/locks/honest/acquire", "").unwrap())
    };
    eventually("the other client's request is in the log", || (last_index() > last).then_some(()));
    for &follower in &followers {
        cluster.thaw(follower);
    }
    honest.join().unwrap().ok();
    for stream in flood {
        let mut stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        let (mut answers, mut piece) = (String::new(), [0; 16 * 1024]);
        eventually("all are answered", || {
            let read = stream.read(&mut piece).expect("the connection stays");
            answers.push_str(&String::from_utf8_lossy(&piece[..read]));
            (answers.matches("{\"id\":7,").count() == 1_000).then_some(())
        });
        let refused = |code: &str| answers.contains(&json!(code).to_string());
        assert!(!refused("overloaded") && !refused("limit") && !refused("too_soon"));
    }
    assert_eq!(cluster.wait_ready(), leader);
}
