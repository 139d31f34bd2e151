//! A client reads locks, and follows what happens to them and to records.

use std::convert::Infallible;
use std::sync::Arc;

use serde_json::{Value, json};

use super::adapter::{Adapter, acquire};
use super::clusters::{LONG, NOW, WAIT, await_queue, calm_cluster, key};
use super::program::Program;
use super::shared::Shared;
use crate::support::cluster::Cluster;
use crate::support::events::Events;
use crate::support::locks::{acquire as acquire_plainly, lock, open_session, post_to_leader, release};
use crate::support::{eventually, http, metrics};

/// What a client shows of a lock that the replicated state has, too: the owners, tokens and values of
/// its holders, and the owners of its waiters, in order.
type Shown = (Vec<(String, u64, Option<String>)>, Vec<String>);

fn shown(lock: &Value) -> Shown {
    let all = |name: &str| lock[name].as_array().unwrap_or_else(|| panic!("a lock has a list of {name}: {lock}"));
    let owner = |claim: &Value| claim["owner"].as_str().unwrap_or_else(|| panic!("no owner: {claim}")).to_owned();
    let holder = |holder: &Value| {
        let token = holder["token"].as_u64().unwrap_or_else(|| panic!("no token: {holder}"));
        (owner(holder), token, holder["value"].as_str().map(str::to_owned))
    };
    let shown = (all("holders").iter().map(holder).collect::<Vec<_>>(), all("queue").iter().map(owner).collect());
    assert_eq!(lock["held"], !shown.0.is_empty(), "{lock}");
    shown
}

/// Goal: a client shows a lock as the replicated state has it: holders with their tokens and values,
/// and the queue. It lists all locks of a prefix, page by page, and no others.
pub fn locks_are_shown_and_listed(program: &Program) {
    let (cluster, prefix) = (calm_cluster(), key(program, "listed."));
    let client = Adapter::start(program, &cluster.endpoints());
    let keys = ["a", "b", "c", "d", "e"].map(|name| format!("{prefix}{name}"));
    for key in &keys {
        let mut command = acquire(&format!("holder of {key}"), key, LONG, NOW);
        command["value"] = format!("value of {key}").into();
        command["mode"] = if *key == keys[1] { "shared" } else { "exclusive" }.into();
        client.send(command).granted();
    }
    let mut reader = acquire("reader", &keys[1], LONG, NOW);
    reader["mode"] = "shared".into();
    client.send(reader).granted();
    let first = client.ask("first", &keys[2], LONG, WAIT);
    await_queue(&cluster, &keys[2], 1);
    let _second = client.ask("second", &keys[2], LONG, WAIT);
    await_queue(&cluster, &keys[2], 2);
    let show = |key: &str| client.send(json!({"do": "show", "key": key})).ok()["ok"].clone();
    let known: Vec<Shown> = keys
        .iter()
        .map(|key| {
            let lock = lock(&cluster, key);
            let holders = lock.holders.into_iter().map(|holder| (holder.owner, holder.token, holder.value));
            (holders.collect(), lock.queue.into_iter().map(|waiter| waiter.owner).collect())
        })
        .collect();
    let said: Vec<Shown> = keys.iter().map(|key| shown(&show(key))).collect();
    assert_eq!(said, known);
    let list = client.send(json!({"do": "list", "prefix": prefix, "limit": 2})).ok();
    let listed = list["ok"]["locks"].as_array().expect("a list of locks");
    assert_eq!(
        listed.iter().map(|lock| lock["key"].clone()).collect::<Vec<_>>(),
        keys.each_ref().map(|key| json!(key))
    );
    assert_eq!(listed.iter().map(shown).collect::<Vec<_>>(), known);
    assert_eq!(shown(&show(&format!("{prefix}free"))), (vec![], vec![]));

    client.release(&format!("holder of {}", keys[2])).ok();
    first.granted();
    assert_eq!(shown(&show(&keys[2])).0.first().map(|holder| holder.0.as_str()), Some("first"));
}

/// An event, as a client and as a node tell it: its ID, name, key, and version or token.
type Told = (String, String, String, Option<u64>);

fn told(event: &Value, name: &str) -> Told {
    let text =
        |field: &str| event[field].as_str().unwrap_or_else(|| panic!("an event has {field}: {event}")).to_owned();
    let id = text("id");
    let revision = event["revision"].as_u64().map(|revision| revision.to_string());
    assert_eq!(revision.as_deref(), id.split('.').next(), "an event's ID begins with its revision: {event}");
    (id, text(name), text("key"), event["version"].as_u64().or(event["token"].as_u64()))
}

/// What a node tells of this prefix after an ID, up to the record `end` under it.
fn told_by(node: &str, prefix: &str, after: &str) -> Vec<Told> {
    let mut events = Events::open(node, &format!("prefix={prefix}&after={after}"));
    let mut all = Vec::new();
    while let Some(event) = events.next() {
        all.push(told(&event.data, "event"));
        if event.data["key"] == format!("{prefix}end") {
            return all;
        }
    }
    panic!("the node's watch ended after {all:?}")
}

/// Writes records of this prefix, takes and releases a lock, and deletes the first record. The leader must stay: a
/// release is not repeated.
fn happen(cluster: &Cluster, prefix: &str, names: &[&str]) {
    for name in names {
        let change = json!({"changes": [{"put": {"key": format!("{prefix}{name}"), "value": name}}]});
        post_to_leader(&cluster.endpoints(), "/v1/kv", &change).ok();
    }
    let session = open_session(cluster, "other", LONG);
    let (lock, first) = (format!("{prefix}lock"), format!("{prefix}{}", names[0]));
    let token = acquire_plainly(cluster, &lock, session).token;
    release(cluster, &lock, session, token);
    post_to_leader(&cluster.endpoints(), "/v1/kv", &json!({"changes": [{"delete": {"key": first}}]})).ok();
}

/// Goal: a watch begins with the present state, and tells every event once, in order, with its ID, also when
/// the leader is killed, and the node that serves the watch.
pub fn a_watch_goes_on_when_nodes_are_killed(program: &Program) {
    let mut cluster = Cluster::start_calm(3);
    let client = Adapter::start(program, &cluster.endpoints());
    happen(&cluster, "w.", &["deleted", "kept"]);
    // A watch begins with what its own node has applied. The record that stays was written before the other one was deleted.
    let status = |id, name: &str| {
        let path = format!("/v1/kv/w.{name}?consistency=stale");
        http::get(&cluster.client_addr(id), &path).map_or(0, |answer| answer.status)
    };
    eventually("every node has applied the deletion", || {
        let applied = |id| (status(id, "kept"), status(id, "deleted")) == (200, 404);
        cluster.ids().into_iter().all(applied).then_some(())
    });
    client.send(json!({"do": "watch", "name": "w", "prefix": "w."})).ok();
    let listed = client.told("w", |line| line["event"] == "listed" && line["complete"] == true);
    assert_eq!((&listed["records"], &listed["locks"]), (&json!(["w.kept"]), &json!([])), "{listed}");

    let serving = eventually("a node serves the watch", || {
        let serves = |&id: &u16| metrics::sample(&cluster.client_addr(id), "palisade_watchers") == Some(1.0);
        cluster.ids().into_iter().find(serves)
    });
    let leader = cluster.wait_ready();
    happen(&cluster, "w.", &["1", "2"]);
    cluster.kill(leader);
    happen(&cluster, "w.", &["3", "4"]);
    if serving != leader {
        cluster.restart(leader);
        cluster.wait_ready();
        cluster.kill(serving);
    }
    happen(&cluster, "w.", &["5", "6", "end"]);

    client.told("w", |line| line["event"] == "changed" && line["key"] == "w.end");
    let always = cluster.ids().into_iter().find(|&id| id != leader && id != serving).expect("one of three");
    let known = told_by(&cluster.client_addr(always), "w.", &listed["revision"].to_string());
    let said: Vec<Told> = client.all_told("w", "changed").iter().map(|event| told(event, "change")).collect();
    assert_eq!(said[..said.len().min(known.len())], known);
    client.send(json!({"do": "unwatch", "name": "w"})).ok();
    assert_eq!(client.all_told("w", "listed").len(), 1, "what was listed is not out of date");
    assert_eq!((client.all_told("w", "compacted").len(), client.all_told("w", "unwatched").len()), (0, 0));
}

/// A node that has forgotten its first events.
fn forgetful() -> Arc<Cluster> {
    static FORGETFUL: Shared<Cluster> = Shared::new();
    let Ok(cluster) = FORGETFUL.get_or_make(|| {
        let cluster = Cluster::start_calm_with(1, &["--watch-history", "20000"]);
        let node = cluster.endpoints();
        let put = |name: &str| json!({"put": {"key": format!("w.{name}"), "value": ""}});
        for _ in 0..20 {
            let changes: Vec<Value> = (0..30).map(|number| put(&number.to_string())).collect();
            post_to_leader(&node, "/v1/kv", &json!({"changes": changes})).ok();
        }
        post_to_leader(&node, "/v1/kv", &json!({"changes": [put("end")]})).ok();
        Ok::<_, Infallible>(cluster)
    });
    cluster
}

/// Goal: a watch after an event that the nodes have no longer is told so, with the floor. After the
/// floor, nothing is missing. A watch that is ended tells no more.
pub fn a_compacted_past_is_told(program: &Program) {
    let cluster = forgetful();
    let node = &cluster.endpoints()[0];
    let client = Adapter::start(program, &cluster.endpoints());
    let watch = |name: &str, after: &str| {
        client.send(json!({"do": "watch", "name": name, "prefix": "w.", "after": after})).ok();
    };
    watch("late", "1");
    let floor = client.told("late", |line| line["event"] != "unwatched")["floor"].clone();
    let compacted = Events::open(node, "prefix=w.&after=1").expect("compacted");
    assert_eq!(floor, compacted.data["floor"]);
    assert!(floor.as_u64().is_some_and(|floor| floor > 1), "{floor}");
    assert_eq!(client.all_told("late", "compacted").len(), 1);
    assert!(client.all_told("late", "changed").is_empty(), "a client that has missed events is told so first");

    watch("early", &floor.to_string());
    client.told("early", |line| line["event"] == "changed" && line["key"] == "w.end");
    let said: Vec<Told> = client.all_told("early", "changed").iter().map(|event| told(event, "change")).collect();
    assert_eq!(said, told_by(node, "w.", &floor.to_string()));
    client.send(json!({"do": "unwatch", "name": "early"})).ok();
    assert!(client.all_told("early", "listed").is_empty(), "a watch that is resumed begins with no listing");
}
