//! A web application of another origin uses the cluster by the TypeScript client, if the operator has
//! allowed its origin.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;

use super::browser::Browser;
use crate::clients::program::folder;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::{eventually, https, locks};
use crate::tls::clients::token;

/// What the application does: it takes a lock, writes a record under it, and reads that again.
const APPLICATION: &str = r#"<!doctype html><meta charset="utf-8"><p id="done"></p><p id="failed"></p><script type="module">
const show = (where, text) => { document.getElementById(where).textContent = text; };
try {
  const { Client } = await import("/dist/src/browser.js");
  const [endpoints, token] = location.hash.slice(1).split("|");
  const client = new Client(endpoints, { owner: "application", token: token || undefined });
  window.lock = await client.lock("nightly", { ttlMs: 20000 });
  await client.records.put("report", "page 1", { lock: window.lock });
  const record = await client.records.get("report");
  show("done", `token ${window.lock.token}, record ${record.text()}`);
} catch (error) {
  show("failed", `${error.name}: ${error.message}`);
}
</script>"#;

/// Serves the application and the client until the process ends; returns the origin.
fn serve(dist: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let dist = dist.clone();
            thread::spawn(move || answer(stream, &dist));
        }
    });
    origin
}

fn answer(mut stream: TcpStream, dist: &std::path::Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (kind, body) = match path.strip_prefix("/dist/") {
        Some(file) if !file.contains("..") => ("text/javascript", std::fs::read(dist.join(file)).unwrap_or_default()),
        _ => ("text/html", APPLICATION.into()),
    };
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)
}

/// Where the client is, if it has been built.
fn client() -> Option<PathBuf> {
    let dist = folder("typescript").join("dist");
    let is_built = dist.join("src/browser.js").exists();
    if !is_built {
        eprintln!("SKIPPED: the TypeScript client is not built (npm run build in clients/typescript)");
    }
    is_built.then_some(dist)
}

/// What the application shows at last.
fn outcome(browser: &Browser) -> String {
    eventually("the application ends", || browser.texts("p").into_iter().find(|text| !text.is_empty()))
}

/// Goal: a page of an allowed origin holds a lock through the death of the leader, and writes and reads
/// records; the same page of another origin, which no operator has allowed, gets nothing.
#[test]
fn application_of_an_allowed_origin_uses_the_cluster() {
    let Some(dist) = client() else { return };
    let Some(browser) = Browser::start() else { return };
    let (allowed, other) = (serve(dist.clone()), serve(dist));
    let mut cluster = Cluster::start_calm_with(3, &["--allow-origin", &allowed]);
    let endpoints = cluster.endpoints().join(",");
    browser.open(&format!("{allowed}/#{endpoints}"));
    let shown = outcome(&browser);
    let holder = locks::lock(&cluster, "nightly").holder.expect("the page holds the lock");
    assert_eq!(shown, format!("token {}, record page 1", holder.token));
    assert_eq!(holder.owner, "application");

    let leader = cluster.wait_ready();
    cluster.kill(leader);
    cluster.wait_ready();
    let token = browser.run("return window.lock.isValid && String(window.lock.token)", &[]);
    assert_eq!(token, holder.token.to_string());
    browser.run("window.lock.release()", &[]);
    eventually("the page has released the lock", || locks::lock(&cluster, "nightly").holder.is_none().then_some(()));

    browser.open(&format!("{other}/#{endpoints}"));
    let shown = outcome(&browser);
    assert!(shown.starts_with("Unreachable: "), "{shown}");
    assert!(locks::lock(&cluster, "nightly").holder.is_none());
}

/// Goal: where clients have names, the page proves its user's by a bearer token, for its lock as for its requests; without
/// one it gets nothing.
#[test]
fn application_with_a_token_uses_a_cluster_with_tls() {
    let Some(dist) = client() else { return };
    let Some(browser) = Browser::start() else { return };
    let origin = serve(dist);
    let ours = Certificates::of("billing", 3);
    let (worker, line) = token(&ours, "worker");
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, line).unwrap();
    let flags = ["--allow-origin", &origin, "--client-tokens", tokens.to_str().unwrap()];
    let cluster = Cluster::start_secured(3, &flags, &ours);
    let (leader, follower) = cluster.roles();
    let holder = || https::get(&cluster.client_addr(leader), &ours.client("test"), "/v1/locks/nightly").unwrap().ok();
    for node in [follower, leader] {
        let token = worker.token().unwrap().unwrap();
        browser.open(&format!("{origin}/?{node}#https://{}|{token}", cluster.client_addr(node)));
        let shown = outcome(&browser);
        let lock = holder();
        assert_eq!(shown, format!("token {}, record page 1", lock["holder"]["token"]));
        assert_eq!(lock["holder"]["owner"], "application");
        browser.run("window.lock.release()", &[]);
        eventually("the page has released the lock", || (holder()["held"] == false).then_some(()));
    }
    // After many refusals Chromium delays the WebSockets of all pages by seconds: so this page is the last one.
    browser.open(&format!("{origin}/?without#https://{}|", cluster.client_addr(leader)));
    let refused = outcome(&browser);
    assert!(refused.starts_with("Unreachable: "), "{refused}");
    assert_eq!(holder()["held"], false);
}
