//! `/v1/access`, and the log lines about clients that the access rules deny something.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use palisade_client::wire::{Code, Failure, Op, Right, TestAccess};
use palisade_spec::lock;
use serde::Deserialize;
use tracing::warn;

use super::{App, Caller, body, perform};
use crate::core::check_access;

/// Minimum time between two log lines about denials of one right to one client.
pub(super) const DENIAL_PAUSE: Duration = Duration::from_secs(10);

/// `GET /v1/access`
pub(super) async fn show(Caller(app): Caller, uri: Uri) -> Response {
    perform(&app, &uri, Ok(Op::ShowAccess)).await
}

/// `PUT /v1/access`
pub(super) async fn set(Caller(app): Caller, uri: Uri, body: Body) -> Response {
    perform(&app, &uri, body::json(body).await.map(Op::SetAccess)).await
}

/// A question about rights; without a name it is about the client that asks.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct TestQuery {
    /// The name of a client, `admin/NAME`, or `node/N`; without it, the client that asks.
    principal: Option<String>,
    /// The right.
    right: Right,
    /// The key. The right `admin` is about none.
    #[serde(default)]
    key: String,
}

/// `GET /v1/access/test`
pub(super) async fn test(Caller(app): Caller, uri: Uri) -> Response {
    let test = body::query(&uri).map(|TestQuery { principal, right, key }| {
        let principal = principal.unwrap_or_else(|| app.principal.as_str().to_owned());
        Op::TestAccess(TestAccess { principal, right, key })
    });
    perform(&app, &uri, test).await
}

impl App {
    /// Refuses a request that this node serves by itself at the listener for clients, and to a client
    /// that may not administer the cluster, by the rules that this node has applied.
    pub(super) fn may_administer(&self, what: &str) -> Result<(), Failure> {
        let permitted = || check_access(&self.core.view().access(), &self.principal, lock::Right::Admin, "");
        let checked = self.accepts(what).and_then(|()| permitted());
        checked.inspect_err(|failure| self.log_denial(failure))
    }

    /// Logs a failure if it denies a client something.
    pub(super) fn log_denial(&self, failure: &Failure) {
        if !matches!(failure.error, Code::Denied | Code::WrongListener) {
            return;
        }
        let principal = self.principal.as_str();
        // The sentence begins with the right, or what is administrative; the key behind it is the client's
        // choice.
        let denied: Vec<&str> = failure.message.split(' ').take(4).collect();
        let denied = format!("{principal} {}", denied.join(" "));
        self.record_refusal(&denied, &failure.message);
        if let Some(repeats) = self.log_pause.due(&denied, DENIAL_PAUSE, Instant::now()) {
            warn!(principal, why = failure.message, repeats, "denied a client's request");
        }
    }
}
