//! The key-value store: records that only the holder of a lock changes, over HTTP, WebSocket and the command
//! line.

use palisade_client::wire::{Code, Condition, Consistency, RecordChange, Transaction};
use palisade_client::{Client, Error, LockOptions, Options};
use serde_json::{Value, json};

use super::{Node, calm};
use crate::support::cluster::Cluster;
use crate::support::events::Events;
use crate::support::process::{output, palisade};
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http};

impl Node {
    /// Changes a record, under a token or not.
    fn change(&self, method: &str, path: &str, token: Option<&Value>, body: &[u8]) -> http::Response {
        let token = token.map(|token| format!("X-Fence-Token: {token}\r\n")).unwrap_or_default();
        let length = body.len();
        let head = format!(
            "{method} /v1/kv/{path} HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        http::raw(&self.0, &[head.as_bytes(), body].concat()).unwrap()
    }

    fn put(&self, path: &str, token: Option<&Value>, body: &str) -> http::Response {
        self.change("PUT", path, token, body.as_bytes())
    }

    /// The content, the version and the fence of a record.
    fn record(&self, key: &str) -> (String, u64, Option<u64>) {
        let answer = self.get(&format!("/v1/kv/{key}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        let number = |name: &str| answer.header(name).map(|number| number.parse().unwrap());
        (answer.body.clone(), number("x-version").unwrap(), number("x-max-fence"))
    }
}

/// The whole argument: a worker that lost its lock writes nothing more, whether its successor has written or
/// not, and a client without a token overwrites no holder's record.
#[test]
fn former_holder_writes_nothing() {
    let (_cluster, node) = calm();
    let first = node.acquire("report", &json!({})).ok();
    let second = node.acquire_later("report", json!({ "wait_ms": 60_000 }));
    node.wait_for_queue("report", 1);
    let version = node.put("report", Some(&first["token"]), "one").ok()["version"].as_u64().unwrap();
    assert_eq!(node.record("report"), ("one".into(), version, first["token"].as_u64()));
    node.release("report", &first["session"], &first["token"]).ok();
    let second = second.join().unwrap().ok();
    // The successor has not written yet: a resource that compares tokens would let this one in.
    let refused = node.put("report", Some(&first["token"]), "late").refused(409, "stale fencing token");
    assert_eq!((&refused["got"], &refused["seen"]), (&first["token"], &second["token"]));
    let refused = node.put("report", None, "forgetful").refused(409, "stale fencing token");
    assert_eq!((&refused["seen"], &refused["got"]), (&first["token"], &Value::Null));
    assert_eq!(node.record("report").0, "one");
    node.change("POST", "report/append", Some(&second["token"]), b" two").ok();
    assert_eq!(node.record("report").0, "one two");
    node.change("DELETE", "report", None, b"").refused(409, "stale fencing token");
    node.change("DELETE", "report", Some(&second["token"]), b"").ok();
    node.get("/v1/kv/report").refused(404, "no_record");
    // After a delete the old token is worth as little as before, and the record has no holder.
    node.put("report", Some(&first["token"]), "late").refused(409, "stale fencing token");
    node.put("report", None, "new").ok();
    assert_eq!(node.record("report").2, None);
}

/// The same for a holder that does not say that it has gone: one that is paused for longer than its TTL.
#[test]
fn paused_holder_writes_nothing() {
    let (_cluster, node) = calm();
    let paused = node.acquire("report", &json!({ "ttl_ms": 2_000, "owner": "paused" })).ok();
    node.put("report", Some(&paused["token"]), "one").ok();
    eventually("its lease ends", || (node.lock("report")["held"] == false).then_some(()));
    // No other client has come yet: the greatest token known there is the record's.
    let refused = node.put("report", Some(&paused["token"]), "late").refused(409, "stale fencing token");
    assert_eq!((&refused["got"], &refused["seen"]), (&paused["token"], &paused["token"]));
    let next = node.acquire("report", &json!({})).ok();
    node.put("report", Some(&paused["token"]), "late").refused(409, "stale fencing token");
    node.put("report", Some(&next["token"]), "two").ok();
    node.change("POST", "report/append", Some(&paused["token"]), b"late").refused(409, "stale fencing token");
    assert_eq!(node.record("report").0, "two");
}

/// A numbered transaction that is repeated at the next leader is answered as the first leader answered it.
#[test]
fn numbered_transaction_is_done_once_across_a_failover() {
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let node = Node(cluster.client_addr(leader));
    let session = node.open_session("writer");
    let append = json!({ "append": { "key": "log", "value": "line;" } });
    let transact = |number: u64| json!({ "transact": { "transaction": { "session": session, "changes": [append] }, "number": number } });
    let first = WebSocket::open(&node.0).ask(1, &transact(1));
    assert!(first["ok"]["written"]["version"].is_u64(), "{first}");
    cluster.kill(leader);
    let next = Node(cluster.client_addr(cluster.wait_ready()));
    let mut socket = WebSocket::open(&next.0);
    assert_eq!(socket.ask(2, &transact(1)), first);
    assert_eq!(next.record("log").0, "line;");
    socket.ask(3, &transact(2));
    assert_eq!(next.record("log").0, "line;line;");
}

/// The Rust client's guard writes while it has the lock; then it learns that it is lost, and nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_writes_while_it_holds_the_lock() {
    let cluster = Cluster::start_calm(3);
    let client = Client::connect(&cluster.endpoints(), Options::default()).await.unwrap();
    let mut guard = client.lock("state", LockOptions::default()).await.unwrap();
    let append = |text: &str| Transaction {
        changes: vec![RecordChange::Append { key: "state".into(), value: text.into() }],
        ..Transaction::default()
    };
    let read = async || client.record("state", Consistency::Linearizable).await.unwrap().unwrap();
    guard.transact(append("a")).await.unwrap();
    let version = guard.transact(append("b")).await.unwrap();
    let record = read().await;
    assert_eq!((record.value.as_text(), record.version, record.fence), (Some("ab"), version, Some(guard.token())));
    let wrong = Condition::Version { key: "state".into(), version: 7_000 };
    let refused = guard.transact(Transaction { conditions: vec![wrong], ..append("c") }).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(failure) if failure.error == Code::OtherVersion), "{refused}");
    assert!(guard.is_valid());
    client.break_lock("state", guard.token(), "a test").await.unwrap();
    let lost = guard.transact(append("d")).await.unwrap_err();
    assert!(matches!(lost, Error::Lost) && !guard.is_valid(), "{lost}");
    assert_eq!(read().await.value.as_text(), Some("ab"));
    // Without the lock no client changes what a holder has written.
    let refused = client.transact(append("e")).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(failure) if failure.error == Code::StaleToken), "{refused}");
    client.close().await;
}

/// A record is guarded by any lock, by its version, or by both.
#[test]
fn conditions_name_a_lock_or_a_version() {
    let (_cluster, node) = calm();
    let grant = node.acquire("leader", &json!({ "mode": "shared" })).ok();
    let path = "state/1?lock=leader&if_version=0".replace("state/1", "state%2F1");
    let version = node.put(&path, Some(&grant["token"]), "a").ok()["version"].clone();
    let refused = node.put(&path, Some(&grant["token"]), "b").refused(409, "other_version");
    assert_eq!(refused["version"], version);
    node.put(&format!("state%2F1?lock=leader&if_version={version}"), Some(&grant["token"]), "b").ok();
    assert_eq!(node.record("state%2F1").0, "b");
    node.put("state%2F1", Some(&grant["token"]), "c").refused(409, "stale fencing token");
    let refused = node.put("none?if_version=7", None, "c").refused(409, "other_version");
    assert_eq!(
        (&refused["version"], refused["message"].as_str()),
        (&json!(0), Some("none does not exist; nothing was changed"))
    );
    let list = node.get("/v1/kv?prefix=state").ok();
    let record =
        json!({ "key": "state/1", "version": list["records"][0]["version"], "fence": grant["token"], "bytes": 1 });
    assert_eq!((&list["records"], &list["stored_bytes"]), (&json!([record]), &json!(7 + 1 + 64)));
}

/// All changes of a transaction are made, or none.
#[test]
fn transactions_are_whole() {
    let (_cluster, node) = calm();
    let grant = node.acquire("k", &json!({})).ok();
    let held = json!({ "held": { "lock": "k", "token": grant["token"] } });
    let put = |key: &str, value: &Value| json!({ "put": { "key": key, "value": value } });
    let binary = json!({ "base64": "/wAB" });
    let both = json!({ "conditions": [held], "changes": [put("a", &json!("1")), put("b", &binary)] });
    let version = node.post("/v1/kv", &both).ok()["version"].clone();
    assert_eq!(node.record("a"), ("1".into(), version.as_u64().unwrap(), grant["token"].as_u64()));
    let absent = json!({ "version": { "key": "b", "version": 0 } });
    let refused = json!({ "conditions": [held, absent], "changes": [put("a", &json!("2"))] });
    node.post("/v1/kv", &refused).refused(409, "other_version");
    let move_it = json!({
        "conditions": [held],
        "changes": [{ "delete": { "key": "a" } }, { "append": { "key": "c", "value": "x" } }, { "append": { "key": "c", "value": "y" } }],
    });
    node.post("/v1/kv", &move_it).ok();
    assert_eq!(node.record("c").0, "xy");
    node.get("/v1/kv/a").refused(404, "no_record");
    // Over a WebSocket with a number, a repetition changes nothing.
    let mut socket = WebSocket::open(&node.0);
    let session = node.open_session("writer");
    let append = json!({ "append": { "key": "log", "value": "line;" } });
    let transact = json!({ "transact": { "transaction": { "session": session, "changes": [append] }, "number": 1 } });
    let first = socket.ask(1, &transact);
    assert_eq!(first, socket.ask(2, &transact), "{first}");
    assert_eq!(node.record("log").0, "line;");
    let shown = socket.ask(3, &json!({ "show_record": { "key": "b" } }));
    assert_eq!(shown["ok"]["record"]["value"], binary);
}

/// What cannot be done is refused in a sentence, and nothing is changed.
#[test]
fn bad_requests_are_refused() {
    let (_cluster, node) = calm();
    let grant = node.acquire("k", &json!({})).ok();
    let long = "x".repeat(65_537);
    let refused = node.put("k", Some(&grant["token"]), &long).refused(413, "too_large");
    assert_eq!(refused["message"], "the body has more than 65536 bytes");
    node.put("k", Some(&grant["token"]), &long[1..]).ok();
    let refused = node.change("POST", "k/append", Some(&grant["token"]), b"x").refused(413, "too_large");
    assert_eq!(refused["message"], "the content of k would have 65537 bytes; it may have 65536");
    for (path, token) in
        [("k", json!("x")), ("k", json!(-1)), ("k?lock=k", Value::Null), ("k?if_version=x", Value::Null)]
    {
        let token = (!token.is_null()).then_some(&token);
        node.put(path, token, "v").refused(400, "invalid");
    }
    node.put("", None, "v").refused(400, "invalid");
    let changes: Vec<Value> = (0..33).map(|n| json!({ "delete": { "key": format!("{n}") } })).collect();
    for (transaction, why) in [
        (json!({ "changes": changes }), "the transaction has 33 conditions and changes; it may have 32"),
        (json!({ "changes": [] }), "the transaction has no changes; it needs one at least"),
    ] {
        assert_eq!(node.post("/v1/kv", &transaction).refused(400, "invalid")["message"], why);
    }
    for value in [json!(7), json!({ "base64": "?" }), json!({ "hex": "00" })] {
        let transaction = json!({ "changes": [{ "put": { "key": "k", "value": value } }] });
        node.post("/v1/kv", &transaction).refused(400, "invalid");
    }
    assert_eq!(node.record("k").0, long[1..]);
}

/// Records are on every node, survive a failover and a snapshot, and the store has a bound.
#[test]
fn store_survives_and_is_bounded() {
    let mut cluster = Cluster::start_unrecorded(3, &["--max-store-bytes", "100000"], |_, _| {});
    let leader = cluster.wait_ready();
    let node = Node(cluster.client_addr(leader));
    node.put("kept", None, &"k".repeat(60_000)).ok();
    let refused = node.put("more", None, &"m".repeat(60_000)).refused(507, "store_full");
    assert!(refused["message"].as_str().unwrap().contains("--max-store-bytes"), "{refused}");
    http::post(&node.0, "/v1/snapshot", "").unwrap().ok();
    node.put("after", None, "the snapshot").ok();
    cluster.kill(leader);
    let next = Node(cluster.client_addr(cluster.wait_ready()));
    assert_eq!(next.record("after").0, "the snapshot");
    assert_eq!(next.record("kept").0.len(), 60_000);
    cluster.restart(leader);
    let stale = || {
        let answer = http::get(&node.0, "/v1/kv/after?consistency=stale").ok()?;
        (answer.status == 200 && answer.header("x-age-ms").is_some()).then(|| answer.body.clone())
    };
    assert_eq!(eventually("the old leader has it, too", stale), "the snapshot");
}

/// A watch lists the records, and tells of each change, beside the events of the lock on the same key.
#[test]
fn watch_tells_of_records() {
    let (_cluster, node) = calm();
    let version = node.put("k", None, "one").ok()["version"].clone();
    node.put("other", None, "two").ok();
    let mut events = Events::open(&node.0, "key=k");
    let listing = events.expect("listing").data;
    assert_eq!(listing["records"], json!([{ "key": "k", "version": version, "fence": null, "bytes": 3 }]));
    assert_eq!(listing["locks"], json!([]));
    let grant = node.acquire("k", &json!({})).ok();
    let version = node.put("k", Some(&grant["token"]), "three").ok()["version"].clone();
    let deleted = node.change("DELETE", "k", Some(&grant["token"]), b"").ok()["version"].clone();
    node.change("DELETE", "k", None, b"").ok();
    node.put("other", None, "four").ok();
    node.release("k", &grant["session"], &grant["token"]).ok();
    assert_eq!(events.expect("granted").data["token"], grant["token"]);
    let put = events.expect("put").data;
    assert_eq!((&put["key"], &put["version"], &put["fence"]), (&json!("k"), &version, &grant["token"]));
    assert_eq!(events.expect("deleted").data["version"], deleted);
    events.expect("released");
}

/// `palisade kv`, alone and under a lock.
#[test]
fn commands_write_and_read() {
    let (_cluster, node) = calm();
    let kv = |arguments: &[&str]| output(palisade().arg("kv").args(arguments).args(["--endpoints", &node.0]));
    let text = |output: std::process::Output| {
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(text(kv(&["put", "k", "one", "--if-version", "0"])).starts_with("k: version "));
    text(kv(&["append", "k", " two"]));
    assert_eq!(text(kv(&["get", "k"])), "one two");
    let listed = text(kv(&["list"]));
    let columns: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(columns[0], ["KEY", "BYTES", "VERSION", "TOKEN"]);
    assert_eq!((columns.len(), &columns[1][..2], columns[1][3]), (2, &["k", "7"][..], "-"), "{listed}");
    let stale = kv(&["put", "k", "x", "--token", "7"]);
    assert_eq!(stale.status.code(), Some(65));
    assert!(String::from_utf8_lossy(&stale.stderr).contains("is not held with token 7"), "{stale:?}");
    let script = format!("\"$0\" kv put job done --token \"$PALISADE_TOKEN\" --lock nightly --endpoints {}", node.0);
    let program = palisade().get_program().to_owned();
    let locked =
        output(palisade().args(["lock", "nightly", "--endpoints", &node.0, "--", "sh", "-c", &script]).arg(program));
    assert!(locked.status.success(), "{locked:?}");
    assert_eq!(node.record("job").0, "done");
    let again = kv(&["delete", "job"]);
    assert_eq!(again.status.code(), Some(65), "{again:?}");
    assert_eq!(kv(&["get", "none"]).status.code(), Some(66));
}
