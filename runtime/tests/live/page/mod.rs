//! The page at `/ui/`, as a browser shows it to a person. A machine without a browser runs only the
//! tests of its [files].

mod browser;
mod files;
mod limits;
mod origins;
mod screens;

use palisade_client::wire::Acquired;
use serde_json::{Value, json};

use self::browser::{Browser, ENTER, ESCAPE, TAB};
use crate::support::certificates::{Certificates, cert};
use crate::support::cluster::Cluster;
use crate::support::locks::{lock, post_to_leader, release};
use crate::support::{eventually, https, ports};

/// The page of a node.
fn page(cluster: &Cluster, id: u16) -> String {
    format!("http://{}/ui/", cluster.client_addr(id))
}

/// The page of one lock.
fn page_of_lock(page: &str, key: &str) -> String {
    format!("{page}#/lock/{key}")
}

/// Takes a lock at the leader.
fn acquire(cluster: &Cluster, key: &str, body: &Value) -> Acquired {
    let answer = post_to_leader(&cluster.endpoints(), &format!("/v1/locks/{key}/acquire"), body);
    serde_json::from_value(answer.ok()).unwrap()
}

/// The leader, and a follower.
fn roles(cluster: &Cluster) -> (u16, u16) {
    let leader = cluster.wait_ready();
    (leader, cluster.ids().into_iter().find(|&id| id != leader).unwrap())
}

const LONG: u64 = 3_600_000;

/// Goal: the page shows the cluster and its locks, and follows what happens without a reload: at a
/// follower as at the leader.
#[test]
fn page_follows_locks_as_they_change() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start_calm_with(3, &["--cluster", "billing"]);
    let (leader, follower) = roles(&cluster);
    let first = acquire(&cluster, "reports", &json!({ "owner": "worker-1", "ttl_ms": LONG, "value": "step 4" }));
    for id in [leader, follower] {
        browser.open(&page(&cluster, id));
        browser.wait_for("h1", "billing");
        browser.wait_for("#live", &format!("live from node {id}"));
        browser.wait_for("#summary", &format!("node {leader}"));
        browser.wait_for("#nodes tr:nth-child(3)", "3");
        browser.wait_for(&format!("#nodes tr:nth-child({leader})"), "leader");
        for node in 1..=3 {
            browser.wait_for(&format!("#nodes tr:nth-child({node}) td:nth-child(3)"), env!("CARGO_PKG_VERSION"));
        }
        browser.wait_for("#locks tr", "worker-1");
        browser.wait_for("#locks tr", &first.token.to_string());
        browser.wait_for("#locks .left", "min");

        browser.run("window.notReloaded = true", &[]);
        let second = acquire(&cluster, "nightly", &json!({ "owner": "worker-2", "ttl_ms": LONG, "mode": "shared" }));
        browser.wait_for("#locks tr", "worker-2");
        browser.wait_for("#locks tr", "shared");
        let waiter = {
            let endpoints = cluster.endpoints();
            let body = json!({ "owner": "worker-3", "ttl_ms": LONG, "wait_ms": 60_000 });
            std::thread::spawn(move || post_to_leader(&endpoints, "/v1/locks/nightly/acquire", &body).ok())
        };
        browser.wait_for("#locks td:last-child", "worker-3");

        browser.click("a[href='#/lock/nightly']");
        browser.wait_for("#one", "worker-2");
        browser.wait_for("#one .queue", "worker-3");
        release(&cluster, "nightly", second.session, second.token);
        let third: Acquired = serde_json::from_value(waiter.join().unwrap()).unwrap();
        browser.wait_for("#one .holder", "worker-3");
        browser.wait_for("#one .history", &format!("released by session {}", second.session.number()));
        browser.wait_for("#one .history", "granted to worker-3");
        assert!(!browser.shows("#one .history", "worker-1"), "that was another lock");
        release(&cluster, "nightly", third.session, third.token);
        browser.wait_for("#one", "No session holds this lock");
        browser.click(".back");
        browser.wait_gone("#locks tr", "nightly");
        browser.wait_for("#locks tr", "reports");
        browser.type_into("#search", "WORKER-1");
        browser.wait_for("#found", "1 lock found");
        browser.type_into("#search", "x");
        browser.wait_for("#found", "No lock has");
        browser.type_into("#search", ESCAPE);
        browser.wait_for("#locks tr", "reports");
        assert_eq!(browser.run("return window.notReloaded", &[]), true, "the page was reloaded");
    }
    browser.click("#to-records");
    browser.wait_for("#found", "There are no records");
    let put = json!({ "changes": [{ "put": { "key": "state", "value": "page 7 <b>of</b> 9" } }] });
    post_to_leader(&cluster.endpoints(), "/v1/kv", &put).ok();
    browser.wait_for("#records tr", "18 B");
    browser.click("a[href='#/record/state']");
    browser.wait_for("#one pre", "page 7 <b>of</b> 9");
    browser.expect_no_errors();
}

/// Goal: an operator on a follower's page sees the next leader, and what happens then; and when the node
/// of the page dies, the page says so and leads to the others.
#[test]
fn page_survives_the_death_of_a_leader() {
    let Some(browser) = Browser::start() else { return };
    let mut cluster = Cluster::start_calm(3);
    let (leader, follower) = roles(&cluster);
    browser.open(&page(&cluster, follower));
    browser.wait_for("#summary", &format!("node {leader}"));
    browser.wait_for("#live", "live");
    // It shows what only the others know.
    for id in cluster.ids() {
        browser.wait_for(&format!("#nodes tr:nth-child({id}) td[data-label=free]"), "B");
    }
    browser.wait_gone("#nodes", "has not said it");
    cluster.kill(leader);
    browser.wait_for(&format!("#nodes tr:nth-child({leader})"), "DOWN");
    browser.wait_for(&format!("#nodes tr:nth-child({leader}) td[data-label=free]"), "has not said it");
    let next = cluster.wait_ready();
    browser.wait_for("#summary", &format!("node {next}"));
    acquire(&cluster, "after", &json!({ "owner": "survivor", "ttl_ms": LONG }));
    browser.wait_for("#locks tr", "survivor");
    browser.wait_for("#live", "live");
    cluster.restart(leader);
    browser.wait_gone("#nodes", "DOWN");

    cluster.kill(follower);
    browser.wait_for("#notice", "This node does not answer");
    browser.wait_for("#live", "no connection");
    browser.wait_for("#notice a", &format!("node {leader}"));
    assert!(browser.shows("#locks tr", "survivor"), "what it knew stays");
    cluster.restart(follower);
    browser.wait_gone("#notice", "This node does not answer");
    browser.wait_for("#live", "live");
}

/// Opens the dialog of a lock, and breaks it with this reason.
fn break_lock(browser: &Browser, reason: &str) {
    browser.click("#one .danger");
    browser.wait_for("#break-title", "Break");
    browser.type_into("#reason", reason);
    browser.click("#break-now");
}

/// Goal: an operator breaks a lock with a reason, which the log has. A page of a follower breaks it as
/// well, or leads to the page that does.
#[test]
fn operator_breaks_a_lock_with_a_reason() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start_calm(3);
    let (leader, follower) = roles(&cluster);
    for (id, reason) in [(leader, "it hangs since noon"), (follower, "it hangs again")] {
        let grant = acquire(&cluster, "stuck", &json!({ "owner": "worker-7", "ttl_ms": LONG }));
        browser.open("about:blank");
        browser.open(&page_of_lock(&page(&cluster, id), "stuck"));
        browser.wait_for("#one .holder", "worker-7");
        browser.click("#one .danger");
        browser.wait_for("#break-what", &format!("token {}", grant.token));
        browser.click("#break-now");
        assert!(browser.shows("#break", "Reason"), "without a reason nothing is sent");
        browser.click("#break-cancel");
        assert!(lock(&cluster, "stuck").held);

        break_lock(&browser, reason);
        let is_broken = || browser.shows("#one", "No session holds this lock");
        let leads_on = || browser.shows("#break-why a", "this lock on the page of node");
        eventually("it is broken, or the page says where it can be", || (is_broken() || leads_on()).then_some(()));
        if leads_on() {
            assert_ne!(id, leader);
            assert!(lock(&cluster, "stuck").held, "the page said that nothing was done");
            browser.click("#break-why a");
            break_lock(&browser, reason);
        }
        browser.wait_for("#one", "No session holds this lock");
        browser.wait_for("#one .history", "an operator broke the grant");
        assert!(!lock(&cluster, "stuck").held);
        let logs = || cluster.ids().into_iter().map(|id| cluster.log(id)).collect::<String>();
        eventually("the log has the reason", || logs().contains(reason).then_some(()));
        browser.expect_no_errors();
    }
}

/// Goal: a node with an admin address breaks no lock at its address for clients, and the page says so;
/// the page at the admin address breaks it.
#[test]
fn page_says_that_breaks_need_the_admin_address() {
    let Some(browser) = Browser::start() else { return };
    let admin = format!("127.0.0.1:{}", ports::free(1)[0]);
    let cluster = Cluster::start_calm_with(1, &["--admin-addr", &admin]);
    acquire(&cluster, "stuck", &json!({ "ttl_ms": LONG }));
    browser.open(&page_of_lock(&page(&cluster, 1), "stuck"));
    break_lock(&browser, "it hangs");
    browser.wait_for("#break-why", "only at its admin address (--admin-addr)");
    assert!(lock(&cluster, "stuck").held);
    browser.open(&page_of_lock(&format!("http://{admin}/ui/"), "stuck"));
    break_lock(&browser, "it hangs");
    browser.wait_for("#one", "No session holds this lock");
}

/// Goal: with TLS the page asks for a token, and stores it nowhere. With access control it shows what the
/// client may read, and says why it may not break a lock.
#[test]
fn page_asks_for_a_token_and_respects_rights() {
    let Some(browser) = Browser::start() else { return };
    let ours = Certificates::of("billing", 1);
    let said = cert(&["token", "--name", "ci"]);
    let [token, line] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, line).unwrap();
    let cluster = Cluster::start_secured(1, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let address = cluster.client_addr(1);
    let alice = ours.administrator("alice");
    let send = |method: &str, path: &str, body: Value| https::send(&address, &alice, method, path, &body.to_string());
    for key in ["ci%2Fdeploy", "hr%2Fpayroll"] {
        let taken = json!({ "owner": "alice", "ttl_ms": LONG });
        send("POST", &format!("/v1/locks/{key}/acquire"), taken).unwrap().ok();
    }
    let rule = |prefix: &str, right: &str| json!({ "subject": "ci", "prefix": prefix, "rights": [right] });
    let rules = json!({ "revision": 0, "rules": [rule("ci/", "read")] });
    send("PUT", "/v1/access", rules).unwrap().ok();

    browser.open(&format!("https://{address}/ui/"));
    browser.wait_for("#notice", "enter a bearer token");
    browser.wait_for("#notice", "the request proves no identity");
    browser.click("#notice button");
    assert_eq!(browser.focus(), "token");
    browser.press(&["g", "u", "e", "s", "s", ENTER]);
    browser.wait_for("#notice", "the bearer token is unknown");
    browser.type_into("#token", token);
    browser.press(&[ENTER]);
    browser.wait_for("#locks tr", "ci/deploy");
    browser.wait_gone("#notice", "");
    assert!(!browser.shows("#locks tr", "hr/payroll"), "it may not read that one");

    browser.click("a[href='#/lock/ci%2Fdeploy']");
    browser.wait_for("#one .note", "You cannot break this lock: ci may not break ci/deploy");
    assert_eq!(browser.texts("#one .danger"), Vec::<String>::new());
    let rules = json!({ "revision": 1, "rules": [rule("ci/", "break")] });
    send("PUT", "/v1/access", rules).unwrap().ok();
    browser.wait_for("#one .danger", "Break");

    // The rules change while the dialog is open.
    browser.click("#one .danger");
    browser.type_into("#reason", "it hangs");
    send("PUT", "/v1/access", json!({ "revision": 2, "rules": [rule("ci/", "read")] })).unwrap().ok();
    browser.click("#break-now");
    browser
        .wait_for("#break-why", "Nothing was done: ci may not break ci/deploy: the rule for prefix ci/ gives it read");
    browser.click("#break-cancel");
    browser.run("document.getElementById('identity').open = true", &[]);
    let stored = "return [localStorage.length, sessionStorage.length, document.cookie.length, document.body.innerHTML.includes(arguments[0])]";
    assert_eq!(browser.run(stored, &[token]), json!([0, 0, 0, false]));
    browser.click("#forget");
    browser.wait_for("#notice", "enter a bearer token");
    browser.wait_for("#one", "No session holds this lock");
    browser.expect_no_errors();
}

/// Goal: everything can be done without a mouse, and the focus is where a person expects it.
#[test]
fn page_is_used_by_keyboard() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start_calm(1);
    let held = ["a", "b", "c"].map(|key| acquire(&cluster, key, &json!({ "owner": "worker", "ttl_ms": LONG })));
    browser.open(&page(&cluster, 1));
    browser.wait_for("#locks tr:nth-child(3)", "c");
    browser.press(&[TAB]);
    assert_eq!(browser.focus(), "Skip to the locks");
    browser.press(&[ENTER, TAB]);
    assert_eq!(browser.focus(), "a");
    browser.press(&["/"]);
    assert_eq!(browser.focus(), "search");
    browser.press(&["b", TAB]);
    browser.wait_gone("#locks tr a", "a");
    assert_eq!(browser.focus(), "b");
    // A change of the row keeps the focus in it.
    let endpoints = cluster.endpoints();
    let waiter = json!({ "owner": "waiter", "ttl_ms": LONG, "wait_ms": 60_000 });
    let waiting = std::thread::spawn(move || post_to_leader(&endpoints, "/v1/locks/b/acquire", &waiter));
    browser.wait_for("#locks tr", "waiter");
    assert_eq!(browser.focus(), "b");
    let outline = "return getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(browser.run(outline, &[]), "solid", "the focus is visible");

    browser.press(&[ENTER]);
    browser.wait_for("#one .holder", "worker");
    assert_eq!(browser.focus(), "main");
    browser.press(&[TAB, TAB]);
    assert_eq!(browser.focus(), "Break…");
    browser.press(&[ENTER]);
    browser.wait_for("#break-title", "Break b?");
    assert_eq!(browser.focus(), "reason");
    // The row changes while the window is open.
    acquire(&cluster, "b", &json!({ "session": held[1].session, "reentrant": true }));
    browser.wait_for("#one .holder", "Holds");
    browser.press(&[ESCAPE]);
    browser.wait_gone("#break", "Break");
    // The browser gives the focus back after it has closed the window.
    eventually("the focus is back", || (browser.focus() == "Break…").then_some(()));
    assert!(lock(&cluster, "b").held);
    browser.press(&[ENTER, "s", "l", "o", "w", ENTER]);
    browser.wait_for("#one .holder", "waiter");
    browser.wait_for("#announcements", "is broken");
    browser.wait_for("#announcements", "because an operator broke the grant");
    waiting.join().unwrap().ok();
}
