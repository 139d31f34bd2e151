//! An HTTP client: lock services, stores, the resource and the servers' signs of readiness are asked with it.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::http::request::Builder;
use hyper::{HeaderMap, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::text::chain;

/// The longest answer that is read, in bytes: more than the resource's longest value takes as JSON.
const LONGEST: usize = 128 << 20;

/// A client of HTTP servers. A request has its connection for itself until it is answered; dropping its future closes
/// the connection. The caller sets the deadline.
#[derive(Debug, Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Http {
    /// A client that keeps its connections for later requests.
    pub(crate) fn keeping_connections() -> Http {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Http(Client::builder(TokioExecutor::new()).build(connector))
    }

    /// A client that makes a connection for each request.
    pub(crate) fn closing_connections() -> Http {
        Http(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(HttpConnector::new()))
    }

    /// Sends one request.
    ///
    /// # Errors
    /// The request is not valid, the server could not be reached, or its answer could not be read.
    pub(crate) async fn send(&self, request: Builder, body: impl Into<Bytes>) -> Result<Reply, String> {
        let request = request.body(Full::new(body.into())).map_err(|error| format!("no valid request: {error}"))?;
        let response = self.0.request(request).await.map_err(|error| chain(&error))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LONGEST).collect().await.map_err(|error| error.to_string())?;
        Ok(Reply { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

impl Reply {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}
