//! `GET /v1/hold`: a connection that holds a lock for one process, as a client that speaks its frames by hand
//! meets it.

mod failovers;
mod holding;
mod refusals;
mod resuming;
mod waiting;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::http::{self, Response};
use crate::support::websocket::WebSocket;

/// A single node, and where it serves clients.
fn node() -> (Cluster, String) {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(1);
    (cluster, address)
}

/// A client's connection.
struct Client(WebSocket);

impl Client {
    /// Opens a connection with this first frame.
    fn begin(address: &str, first: &Value) -> Client {
        let mut client = Client(WebSocket::open_at(address, "/v1/hold"));
        client.send(first);
        client
    }

    /// A connection that is granted the lock at once; and the grant.
    fn granted(address: &str, acquire: Value) -> (Client, Value) {
        let mut client = Client::begin(address, &json!({ "acquire": acquire }));
        let session = client.waiting();
        let grant = client.next("granted");
        assert_eq!(grant["session"], session, "`waiting` named the session before the grant");
        (client, grant)
    }

    /// A connection that waits for the lock; and its session.
    fn waits(address: &str, acquire: Value) -> (Client, Value) {
        let mut client = Client::begin(address, &json!({ "acquire": acquire }));
        let session = client.waiting();
        (client, session)
    }

    fn send(&mut self, frame: &Value) {
        self.0.send_text(&frame.to_string());
    }

    /// The next frame, whatever it is: its kind, and what it has.
    #[track_caller]
    fn receive(&mut self) -> (String, Value) {
        let frame = self.0.receive().expect("the connection stays");
        let fields = frame.as_object().expect("a frame is an object");
        assert_eq!(fields.len(), 1, "a frame has one field, its kind: {frame}");
        let (kind, value) = fields.iter().next().unwrap();
        (kind.clone(), value.clone())
    }

    /// The next frame but for checks and renewals, as the client's process answers every check.
    #[track_caller]
    fn answer_until_news(&mut self) -> (String, Value) {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing but checks and renewals came for a minute");
            match self.receive() {
                (kind, check) if kind == "check" => self.send(&json!({ "here": check["n"] })),
                (kind, _) if kind == "renewed" => {}
                news => return news,
            }
        }
    }

    /// The next frame but for checks and renewals, which is of this kind.
    #[track_caller]
    fn next(&mut self, kind: &str) -> Value {
        let (is, value) = self.answer_until_news();
        assert_eq!(is, kind, "{value}");
        value
    }

    /// The last frame, which is of this kind.
    #[track_caller]
    fn last(&mut self, kind: &str) -> Value {
        let value = self.next(kind);
        assert_eq!(self.0.receive(), None, "the connection ends behind its last frame");
        value
    }

    #[track_caller]
    fn waiting(&mut self) -> Value {
        self.next("waiting")["session"].clone()
    }

    /// Answers the checks until the session was renewed so often.
    #[track_caller]
    fn be_renewed(&mut self, times: usize) {
        let mut renewed = 0;
        while renewed < times {
            match self.receive() {
                (kind, check) if kind == "check" => self.send(&json!({ "here": check["n"] })),
                (kind, _) if kind == "renewed" => renewed += 1,
                news => panic!("neither a check nor a renewal: {news:?}"),
            }
        }
    }

    /// Answers the checks until the server says that the lock is lost. A renewal that was under way may come before.
    #[track_caller]
    fn lost_at_the_next_renewal(&mut self) -> Value {
        let mut renewed = 0;
        let lost = loop {
            match self.receive() {
                (kind, check) if kind == "check" => self.send(&json!({ "here": check["n"] })),
                (kind, _) if kind == "renewed" => renewed += 1,
                (kind, lost) if kind == "lost" => break lost,
                news => panic!("neither a check, a renewal nor the end: {news:?}"),
            }
            assert!(renewed < 2, "a lock that is held no longer was renewed");
        };
        assert_eq!((&lost["error"], self.0.receive()), (&json!("not_holder"), None));
        lost
    }

    /// Releases the lock, or gives up the queue position.
    #[track_caller]
    fn release(mut self) {
        self.send(&json!({ "release": {} }));
        assert_eq!(self.last("released"), json!({}));
    }

    /// Ends the connection with a Close frame, and returns when the node has seen it.
    fn close(mut self) {
        self.0.0.close(None).expect("the connection is open");
        while !matches!(self.0.0.read(), Ok(Message::Close(_)) | Err(_)) {}
    }
}

fn get(address: &str, path: &str) -> Response {
    http::get(address, path).expect("the node answers")
}

fn post(address: &str, path: &str, body: &Value) -> Response {
    http::post(address, path, &body.to_string()).expect("the node answers")
}

fn lock(address: &str, key: &str) -> Value {
    get(address, &format!("/v1/locks/{key}")).ok()
}

/// The owners of the waiters, once there are so many.
fn queue(address: &str, key: &str, length: usize) -> Vec<Value> {
    eventually("the queue has the expected length", || {
        let lock = lock(address, key);
        let queue: Vec<Value> = lock["queue"].as_array()?.iter().map(|waiter| waiter["owner"].clone()).collect();
        (queue.len() == length).then_some(queue)
    })
}

fn session_path(session: &Value) -> String {
    format!("/v1/sessions/{}", session.as_str().expect("a session is a text"))
}
