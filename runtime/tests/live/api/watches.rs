//! `GET /v1/watch`, and watches over a WebSocket: events in order, each with its ID, at every node, and
//! resumed without a gap or repetition.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use palisade_client::wire::{self, EventId, Watch, Watched};
use palisade_client::{Client, LockOptions, Options};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Node, calm, number, session_path};
use crate::support::cluster::Cluster;
use crate::support::events::{Event, Events};
use crate::support::journal::Journal;
use crate::support::load::Load;
use crate::support::process::{output, palisade};
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, metrics};

/// The events of a watch up to one with this name and key, that included.
fn up_to(events: &mut Events, name: &str, key: &str) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        let event = events.next().expect("the stream goes on");
        let is_last = event.name == name && event.data["key"] == key;
        all.push(event);
        if is_last {
            return all;
        }
    }
}

/// The name of each event, and what it says beside key, ID and revision.
fn said(event: &Event) -> Value {
    let mut data = event.data.clone();
    let fields = data.as_object_mut().unwrap();
    assert_eq!(fields.remove("event"), Some(json!(event.name)));
    let id = fields.remove("id").unwrap();
    assert_eq!(event.id.as_deref(), id.as_str());
    let revision = fields.remove("revision").unwrap().to_string();
    assert_eq!(id.as_str().unwrap().split('.').next(), Some(revision.as_str()));
    fields.remove("key");
    json!([event.name, data])
}

/// Waits until every node has applied the grant of this lock: a listing begins with what its node has applied.
fn held_everywhere(cluster: &Cluster, key: &str) {
    for node in cluster.endpoints() {
        eventually("the node has applied the grant", || {
            let lock = http::get(&node, &format!("/v1/locks/{key}?consistency=stale")).ok()?.json();
            (lock["held"] == true).then_some(())
        });
    }
}

/// Every kind of event, at a leader and at a follower: the same events with the same IDs, which only grow.
#[test]
fn each_node_tells_the_same_events_in_order() {
    let (cluster, node) = calm();
    let held = node.acquire("before", &json!({ "owner": "early", "value": "here" })).ok();
    held_everywhere(&cluster, "before");
    let mut streams: Vec<Events> = cluster
        .ids()
        .into_iter()
        .map(|id| {
            let address = cluster.client_addr(id);
            let mut events = Events::open(&address, "prefix=");
            let (_, locks) = events.listing();
            assert_eq!(locks.as_array().unwrap().len(), 1);
            assert_eq!((&locks[0]["key"], &locks[0]["holder"]["token"]), (&json!("before"), &held["token"]));
            assert_eq!(locks[0]["holder"]["value"], "here");
            events
        })
        .collect();

    let first = node.acquire("k", &json!({ "owner": "first", "value": "a" })).ok();
    let second = node.open_session("second");
    let waiting = node.acquire_later("k", json!({ "session": second, "wait_ms": 60_000 }));
    node.wait_for_queue("k", 1);
    let proclaim = json!({ "session": first["session"], "token": first["token"], "value": "b" });
    node.post("/v1/locks/k/proclaim", &proclaim).ok();
    node.release("k", &first["session"], &first["token"]).ok();
    let next = waiting.join().unwrap().ok();
    let order = json!({ "token": next["token"], "reason": "a test" });
    node.post("/v1/locks/k/break", &order).ok();
    // Three that expire: one holds, two wait.
    let short = json!({ "ttl_ms": 60_000, "owner": "short" });
    let mode = json!({ "permits": 1, "of": 1, "ttl_ms": 300, "owner": "expires" });
    let expires = node.acquire("k", &mode).ok();
    let pair = node.post("/v1/acquire", &json!({ "keys": ["l", "m"], "mode": "shared", "owner": "pair" })).ok();
    let impatient = node.acquire("l", &json!({ "wait_ms": 100, "owner": "impatient" }));
    impatient.refused(408, "timeout");
    let closed = node.acquire("n", &short).ok();
    node.send("DELETE", &session_path(&closed["session"]), "").ok();
    eventually("the short one expires", || (node.lock("k")["held"] == false).then_some(()));
    node.acquire("last", &json!({})).ok();

    let received: Vec<Vec<Event>> = streams.iter_mut().map(|stream| up_to(stream, "granted", "last")).collect();
    assert_eq!((&received[1], &received[2]), (&received[0], &received[0]), "every node tells the same");
    let ids: Vec<EventId> = received[0].iter().map(|event| event.id.as_ref().unwrap().parse().unwrap()).collect();
    assert!(ids.is_sorted_by(|earlier, later| earlier < later), "{ids:?}");
    let of = |key: &str| received[0].iter().filter(|event| event.data["key"] == key).map(said).collect::<Vec<_>>();
    let (one, two, three) = (number(&first["session"]), number(&second), number(&expires["session"]));
    assert_eq!(
        of("k"),
        [
            json!(["granted", { "session": one, "owner": "first", "token": first["token"], "mode": "exclusive", "value": "a" }]),
            json!(["queued", { "session": two, "owner": "second", "mode": "exclusive", "ahead": 0 }]),
            json!(["value", { "session": one, "token": first["token"], "value": "b" }]),
            json!(["released", { "session": one, "token": first["token"], "because": "request" }]),
            json!(["granted", { "session": two, "owner": "second", "token": next["token"], "mode": "exclusive" }]),
            json!(["broken", { "session": two, "token": next["token"] }]),
            json!(["released", { "session": two, "token": next["token"], "because": "broken" }]),
            json!(["granted", { "session": three, "owner": "expires", "token": expires["token"], "mode": "exclusive",
                "permits": 1, "of": 1 }]),
            json!(["expired", { "session": three, "token": expires["token"] }]),
            json!(["released", { "session": three, "token": expires["token"], "because": "expired" }]),
        ]
        .map(|mut event| {
            // A semaphore says so.
            if event[1].get("of").is_some() {
                event[1]["mode"] = json!("semaphore");
            }
            event
        })
    );
    let shared = json!({ "session": number(&pair["session"]), "owner": "pair", "token": pair["token"], "mode": "shared",
        "keys": ["l", "m"] });
    assert_eq!(of("m"), [json!(["granted", shared])]);
    let of_l = of("l");
    assert_eq!(of_l[0], json!(["granted", shared]));
    assert_eq!((&of_l[1][0], &of_l[2][0], of_l.len()), (&json!("queued"), &json!("withdrawn"), 3));
    assert_eq!(of_l[2][1]["because"], "request");
    assert_eq!(of("n")[1][1]["because"], "closed");
}

/// A watch of one key, and one of a prefix, are told of nothing else. A browser resumes with a header.
#[test]
fn watch_follows_its_key_or_prefix_alone() {
    let (_cluster, node) = calm();
    let (mut key, mut prefix) = (Events::open(&node.0, "key=jobs%2Fa"), Events::open(&node.0, "prefix=jobs%2F"));
    let ((_, none), (before, _)) = (key.listing(), prefix.listing());
    assert_eq!(none, json!([]));
    for name in ["jobs", "jobs%2Fb", "jobs%2Fa", "other", "jobs%2Fa%2Fx"] {
        let grant = node.acquire(name, &json!({})).ok();
        node.release(name, &grant["session"], &grant["token"]).ok();
    }
    let names = |events: &[Event]| {
        let name = |event: &Event| format!("{} {}", event.name, event.data["key"].as_str().unwrap());
        events.iter().map(name).collect::<Vec<String>>()
    };
    let of_prefix = up_to(&mut prefix, "released", "jobs/a/x");
    let both = |key: &str| ["granted", "released"].map(|name| format!("{name} {key}"));
    assert_eq!(names(&of_prefix), [both("jobs/b"), both("jobs/a"), both("jobs/a/x")].concat());
    assert_eq!(names(&up_to(&mut key, "released", "jobs/a")), both("jobs/a"));
    // After each of them, by the query or by the header, which is the newer.
    for (seen, event) in (1..).zip(&of_prefix[..5]) {
        let id = event.id.as_deref().unwrap();
        let mut resumed = Events::open(&node.0, &format!("prefix=jobs%2F&after={id}"));
        assert_eq!(up_to(&mut resumed, "released", "jobs/a/x"), of_prefix[seen..]);
        let mut resumed = Events::resume(&node.0, &format!("prefix=jobs%2F&after={before}"), id);
        assert_eq!(up_to(&mut resumed, "released", "jobs/a/x"), of_prefix[seen..]);
    }
}

/// What no watch is, is refused in a sentence.
#[test]
fn bad_watches_are_refused() {
    let (_cluster, node) = calm();
    let refused = |query: &str| {
        let refused = Events::try_open(&node.0, query).err().unwrap_or_else(|| panic!("{query} is served"));
        refused.refused(400, "invalid")["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(refused(""), "a watch needs `key` or `prefix`: what to follow");
    assert_eq!(refused("after=3"), "a watch needs `key` or `prefix`: what to follow");
    assert_eq!(refused("key=k&prefix=k"), "a watch has `key` and `prefix`: give one of them, or begin two watches");
    assert_eq!(refused("key="), "the key has 0 bytes; it may have 1 to 512");
    assert_eq!(refused(&format!("key={}", "k".repeat(513))), "the key has 513 bytes; it may have 1 to 512");
    assert_eq!(refused(&format!("prefix={}", "k".repeat(513))), "the prefix has 513 bytes; it may have 512");
    for after in ["x", "-1", "1.", "1.x", "99999999999999999999", ""] {
        let sentence = refused(&format!("key=k&after={after}"));
        assert!(sentence.contains("is not the ID of an event"), "{sentence}");
    }
    for query in ["key=%FF", "key=k&colour=red", "key=k&key=l"] {
        refused(query);
    }
    let stream = TcpStream::connect(&node.0).unwrap();
    let refusal = Events::over(stream, "key=k", Some("yesterday")).err().expect("it is no ID");
    let message = refusal.refused(400, "invalid")["message"].to_string();
    assert!(message.contains("Last-Event-ID"), "{message}");
    node.post("/v1/watch", &json!({})).refused(405, "method_not_allowed");
    // A revision that is still to come is waited for.
    let mut ahead = Events::open(&node.0, "key=k&after=1000000");
    node.acquire("k", &json!({})).ok();
    ahead_is_silent(&mut ahead);
}

fn ahead_is_silent(events: &mut Events) {
    let begin = Instant::now();
    events.patience(Duration::from_millis(500));
    assert!(events.next().is_none() && begin.elapsed() >= Duration::from_millis(400));
}

/// Clients that work on, through the death of a node.
async fn load(cluster: &Cluster, ends: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<()>> {
    let mut tasks = Vec::new();
    for seed in 1..=4 {
        let options = crate::support::load::options();
        let client = Client::connect(&cluster.endpoints(), options).await.expect("the cluster serves");
        let journal = Arc::new(Mutex::new(Journal::default()));
        tasks.push(tokio::spawn(Load::new(client, &journal, ends, seed).churn()));
    }
    tasks
}

/// Resumes a watch of all keys. A node that has just been started may not listen yet, or know no leader.
fn resumed(address: &str, last: &str) -> Events {
    eventually("the node serves watches", || {
        let stream = TcpStream::connect(address).ok()?;
        Events::over(stream, &format!("prefix=&after={last}"), None).ok()
    })
}

/// A watcher's node is killed again and again under load, and it goes on at another one each time: in the end
/// it has seen exactly what a watcher saw that stayed at its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_at_another_node_without_gap_or_repetition() {
    const ROUNDS: usize = 4;
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let others = cluster.others(leader);
    let mut steady = Events::open(&cluster.client_addr(leader), "prefix=");
    let (start, _) = steady.listing();
    let ends = Arc::new(AtomicBool::new(false));
    let tasks = load(&cluster, &ends).await;
    let (mut seen, mut last) = (Vec::new(), start.clone());
    for round in 0..ROUNDS {
        let victim = others[round % 2];
        let address = cluster.client_addr(victim);
        let mut moving = resumed(&address, &last);
        for _ in 0..150 {
            let event = moving.next().expect("the stream goes on");
            last = event.id.clone().expect("it was not listed");
            seen.push(event);
        }
        cluster.kill(victim);
        // What had arrived before the node died counts.
        while let Some(event) = moving.next() {
            last = event.id.clone().expect("it was not listed");
            seen.push(event);
        }
        cluster.restart(victim);
    }
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("nothing went wrong for the clients");
    }
    let node = Node(cluster.client_addr(leader));
    node.acquire("last", &json!({})).ok();
    let mut moving = resumed(&cluster.client_addr(others[0]), &last);
    seen.extend(up_to(&mut moving, "granted", "last"));
    let all = up_to(&mut steady, "granted", "last");
    assert!(all.len() > 150 * ROUNDS);
    let first = seen.iter().zip(&all).position(|(seen, all)| seen != all);
    assert_eq!((first, seen.len()), (None, all.len()));
}

/// A node that is started again has the same events under the same IDs: its log brings them back.
#[test]
fn restart_keeps_the_events_and_their_ids() {
    let mut cluster = Cluster::start_calm(1);
    let node = Node(cluster.client_addr(cluster.wait_ready()));
    let grants: Vec<Value> = (0..3).map(|_| node.acquire("k", &json!({ "mode": "shared" })).ok()).collect();
    grants.iter().for_each(|grant| drop(node.release("k", &grant["session"], &grant["token"]).ok()));
    node.acquire("last", &json!({})).ok();
    let all = |node: &Node| up_to(&mut Events::open(&node.0, "prefix=&after=0"), "granted", "last");
    let before = all(&node);
    assert_eq!(before.len(), 7);
    cluster.kill(1);
    cluster.restart(1);
    cluster.wait_ready();
    assert_eq!(all(&node), before);
}

/// A client that comes back too late is told so, with the first revision that is there, and is shown the
/// present state; nothing is missing after that.
#[test]
fn compacted_watch_begins_with_a_listing() {
    let cluster = Cluster::start_calm_with(1, &["--watch-history", "20000"]);
    let node = Node(cluster.client_addr(cluster.wait_ready()));
    let kept = node.acquire("kept", &json!({ "ttl_ms": 3_600_000 })).ok();
    for _ in 0..60 {
        let grant = node.acquire("k", &json!({})).ok();
        node.release("k", &grant["session"], &grant["token"]).ok();
    }
    for query in ["prefix=&after=1", "key=kept&after=1.1"] {
        let mut late = Events::open(&node.0, query);
        let compacted = late.expect("compacted");
        let floor = compacted.data["floor"].as_u64().unwrap();
        assert!(floor > 60 && compacted.id.is_none(), "{compacted:?}");
        let (id, locks) = late.listing();
        assert_eq!((locks[0]["key"].as_str(), &locks[0]["holder"]["token"]), (Some("kept"), &kept["token"]));
        assert_eq!(locks.as_array().unwrap().len(), 1);
        let revision: u64 = id.parse().unwrap();
        assert!(revision > floor);
        let value = json!({ "session": kept["session"], "token": kept["token"], "value": query });
        node.post("/v1/locks/kept/proclaim", &value).ok();
        let next = late.expect("value");
        assert_eq!(next.data["value"], query);
        assert!(next.data["revision"].as_u64().unwrap() > revision);
        // What is still there is there for the next one.
        let mut early = Events::open(&node.0, &format!("key=kept&after={id}"));
        assert_eq!(early.next(), Some(next));
    }
    // The command says the same in a sentence.
    let mut command = palisade();
    command.args(["watch", "kept", "--after", "1.1", "--endpoints", &node.0]);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    let compacted: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert_eq!(compacted["event"], "compacted");
    let sentence = format!("does not have all events up to revision {} any more", compacted["floor"]);
    assert!(compacted["message"].as_str().unwrap().contains(&sentence), "{compacted}");
    // The present state follows, and the command ends with the reader of what it prints.
    let next = lines.next().unwrap();
    assert!(next.starts_with(r#"{"event":"lock""#), "{next}");
    drop(lines);
    assert!(watching.wait().unwrap().success());
}

/// A prefix with more locks than fit into a part is listed in several, with its records, and what happens
/// then follows.
#[test]
fn long_listing_comes_in_parts() {
    let cluster = Cluster::start_calm(1);
    let node = Node(cluster.client_addr(cluster.wait_ready()));
    let session = node.open_session("many");
    let mut socket = WebSocket::open(&node.0);
    let acquire =
        |number: u64| json!({ "acquire": { "key": format!("k/{number:04}"), "options": { "session": session } } });
    (0..2_500).for_each(|number| socket.send(number, &acquire(number)));
    (0..2_500).for_each(|_| assert!(socket.receive().unwrap()["result"]["ok"]["acquired"].is_object()));
    let put = |number: u64| json!({ "transact": { "transaction": { "changes": [{ "put": { "key": format!("k/{number:04}"), "value": "" } }] } } });
    (0..500).for_each(|number| assert!(socket.ask(number, &put(number))["ok"]["written"].is_object()));
    let mut stream = Events::open(&node.0, "prefix=k%2F");
    let (mut keys, mut records, mut parts) = (Vec::new(), Vec::new(), 0);
    let id = loop {
        let part = stream.expect("listing");
        assert_eq!(part.data["begins"], parts == 0);
        parts += 1;
        let listed = |kind: &str| {
            let all = part.data[kind].as_array().unwrap().iter();
            all.map(|one| one["key"].as_str().unwrap().to_owned()).collect::<Vec<String>>()
        };
        keys.extend(listed("locks"));
        records.extend(listed("records"));
        assert_eq!(part.id.is_some(), part.data["complete"] == true);
        if let Some(id) = part.id {
            break id;
        }
    };
    assert_eq!((parts, keys.len()), (3, 2_500));
    assert_eq!(records, keys[..500]);
    assert!(keys.is_sorted_by(|earlier, later| earlier < later));
    let grant = node.acquire("k%2Fnew", &json!({})).ok();
    let event = stream.expect("granted");
    assert_eq!(event.data["token"], grant["token"]);
    assert!(event.data["revision"].as_u64().unwrap() > id.parse().unwrap());
}

/// Several watches on one WebSocket, beside requests; each frame has the id of its watch.
#[test]
fn websocket_has_several_watches() {
    let (cluster, node) = calm();
    let follower = cluster.ids().into_iter().find(|&id| cluster.client_addr(id) != node.0).unwrap();
    for (k, l, address) in [("k", "l", node.0.clone()), ("k2", "l2", cluster.client_addr(follower))] {
        let mut socket = WebSocket::open(&address);
        let listing = socket.ask(7, &json!({ "watch": { "key": k } }));
        assert_eq!(listing["ok"]["watched"]["listing"]["locks"], json!([]));
        let listing = socket.ask(8, &json!({ "watch": { "prefix": l } }));
        assert_eq!(listing["ok"]["watched"]["listing"]["complete"], true);
        assert_eq!(socket.ask(7, &json!({ "watch": { "key": k } }))["error"]["error"], "invalid", "the id is taken");
        assert_eq!(socket.ask(9, &json!({ "watch": {} }))["error"]["error"], "invalid");
        drop(socket);

        let mut socket = WebSocket::open(&address);
        let listing = socket.ask(7, &json!({ "watch": { "key": k } }));
        let after = listing["ok"]["watched"]["listing"]["revision"].clone();
        socket.ask(8, &json!({ "watch": { "prefix": l } }));
        let session = node.open_session("both");
        let grants = [k, l].map(|key| node.acquire(key, &json!({ "session": session })).ok());
        let mut received = [socket.receive().unwrap(), socket.receive().unwrap()];
        received.sort_by_key(|frame| frame["id"].as_u64());
        for (frame, (id, grant)) in received.iter().zip([7, 8].iter().zip(&grants)) {
            let event = &frame["result"]["ok"]["watched"]["event"];
            assert_eq!(
                (&frame["id"], &event["event"], &event["token"]),
                (&json!(id), &json!("granted"), &grant["token"])
            );
        }
        assert_eq!(socket.ask(9, &json!({ "unwatch": { "watch": 8 } }))["ok"], "unwatched");
        node.release(l, &session, &grants[1]["token"]).ok();
        node.release(k, &session, &grants[0]["token"]).ok();
        let next = socket.receive().unwrap();
        assert_eq!((&next["id"], &next["result"]["ok"]["watched"]["event"]["event"]), (&json!(7), &json!("released")));
        assert_eq!(socket.ask(10, &json!("status"))["ok"]["status"]["locks"], 0);
        // The same id again, and from an earlier event on.
        let again = socket.ask(8, &json!({ "watch": { "key": k, "after": after } }));
        assert_eq!(again["ok"]["watched"]["event"]["token"], grants[0]["token"]);
    }
    eventually("they have gone", || (metrics::value(&node.0, "palisade_watchers") == 0.0).then_some(()));
}

/// The Rust client goes on at another node when its node stops, and misses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_client_goes_on_at_another_node() {
    let mut cluster = Cluster::start_calm(3);
    let client = Client::connect(&cluster.endpoints(), Options::default()).await.unwrap();
    let mut watcher = client.watch(Watch::prefix("jobs/"));
    let mut next = async || timeout(Duration::from_secs(60), watcher.next()).await.expect("in time").unwrap();
    assert!(matches!(next().await, Watched::Listing(listing) if listing.begins && listing.complete));
    let mut tokens = Vec::new();
    let mut ids = Vec::new();
    for round in 0..6 {
        let options = LockOptions::default().wait(Duration::from_secs(60));
        let guard = client.lock(format!("jobs/{round}"), options).await.unwrap();
        tokens.push(guard.token());
        guard.release().await.unwrap();
        for _ in 0..2 {
            let Watched::Event(event) = next().await else { panic!("nothing is compacted") };
            ids.push(event.id);
            match event.change {
                wire::Change::Granted { token, .. } | wire::Change::Released { token, .. } => {
                    assert_eq!((token, event.key), (tokens[round], format!("jobs/{round}")));
                }
                other => panic!("{other:?}"),
            }
        }
        // Each node in turn, so also that of the watcher.
        let id = u16::try_from(round % 3 + 1).unwrap();
        cluster.stop(id);
        cluster.restart(id);
        cluster.wait_ready();
    }
    assert!(ids.is_sorted_by(|earlier, later| earlier < later), "{ids:?}");
    client.close().await;
}

/// `palisade watch` prints the present state and what follows, one JSON object a line.
#[test]
fn command_prints_events() {
    let (cluster, node) = calm();
    let held = node.acquire("jobs%2Fa", &json!({ "owner": "me" })).ok();
    held_everywhere(&cluster, "jobs%2Fa");
    let run = |arguments: &[&str]| {
        let mut command = palisade();
        command.args(["watch", "--endpoints", &cluster.endpoints().join(",")]).args(arguments);
        command
    };
    let mut watching = run(&["--prefix", "jobs/", "--limit", "2"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut printed = || -> Value { serde_json::from_str(&lines.next().expect("it prints").unwrap()).unwrap() };
    let lock = printed();
    assert_eq!((&lock["event"], &lock["key"]), (&json!("lock"), &json!("jobs/a")));
    assert_eq!(lock["holder"]["owner"], "me");
    let listed = printed();
    assert_eq!(listed["event"], "listed");
    node.release("jobs%2Fa", &held["session"], &held["token"]).ok();
    node.acquire("jobs%2Fb", &json!({})).ok();
    let (released, granted) = (printed(), printed());
    assert_eq!((&released["event"], &granted["event"]), (&json!("released"), &json!("granted")));
    assert!(lines.next().is_none() && watching.wait().unwrap().success());
    let id = listed["id"].as_str().unwrap();
    let again = output(&mut run(&["jobs/b", "--after", id, "--limit", "1"]));
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), granted);
    for arguments in [&[][..], &["k", "--prefix", "k"], &["k", "--after", "x"]] {
        assert_eq!(output(&mut run(arguments)).status.code(), Some(2), "{arguments:?}");
    }
}
