//! The page's layout: on a desktop and on a phone, light and dark.

use std::path::PathBuf;
use std::thread;

use serde_json::{Value, json};

use super::browser::Browser;
use super::{LONG, acquire, page, page_of_lock, roles};
use crate::support::cluster::Cluster;
use crate::support::locks::{post_to_leader, release};

/// Names the directory into which the test writes pictures of what it sees.
const SCREENSHOTS: &str = "PALISADE_SCREENSHOTS";

const DESKTOP: (u32, u32) = (1080, 820);
const PHONE: (u32, u32) = (320, 760);

/// How much wider the page is than the screen, in pixels of the page.
fn excess(browser: &Browser) -> i64 {
    let script = "const root = document.documentElement; return root.scrollWidth - root.clientWidth";
    browser.run(script, &[]).as_i64().expect("a number")
}

fn keep_picture(browser: &Browser, name: &str) {
    let Some(directory) = std::env::var_os(SCREENSHOTS) else { return };
    // What has just changed is marked for a moment, and bars move to their place.
    thread::sleep(std::time::Duration::from_secs(3));
    std::fs::write(PathBuf::from(directory).join(name), browser.picture()).unwrap();
}

/// Waits for a lock in the background.
fn wait_for(cluster: &Cluster, key: &'static str, owner: &str, more: Value) {
    let mut body = json!({ "owner": owner, "ttl_ms": 90_000, "wait_ms": 600_000 });
    body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    let endpoints = cluster.endpoints();
    // It ends with the cluster, which answers nothing then.
    thread::spawn(move || {
        let _ = std::panic::catch_unwind(|| post_to_leader(&endpoints, &format!("/v1/locks/{key}/acquire"), &body));
    });
}

/// Goal: the page is no wider than the screen, whatever clients write into keys, owners and values, and
/// shows that as text: HTML is no HTML, and what would turn or break lines is an escape.
#[test]
fn hostile_names_are_shown_as_text_within_the_screen() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start_calm(1);
    let html = "<img src=x onerror=window.hacked=1><b>bold</b>";
    let encoded = "%3Cimg%20src=x%20onerror=window.hacked=1%3E%3Cb%3Ebold%3C%2Fb%3E";
    let owner = "<script>window.hacked=1</script>\u{202e}\n.";
    let taken = json!({ "owner": owner, "ttl_ms": LONG, "value": html.repeat(40) });
    let grant = acquire(&cluster, encoded, &taken);
    let (long, long_owner) = ("k".repeat(512), "o".repeat(256));
    acquire(&cluster, &long, &json!({ "owner": long_owner, "ttl_ms": LONG }));
    let put = json!({ "changes": [{ "put": { "key": html, "value": html } }, { "put": { "key": long, "value": "v".repeat(9_000) } }] });
    post_to_leader(&cluster.endpoints(), "/v1/kv", &put).ok();
    for (size, scheme) in [(DESKTOP, "light"), (PHONE, "dark")] {
        browser.resize(size, scheme);
        browser.open(&page(&cluster, 1));
        browser.wait_for("#locks tr", html);
        browser.wait_for("#locks tr", r"<script>window.hacked=1</script>\u{202e}\n.");
        browser.wait_for("#locks tr", &long);
        assert_eq!(excess(&browser), 0, "the list at {size:?}");
        for key in [encoded, &long] {
            browser.open(&page_of_lock(&page(&cluster, 1), key));
            browser.wait_for("#one .holder", "Holder");
            assert_eq!(excess(&browser), 0, "a lock at {size:?}");
            browser.click("#one .danger");
            browser.wait_for("#break-what", "token");
            assert_eq!(excess(&browser), 0, "the dialog at {size:?}");
            browser.click("#break-cancel");
        }
        browser.open(&format!("{}#/records", page(&cluster, 1)));
        browser.wait_for("#records tr", html);
        assert_eq!(excess(&browser), 0, "the records at {size:?}");
        for key in [encoded, &long] {
            browser.open(&format!("{}#/record/{key}", page(&cluster, 1)));
            browser.wait_for("#one pre", "");
            assert_eq!(excess(&browser), 0, "a record at {size:?}");
        }
    }
    browser.open(&page_of_lock(&page(&cluster, 1), encoded));
    browser.wait_for("#one .holder", &grant.token.to_string());
    let found = browser
        .run("return [window.hacked ?? null, document.querySelectorAll('#one img, #one b, #one script').length]", &[]);
    assert_eq!(found, json!([null, 0]));
    browser.expect_no_errors();
}

/// Goal: a busy cluster fits a desktop and a phone, in light and dark. With PALISADE_SCREENSHOTS it leaves the
/// pictures that the documents show.
#[test]
fn page_fits_desktop_and_phone_in_light_and_dark() {
    let Some(browser) = Browser::start() else { return };
    let cluster = Cluster::start_calm_with(3, &["--cluster", "billing"]);
    let (leader, _) = roles(&cluster);
    let take = |key: &str, owner: &str, more: Value| {
        let mut body = json!({ "owner": owner, "ttl_ms": 90_000 });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        acquire(&cluster, key, &body)
    };
    take("backup%2Fweekly", "backup-1", json!({ "ttl_ms": 60_000 }));
    browser.resize(DESKTOP, "light");
    browser.open(&page(&cluster, leader));
    browser.wait_for("#locks tr", "backup-1");
    take("catalogue%2Fimport", "importer-3", json!({ "mode": "shared" }));
    take("catalogue%2Fimport", "importer-4", json!({ "mode": "shared", "ttl_ms": 40_000 }));
    take("encoders", "encoder-11", json!({ "permits": 2, "of": 5, "ttl_ms": 120_000 }));
    take("encoders", "encoder-12", json!({ "permits": 1, "of": 5 }));
    take("leader%2Fscheduler", "host-2", json!({ "value": "10.0.0.12:8080", "ttl_ms": 30_000 }));
    let first = take("reports%2Fnightly", "worker-6", json!({ "ttl_ms": LONG }));
    take("tenants%2F4711%2Fmigration", "migrator", json!({ "ttl_ms": 300_000 }));
    for (key, owner) in [("leader%2Fscheduler", "host-1"), ("leader%2Fscheduler", "host-3")] {
        wait_for(&cluster, key, owner, json!({}));
        browser.wait_for("#locks td:last-child", owner);
    }
    for owner in ["worker-7", "worker-8", "worker-9", "worker-10"] {
        wait_for(&cluster, "reports%2Fnightly", owner, json!({}));
        browser.click("a[href='#/lock/reports%2Fnightly']");
        browser.wait_for("#one .queue", owner);
        browser.click(".back");
    }
    browser.click("a[href='#/lock/reports%2Fnightly']");
    release(&cluster, "reports%2Fnightly", first.session, first.token);
    browser.wait_for("#one .holder", "worker-7");
    browser.wait_for("#one .history", "granted to worker-7");
    browser.wait_for("#one .left", " ");
    assert_eq!(excess(&browser), 0);
    keep_picture(&browser, "page-lock.png");
    browser.click(".back");
    browser.wait_for("#locks tr:nth-child(6)", "migration");
    browser.wait_for("#locks .left", "min");
    for (size, scheme, name) in [
        (DESKTOP, "dark", "page-desktop-dark.png"),
        (DESKTOP, "light", "page-desktop.png"),
        (PHONE, "light", "page-phone-light.png"),
        (PHONE, "dark", "page-phone.png"),
    ] {
        browser.resize(size, scheme);
        assert_eq!(excess(&browser), 0, "{name}");
        let dark = browser.run("return getComputedStyle(document.body).backgroundColor", &[]);
        assert_eq!(dark.as_str().unwrap().starts_with("rgb(251"), scheme == "light", "{dark}");
        keep_picture(&browser, name);
    }
    browser.expect_no_errors();
}
