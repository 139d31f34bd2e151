//! `GET /v1/hold` of clients with names: access rules, and tokens that end.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use palisade_client::Security;
use palisade_client::tls::Stream;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Response;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::clients::token;
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::{eventually, https};

const PATIENCE: Duration = Duration::from_secs(60);

/// What became of the attempt to open a connection.
type Opened = Result<(Secured, Response), tungstenite::Error>;

/// A client's WebSocket over TLS.
pub(super) struct Secured {
    runtime: Runtime,
    socket: WebSocketStream<Stream>,
}

impl Secured {
    /// Opens a connection that holds a lock, with this first frame.
    pub(super) fn begin(address: &str, security: &Security, first: &Value) -> Secured {
        let mut client = Secured::open(address, security, "/v1/hold");
        client.send(first);
        client
    }

    /// Opens a connection at a path.
    pub(super) fn open(address: &str, security: &Security, path: &str) -> Secured {
        let token = security.token().unwrap().map(|token| ("Authorization", format!("Bearer {token}")));
        let opened = Secured::open_with(address, security, path, token.into_iter().collect());
        opened.expect("the node speaks WebSocket").0
    }

    /// Opens a connection as a page of this origin does; if the server accepts it, with the answer.
    fn open_as_page(address: &str, security: &Security, path: &str, origin: &str, offers: &str) -> Opened {
        let headers = vec![("Origin", origin.to_owned()), ("Sec-WebSocket-Protocol", offers.to_owned())];
        Secured::open_with(address, security, path, headers)
    }

    fn open_with(address: &str, security: &Security, path: &str, headers: Vec<(&'static str, String)>) -> Opened {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let opened = runtime.block_on(async {
            let stream = security.dial(address).await.expect("the node accepts the client");
            let mut request = format!("wss://{address}{path}").into_client_request().unwrap();
            for (name, value) in headers {
                request.headers_mut().insert(name, value.parse().unwrap());
            }
            client_async(request, stream).await
        });
        opened.map(|(socket, answer)| (Secured { runtime, socket }, answer))
    }

    /// Sends a request of `/v1/ws`.
    pub(super) fn request(&mut self, id: u64, op: &Value) {
        self.send(&json!({ "id": id, "op": op }));
    }

    /// The result of a request of `/v1/ws`, and that no other one is answered before it.
    pub(super) fn ask(&mut self, id: u64, op: &Value) -> Value {
        self.request(id, op);
        self.result(id)
    }

    /// The result of the request with this ID, which is the next one.
    pub(super) fn result(&mut self, id: u64) -> Value {
        let answer = self.receive();
        assert_eq!(answer["id"], id, "{answer}");
        answer["result"].clone()
    }

    pub(super) fn send(&mut self, frame: &Value) {
        self.runtime.block_on(self.socket.send(Message::text(frame.to_string()))).expect("the node reads");
    }

    /// The last frame before the connection ends, if there is one.
    fn last(&mut self) -> Option<Value> {
        let mut last = None;
        loop {
            let message = self.runtime.block_on(async { timeout(PATIENCE, self.socket.next()).await });
            match message.expect("the connection ends") {
                Some(Ok(Message::Text(text))) => last = Some(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return last,
                Some(Ok(other)) => panic!("no frame: {other:?}"),
            }
        }
    }

    /// The next frame.
    pub(super) fn receive(&mut self) -> Value {
        loop {
            let message = self.runtime.block_on(async { timeout(PATIENCE, self.socket.next()).await });
            match message.expect("a frame comes").expect("the connection stays").unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("no frame: {other:?}"),
            }
        }
    }
}

/// Goal: when the line of a client's token is removed, its holder is interrupted and its waiter leaves the queue,
/// both at once. The lock stays until the TTL is over.
#[test]
fn revoked_token_interrupts_what_it_began() {
    let ours = Certificates::of("billing", 1);
    let (worker, line) = token(&ours, "worker");
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, format!("{line}\n")).unwrap();
    let cluster = Cluster::start_secured(1, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let (address, certified) = (cluster.client_addr(1), ours.client("test"));
    let lock = || https::get(&address, &certified, "/v1/locks/k").unwrap().ok();
    let acquire = json!({ "acquire": { "key": "k", "ttl_ms": 600_000 } });
    let mut holder = Secured::begin(&address, &worker, &acquire);
    assert!(holder.receive()["waiting"].is_object());
    let grant = holder.receive()["granted"].clone();
    let wait = json!({ "acquire": { "key": "k", "ttl_ms": 600_000, "wait_ms": 600_000 } });
    let mut waiter = Secured::begin(&address, &worker, &wait);
    assert!(waiter.receive()["waiting"].is_object());
    eventually("it waits", || (lock()["queue"].as_array()?.len() == 1).then_some(()));
    std::fs::write(&tokens, "").unwrap();
    for client in [&mut holder, &mut waiter] {
        let interrupted = client.receive()["interrupted"].clone();
        assert_eq!(interrupted["error"], "unauthenticated");
        assert!(interrupted["message"].as_str().unwrap().contains("`worker` was revoked"), "{interrupted}");
    }
    eventually("the queue is empty", || lock()["queue"].as_array()?.is_empty().then_some(()));
    assert_eq!(lock()["holder"]["token"], grant["token"]);
}

/// Goal: a page, whose WebSocket has no `Authorization`, holds a lock by the token that it offers among the protocols, at
/// every node and for as long as the token counts; and neither without a token nor by the certificate that the browser
/// presents.
#[test]
fn page_holds_a_lock_by_the_token_that_it_offers() {
    const PAGE: &str = "https://app.example";
    let ours = Certificates::of("billing", 3);
    let (worker, line) = token(&ours, "worker");
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, &line).unwrap();
    let flags = ["--allow-origin", PAGE, "--client-tokens", tokens.to_str().unwrap()];
    let cluster = Cluster::start_secured(3, &flags, &ours);
    let (leader, follower) = cluster.roles();
    let offers = format!("palisade, bearer.{}", worker.token().unwrap().unwrap());
    let mut holders = Vec::new();
    for (node, key) in [(leader, "a"), (follower, "b")] {
        let address = cluster.client_addr(node);
        for (security, offers) in [
            (&ours.anonymous(), "palisade"),
            (&ours.anonymous(), "palisade, bearer.guessed"),
            (&ours.client("test"), "palisade"),
        ] {
            for path in ["/v1/hold", "/v1/ws"] {
                match Secured::open_as_page(&address, security, path, PAGE, offers) {
                    Err(tungstenite::Error::Http(refused)) => assert_eq!(refused.status(), 401, "{path} {offers}"),
                    Err(other) => panic!("{path} {offers}: {other}"),
                    Ok(_) => panic!("{path} is open with the offer of {offers}"),
                }
            }
        }
        let opened = Secured::open_as_page(&address, &ours.anonymous(), "/v1/hold", PAGE, &offers);
        let (mut holder, answer) = opened.expect("the node accepts the token");
        // A browser ends the connection otherwise.
        assert_eq!(answer.headers()["Sec-WebSocket-Protocol"], "palisade");
        holder.send(&json!({ "acquire": { "key": key, "ttl_ms": 600_000, "wait_ms": 1_000, "owner": "page" } }));
        assert!(holder.receive()["waiting"].is_object());
        assert!(holder.receive()["granted"].is_object());
        holders.push(holder);
    }
    let (mut requests, _) =
        Secured::open_as_page(&cluster.client_addr(leader), &ours.anonymous(), "/v1/ws", PAGE, &offers)
            .expect("the node accepts the token");
    let shown = requests.ask(1, &json!({ "show_lock": { "key": "a", "consistency": "linearizable" } }));
    assert_eq!(shown["ok"]["lock"]["holder"]["owner"], "page", "{shown}");

    // The token counts also where the browser presents a certificate.
    let certified = &ours.client("test");
    let (mut both, _) =
        Secured::open_as_page(&cluster.client_addr(leader), certified, "/v1/hold", PAGE, &offers).unwrap();
    both.send(&json!({ "acquire": { "key": "c", "ttl_ms": 600_000 } }));
    assert!(both.receive()["waiting"].is_object() && both.receive()["granted"].is_object());
    holders.push(both);

    std::fs::write(&tokens, "").unwrap();
    // A follower may notice it first, and then just ends the connection.
    let said: Vec<Option<Value>> = holders.iter_mut().map(Secured::last).collect();
    for interrupted in [&said[0], &said[2]] {
        let interrupted = &interrupted.as_ref().expect("the leader says why")["interrupted"];
        assert!(interrupted["message"].as_str().unwrap().contains("`worker` was revoked"), "{interrupted}");
    }
}

/// Goal: waiters of a revoked token leave the queue also if they came through a follower, and if their connection was
/// lost before; the waiter of another client stays.
#[test]
fn revoked_token_ends_waits_at_a_follower_and_without_a_connection() {
    let ours = Certificates::of("billing", 3);
    let [(worker, line), (other, kept)] = ["worker", "other"].map(|name| token(&ours, name));
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, format!("{line}\n{kept}\n")).unwrap();
    let cluster = Cluster::start_secured(3, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let (leader, follower) = cluster.roles();
    let (leader, follower) = (cluster.client_addr(leader), cluster.client_addr(follower));
    let certified = ours.client("test");
    let queue = || {
        let lock = https::get(&leader, &certified, "/v1/locks/k").unwrap().ok();
        lock["queue"].as_array().unwrap().iter().map(|waiter| waiter["owner"].clone()).collect::<Vec<Value>>()
    };
    https::post(&leader, &certified, "/v1/locks/k/acquire", r#"{"ttl_ms":3600000}"#).unwrap().ok();
    let mut open = Vec::new();
    let waiters = [
        (&follower, &worker, "through a follower", true),
        (&follower, &worker, "through a follower, and gone", false),
        (&leader, &worker, "gone", false),
        (&follower, &other, "stays", true),
    ];
    for (count, (address, security, owner, stays)) in (1..).zip(waiters) {
        let wait = json!({ "key": "k", "ttl_ms": 3_600_000, "wait_ms": 3_600_000, "owner": owner });
        let mut waiter = Secured::begin(address, security, &json!({ "acquire": wait }));
        assert!(waiter.receive()["waiting"].is_object());
        eventually("it waits", || (queue().len() == count).then_some(()));
        // The node keeps the wait of a connection that is lost.
        if stays {
            open.push(waiter);
        }
    }
    std::fs::write(&tokens, format!("{kept}\n")).unwrap();
    eventually("the waits of the revoked token have ended", || (queue() == ["stays"]).then_some(()));
}

/// Goal: the access rules decide of an acquire as over HTTP, and a session is resumed by its own client alone.
#[test]
fn rules_and_identities_count_as_over_http() {
    let ours = Certificates::of("billing", 1);
    let admin = ours.administrator("eve");
    let [worker, other] = ["worker", "other"].map(|name| {
        ours.issue_client(name, &[]);
        ours.client(name)
    });
    let cluster = Cluster::start_secured(1, &[], &ours);
    let address = cluster.client_addr(1);
    let rules = json!([{ "subject": "worker", "prefix": "jobs/", "rights": ["acquire"] }]);
    let document = json!({ "revision": 0, "rules": rules }).to_string();
    https::send(&address, &admin, "PUT", "/v1/access", &document).unwrap().ok();
    for wait_ms in [0, 1_000] {
        let acquire = json!({ "acquire": { "key": "elsewhere", "wait_ms": wait_ms } });
        let mut denied = Secured::begin(&address, &worker, &acquire);
        let mut frame = denied.receive();
        if frame["waiting"].is_object() {
            frame = denied.receive();
        }
        assert_eq!(frame["error"]["error"], "denied", "{frame}");
    }
    let acquire = json!({ "acquire": { "key": "jobs/1", "ttl_ms": 60_000, "wait_ms": 1_000 } });
    let mut holder = Secured::begin(&address, &worker, &acquire);
    assert!(holder.receive()["waiting"].is_object());
    let grant = holder.receive()["granted"].clone();
    // The worker may not read the lock, and learns of its own grant all the same.
    let resume = json!({ "key": "jobs/1", "session": grant["session"], "token": grant["token"] });
    let resume = json!({ "resume": resume });
    let mut thief = Secured::begin(&address, &other, &resume);
    assert_eq!(thief.receive()["lost"]["error"], "no_session");
    let mut resumed = Secured::begin(&address, &worker, &resume);
    assert_eq!(resumed.receive()["granted"], grant);
    assert_eq!(holder.receive()["interrupted"]["error"], "taken_over");
    resumed.send(&json!({ "release": {} }));
    assert_eq!(resumed.receive(), json!({ "released": {} }));
    eventually("no refusal has left a session", || {
        let status = https::get(&address, &admin, "/v1/status").unwrap().ok();
        (status["sessions"] == 0).then_some(())
    });
}
