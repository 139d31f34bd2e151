//! A WebSocket that speaks JSON, a frame at a time.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::{IntoClientRequest, client};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::{self, Message};

use super::description::Conversation;

/// An open WebSocket to a node, and what passes through it.
pub struct WebSocket(pub tungstenite::WebSocket<TcpStream>, Conversation);

impl WebSocket {
    /// Opens one for many requests, to this node itself.
    pub fn open(address: &str) -> WebSocket {
        WebSocket::open_with(address, "/v1/ws", &[("x-forward", "never")])
    }

    /// Opens one for many requests, which a follower forwards to the leader.
    pub fn open_forwarded(address: &str) -> WebSocket {
        WebSocket::open_at(address, "/v1/ws")
    }

    /// The same; the error is that of a follower without a leader, or of a node that does not answer.
    pub fn try_open_forwarded(address: &str) -> Result<WebSocket, String> {
        WebSocket::try_open_with(address, "/v1/ws", &[])
    }

    /// Opens one at a path, which a follower forwards.
    pub fn open_at(address: &str, path: &str) -> WebSocket {
        WebSocket::open_with(address, path, &[])
    }

    /// Opens one with more headers.
    fn open_with(address: &str, path: &str, headers: &[(&'static str, &str)]) -> WebSocket {
        WebSocket::try_open_with(address, path, headers).expect("the node speaks WebSocket")
    }

    fn try_open_with(address: &str, path: &str, headers: &[(&'static str, &str)]) -> Result<WebSocket, String> {
        let stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // Otherwise a frame waits for the answer to the one before it, and no request is ever behind another one.
        stream.set_nodelay(true).unwrap();
        let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let (socket, _) = client(request, stream).map_err(|error| error.to_string())?;
        Ok(WebSocket(socket, Conversation::at(path)))
    }

    /// Sends a request.
    pub fn send(&mut self, id: u64, op: &Value) {
        self.send_text(&json!({ "id": id, "op": op }).to_string());
    }

    /// Sends any text.
    pub fn send_text(&mut self, text: &str) {
        self.1.sent(text);
        self.0.send(Message::text(text)).expect("the node reads");
    }

    /// Expects the end of the connection, with or without a farewell of the node.
    #[track_caller]
    pub fn expect_end(&mut self) {
        loop {
            match self.0.read() {
                Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed) => return,
                Err(tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => return,
                Err(tungstenite::Error::Io(error)) if error.kind() == ErrorKind::ConnectionReset => return,
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                other => panic!("not the end: {other:?}"),
            }
        }
    }

    /// The next answer, which is as described; `None` when the node has closed the connection.
    #[track_caller]
    pub fn receive(&mut self) -> Option<Value> {
        let begin = Instant::now();
        loop {
            // Pings would keep a test waiting for an answer that does not come.
            assert!(begin.elapsed() < Duration::from_secs(60), "no answer came within a minute, and pings did");
            match self.0.read() {
                Ok(Message::Text(text)) => {
                    let message = serde_json::from_str(&text).expect("answers are JSON");
                    self.1.received(&message);
                    return Some(message);
                }
                Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed) => return None,
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                other => panic!("neither an answer nor the end: {other:?}"),
            }
        }
    }

    /// Asks, and returns the result of this very request; no other answer may come first.
    pub fn ask(&mut self, id: u64, op: &Value) -> Value {
        self.send(id, op);
        let answer = self.receive().expect("the connection stays");
        assert_eq!(answer["id"], id, "an answer carries its request's id: {answer}");
        answer["result"].clone()
    }
}
