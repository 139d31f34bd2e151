//! `GET /v1/locks`: pages of what is held.

use serde_json::{Value, json};

use super::{Node, calm, fields};
use crate::support::{eventually, http};

fn keys(page: &Value) -> Vec<&str> {
    page["locks"].as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap()).collect()
}

/// Pages in the order of the keys' bytes; following `next_after` finds every held lock once, and
/// nothing else.
#[test]
fn a_list_has_every_held_lock_once_in_the_order_of_the_keys() {
    let (_cluster, node) = calm();
    let empty = node.get("/v1/locks").ok();
    assert_eq!(empty, json!({ "locks": [], "next_after": null }));
    let session = node.open_session("lister");
    // In an order of their own: what comes out must have been sorted.
    let mut jobs: Vec<String> = (0..25).map(|number| format!("job/{}", number * 7 % 25)).collect();
    for key in jobs.iter().map(String::as_str).chain(["a", "joa", "job", "jobs", "z", "ä"]) {
        let path = key.replace('/', "%2F").replace('ä', "%C3%A4");
        node.acquire(&path, &json!({ "session": session })).ok();
    }
    let freed = node.acquire("free", &json!({})).ok();
    node.release("free", &freed["session"], &freed["token"]).ok();
    jobs.sort();

    let all = node.get("/v1/locks").ok();
    let mut expected = vec!["a", "joa", "job"];
    expected.extend(jobs.iter().map(String::as_str));
    expected.extend(["jobs", "z", "ä"]);
    assert_eq!(keys(&all), expected);
    assert_eq!(all["next_after"], Value::Null);
    let timeless = |mut lock: Value| {
        assert!(lock["holder"]["expires_in_ms"].take().is_u64(), "{lock}");
        assert!(lock["holders"][0]["expires_in_ms"].take().is_u64(), "{lock}");
        lock
    };
    let first = all["locks"][0].clone();
    assert_eq!(fields(&first), ["held", "holder", "holders", "key", "queue"]);
    assert_eq!(timeless(first), timeless(node.lock("a")), "a list shows a lock as the lock's own page does");

    // A page at a time.
    let (mut found, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = node.get(&format!("/v1/locks?prefix=job%2F&limit=10{after}")).ok();
        found.extend(keys(&page).iter().map(|&key| key.to_string()));
        pages += 1;
        match page["next_after"].as_str() {
            Some(next) => after = format!("&after={}", next.replace('/', "%2F")),
            None => break,
        }
    }
    assert_eq!((&found, pages), (&jobs, 3));
    // `after` need not be a held key, nor lie among the prefix.
    assert_eq!(keys(&node.get("/v1/locks?after=jobb").ok()), ["jobs", "z", "ä"]);
    assert_eq!(keys(&node.get("/v1/locks?prefix=jobs&after=a").ok()), ["jobs"]);
    assert_eq!(keys(&node.get("/v1/locks?prefix=a&after=z").ok()), Vec::<&str>::new());
    assert_eq!(keys(&node.get("/v1/locks?prefix=%C3%A4").ok()), ["ä"]);
    assert_eq!(keys(&node.get("/v1/locks?limit=1000").ok()), expected);
}

/// Bounds of a page, and what a query must not be.
#[test]
fn a_query_out_of_bounds_is_refused() {
    let (_cluster, node) = calm();
    let bad = [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=ten",
        "limit=1.5",
        "limit=99999999999999999999",
        "colour=red",
        "consistency=maybe",
        "prefix=%FF",
        "after=%C3",
    ];
    for query in bad {
        node.get(&format!("/v1/locks?{query}")).refused(400, "invalid");
    }
    node.get("/v1/locks/k?limit=1").refused(400, "invalid");
    node.get("/v1/locks/k?consistency=maybe").refused(400, "invalid");
}

/// A stale read is any node's own knowledge; a linearizable one is the leader's, and sees what was
/// done before it.
#[test]
fn every_node_answers_stale_reads_and_only_the_leader_others() {
    let (cluster, leader) = calm();
    let grant = leader.acquire("k", &json!({ "owner": "me" })).ok();
    for id in cluster.ids() {
        let node = Node(cluster.client_addr(id));
        let caught_up = |path: &str, found: &dyn Fn(&Value) -> bool| {
            eventually("the node has applied the grant", || {
                let view = node.get(path).ok();
                (found(&view) && view["age_ms"].is_u64()).then_some(view)
            })
        };
        let view = caught_up("/v1/locks/k?consistency=stale", &|view| view["held"] == true);
        assert_eq!(view["holder"]["token"], grant["token"]);
        caught_up("/v1/locks?consistency=stale", &|page| keys(page) == ["k"]);
        let read = node.get("/v1/locks/k?consistency=linearizable");
        if node.0 == leader.0 {
            assert_eq!(read.ok()["holder"]["token"], grant["token"]);
        } else {
            assert_eq!(read.ok()["holder"]["token"], grant["token"], "the leader's answer");
            for path in ["/v1/locks/k?consistency=linearizable", "/v1/locks"] {
                http::send_unforwarded(&node.0, "GET", path, "").unwrap().refused(307, "not_leader");
            }
        }
    }
}
