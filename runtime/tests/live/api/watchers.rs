//! Access to watches, and their ends: a client that reads too slowly, has too many, has no right to see the key, or is
//! gone, and a node that stops.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::Node;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::events::Events;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, https, metrics};

/// A client that does not read is cut off, and says so at its end; one beside it misses nothing.
#[test]
fn slow_watcher_is_cut_off_and_others_are_not() {
    let cluster = Cluster::start_calm_with(1, &["--watch-history", "2000000"]);
    let node = Node(cluster.client_addr(cluster.wait_ready()));
    let grant = node.acquire("k", &json!({ "ttl_ms": 3_600_000 })).ok();
    let slow = small_buffer(&node.0);
    let mut slow = Events::over(slow, "key=k", None).unwrap();
    slow.listing();
    let mut quick = Events::open(&node.0, "key=k");
    let (_, locks) = quick.listing();
    assert_eq!(locks[0]["holder"]["token"], grant["token"]);
    let read = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&read);
    let reader = thread::spawn(move || {
        while quick.expect("value").data["value"] != "end" {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut socket = WebSocket::open(&node.0);
    let long = "v".repeat(4_000);
    let proclaim = |value: &str| {
        let proclamation = json!({ "session": grant["session"], "token": grant["token"], "value": value });
        json!({ "proclaim": { "key": "k", "proclamation": proclamation } })
    };
    let mut written = 0;
    // The system takes some megabytes for the client. Many at a time: the slow one must not be silent for so
    // long that its connection is closed for that.
    while written < 4_000 {
        (0..64).for_each(|number| socket.send(number, &proclaim(&long)));
        (0..64).for_each(|_| assert_eq!(socket.receive().unwrap()["result"]["ok"], "proclaimed"));
        written += 64;
        eventually("a watcher that reads is told everything", || {
            (read.load(Ordering::Relaxed) == written).then_some(())
        });
    }
    socket.ask(65, &proclaim("end"));
    reader.join().unwrap();
    let mut received = 0;
    let end = loop {
        let event = slow.next().expect("the stream has an end");
        if event.name != "value" {
            break event;
        }
        received += 1;
    };
    assert_eq!((end.name.as_str(), &end.data["error"]), ("end", &json!("too_slow")), "after {received} events");
    assert!(received > 0 && received < written && slow.next().is_none());
    assert_eq!(metrics::value(&node.0, "palisade_watchers_cut_off_total"), 1.0);
    eventually("both have gone", || (metrics::value(&node.0, "palisade_watchers") == 0.0).then_some(()));
}

/// A connection that can hold little that is not read.
fn small_buffer(address: &str) -> TcpStream {
    let connected = async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        socket.connect(address.parse().unwrap()).await.expect("the node accepts connections").into_std().unwrap()
    };
    let stream = https::block_on(connected);
    stream.set_nonblocking(false).unwrap();
    stream
}

/// One client has a share of the watches; what ends makes room.
#[test]
fn watches_of_a_client_are_limited() {
    let cluster = Cluster::start_calm_with(1, &["--max-watches-per-client", "2"]);
    let node = Node(cluster.client_addr(cluster.wait_ready()));
    let first = Events::open(&node.0, "key=k");
    let _second = Events::open(&node.0, "prefix=");
    let refusal = Events::try_open(&node.0, "key=l").err().expect("a third is refused").refused(429, "limit");
    let message = refusal["message"].as_str().unwrap();
    assert!(message.contains("2 watches of one client") && message.contains("--max-watches-per-client"), "{message}");
    let mut socket = WebSocket::open(&node.0);
    assert_eq!(socket.ask(1, &json!({ "watch": { "key": "l" } }))["error"]["error"], "limit");
    assert_eq!(metrics::value(&node.0, "palisade_watchers"), 2.0);
    drop(first);
    eventually("there is room", || Events::try_open(&node.0, "key=l").ok());
    let counted = metrics::value(&node.0, "palisade_client_limits_reached_total{limit=\"watches\"}");
    assert!(counted >= 2.0, "{counted}");
}

/// A node that stops ends its watches, and does not wait for them.
#[test]
fn node_that_stops_ends_its_watches() {
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let mut streams: Vec<Events> = (0..3).map(|_| Events::open(&cluster.client_addr(leader), "prefix=")).collect();
    streams.iter_mut().for_each(|stream| drop(stream.listing()));
    cluster.stop(leader);
    for mut stream in streams {
        assert_eq!(stream.expect("end").data["error"], "shutting_down");
        assert_eq!(stream.next(), None);
    }
}

/// With access control a client is told of what it may read, and learns when it no longer may.
#[test]
fn rules_decide_which_watchers_are_notified() {
    let ours = Certificates::of("billing", 1);
    ours.issue_client("worker", &[]);
    let cluster = Cluster::start_secured(1, &[], &ours);
    let address = cluster.client_addr(cluster.wait_ready());
    let (alice, worker) = (ours.administrator("alice"), ours.client("worker"));
    let set = |revision: u64, prefix: &str| {
        let rules = json!([
            { "subject": "worker", "prefix": prefix, "rights": ["acquire", "read"] },
            { "subject": "test", "prefix": "", "rights": ["read"] },
        ]);
        let body = json!({ "revision": revision, "rules": rules }).to_string();
        https::send(&address, &alice, "PUT", "/v1/access", &body).unwrap().ok();
    };
    set(0, "open/");
    let refused = https::get(&address, &worker, "/v1/watch?key=secret").unwrap();
    assert_eq!(
        refused.refused(403, "denied")["message"],
        "worker may not read secret: no rule for this key applies to it"
    );
    let watch = |query: &'static str| {
        let (address, worker) = (address.clone(), worker.clone());
        thread::spawn(move || https::get(&address, &worker, &format!("/v1/watch?{query}")).unwrap().body)
    };
    let (key, prefix) = (watch("key=open%2Fa"), watch("prefix="));
    eventually("they watch", || {
        let page = https::get(&address, &alice, "/metrics").unwrap().body;
        page.contains("palisade_watchers 2").then_some(())
    });
    let acquire =
        |keys: Value| https::post(&address, &alice, "/v1/acquire", &json!({ "keys": keys }).to_string()).unwrap().ok();
    acquire(json!(["open/a", "secret/a"]));
    acquire(json!(["open/b"]));
    eventually("they are told", || {
        let page = https::get(&address, &alice, "/metrics").unwrap().body;
        page.contains("palisade_watch_events_total 3").then_some(())
    });
    set(1, "other/");
    let received = key.join().unwrap();
    assert!(received.contains("event: granted") && !received.contains("secret"), "{received}");
    assert!(received.contains("event: end") && received.contains("worker may not read open/a"), "{received}");
    acquire(json!(["open/c"]));
    acquire(json!(["other/d"]));
    eventually("the other one is told", || {
        let page = https::get(&address, &alice, "/metrics").unwrap().body;
        page.contains("palisade_watch_events_total 4").then_some(())
    });
    drop(cluster);
    let received = prefix.join().unwrap();
    assert!(received.contains("open/b") && received.contains("other/d"), "{received}");
    assert!(!received.contains("open/c") && !received.contains("secret"), "{received}");
}

/// A connection that is closed in the middle of a request leaves no watch behind.
#[test]
fn watchers_that_go_are_forgotten() {
    let cluster = Cluster::start_calm(1);
    let node = Node(cluster.client_addr(cluster.wait_ready()));
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&node.0).unwrap();
        stream.write_all(b"GET /v1/watch?prefix= HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    eventually("all have gone", || (metrics::value(&node.0, "palisade_watchers") == 0.0).then_some(()));
    Events::open(&node.0, "prefix=").listing();
}
