//! The page when it cannot follow all events: too many keys, no watch, and a gap.

use palisade_client::wire::Acquired;
use serde_json::json;

use super::browser::{Browser, ESCAPE};
use super::{LONG, acquire, page, page_of_lock};
use crate::support::cluster::Cluster;
use crate::support::http;
use crate::support::locks::{post_to_leader, release};

/// Goal: of more locks than a browser follows, the page lists those that the search begins with, and says
/// so; the page of one lock follows its events all the same.
#[test]
fn page_lists_the_first_of_very_many_locks() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start_calm(1);
    for claim in 0..70 {
        let keys: Vec<String> = (0..32).map(|key| format!("many/{claim:02}/{key:02}")).collect();
        let body = json!({ "keys": keys, "ttl_ms": LONG, "owner": "batch" });
        post_to_leader(&cluster.endpoints(), "/v1/acquire", &body).ok();
    }
    let grant = acquire(&cluster, "zebra", &json!({ "owner": "worker", "ttl_ms": LONG }));
    browser.open(&page(&cluster, 1));
    browser.wait_for("#found", "too many keys to follow");
    browser.wait_for("#summary", "2,241");
    browser.wait_for("#locks tr", "many/00/00");
    browser.wait_for("#live", "looking every 2 s");
    assert!(!browser.shows("#locks tr", "zebra"));
    browser.type_into("#search", "zeb");
    browser.wait_for("#locks tr", "zebra");
    browser.wait_gone("#locks tr", "many");
    browser.type_into("#search", ESCAPE);
    browser.wait_for("#locks tr", "many/00/00");
    browser.type_into("#search", "zeb");
    browser.click("a[href='#/lock/zebra']");
    browser.wait_for("#one .holder", "worker");
    browser.wait_for("#live", "live");
    release(&cluster, "zebra", grant.session, grant.token);
    browser.wait_for("#one .history", "released");
    browser.click(".back");
    browser.wait_for("#found", "begin with “zeb”");
    browser.wait_gone("#locks tr", "zebra");
    browser.expect_no_errors();
}

/// Goal: without a watch, here because its client has its share of them, the page shows what it sees every
/// two seconds; and it follows again when it can.
#[test]
fn page_looks_again_and_again_without_a_watch() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start_calm_with(1, &["--max-watches-per-client", "1"]);
    let address = cluster.client_addr(1);
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    let request = format!("GET /v1/watch?prefix= HTTP/1.1\r\nHost: {address}\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    std::io::Read::read_exact(&mut stream, &mut [0; 12]).unwrap();

    browser.open(&page(&cluster, 1));
    browser.wait_for("#live", "looking every 2 s");
    let grant = acquire(&cluster, "nightly", &json!({ "owner": "worker", "ttl_ms": LONG }));
    browser.wait_for("#locks tr", "worker");
    release(&cluster, "nightly", grant.session, grant.token);
    browser.wait_for("#found", "No lock is held");
    browser.expect_no_errors();
    drop(stream);
    browser.wait_for("#live", "live");
}

/// Goal: a session that is kept alive has all its time again, which no event says; one that is not runs
/// out, and the lock's page says that the session has expired.
#[test]
fn time_left_runs_down_and_is_renewed() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start_calm(1);
    let grant = acquire(&cluster, "nightly", &json!({ "owner": "worker", "ttl_ms": 100_000 }));
    browser.open(&page_of_lock(&page(&cluster, 1), "nightly"));
    browser.wait_for("#one .left", " s");
    let seconds = || {
        let shown = browser.texts("#one .left");
        shown.first()?.strip_suffix(" s")?.parse::<u64>().ok()
    };
    let first = crate::support::eventually("it shows seconds", seconds);
    assert!((1..=100).contains(&first), "{first}");
    let later = crate::support::eventually("it runs down", || seconds().filter(|now| *now + 2 < first));
    let keepalive = format!("/v1/sessions/{}/keepalive", grant.session);
    http::post(&cluster.client_addr(1), &keepalive, "").unwrap().ok();
    crate::support::eventually("it is renewed", || seconds().filter(|now| *now > later + 1));
    browser.click(".back");
    acquire(&cluster, "short", &json!({ "owner": "short-lived", "ttl_ms": 10_000 }));
    browser.wait_for("#locks tr", "short");
    browser.wait_gone("#locks tr", "short");
    browser.open(&page_of_lock(&page(&cluster, 1), "short"));
    browser.wait_for("#one .history", "because its session expired");
}

/// Goal: when a node no longer has the events that the page lacks, here because it has started anew from a
/// snapshot, the history says that some are missing, and what follows is right.
#[test]
fn history_says_where_events_are_missing() {
    let Some(browser) = Browser::start() else { return };
    let mut cluster = Cluster::start_calm(1);
    let grant: Acquired = acquire(&cluster, "nightly", &json!({ "owner": "worker", "ttl_ms": LONG }));
    browser.open(&page_of_lock(&page(&cluster, 1), "nightly"));
    browser.wait_for("#one .holder", "worker");
    browser.wait_for("#live", "live");
    // An entry that is no event: the page resumes before it.
    let keepalive = format!("/v1/sessions/{}/keepalive", grant.session);
    http::post(&cluster.client_addr(1), &keepalive, "").unwrap().ok();
    http::post(&cluster.client_addr(1), "/v1/snapshot", "").unwrap().ok();
    cluster.kill(1);
    browser.wait_for("#notice", "does not answer");
    cluster.restart(1);
    cluster.wait_ready();
    browser.wait_for("#one .history", "(compacted): some of them are missing here");
    browser.wait_for("#one .holder", "worker");
    release(&cluster, "nightly", grant.session, grant.token);
    browser.wait_for("#one", "No session holds this lock");
    browser.wait_for("#one .history", "released by session");
    browser.expect_no_errors();
}

/// Goal: the page of a lock shows what has happened before it was opened, on request: each event once, in order with those
/// that come, and of this lock only; where the node no longer has the first events, it says so.
#[test]
fn page_of_a_lock_reads_the_past() {
    let Some(browser) = Browser::start() else { return };
    let mut cluster = Cluster::start_calm(1);
    let hold_once = |cluster: &Cluster, owner: &str| {
        let grant = acquire(cluster, "nightly", &json!({ "owner": owner, "ttl_ms": LONG }));
        release(cluster, "nightly", grant.session, grant.token);
        grant.token
    };
    let first = hold_once(&cluster, "worker-1");
    acquire(&cluster, "reports", &json!({ "owner": "worker-2", "ttl_ms": LONG }));
    browser.open(&page_of_lock(&page(&cluster, 1), "nightly"));
    browser.wait_for("#live", "live");
    browser.wait_for("#one", "What has happened since");
    assert!(!browser.shows("#one .history", "worker-1"));
    browser.click("#one .past");
    browser.wait_for("#one .history", "granted to worker-1");
    let second = hold_once(&cluster, "worker-3");
    browser.wait_for("#one .note", "These are all events of this lock since the cluster began.");
    let shown = || browser.texts("#one .history li");
    let shown = crate::support::eventually("it has all events", || Some(shown()).filter(|shown| shown.len() >= 4));
    let expected = [("released", second), ("granted", second), ("released", first), ("granted", first)];
    assert_eq!(shown.len(), expected.len(), "{shown:?}");
    for (line, (event, token)) in shown.iter().zip(expected) {
        assert!(line.contains(event) && line.contains(&format!("token {token}")), "{shown:?}");
        assert_eq!(line.contains("earlier"), token == first, "{shown:?}");
    }

    http::post(&cluster.client_addr(1), "/v1/snapshot", "").unwrap().ok();
    cluster.kill(1);
    cluster.restart(1);
    cluster.wait_ready();
    hold_once(&cluster, "worker-4");
    browser.open("about:blank");
    browser.open(&page_of_lock(&page(&cluster, 1), "nightly"));
    browser.wait_for("#live", "live");
    browser.click("#one .past");
    browser.wait_for("#one .history", "granted to worker-4");
    browser.wait_for("#one .note", "are not kept any more.");
    assert!(!browser.shows("#one .history", "worker-1"));
    browser.expect_no_errors();
}

/// Goal: a page that stays open over the end of its cluster follows the next one at the same address, as
/// after a second `palisade dev`, although that has fewer entries than the page has seen.
#[test]
fn page_follows_a_new_cluster_at_the_same_address() {
    let Some(browser) = Browser::start() else { return };
    let mut cluster = Cluster::start_calm(1);
    for key in 0..10 {
        acquire(&cluster, &format!("old-{key}"), &json!({ "ttl_ms": LONG }));
    }
    browser.open(&page(&cluster, 1));
    browser.wait_for("#locks tr:nth-child(10)", "old-9");
    cluster.kill(1);
    std::fs::remove_dir_all(cluster.data(1)).unwrap();
    cluster.begin_anew();
    cluster.restart(1);
    cluster.wait_ready();
    browser.wait_gone("#locks tr", "old");
    acquire(&cluster, "new", &json!({ "ttl_ms": LONG }));
    browser.wait_for("#locks tr", "new");
    browser.wait_for("#live", "live");
    browser.expect_no_errors();
}
