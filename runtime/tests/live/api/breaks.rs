//! `POST /v1/locks/{key}/break` and `palisade unlock`: an operator takes a lock from its holder.

use std::collections::BTreeMap;

use palisade_client::wire::UNASKED;
use serde_json::{Value, json};

use super::{calm, fields, number, session_path};
use crate::support::eventually;
use crate::support::process::{output, palisade};
use crate::support::websocket::WebSocket;

/// Goal: a break ends the grant that it names, and nothing else: the next waiter is granted the lock
/// with a later token, the holder's other locks stay its own, and a WebSocket is told at once. The
/// server logs who broke what, and why.
#[test]
fn break_ends_one_grant_and_is_reported() {
    let (cluster, node) = calm();
    let holder = node.open_session("hangs");
    let grant = node.acquire("k", &json!({ "session": holder })).ok();
    node.acquire("other", &json!({ "session": holder })).ok();
    let waiting = node.acquire_later("k", json!({ "owner": "waiter", "wait_ms": 60_000 }));
    node.wait_for_queue("k", 1);
    let mut socket = WebSocket::open(&node.0);
    assert_eq!(socket.ask(1, &json!({ "keep_alive": { "session": holder } }))["ok"]["session"]["session"], holder);

    for (more, why) in [(1, "if the lock had a grant with that token"), (9, "no grant has had that token yet")] {
        let wrong = json!({ "token": grant["token"].as_u64().unwrap() + more, "reason": "a guess" });
        let refusal = node.post("/v1/locks/k/break", &wrong).refused(409, "not_holder");
        let held = format!("it is held with token {}; {why}", grant["token"]);
        assert!(refusal["message"].as_str().unwrap().contains(&held), "{refusal}");
    }
    assert_eq!(node.lock("k")["holder"]["session"], number(&holder));

    let order = json!({ "token": grant["token"], "reason": "it hangs\nsince noon" });
    let broken = node.post("/v1/locks/k/break", &order).ok();
    let expected = json!({ "key": "k", "token": grant["token"], "session": number(&holder), "principal": "" });
    assert_eq!(broken, expected);
    let next = waiting.join().unwrap().ok();
    assert!(next["token"].as_u64() > grant["token"].as_u64());
    let notice = socket.receive().expect("the connection stays");
    assert_eq!(notice, json!({ "id": UNASKED, "result": { "ok": { "lost": broken } } }));

    assert_eq!(node.get(&session_path(&holder)).ok()["keys"], json!(["other"]), "the other lock is still held");
    node.release("k", &holder, &grant["token"]).refused(409, "not_holder");
    // A client that did not get the answer cannot be told which attempt broke the grant.
    let repeated = node.post("/v1/locks/k/break", &order).refused(409, "not_holder");
    let message = repeated["message"].as_str().unwrap();
    assert!(message.contains("it may have been broken by an earlier attempt"), "{message}");
    let log = || cluster.ids().into_iter().map(|id| cluster.log(id)).collect::<String>();
    let line = eventually("the break is logged", || {
        log().lines().find(|line| line.contains("an operator broke the grant of a lock")).map(str::to_owned)
    });
    for part in ["WARN", "\"k\"", &format!("token={}", grant["token"]), r"it hangs\nsince noon", "127.0.0.1"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

/// Goal: a break and the requests behind it on one WebSocket take effect in the order in which the client sent them.
#[test]
fn request_behind_a_break_finds_the_lock_free() {
    let (_cluster, node) = calm();
    let mut socket = WebSocket::open(&node.0);
    for round in 0..20 {
        let key = format!("k{round}");
        let grant = node.acquire(&key, &json!({})).ok();
        let order = json!({ "token": grant["token"], "reason": "it hangs" });
        socket.send(2 * round, &json!({ "break": { "key": key, "order": order } }));
        socket.send(2 * round + 1, &json!({ "acquire": { "key": key, "options": {} } }));
        let mut answers = BTreeMap::new();
        while answers.len() < 2 {
            let frame = socket.receive().expect("the connection stays");
            // All WebSockets are told of the break, too.
            if frame["id"] != json!(UNASKED) {
                answers.insert(frame["id"].as_u64(), frame["result"].clone());
            }
        }
        let acquired = &answers[&Some(2 * round + 1)];
        assert!(acquired["ok"]["acquired"]["token"].as_u64() > grant["token"].as_u64(), "{answers:?}");
    }
}

/// Goal: a session that loses its only lock ends with it, so that a client without a WebSocket
/// learns of the break from its next keepalive; nothing waits, so the lock is free.
#[test]
fn session_that_loses_its_only_lock_ends() {
    let (_cluster, node) = calm();
    let holder = node.open_session("hangs");
    let grant = node.acquire("k", &json!({ "session": holder })).ok();
    node.post("/v1/locks/k/break", &json!({ "token": grant["token"], "reason": "it hangs" })).ok();
    assert_eq!(node.lock("k")["held"], false);
    node.post(&format!("{}/keepalive", session_path(&holder)), &json!({})).refused(404, "no_session");
}

/// Goal: a break without a reason, or with one that is too long, is refused, and so is a request
/// under the id of the frames that no request asked for.
#[test]
fn break_needs_a_reason() {
    let (_cluster, node) = calm();
    let grant = node.acquire("k", &json!({})).ok();
    for reason in [String::new(), "r".repeat(257)] {
        let order = json!({ "token": grant["token"], "reason": reason });
        let refusal = node.post("/v1/locks/k/break", &order).refused(400, "invalid");
        assert!(refusal["message"].as_str().unwrap().contains("it may have 1 to 256"), "{refusal}");
    }
    node.post("/v1/locks/k/break", &json!({ "token": grant["token"] })).refused(400, "invalid");
    let mut socket = WebSocket::open(&node.0);
    let refused = socket.ask(UNASKED, &json!({ "show_lock": { "key": "k" } }));
    assert_eq!(refused["error"]["error"], "invalid");
    assert_eq!(node.lock("k")["held"], true);
}

/// Goal: `palisade unlock` breaks the grant that it finds, says what it did, and does nothing
/// without `--force` and `--reason`.
#[test]
fn unlock_breaks_what_it_finds() {
    let (cluster, node) = calm();
    let endpoints = cluster.endpoints().join(",");
    let unlock = |arguments: &[&str]| {
        let ended = output(palisade().args(["unlock", "k", "--endpoints", &endpoints]).args(arguments));
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    };
    let (code, _, error) = unlock(&["--force", "--reason", "a try"]);
    assert_eq!((code, error.as_str()), (Some(65), "palisade: k: no session holds the lock\n"));

    let grant = node.acquire("k", &json!({ "owner": "worker-7" })).ok();
    for incomplete in [&["--force"][..], &["--reason", "a try"]] {
        assert_eq!(unlock(incomplete).0, Some(2), "{incomplete:?}");
    }
    assert_eq!(node.lock("k")["holder"]["token"], grant["token"]);
    let (code, _, error) = unlock(&["--force", "--reason", "a try", "--token", "99"]);
    assert_eq!(code, Some(65), "{error}");
    let (code, said, _) = unlock(&["--force", "--reason", "it hangs"]);
    let (token, session) = (&grant["token"], number(&grant["session"]));
    let expected = format!("k: broke the grant with token {token}, held by session {session} of worker-7\n");
    assert_eq!((code, said), (Some(0), expected));
    assert_eq!(node.lock("k")["held"], false);

    node.acquire("k", &json!({})).ok();
    let (_, said, _) = unlock(&["--force", "--reason", "it hangs", "--json"]);
    let broken: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(fields(&broken), ["key", "principal", "session", "token"]);
}
