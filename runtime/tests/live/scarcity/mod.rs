//! A node without what it needs from its machine: file descriptors, and space on the disk. It
//! serves the clients that it can, says what it lacks, and does not stop.

mod descriptors;
mod disk;

use serde_json::{Value, json};

use crate::support::websocket::WebSocket;

/// Segments and snapshots so small that many of them come and go in a test.
const SMALL: [&str; 6] = ["--segment-bytes", "65536", "--snapshot-log-bytes", "131072", "--snapshot-margin", "64"];

/// A client with one connection and one session, which it opened in time.
struct Worker {
    socket: WebSocket,
    session: Value,
    asked: u64,
}

impl Worker {
    fn start(address: &str) -> Worker {
        let mut worker = Worker { socket: WebSocket::open(address), session: Value::Null, asked: 0 };
        let opened = worker.ask(&json!({"open_session": {"ttl_ms": 600_000}}));
        worker.session = opened["ok"]["session"]["session"].clone();
        assert!(worker.session.is_string(), "{opened}");
        worker
    }

    fn ask(&mut self, op: &Value) -> Value {
        self.asked += 1;
        self.socket.ask(self.asked, op)
    }

    fn acquire(&mut self, key: &str) -> Value {
        let session = self.session.clone();
        self.ask(&json!({"acquire": {"key": key, "options": {"session": session}}}))
    }

    /// Takes a lock, which must be free, and returns the token.
    #[track_caller]
    fn hold(&mut self, key: &str) -> Value {
        let acquired = self.acquire(key);
        let token = acquired["ok"]["acquired"]["token"].clone();
        assert!(token.is_u64(), "{key} is not granted: {acquired}");
        token
    }

    #[track_caller]
    fn release(&mut self, key: &str, token: &Value) {
        let session = self.session.clone();
        let released = self.ask(&json!({"release": {"key": key, "grant": {"session": session, "token": token}}}));
        assert_eq!(released["ok"], "released", "{key} is not released: {released}");
    }

    /// Gives a grant a long value, which fills the log fast; returns the answer.
    fn proclaim(&mut self, key: &str, token: &Value) -> Value {
        let proclamation = json!({"session": self.session, "token": token, "value": "v".repeat(4_000)});
        self.ask(&json!({"proclaim": {"key": key, "proclamation": proclamation}}))
    }

    #[track_caller]
    fn keep_alive(&mut self) {
        let session = self.session.clone();
        let kept = self.ask(&json!({"keep_alive": {"session": session}}));
        assert!(kept["ok"]["session"].is_object(), "{kept}");
    }
}
