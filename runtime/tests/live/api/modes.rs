//! Locks that several hold, several locks at once, holds that are counted, and queues with a bound.

use std::net::TcpStream;
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::{Node, calm, number, session_path};
use crate::support::eventually;
use crate::support::http::Response;

/// Acquires several locks.
fn acquire_all(node: &Node, keys: &[&str], body: &Value) -> Response {
    let mut body = body.clone();
    body["keys"] = json!(keys);
    node.post("/v1/acquire", &body)
}

fn acquire_all_later(node: &Node, keys: &'static [&'static str], body: Value) -> JoinHandle<Response> {
    let node = node.clone();
    std::thread::spawn(move || acquire_all(&node, keys, &body))
}

fn release_all(node: &Node, keys: &[&str], grant: &Value) -> Response {
    node.post("/v1/release", &json!({ "keys": keys, "session": grant["session"], "token": grant["token"] }))
}

fn release(node: &Node, key: &str, grant: &Value) -> Value {
    node.release(key, &grant["session"], &grant["token"]).ok()
}

/// The owners of a list of holders or waiters.
fn owners(claims: &Value) -> Vec<&str> {
    claims.as_array().expect("a list").iter().map(|claim| claim["owner"].as_str().expect("an owner")).collect()
}

/// Readers hold a lock together. A writer waits for all of them, a reader that comes after the writer
/// waits for the writer, and readers that wait one after the other are let in together.
#[test]
fn readers_share_a_lock_and_pass_no_writer() {
    let (_cluster, node) = calm();
    let reader = |owner: &str| json!({ "mode": "shared", "owner": owner, "wait_ms": 60_000 });
    let [first, second] = ["first", "second"].map(|owner| node.acquire("k", &reader(owner)).ok());
    assert!(first["token"].as_u64() < second["token"].as_u64());
    let view = node.lock("k");
    assert_eq!(owners(&view["holders"]), ["first", "second"]);
    assert_eq!((&view["holders"][1]["mode"], &view["holder"]), (&json!("shared"), &view["holders"][0]));

    let refused = node.acquire("k", &json!({ "owner": "writer" })).refused(409, "held");
    assert_eq!(refused["holder"], json!({ "owner": "first", "token": first["token"] }));
    let writer = node.acquire_later("k", json!({ "owner": "writer", "wait_ms": 60_000 }));
    node.wait_for_queue("k", 1);
    node.acquire("k", &json!({ "mode": "shared" })).refused(409, "held");
    let third = node.acquire_later("k", reader("third"));
    node.wait_for_queue("k", 2);
    let fourth = node.acquire_later("k", reader("fourth"));
    let queue = node.wait_for_queue("k", 3);
    assert_eq!(owners(&json!(queue)), ["writer", "third", "fourth"]);
    assert_eq!((&queue[0]["mode"], &queue[1]["mode"]), (&json!("exclusive"), &json!("shared")));

    release(&node, "k", &second);
    assert_eq!(owners(&node.lock("k")["holders"]), ["first"], "the writer waits for all readers");
    release(&node, "k", &first);
    let writer = writer.join().unwrap().ok();
    let view = node.lock("k");
    assert_eq!((owners(&view["holders"]), owners(&view["queue"])), (vec!["writer"], vec!["third", "fourth"]));
    release(&node, "k", &writer);
    let [third, fourth] = [third, fourth].map(|reader| reader.join().unwrap().ok());
    assert_eq!(owners(&node.lock("k")["holders"]), ["third", "fourth"]);
    assert!(writer["token"].as_u64() < third["token"].as_u64() && third["token"].as_u64() < fourth["token"].as_u64());
    release(&node, "k", &third);
    release(&node, "k", &fourth);
    assert_eq!(node.lock("k"), json!({ "key": "k", "held": false, "holder": null, "holders": [], "queue": [] }));
}

/// The holders of a semaphore have at most all its permits, a large request waits until enough are
/// free, no small one passes it, and all acquires name the same size.
#[test]
fn holders_have_at_most_all_permits() {
    let (_cluster, node) = calm();
    let take = |permits: u32| json!({ "permits": permits, "of": 5, "owner": permits.to_string(), "wait_ms": 60_000 });
    let [two, one] = [2, 1].map(|permits| node.acquire("k", &take(permits)).ok());
    let three = node.acquire_later("k", take(3));
    node.wait_for_queue("k", 1);
    // Two permits are free, and the request for three is before this one.
    node.acquire("k", &json!({ "permits": 1, "of": 5 })).refused(409, "held");
    let view = node.lock("k");
    assert_eq!(owners(&view["holders"]), ["2", "1"]);
    let shares: Vec<_> = ["mode", "permits", "of"].map(|field| &view["holders"][0][field]).into();
    assert_eq!(shares, [&json!("semaphore"), &json!(2), &json!(5)]);

    for other in [json!({ "permits": 1, "of": 4 }), json!({}), json!({ "mode": "shared" })] {
        let refused = node.acquire("k", &other).refused(400, "invalid");
        assert!(refused["message"].as_str().unwrap().contains("a semaphore of 5 permits"), "{refused}");
    }
    release(&node, "k", &one);
    let three = three.join().unwrap().ok();
    assert_eq!(owners(&node.lock("k")["holders"]), ["2", "3"]);
    release(&node, "k", &two);
    release(&node, "k", &three);
    // A free lock has no size.
    let reader = node.acquire("k", &json!({ "mode": "shared" })).ok();
    node.acquire("k", &json!({ "permits": 1, "of": 5 })).refused(400, "invalid");
    release(&node, "k", &reader);
}

/// Several locks are acquired under one token or not at all, and released together. A waiting claim
/// keeps its queue position at every key, in one order with all others.
#[test]
fn several_locks_are_one_grant() {
    let (_cluster, node) = calm();
    let grant = acquire_all(&node, &["b", "a"], &json!({ "owner": "both" })).ok();
    assert_eq!((&grant["keys"], grant.get("key")), (&json!(["a", "b"]), None));
    for key in ["a", "b"] {
        let holder = &node.lock(key)["holder"];
        assert_eq!((&holder["token"], &holder["keys"]), (&grant["token"], &json!(["a", "b"])));
    }
    // What is held at one of the keys is refused at all.
    let refused = acquire_all(&node, &["c", "b"], &json!({})).refused(409, "held");
    assert!(refused["message"].as_str().unwrap().starts_with("b is held by both"), "{refused}");
    assert_eq!(node.lock("c")["held"], false);

    let waiting = acquire_all_later(&node, &["b", "c"], json!({ "owner": "waiter", "wait_ms": 60_000 }));
    node.wait_for_queue("b", 1);
    let view = node.lock("c");
    assert_eq!((&view["held"], owners(&view["queue"])), (&json!(false), vec!["waiter"]));
    assert_eq!(view["queue"][0]["keys"], json!(["b", "c"]));
    // It reserves the lock that is free.
    let refused = node.acquire("c", &json!({})).refused(409, "held");
    assert!(refused["message"].as_str().unwrap().starts_with("c is waited for by waiter"), "{refused}");

    // A grant is released whole.
    let [session, token] = [&grant["session"], &grant["token"]];
    node.release("a", session, token).refused(409, "not_holder");
    release_all(&node, &["a"], &grant).refused(409, "not_holder");
    release_all(&node, &["a", "b", "c"], &grant).refused(409, "not_holder");
    assert_eq!(release_all(&node, &["a", "b"], &grant).ok(), json!({ "released": true }));
    let next = waiting.join().unwrap().ok();
    assert_eq!(next["keys"], json!(["b", "c"]));
    assert!(next["token"].as_u64() > grant["token"].as_u64());
    assert_eq!((&node.lock("a")["held"], &node.lock("c")["held"]), (&json!(false), &json!(true)));
    assert_eq!(node.get(&session_path(&next["session"])).ok()["keys"], json!(["b", "c"]));
    release_all(&node, &["c", "b"], &next).ok();
}

/// A claim that waits for several locks leaves all queues when its wait ends, or when its client is gone.
#[test]
fn several_waits_end_together() {
    let (_cluster, node) = calm();
    let held = node.acquire("b", &json!({})).ok();
    acquire_all(&node, &["a", "b"], &json!({ "wait_ms": 200 })).refused(408, "timeout");
    for key in ["a", "b"] {
        assert_eq!(node.lock(key)["queue"], json!([]), "at {key}");
    }
    let body = json!({ "keys": ["a", "b"], "wait_ms": 60_000 }).to_string();
    let head = format!("POST /v1/acquire HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n", node.0, body.len());
    let mut client = TcpStream::connect(&node.0).unwrap();
    std::io::Write::write_all(&mut client, format!("{head}{body}").as_bytes()).unwrap();
    for key in ["a", "b"] {
        node.wait_for_queue(key, 1);
    }
    drop(client);
    for key in ["a", "b"] {
        node.wait_for_queue(key, 0);
    }
    // The wait of a session for other keys is another claim.
    let session = node.open_session("one");
    let one = acquire_all_later(&node, &["a", "b"], json!({ "session": session, "wait_ms": 60_000 }));
    node.wait_for_queue("a", 1);
    node.acquire("a", &json!({ "session": session })).refused(400, "invalid");
    acquire_all(&node, &["b", "c"], &json!({ "session": session, "wait_ms": 1 })).refused(400, "invalid");
    release(&node, "b", &held);
    let grant = one.join().unwrap().ok();
    assert_eq!(grant["session"], session);
    // The same request finds the grant again.
    assert_eq!(acquire_all(&node, &["b", "a"], &json!({ "session": session })).ok(), grant);
}

/// A reentrant acquire adds a hold, and the lock is free after as many releases.
#[test]
fn holds_are_counted_down() {
    let (_cluster, node) = calm();
    let session = node.open_session("nested");
    let acquire = |reentrant: bool| node.acquire("k", &json!({ "session": session, "reentrant": reentrant })).ok();
    let grant = acquire(true);
    assert_eq!((acquire(true), acquire(false), acquire(true)), (grant.clone(), grant.clone(), grant.clone()));
    assert_eq!(node.lock("k")["holder"]["holds"], 3, "an acquire that is not reentrant adds none");
    assert_eq!(release(&node, "k", &grant), json!({ "released": false, "holds": 2 }));
    assert_eq!(release(&node, "k", &grant), json!({ "released": false, "holds": 1 }));
    node.acquire("k", &json!({})).refused(409, "held");
    assert_eq!(release(&node, "k", &grant), json!({ "released": true }));
    assert_eq!(node.lock("k")["held"], false);
    node.release("k", &session, &grant["token"]).refused(409, "not_holder");
}

/// A request joins no longer queue than it says, and is told how long the queue is.
#[test]
fn queue_is_as_long_as_the_request_accepts() {
    let (_cluster, node) = calm();
    let grant = node.acquire("k", &json!({})).ok();
    let wait = |most: u32| json!({ "wait_ms": 60_000, "max_queue": most });
    node.acquire("k", &wait(0)).refused(409, "held");
    let first = node.acquire_later("k", wait(1));
    node.wait_for_queue("k", 1);
    let refused = node.acquire("k", &wait(1)).refused(409, "held");
    assert_eq!(refused["queue"], 1);
    let second = node.acquire_later("k", wait(2));
    node.wait_for_queue("k", 2);
    release(&node, "k", &grant);
    let first = first.join().unwrap().ok();
    release(&node, "k", &first);
    second.join().unwrap().ok();
    // Of several keys, every queue counts.
    let refused = acquire_all(&node, &["a", "k"], &wait(0)).refused(409, "held");
    assert_eq!(refused["queue"], 0);
    assert_eq!(node.lock("a")["queue"], json!([]));
}

/// A request that cannot be meant is refused with a sentence, and changes nothing.
#[test]
fn requests_that_cannot_be_meant_are_refused() {
    let (_cluster, node) = calm();
    let most = "of may be 1 to 1000000";
    for (body, reason) in [
        (json!({ "permits": 0, "of": 5 }), most),
        (json!({ "permits": 6, "of": 5 }), most),
        (json!({ "permits": 1, "of": 1_000_001 }), most),
        (json!({ "permits": 1 }), "both permits"),
        (json!({ "of": 5 }), "both permits"),
        (json!({ "mode": "semaphore" }), "both permits"),
        (json!({ "mode": "shared", "permits": 1, "of": 5 }), "a mode or permits"),
        (json!({ "mode": "shred" }), "unknown variant `shred`"),
        (json!({ "permits": -1, "of": 5 }), "invalid value"),
        (json!({ "max_queue": -1 }), "invalid value"),
        (json!({ "reentrant": 1 }), "invalid type"),
    ] {
        let refused = node.acquire("k", &body).refused(400, "invalid");
        assert!(refused["message"].as_str().unwrap().contains(reason), "{body}: {refused}");
    }
    let numbered: Vec<String> = (0..33).map(|number| format!("k{number}")).collect();
    for (body, reason) in [
        (json!({}), "no `keys`"),
        (json!({ "keys": "a" }), "invalid type"),
        (json!({ "keys": [] }), "1 to 32"),
        (json!({ "keys": numbered }), "33 keys"),
        (json!({ "keys": ["a", "b", "a"] }), "occurs twice"),
        (json!({ "keys": ["a", ""] }), "0 bytes"),
        (json!({ "keys": ["a"], "key": "b" }), "unknown field `key`"),
    ] {
        let refused = node.post("/v1/acquire", &body).refused(400, "invalid");
        assert!(refused["message"].as_str().unwrap().contains(reason), "{body}: {refused}");
    }
    assert_eq!(node.get("/v1/locks").ok()["locks"], json!([]));
    let long: Vec<String> = (0..5).map(|number| format!("{number}").repeat(500)).collect();
    let refused = node.post("/v1/acquire", &json!({ "keys": long })).refused(400, "invalid");
    assert!(refused["message"].as_str().unwrap().contains("2500 bytes together"), "{refused}");
    // All 32 are one grant.
    let most: Vec<&str> = numbered[..32].iter().map(String::as_str).collect();
    let grant = acquire_all(&node, &most, &json!({ "owner": "all" })).ok();
    assert_eq!(node.get("/v1/locks").ok()["locks"].as_array().unwrap().len(), 32);
    release_all(&node, &most, &grant).ok();
}

/// Holders, waiters, permits and holds are the same under the next leader.
#[test]
fn next_leader_has_all_modes_and_queues() {
    let mut cluster = crate::support::cluster::Cluster::start(3);
    let leader = cluster.wait_ready();
    let node = Node(cluster.client_addr(leader));
    let [reader, nested, waiter] = ["reader", "nested", "waiter"].map(|owner| node.open_session(owner));
    node.acquire("r", &json!({ "session": reader, "mode": "shared" })).ok();
    node.acquire("r", &json!({ "session": nested, "mode": "shared" })).ok();
    node.acquire("s", &json!({ "session": nested, "permits": 2, "of": 3 })).ok();
    for _ in 0..3 {
        acquire_all(&node, &["a", "b"], &json!({ "session": nested, "reentrant": true })).ok();
    }
    // Its connection ends with the leader; the session waits on.
    let wait = json!({ "session": waiter, "wait_ms": 60_000, "mode": "shared" });
    let several = acquire_all_later(&node, &["b", "r"], wait);
    node.wait_for_queue("r", 1);
    let claims = |lock: Value| {
        let of = |list: &str| -> Vec<Value> {
            let claims = lock[list].as_array().unwrap().iter();
            let fields = ["session", "token", "mode", "permits", "of", "holds", "keys"];
            claims.map(|claim| fields.iter().map(|field| claim[*field].clone()).collect()).collect()
        };
        (of("holders"), of("queue"))
    };
    let before = ["r", "s", "a", "b"].map(|key| claims(node.lock(key)));
    assert_eq!(before[0].0.len(), 2);
    assert_eq!(before[0].1.len(), 1);

    cluster.kill(leader);
    let _ = several.join();
    let next = eventually("another node leads", || cluster.agreed_leader().filter(|next| *next != leader));
    let node = Node(cluster.client_addr(next));
    let after = eventually("the next leader answers", || {
        let keys = ["r", "s", "a", "b"];
        let locks = keys.map(|key| node.get(&format!("/v1/locks/{key}")));
        locks.iter().all(|lock| lock.status == 200).then(|| locks.map(|lock| claims(lock.json())))
    });
    assert_eq!(after, before);
    let again = json!({ "keys": ["r", "b"], "session": waiter, "wait_ms": 60_000, "mode": "shared" });
    let asked = {
        let node = node.clone();
        std::thread::spawn(move || node.post("/v1/acquire", &again))
    };
    let token = after[2].0[0][1].clone();
    let grant = json!({ "session": nested, "token": token });
    for holds in [2, 1] {
        assert_eq!(release_all(&node, &["a", "b"], &grant).ok()["holds"], holds);
    }
    release_all(&node, &["a", "b"], &grant).ok();
    let granted = asked.join().unwrap().ok();
    assert_eq!((&granted["keys"], &granted["session"]), (&json!(["b", "r"]), &waiter));
    assert_eq!(node.lock("r")["holders"].as_array().unwrap().len(), 3);
    assert_eq!(node.lock("r")["holders"][2]["session"], number(&waiter));
}
