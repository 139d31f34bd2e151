//! The page's files over HTTP by hand, and which web pages a node answers: its own.

use serde_json::json;

use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::http::{self, Response};
use crate::support::https;
use crate::support::locks::lock;

/// Sends a request from a page of this origin.
fn from_page(address: &str, origin: &str, request: &str, body: &str) -> Response {
    http::raw(address, head(address, origin, request, body).as_bytes()).unwrap()
}

fn head(address: &str, origin: &str, request: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nOrigin: {origin}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

const UPGRADE: &str = "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Goal: the page and its files are there, and a browser is told to run nothing else, to show them in no
/// other page, and to keep no copy.
#[test]
fn page_is_served_with_its_policy() {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(1);
    for short in ["/", "/ui"] {
        let redirect = http::get(&address, short).unwrap();
        assert_eq!((redirect.status, redirect.header("location")), (307, Some("/ui/")), "{short}");
    }
    let page = http::get(&address, "/ui/").unwrap();
    let mut files = vec!["/ui/".to_owned()];
    for attribute in ["src=\"", "stylesheet\" href=\""] {
        let named = page.body.split(attribute).skip(1).map(|rest| format!("/ui/{}", rest.split('"').next().unwrap()));
        files.extend(named);
    }
    let scripts: Vec<String> = files.iter().filter(|file| file.ends_with(".js")).cloned().collect();
    for script in scripts {
        let text = http::get(&address, &script).unwrap().body;
        files.extend(text.split("from \"./").skip(1).map(|rest| format!("/ui/{}", rest.split('"').next().unwrap())));
    }
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let answer = http::get(&address, &file).unwrap();
        assert_eq!(answer.status, 200, "{file}");
        let policy = answer.header("content-security-policy").expect("a policy");
        let parts = ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"];
        assert!(parts.iter().all(|part| policy.contains(part)) && !policy.contains("unsafe"), "{policy}");
        let headers = [("x-content-type-options", "nosniff"), ("cache-control", "no-store")];
        headers.iter().for_each(|(name, value)| assert_eq!(answer.header(name), Some(*value), "{file}: {name}"));
        http::post(&address, &file, "").unwrap().refused(405, "method_not_allowed");
    }
    http::get(&address, "/ui/other.js").unwrap().refused(404, "not_found");
    // A record could have the text of a script.
    http::send(&address, "PUT", "/v1/kv/script", "alert(1)").unwrap().ok();
    for path in ["/v1/kv/script", "/v1/locks", "/nothing"] {
        assert_eq!(http::get(&address, path).unwrap().header("x-content-type-options"), Some("nosniff"), "{path}");
    }
}

/// Goal: a node takes requests of its own page, and no other page's: not of another site, of another port
/// or name of the same machine, or of a page whose own name was made to mean the node.
#[test]
fn only_the_own_page_takes_and_breaks_locks() {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(1);
    let own = format!("http://{address}");
    let acquire = "POST /v1/locks/k/acquire";
    let grant = from_page(&address, &own, acquire, "{}").ok();
    let order = json!({ "token": grant["token"], "reason": "a page" }).to_string();
    let port = address.rsplit_once(':').unwrap().1;
    let others = [
        "null".to_owned(),
        "http://evil.example".to_owned(),
        format!("http://evil.example:{port}"),
        format!("http://localhost:{port}"),
        "http://127.0.0.1".to_owned(),
        format!("https://{address}"),
        format!("{own}.evil.example"),
        format!("{own}\r\nOrigin: http://evil.example"),
    ];
    for origin in &others {
        for request in
            [acquire, "POST /v1/locks/k/break", "GET /v1/locks", "GET /ui/", "GET /nothing", "DELETE /v1/sessions/x"]
        {
            from_page(&address, origin, request, &order).refused(403, "wrong_origin");
        }
        let upgrade = format!("GET /v1/ws HTTP/1.1\r\nHost: {address}\r\n{UPGRADE}Origin: {origin}\r\n\r\n");
        http::raw(&address, upgrade.as_bytes()).unwrap().refused(403, "wrong_origin");
    }
    let rebound = head(&format!("evil.example:{port}"), &format!("http://evil.example:{port}"), acquire, "{}");
    http::raw(&address, rebound.as_bytes()).unwrap().refused(421, "wrong_host");
    assert!(lock(&cluster, "k").held);
    from_page(&address, &own, "POST /v1/locks/k/break", &order).ok();
    assert!(!lock(&cluster, "k").held);
}

/// Goal: with TLS the files need no identity, and everything else does. The own page is that of https: a
/// page that came without TLS, and that a network can change, is another one. A client without a name
/// asks what itself may do.
#[test]
fn files_need_no_identity_and_the_interface_does() {
    let ours = Certificates::of("billing", 1);
    let cluster = Cluster::start_secured(1, &["--tls-optional"], &ours);
    let address = cluster.client_addr(1);
    let (stranger, client) = (ours.anonymous(), ours.client("test"));
    for path in ["/", "/ui", "/ui/", "/ui/page.js", "/ui/style.css"] {
        let answer = https::get(&address, &stranger, path).unwrap();
        assert!([200, 307].contains(&answer.status), "{path}: {}", answer.status);
    }
    for path in ["/v1/status", "/v1/locks", "/v1/watch?prefix=", "/ui/other", "/ui/../v1/status", "/metrics"] {
        https::get(&address, &stranger, path).unwrap().refused(401, "unauthenticated");
    }
    let send = |origin: String, request| {
        let bytes = https::exchange(&address, &client, head(&address, &origin, request, "{}").as_bytes()).unwrap();
        http::parse(&bytes).unwrap()
    };
    send(format!("http://{address}"), "POST /v1/locks/k/acquire").refused(403, "wrong_origin");
    send(format!("https://{address}"), "POST /v1/locks/k/acquire").ok();
    from_page(&address, &format!("https://{address}"), "GET /v1/locks", "").refused(403, "wrong_origin");
    from_page(&address, &format!("http://{address}"), "GET /v1/locks", "").ok();

    let alice = ours.administrator("alice");
    let rules = json!({ "revision": 0, "rules": [{ "subject": "test", "prefix": "a/", "rights": ["break"] }] });
    https::send(&address, &alice, "PUT", "/v1/access", &rules.to_string()).unwrap().ok();
    let may = |security, key: &str| {
        let path = format!("/v1/access/test?right=break&key={key}");
        let verdict = https::get(&address, security, &path).unwrap().ok();
        (verdict["permitted"].as_bool().unwrap(), verdict["why"].as_str().unwrap().to_owned())
    };
    assert_eq!(may(&client, "a/1"), (true, "test may break a/1: the rule for prefix a/ gives it break".into()));
    assert_eq!(may(&client, "b"), (false, "test may not break b: no rule for this key applies to it".into()));
    assert!(may(&alice, "b").0);
    let other = "/v1/access/test?principal=alice&right=break&key=b";
    https::get(&address, &client, other).unwrap().refused(403, "denied");
}
