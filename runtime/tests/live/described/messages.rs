//! Each kind of message that is described.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::UNKNOWN_SESSION;
use crate::support::cluster::Cluster;
use crate::support::description::{description, only_field};
use crate::support::events::Events;
use crate::support::eventually;
use crate::support::http;
use crate::support::websocket::WebSocket;

/// The kinds of a message, as they are described: texts, or the names of an object's only field.
fn kinds(name: &str) -> BTreeSet<String> {
    let choices = description().messages(name)["oneOf"].as_array().expect("a message has several kinds");
    let kind = |choice: &Value| {
        let texts = choice["enum"].as_array().into_iter().flatten().chain(choice.get("const"));
        let fields = choice["required"].as_array().into_iter().flatten();
        let names = texts.chain(fields).map(|name| name.as_str().expect("a name").to_owned());
        names.collect::<Vec<_>>()
    };
    choices.iter().flat_map(kind).collect()
}

fn kind(message: &Value) -> String {
    let text = || message.as_str().expect("a text, or an object with one field");
    only_field(message).map_or_else(|| text().to_owned(), |(name, _)| name.to_owned())
}

/// A WebSocket, and the kinds of messages that passed through it.
struct Counted {
    socket: WebSocket,
    last: u64,
    asked: BTreeSet<String>,
    answered: BTreeSet<String>,
}

impl Counted {
    fn open(address: &str) -> Counted {
        Counted { socket: WebSocket::open(address), last: 0, asked: BTreeSet::new(), answered: BTreeSet::new() }
    }

    fn send(&mut self, op: Value) -> u64 {
        self.last += 1;
        self.asked.insert(kind(&op));
        self.socket.send(self.last, &op);
        self.last
    }

    fn next(&mut self) -> Value {
        let message = self.socket.receive().expect("the connection stays");
        if !message["result"]["ok"].is_null() {
            self.answered.insert(kind(&message["result"]["ok"]));
        }
        message
    }

    /// The answer to this operation; others may come before it.
    fn ask(&mut self, op: Value) -> Value {
        let id = self.send(op);
        loop {
            let message = self.next();
            if message["id"] == id {
                return message["result"].clone();
            }
        }
    }

    #[track_caller]
    fn ok(&mut self, op: Value) -> Value {
        let result = self.ask(op);
        assert!(!result["ok"].is_null(), "{result}");
        only_field(&result["ok"]).map_or_else(|| result["ok"].clone(), |(_, answer)| answer.clone())
    }
}

/// Goal: a WebSocket for many requests has the messages that are described, each kind of them.
#[test]
fn each_kind_of_request_and_answer_is_seen() {
    let cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let mut socket = Counted::open(&address);
    let session = socket.ok(json!({ "open_session": { "ttl_ms": 60_000 } }))["session"].clone();
    socket.ok(json!({ "keep_alive": { "session": session } }));
    socket.ok(json!({ "show_session": { "session": session } }));
    let options = json!({ "session": session, "reentrant": true, "value": "v" });
    let grant = socket.ok(json!({ "acquire": { "key": "k", "options": options, "number": 1 } }));
    socket.ok(json!({ "acquire": { "key": "k", "options": options, "number": 2 } }));
    let grant = json!({ "session": session, "token": grant["token"] });
    assert_eq!(socket.ok(json!({ "release": { "key": "k", "grant": grant, "number": 3 } }))["holds"], 1);
    let proclamation = json!({ "session": session, "token": grant["token"], "value": "w" });
    socket.ok(json!({ "proclaim": { "key": "k", "proclamation": proclamation, "number": 4 } }));
    for consistency in ["linearizable", "stale"] {
        socket.ok(json!({ "show_lock": { "key": "k", "consistency": consistency } }));
        socket.ok(json!({ "list_locks": { "limit": 10, "consistency": consistency } }));
        socket.ok(json!({ "list_records": { "consistency": consistency } }));
    }
    assert_eq!(socket.ok(json!({ "release": { "key": "k", "grant": grant, "number": 5 } })), "released");
    socket.ok(json!({ "acquire": { "keys": ["a", "b"], "options": { "session": session }, "number": 6 } }));
    socket.ok(json!({ "withdraw": { "keys": ["a", "b"], "session": session, "number": 7 } }));
    let changes = json!([{ "put": { "key": "r", "value": { "base64": "/wA=" } } }, { "delete": { "key": "s" } }]);
    let conditions = json!([{ "version": { "key": "r", "version": 0 } }]);
    let transaction = json!({ "session": session, "conditions": conditions, "changes": changes });
    socket.ok(json!({ "transact": { "transaction": transaction, "number": 8 } }));
    let refused = socket.ask(json!({ "transact": { "transaction": transaction, "number": 9 } }));
    assert_eq!(refused["error"]["error"], "other_version");
    for consistency in ["linearizable", "stale"] {
        socket.ok(json!({ "show_record": { "key": "r", "consistency": consistency } }));
    }
    socket.ok(json!("status"));
    socket.ok(json!("show_access"));
    socket.ok(json!({ "test_access": { "principal": "ann", "right": "read", "key": "k" } }));

    let watch = socket.send(json!({ "watch": { "key": "k" } }));
    let listing = socket.next();
    assert_eq!(listing["id"], watch);
    let grant = socket.ok(json!({ "acquire": { "key": "k" } }));
    socket.ok(json!({ "break": { "key": "k", "order": { "token": grant["token"], "reason": "a test" } } }));
    eventually("the watch and the connection tell of the break", || {
        socket.ok(json!("status"));
        socket.answered.contains("lost").then_some(())
    });
    assert_eq!(socket.ok(json!({ "unwatch": { "watch": watch } })), "unwatched");
    let gone = socket.send(json!({ "watch": { "prefix": "", "after": "0.1" } }));
    let first = loop {
        let message = socket.next();
        if message["id"] == gone {
            break message;
        }
    };
    assert!(first["result"]["ok"]["watched"].is_object(), "{first}");
    socket.ok(json!({ "unwatch": { "watch": gone } }));

    socket.ok(json!({ "close_session": { "session": session } }));
    let refused = socket.ask(json!({ "keep_alive": { "session": UNKNOWN_SESSION } }));
    assert_eq!(refused["error"]["error"], "no_session");
    socket.ok(json!({ "change_members": { "promote": { "id": leader } } }));
    let refused = socket.ask(json!({ "set_access": { "revision": 0 } }));
    assert_eq!(refused["error"]["error"], "denied");
    eventually("leadership is transferred", || {
        let result = socket.ask(json!({ "transfer": {} }));
        result["ok"]["transferred"].is_object().then_some(())
    });

    assert_eq!(socket.asked, kinds("Op"));
    assert_eq!(socket.answered, kinds("Answer"));
}

/// Goal: a connection that holds a lock has the messages that are described, each kind of them.
#[test]
fn each_kind_of_frame_of_a_hold_is_seen() {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(1);
    let (mut sent, mut received) = (BTreeSet::new(), BTreeSet::new());
    let mut send = |socket: &mut WebSocket, frame: Value| {
        sent.insert(kind(&frame));
        socket.send_text(&frame.to_string());
    };
    let mut receive = |socket: &mut WebSocket, until: &str| loop {
        let frame = socket.receive().expect("the connection stays");
        received.insert(kind(&frame));
        if kind(&frame) == until {
            return frame[until].clone();
        }
    };
    let open = || WebSocket::open_at(&address, "/v1/hold");
    let mut first = open();
    send(&mut first, json!({ "acquire": { "key": "k", "ttl_ms": 6_000, "value": "v" } }));
    receive(&mut first, "waiting");
    let grant = receive(&mut first, "granted");
    let check = receive(&mut first, "check");
    send(&mut first, json!({ "here": check["n"] }));
    receive(&mut first, "renewed");
    send(&mut first, json!({ "value": { "n": 1, "value": "w" } }));
    receive(&mut first, "proclaimed");
    send(&mut first, json!({ "value": { "n": 2, "value": "w".repeat(5_000) } }));
    assert_eq!(receive(&mut first, "error")["n"], 2);
    let mut second = open();
    let resume = json!({ "key": "k", "ttl_ms": 6_000, "session": grant["session"], "token": grant["token"] });
    send(&mut second, json!({ "resume": resume }));
    receive(&mut second, "granted");
    receive(&mut first, "interrupted");
    send(&mut second, json!({ "release": {} }));
    receive(&mut second, "released");
    let mut third = open();
    send(&mut third, json!({ "acquire": { "keys": ["a", "b"], "ttl_ms": 60_000 } }));
    let grant = receive(&mut third, "granted");
    let order = json!({ "token": grant["token"], "reason": "a test" });
    http::post(&address, "/v1/locks/a/break", &order.to_string()).unwrap().ok();
    receive(&mut third, "lost");
    assert_eq!(sent, kinds("HoldClientFrame"));
    assert_eq!(received, kinds("HoldServerFrame"));
}

/// Goal: the stream of events has the events that are described, each kind of them.
#[test]
fn each_kind_of_event_is_seen() {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(1);
    let post = |path: &str, body: &Value| http::post(&address, path, &body.to_string()).unwrap();
    let mut events = Events::open(&address, "prefix=");
    let mut seen = BTreeSet::new();
    let grant = post("/v1/locks/k/acquire", &json!({ "value": "v" })).ok();
    let waiter = post("/v1/sessions", &json!({ "ttl_ms": 600_000 })).ok()["session"].clone();
    let waits = post("/v1/locks/k/acquire", &json!({ "session": waiter, "wait_ms": 1 }));
    waits.refused(408, "timeout");
    let proclaimed = json!({ "session": grant["session"], "token": grant["token"], "value": "w" });
    post("/v1/locks/k/proclaim", &proclaimed).ok();
    post("/v1/locks/k/break", &json!({ "token": grant["token"], "reason": "a test" })).ok();
    // No client renews the session of the semaphore's holder, which expires.
    post("/v1/locks/k/acquire", &json!({ "ttl_ms": 3_000, "permits": 1, "of": 2 })).ok();
    http::send(&address, "PUT", "/v1/kv/r", "content").unwrap().ok();
    http::send(&address, "DELETE", "/v1/kv/r", "").unwrap().ok();
    let kinds: BTreeSet<String> = kinds_of_events();
    while !kinds.is_subset(&seen) {
        let event = events.next().expect("the stream goes on");
        seen.insert(event.name);
    }
    assert!(seen.contains("listing"));
}

fn kinds_of_events() -> BTreeSet<String> {
    let events = description().messages("Event")["oneOf"].as_array().expect("several kinds").iter();
    events.map(|event| event["properties"]["event"]["const"].as_str().expect("a name").to_owned()).collect()
}
