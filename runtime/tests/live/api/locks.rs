//! `/v1/locks/{key}`: acquire, wait, release, read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::{calm, fields, number, session_path};
use crate::support::eventually;

/// The whole life of a lock: free, taken, refused to a second client, waited for in vain, released,
/// taken again.
#[test]
fn a_lock_is_taken_refused_waited_for_and_given_back() {
    let (_cluster, node) = calm();
    let free = json!({ "key": "nightly", "held": false, "holder": null, "holders": [], "queue": [] });
    assert_eq!(node.lock("nightly"), free);

    let grant = node.acquire("nightly", &json!({ "ttl_ms": 20_000, "owner": "worker-7" })).ok();
    assert_eq!(fields(&grant), ["key", "session", "token", "ttl_ms"]);
    assert_eq!((&grant["key"], &grant["ttl_ms"]), (&json!("nightly"), &json!(20_000)));
    assert!(grant["token"].as_u64().unwrap() >= 1);

    let view = node.lock("nightly");
    assert_eq!((&view["key"], &view["held"]), (&json!("nightly"), &json!(true)));
    let holder = &view["holder"];
    let shown = ["expires_in_ms", "holds", "keys", "mode", "of", "owner", "permits", "session", "token", "value"];
    assert_eq!(fields(holder), shown);
    let particular = ["mode", "permits", "of", "holds", "keys", "value"].map(|field| holder[field].clone());
    assert_eq!(particular, [json!("exclusive"), Value::Null, Value::Null, json!(1), json!([]), Value::Null]);
    assert_eq!(holder["owner"], "worker-7");
    assert_eq!((&holder["session"], &holder["token"]), (&number(&grant["session"]), &grant["token"]));
    assert!((1..=20_000).contains(&holder["expires_in_ms"].as_u64().unwrap()));

    // An acquire without a wait is answered with the holder.
    let refused = node.acquire("nightly", &json!({ "owner": "worker-8" })).refused(409, "held");
    assert_eq!(refused["holder"], json!({ "owner": "worker-7", "token": grant["token"] }));
    assert_eq!(refused["queue"], 0);

    // A waiter whose wait timed out has left the queue when it is answered.
    node.acquire("nightly", &json!({ "owner": "worker-8", "wait_ms": 200 })).refused(408, "timeout");
    assert_eq!(node.lock("nightly")["queue"], json!([]));

    // Only the right session with the right token gives it back, and only once.
    let (session, token) = (&grant["session"], &grant["token"]);
    let other_token = json!(token.as_u64().unwrap() + 1);
    node.release("nightly", session, &other_token).refused(409, "not_holder");
    node.release("nightly", &node.open_session("thief"), token).refused(409, "not_holder");
    node.release("other", session, token).refused(409, "not_holder");
    assert_eq!(node.release("nightly", session, token).ok(), json!({ "released": true }));
    node.release("nightly", session, token).refused(409, "not_holder");

    assert_eq!(node.lock("nightly"), free);
    // The session came with the acquire, and went with the release.
    node.get(&session_path(session)).refused(404, "no_session");
    let next = node.acquire("nightly", &json!({})).ok();
    assert!(next["token"].as_u64() > token.as_u64(), "a token only grows");
    assert_eq!(next["ttl_ms"], 30_000, "the documented default");
}

/// Waiters are served first come, first served, each with its own greater token, when the holder
/// releases.
#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    let (_cluster, node) = calm();
    let mut grant = node.acquire("k", &json!({ "owner": "holder" })).ok();
    let mut waiters = Vec::new();
    for waiting in 1..=4 {
        let owner = format!("waiter {waiting}");
        waiters.push(node.acquire_later("k", json!({ "owner": owner, "wait_ms": 60_000 })));
        let queue = node.wait_for_queue("k", waiting);
        assert_eq!(queue.last().unwrap()["owner"], owner.as_str());
        let refused = node.acquire("k", &json!({})).refused(409, "held");
        assert_eq!(refused["queue"], waiting, "the refused are told how many wait");
    }
    for waiter in waiters {
        node.release("k", &grant["session"], &grant["token"]).ok();
        let next = waiter.join().unwrap().ok();
        assert!(next["token"].as_u64() > grant["token"].as_u64());
        assert_eq!(node.lock("k")["holder"]["token"], next["token"]);
        grant = next;
    }
}

/// A client that asks again under its own session keeps the same queue position, then the same
/// grant.
#[test]
fn repeated_acquire_finds_its_queue_position_and_then_its_grant() {
    let (_cluster, node) = calm();
    let [holder, first, second] = ["holder", "first", "second"].map(|owner| node.open_session(owner));
    let acquire = |session: &Value, wait: u64| json!({ "session": session, "wait_ms": wait });

    let grant = node.acquire("k", &acquire(&holder, 0)).ok();
    assert_eq!(node.acquire("k", &acquire(&holder, 0)).ok(), grant, "the grant is found again");

    let once = node.acquire_later("k", acquire(&first, 60_000));
    node.wait_for_queue("k", 1);
    let behind = node.acquire_later("k", acquire(&second, 60_000));
    node.wait_for_queue("k", 2);
    let again = node.acquire_later("k", acquire(&first, 60_000));
    // Whether it arrives before the lock is free or after, it must be answered alike.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let order: Vec<Value> = node.wait_for_queue("k", 2).iter().map(|waiter| waiter["session"].clone()).collect();
    assert_eq!(order, [number(&first), number(&second)], "the repetition stands where the first request stood");

    node.release("k", &holder, &grant["token"]).ok();
    let (once, again) = (once.join().unwrap().ok(), again.join().unwrap().ok());
    assert_eq!(once, again, "both requests are answered with the one grant");
    assert_eq!(once["session"], first);
    assert_eq!(node.acquire("k", &acquire(&first, 0)).ok(), once, "and it is found again");

    node.release("k", &first, &once["token"]).ok();
    let last = behind.join().unwrap().ok();
    assert_eq!(last["session"], second);
    node.release("k", &second, &last["token"]).ok();
    assert_eq!(node.lock("k")["held"], false, "nothing was queued twice");
    // A session of its own outlives its locks.
    assert_eq!(node.get(&session_path(&second)).ok()["keys"], json!([]));
}

/// An acquire without a wait does not wait: a queue position that its session had is given up, and
/// the request that waited there is answered.
#[test]
fn acquire_without_wait_gives_up_its_queue_position() {
    let (_cluster, node) = calm();
    let [holder, session] = ["holder", "waiter"].map(|owner| node.open_session(owner));
    let grant = node.acquire("k", &json!({ "session": holder })).ok();
    let waiting = node.acquire_later("k", json!({ "session": session, "wait_ms": 60_000 }));
    node.wait_for_queue("k", 1);
    node.acquire("k", &json!({ "session": session, "wait_ms": 0 })).refused(409, "held");
    waiting.join().unwrap().refused(409, "withdrawn");
    node.release("k", &holder, &grant["token"]).ok();
    assert_eq!(node.lock("k")["held"], false);
}

/// A waiter that disconnects leaves the queue, with a session of its own or without: its lock is
/// never granted to an absent client.
#[test]
fn a_dropped_connection_withdraws_its_waiting_acquire() {
    let (_cluster, node) = calm();
    let holder = node.acquire("k", &json!({ "owner": "holder" })).ok();
    let session = node.open_session("with a session");
    let bodies = [json!({ "owner": "without", "wait_ms": 60_000 }), json!({ "session": session, "wait_ms": 60_000 })];
    for body in bodies {
        let mut connection = TcpStream::connect(&node.0).unwrap();
        let body = body.to_string();
        let head =
            format!("POST /v1/locks/k/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        connection.write_all((head + &body).as_bytes()).unwrap();
        node.wait_for_queue("k", 1);
        drop(connection);
        // Far before any TTL.
        node.wait_for_queue("k", 0);
    }
    assert_eq!(node.get(&session_path(&session)).ok()["keys"], json!([]), "the session lives, without its claim");
    node.release("k", &holder["session"], &holder["token"]).ok();
    assert_eq!(node.lock("k")["held"], false);
}

/// The same for a waiter that has sent bytes behind its request: the HTTP server does not read on then. A waiter that has
/// sent them and stays is not taken for one that has left.
#[test]
fn a_dropped_connection_withdraws_its_wait_whatever_was_sent_behind_it() {
    let (_cluster, node) = calm();
    let holder = node.acquire("k", &json!({ "owner": "holder" })).ok();
    let next = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let wait = |behind: &str| {
        let mut connection = TcpStream::connect(&node.0).unwrap();
        let body = json!({ "wait_ms": 600_000, "ttl_ms": 600_000 }).to_string();
        let head =
            format!("POST /v1/locks/k/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        connection.write_all((head + &body + behind).as_bytes()).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        connection
    };
    let mut stays = wait(next);
    let leave = ["\r\n", next].map(wait);
    node.wait_for_queue("k", 3);
    drop(leave);
    node.wait_for_queue("k", 1);
    node.release("k", &holder["session"], &holder["token"]).ok();
    let mut answers = String::new();
    stays.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
}

/// A waiting acquire is answered, not left hanging, when another client ends its claim.
#[test]
fn a_waiter_is_told_when_its_session_ends() {
    let (_cluster, node) = calm();
    node.acquire("k", &json!({ "owner": "holder" })).ok();
    let session = node.open_session("waiter");
    let waiting = node.acquire_later("k", json!({ "session": session, "wait_ms": 60_000 }));
    node.wait_for_queue("k", 1);
    node.send("DELETE", &session_path(&session), "").ok();
    waiting.join().unwrap().refused(404, "no_session");
    assert_eq!(node.lock("k")["queue"], json!([]));
}

/// While an acquire without a session waits, the node itself keeps alive what the client cannot
/// know yet.
#[test]
fn a_wait_may_be_longer_than_the_ttl() {
    let (_cluster, node) = calm();
    let holder = node.acquire("k", &json!({ "owner": "holder" })).ok();
    let waiting = node.acquire_later("k", json!({ "owner": "waiter", "ttl_ms": 1_000, "wait_ms": 60_000 }));
    let waiter = node.wait_for_queue("k", 1)[0].clone();
    // Cluster time, not the test's: three of its lives pass.
    let now = || node.get("/v1/status").ok()["cluster_time_ms"].as_u64().unwrap();
    let begin = now();
    eventually("three TTLs pass", || (now() > begin + 3_000).then_some(()));
    assert_eq!(node.lock("k")["queue"], json!([waiter]), "it still stands there, and is the same session");
    node.release("k", &holder["session"], &holder["token"]).ok();
    assert_eq!(number(&waiting.join().unwrap().ok()["session"]), waiter["session"]);
}
