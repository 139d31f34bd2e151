//! HTTP by hand: one request, one connection, every byte under the test's control. What passes through here is compared
//! with the description of the interface.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use super::description::{self, Request};
use super::https::block_on;

/// A response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The head, as it came.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Response {
    /// The body as JSON; `null` if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// The body's JSON, of an answer that must be 200.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Expects a refusal: this status, and a body that says which kind it is, and why in a
    /// sentence.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        let body = self.json();
        assert_eq!(body["error"], code, "{}", self.body);
        let message = body["message"].as_str().unwrap_or_default();
        assert!(message.contains(' '), "an error has a sentence for people: {}", self.body);
        assert_eq!(self.header("content-type"), Some("application/json"));
        body
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

/// `GET path`.
pub fn get(address: &str, path: &str) -> std::io::Result<Response> {
    send(address, "GET", path, "")
}

/// `POST path` with a body.
pub fn post(address: &str, path: &str, body: &str) -> std::io::Result<Response> {
    send(address, "POST", path, body)
}

/// Any method. A follower forwards the request to the leader.
pub fn send(address: &str, method: &str, path: &str, body: &str) -> std::io::Result<Response> {
    send_with(address, method, path, "", body)
}

/// The same, for the answer of this node itself. Redirects are not followed.
pub fn send_unforwarded(address: &str, method: &str, path: &str, body: &str) -> std::io::Result<Response> {
    send_with(address, method, path, "X-Forward: never\r\n", body)
}

/// Any method, with more headers.
pub fn send_with(address: &str, method: &str, path: &str, headers: &str, body: &str) -> std::io::Result<Response> {
    raw(address, request(method, path, headers, body).as_bytes())
}

/// A request for one answer, as it is sent.
pub fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends bytes as they are, and reads until the server closes.
#[track_caller]
pub fn raw(address: &str, request: &[u8]) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    // A server that refuses a request before it has read all of it resets the connection behind its
    // answer.
    let sent = stream.write_all(request);
    let mut bytes = Vec::new();
    let received = stream.read_to_end(&mut bytes);
    if bytes.is_empty() {
        sent?;
        received?;
    }
    let response = whole(request, &bytes)?;
    description::check(Request::parse(request), &response);
    Ok(response)
}

/// The answer to a request, from all that the server sent; an error if the server ended the connection within it.
pub fn whole(request: &[u8], bytes: &[u8]) -> std::io::Result<Response> {
    let response = parse(bytes)?;
    let body = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|end| &bytes[end + 4..]);
    let length = response.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    if body.is_some_and(|body| body.len() >= length || request.starts_with(b"HEAD ")) {
        return Ok(response);
    }
    let received = body.map_or(0, <[u8]>::len);
    let message = format!("the server ended the connection after {received} of {length} bytes of its answer's body");
    Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, message))
}

/// Connects from this address of the machine.
pub fn connect_from(from: &str, address: &str) -> TcpStream {
    let stream = block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(address.parse().unwrap()).await.expect("the node accepts connections").into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Splits what a server sent until it closed the connection.
pub fn parse(bytes: &[u8]) -> std::io::Result<Response> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("not an HTTP response: {head:?}")))?;
    Ok(Response { status, head: head.to_string(), body: body.to_string() })
}
