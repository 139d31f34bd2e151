//! `GET /v1/ws`: many requests over one connection, in JSON text frames.

use palisade_client::codec;
use palisade_client::wire::{Answer, Op, Outcome, Request, Response, SessionId};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{Node, calm};
use crate::support::websocket::WebSocket;
use crate::support::{eventually, metrics};

/// A session, a grant, a wait that is answered when its turn comes, and a release, all over one
/// connection.
#[test]
fn the_whole_way_of_a_lock_over_one_connection() {
    let (_cluster, Node(address)) = calm();
    let mut socket = WebSocket::open(&address);
    let mut open = |id: u64, owner: &str| {
        let answer = socket.ask(id, &json!({ "open_session": { "ttl_ms": 40_000, "owner": owner } }));
        assert_eq!(answer["ok"]["session"]["ttl_ms"], 40_000);
        answer["ok"]["session"]["session"].clone()
    };
    let (first, second) = (open(1, "first"), open(2, "second"));
    let acquire = |session: &Value, wait: u64, number: u64| {
        let options = json!({ "session": session, "wait_ms": wait });
        json!({ "acquire": { "key": "k", "options": options, "number": number } })
    };
    let grant = socket.ask(3, &acquire(&first, 0, 1))["ok"]["acquired"].clone();
    assert_eq!((&grant["key"], &grant["session"], &grant["ttl_ms"]), (&json!("k"), &first, &json!(40_000)));
    let held = socket.ask(4, &acquire(&second, 0, 1));
    assert_eq!((&held["error"]["error"], &held["error"]["queue"]), (&json!("held"), &json!(0)));
    assert_eq!(held["error"]["holder"], json!({ "owner": "first", "token": grant["token"] }));

    // A wait does not hold up what comes after it.
    socket.send(5, &acquire(&second, 60_000, 2));
    let shown = socket.ask(6, &json!({ "show_lock": { "key": "k" } }))["ok"]["lock"].clone();
    assert_eq!((&shown["holder"]["owner"], &shown["queue"][0]["owner"]), (&json!("first"), &json!("second")));
    assert_eq!(socket.ask(7, &json!("status"))["ok"]["status"]["role"], "leader");
    assert_eq!(socket.ask(8, &json!({ "keep_alive": { "session": second } }))["ok"]["session"]["session"], second);

    // The release is answered, and so is the wait that it ends.
    let release =
        json!({ "release": { "key": "k", "grant": { "session": first, "token": grant["token"] }, "number": 2 } });
    socket.send(9, &release);
    let mut answers = [socket.receive().unwrap(), socket.receive().unwrap()];
    answers.sort_by_key(|answer| answer["id"].as_u64());
    let next = &answers[0]["result"]["ok"]["acquired"];
    assert_eq!((&answers[0]["id"], &next["session"]), (&json!(5), &second));
    assert!(next["token"].as_u64() > grant["token"].as_u64());
    assert_eq!(answers[1], json!({ "id": 9, "result": { "ok": "released" } }));

    // The same operation again is done once, and answered as before.
    assert_eq!(socket.ask(10, &release)["ok"], "released");
    assert_eq!(&socket.ask(11, &acquire(&second, 60_000, 2))["ok"]["acquired"], next);
    assert_eq!(socket.ask(12, &acquire(&first, 0, 1))["error"]["error"], "gone");

    let page = socket.ask(13, &json!({ "list_locks": { "prefix": "k", "limit": 5 } }))["ok"]["locks"].clone();
    assert_eq!((&page["locks"][0]["holder"]["token"], &page["next_after"]), (&next["token"], &Value::Null));
    assert_eq!(
        socket.ask(14, &json!({ "withdraw": { "key": "k", "session": second, "number": 3 } }))["ok"],
        "withdrawn"
    );
    let view = socket.ask(15, &json!({ "show_session": { "session": second } }))["ok"]["session_view"].clone();
    assert_eq!((&view["owner"], &view["keys"]), (&json!("second"), &json!([])));
    assert_eq!(socket.ask(16, &json!({ "close_session": { "session": second } }))["ok"], "session_closed");
    assert_eq!(socket.ask(17, &json!({ "show_session": { "session": second } }))["error"]["error"], "no_session");
}

/// More requests than may be open are not refused: the rest is read when those are answered.
#[test]
fn many_requests_at_once_are_answered_by_and_by() {
    let (_cluster, node) = calm();
    let session = node.open_session("busy");
    let mut socket = WebSocket::open(&node.0);
    for id in 1..=3_000 {
        socket.send(id, &json!({ "keep_alive": { "session": session } }));
    }
    let mut answered: Vec<u64> = (1..=3_000)
        .map(|_| {
            let answer = socket.receive().expect("the connection stays");
            assert_eq!(answer["result"]["ok"]["session"]["session"], session);
            answer["id"].as_u64().unwrap()
        })
        .collect();
    answered.sort_unstable();
    assert!(answered.into_iter().eq(1..=3_000), "each is answered once");
}

/// Thousands of waiting acquires may stand on one connection, for they do not count among the open
/// requests; and an acquire that is asked again on the same connection takes the place of the
/// request before, also for the answer.
#[test]
fn waits_do_not_count_and_repeated_ones_are_answered_once() {
    const WAITS: u64 = 1_500;
    let (_cluster, node) = calm();
    let grant = node.acquire("k", &json!({ "owner": "holder" })).ok();
    let sessions: Vec<Value> = (0..WAITS).map(|_| node.open_session("waiter")).collect();
    let mut socket = WebSocket::open(&node.0);
    let wait = |session: &Value| json!({ "acquire": { "key": "k", "options": { "session": session, "wait_ms": 600_000 }, "number": 1 } });
    for id in (1..).take(3) {
        for (session, index) in sessions.iter().zip(0..) {
            socket.send(id * WAITS + index, &wait(session));
        }
    }
    let queue = node.wait_for_queue("k", sessions.len());
    let numbers = sessions.iter().map(super::number);
    assert!(
        queue.iter().map(|waiter| waiter["session"].clone()).eq(numbers),
        "they stand in the order in which they came"
    );
    assert_eq!(socket.ask(1, &json!("status"))["ok"]["status"]["role"], "leader", "the connection goes on");

    node.release("k", &grant["session"], &grant["token"]).ok();
    let first = socket.receive().expect("the first in the queue has the lock");
    assert_eq!((&first["id"], &first["result"]["ok"]["acquired"]["session"]), (&json!(3 * WAITS), &sessions[0]));
    assert_eq!(socket.ask(2, &json!("status"))["ok"]["status"]["role"], "leader", "nothing else is said");
}

/// A value out of bounds is that request's failure: the connection goes on.
#[test]
fn a_refused_request_leaves_the_connection_open() {
    let (_cluster, Node(address)) = calm();
    let mut socket = WebSocket::open(&address);
    let long = "k".repeat(513);
    let refused = [
        json!({ "open_session": { "ttl_ms": 99 } }),
        json!({ "acquire": { "key": "" } }),
        json!({ "acquire": { "key": long } }),
        json!({ "acquire": { "key": "k", "number": 1 } }),
        json!({ "acquire": { "key": "k", "options": { "wait_ms": 86_400_001 } } }),
        json!({ "list_locks": { "limit": 0 } }),
    ];
    for (id, op) in (1..).zip(&refused) {
        let failure = &socket.ask(id, op)["error"];
        assert_eq!(failure["error"], "invalid", "{op}");
        assert!(failure["message"].as_str().unwrap().contains(' '));
    }
    assert_eq!(socket.ask(99, &json!("status"))["ok"]["status"]["locks"], 0);
}

/// A frame that is no request is answered under id 0, counted, and ends the connection: what
/// follows it may mean anything.
#[test]
fn a_frame_that_is_no_request_ends_the_connection() {
    let (_cluster, Node(address)) = calm();
    let bad = [
        "",
        "hello",
        "[]",
        r#"{"id":1}"#,
        r#"{"id":-1,"op":"status"}"#,
        r#"{"id":1,"op":"dance"}"#,
        r#"{"id":1,"op":"status","also":1}"#,
        r#"{"id":1,"op":{"acquire":{"key":"k","force":true}}}"#,
        r#"{"id":1,"op":{"keep_alive":{"session":"me"}}}"#,
    ];
    for text in bad {
        let before = metrics::value(&address, "palisade_frames_rejected_total");
        let mut socket = WebSocket::open(&address);
        socket.send_text(text);
        let answer = socket.receive().expect("the connection ends behind its last answer");
        assert_eq!((&answer["id"], &answer["result"]["error"]["error"]), (&json!(0), &json!("invalid")), "{text}");
        assert_eq!(socket.receive(), None, "{text}");
        assert_eq!(metrics::value(&address, "palisade_frames_rejected_total"), before + 1.0, "{text}");
    }
}

/// A node that does not lead names the leader once, and ends the connection.
#[test]
fn a_follower_names_the_leader_and_closes() {
    let (cluster, Node(leader)) = calm();
    let follower = cluster.ids().into_iter().find(|&id| cluster.client_addr(id) != leader).unwrap();
    let mut socket = WebSocket::open(&cluster.client_addr(follower));
    // Its own view it tells like every node.
    assert_eq!(socket.ask(1, &json!("status"))["ok"]["status"]["role"], "follower");
    socket.send(2, &json!({ "open_session": {} }));
    let answer = socket.receive().unwrap();
    assert_eq!((&answer["id"], &answer["result"]["error"]["error"]), (&json!(2), &json!("not_leader")));
    assert_eq!(answer["result"]["error"]["leader"]["client_addr"], leader.as_str());
    assert_eq!(socket.receive(), None);
}

/// When the connection goes, its waiting acquire goes; the session stays until its TTL.
#[test]
fn dropping_the_connection_withdraws_its_waits() {
    let (_cluster, node) = calm();
    node.acquire("k", &json!({ "owner": "holder" })).ok();
    let session = node.open_session("waiter");
    let mut socket = WebSocket::open(&node.0);
    socket.send(1, &json!({ "acquire": { "key": "k", "options": { "session": session, "wait_ms": 60_000 } } }));
    node.wait_for_queue("k", 1);
    drop(socket);
    node.wait_for_queue("k", 0);
    node.get(&super::session_path(&session)).ok();
}

/// Each frame is answered in its own encoding, and both mean the same.
#[test]
fn text_is_answered_with_text_and_binary_with_binary() {
    let (_cluster, Node(address)) = calm();
    let mut socket = WebSocket::open(&address);
    let opened = socket.ask(1, &json!({ "open_session": { "owner": "both" } }));
    let session: SessionId = opened["ok"]["session"]["session"].as_str().unwrap().parse().unwrap();
    let mut frame = Vec::new();
    codec::encode_into(&Request { id: 2, op: Op::ShowSession { session } }, &mut frame);
    socket.0.send(Message::binary(frame)).unwrap();
    let answer = eventually("a binary answer", || match socket.0.read().unwrap() {
        Message::Binary(bytes) => Some(codec::decode::<Response>(&bytes).unwrap()),
        Message::Text(text) => panic!("a binary request was answered with text: {text}"),
        _ => None,
    });
    let Outcome::Ok(Answer::SessionView(view)) = answer.result else { panic!("{answer:?}") };
    assert_eq!((answer.id, view.owner.as_str(), view.session), (2, "both", session.number()));
}
