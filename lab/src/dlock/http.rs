//! JSON over HTTP, with connections that are kept: as much as Palisade's interface needs.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, LOCATION};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// The longest answer that is read, in bytes.
const LONGEST: usize = 16 << 20;

/// A client of HTTP servers. A request has its connection for itself until it is answered.
#[derive(Debug, Clone)]
pub(super) struct Http(Client<HttpConnector, Full<Bytes>>);

/// What a server answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// `HOST:PORT` of the header `Location`.
    pub(super) location: Option<String>,
    pub(super) body: Value,
}

impl Answer {
    /// The kind of a failure: `error` in the body.
    pub(super) fn code(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }

    /// The failure as a sentence.
    pub(super) fn sentence(&self) -> String {
        let Answer { status, body, .. } = self;
        body["message"].as_str().map_or_else(|| format!("status {status}: {body}"), str::to_owned)
    }
}

impl Http {
    pub(super) fn new() -> Http {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Http(Client::builder(TokioExecutor::new()).build(connector))
    }

    /// Sends one request, which no follower forwards: it names the leader. Dropping the future closes its connection. The
    /// caller sets the deadline.
    pub(super) async fn send(
        &self,
        method: &Method,
        server: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{server}{path}"))
            .header(CONTENT_TYPE, "application/json")
            .header("x-forward", "never")
            .body(Full::new(body))
            .map_err(|error| format!("http://{server}{path} is no address: {error}"))?;
        let response = self.0.request(request).await.map_err(|error| chain(&error))?;
        let status = response.status().as_u16();
        let location = response.headers().get(LOCATION).and_then(|location| {
            let location = location.to_str().ok()?;
            Some(location.strip_prefix("http://")?.split('/').next()?.to_owned())
        });
        let body = Limited::new(response.into_body(), LONGEST).collect().await.map_err(|error| error.to_string())?;
        let body = serde_json::from_slice(&body.to_bytes()).unwrap_or(Value::Null);
        Ok(Answer { status, location, body })
    }
}

/// An error with its causes: hyper says "client error (Connect)" and keeps the reason below.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Percent-encodes a key for a path.
pub(super) fn encode(key: &str) -> String {
    let mut text = String::new();
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
