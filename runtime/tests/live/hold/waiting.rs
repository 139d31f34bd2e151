//! A lock that is waited for.

use serde_json::json;

use super::{Client, get, lock, node, queue, session_path};
use crate::support::websocket::WebSocket;

/// Goal: connections are granted the lock in the order in which they came, each when the one before releases; and
/// a waiter whose process answers waits longer than its TTL.
#[test]
fn waiters_are_granted_in_their_order() {
    let (_cluster, address) = node();
    let (holder, mut last) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    let wait = |owner| json!({ "key": "k", "ttl_ms": 3_000, "wait_ms": 600_000, "owner": owner });
    let mut waiters: Vec<Client> = Vec::new();
    for (owner, length) in [("first", 1), ("second", 2)] {
        waiters.push(Client::waits(&address, wait(owner)).0);
        queue(&address, "k", length);
    }
    for _ in 0..4 {
        waiters.iter_mut().for_each(|waiter| waiter.be_renewed(1));
    }
    assert_eq!(queue(&address, "k", 2), ["first", "second"]);
    let mut before = holder;
    for mut waiter in waiters {
        before.release();
        let grant = waiter.next("granted");
        assert!(grant["token"].as_u64() > last["token"].as_u64());
        assert_eq!(lock(&address, "k")["holder"]["token"], grant["token"]);
        (before, last) = (waiter, grant);
    }
    before.release();
}

/// Goal: a waiter whose process does not answer leaves the queue when its TTL is over, and is told.
#[test]
fn waiter_that_does_not_answer_leaves_the_queue() {
    let (_cluster, address) = node();
    let (holder, _) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    let (mut waiter, _) = Client::waits(&address, json!({ "key": "k", "ttl_ms": 1_000, "wait_ms": 600_000 }));
    let refused = loop {
        match waiter.receive() {
            (kind, _) if kind == "check" => {}
            (kind, refused) if kind == "error" => break refused,
            other => panic!("neither a check nor the end: {other:?}"),
        }
    };
    assert_eq!(refused["error"], "no_session");
    queue(&address, "k", 0);
    holder.release();
}

/// Goal: a waiter that releases gives up its position at once; one whose wait is over is told so. Neither leaves
/// a session behind.
#[test]
fn waiter_that_gives_up_leaves_nothing_behind() {
    let (_cluster, address) = node();
    let (holder, _) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    let (mut waiter, session) =
        Client::waits(&address, json!({ "key": "k", "ttl_ms": 86_400_000, "wait_ms": 600_000 }));
    queue(&address, "k", 1);
    waiter.send(&json!({ "value": { "n": 1, "value": "early" } }));
    let early = waiter.next("error");
    assert_eq!((&early["n"], &early["error"]), (&json!(1), &json!("not_holder")));
    waiter.release();
    queue(&address, "k", 0);
    get(&address, &session_path(&session)).refused(404, "no_session");

    let (mut waiter, session) = Client::waits(&address, json!({ "key": "k", "ttl_ms": 86_400_000, "wait_ms": 300 }));
    assert_eq!(waiter.last("error")["error"], "timeout");
    get(&address, &session_path(&session)).refused(404, "no_session");
    holder.release();
}

/// Goal: a client whose connection ends before it was told of its session acquires again, and waits for no session of its
/// own: the node closes the one that no client knows.
#[test]
fn session_that_its_client_does_not_know_is_closed() {
    let (cluster, address) = node();
    for (wait_ms, last_frame) in [(0, None), (600_000, None), (600_000, Some(json!({ "release": {} })))] {
        let acquire = json!({ "key": "k", "ttl_ms": 86_400_000, "wait_ms": wait_ms });
        let mut cut = Client(WebSocket::open_at(&address, "/v1/hold"));
        // The node reads the acquire and the end of the connection at the same time.
        cluster.freeze(1);
        cut.send(&json!({ "acquire": acquire }));
        if let Some(frame) = &last_frame {
            cut.send(frame);
        }
        drop(cut);
        cluster.thaw(1);
        let (again, _) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000, "wait_ms": 600_000 }));
        again.release();
        queue(&address, "k", 0);
    }
}

/// Goal: a queue that is longer than the client wants is refused, as over HTTP.
#[test]
fn waiter_joins_no_longer_queue_than_it_wants() {
    let (_cluster, address) = node();
    let (holder, _) = Client::granted(&address, json!({ "key": "k", "owner": "worker-7" }));
    let (waiter, _) = Client::waits(&address, json!({ "key": "k", "wait_ms": 600_000 }));
    queue(&address, "k", 1);
    let acquire = json!({ "acquire": { "key": "k", "wait_ms": 600_000, "max_queue": 1 } });
    let mut late = Client::begin(&address, &acquire);
    let session = late.waiting();
    let refused = late.last("error");
    assert_eq!((&refused["error"], &refused["queue"]), (&json!("held"), &json!(1)));
    assert_eq!(refused["holder"]["owner"], "worker-7");
    get(&address, &session_path(&session)).refused(404, "no_session");
    waiter.release();
    holder.release();
}
