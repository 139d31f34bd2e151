//! JSON over HTTP, with connections that are kept: as much as Palisade's interface needs.

use hyper::header::{CONTENT_TYPE, LOCATION};
use hyper::{Method, Request};
use serde_json::Value;

/// A client of Palisade's nodes.
#[derive(Debug, Clone)]
pub(super) struct Http(crate::http::Http);

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
        Http(crate::http::Http::keeping_connections())
    }

    /// Sends one request, which no follower forwards: it names the leader. The caller sets the deadline.
    pub(super) async fn send(
        &self,
        method: &Method,
        server: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{server}{path}"))
            .header(CONTENT_TYPE, "application/json")
            .header("x-forward", "never");
        let reply = self.0.send(request, body.map(Value::to_string).unwrap_or_default()).await?;
        let location = reply.headers.get(LOCATION).and_then(|location| {
            let location = location.to_str().ok()?;
            Some(location.strip_prefix("http://")?.split('/').next()?.to_owned())
        });
        let body = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
        Ok(Answer { status: reply.status.as_u16(), location, body })
    }
}
