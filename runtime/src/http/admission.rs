//! Which client sends a request: with TLS, each request carries a verified
//! [`Principal`](crate::tls::Principal) as an extension, or is refused.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, LOCATION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use tracing::warn;

use super::App;
use crate::tls::Access;

/// The one path that proves nothing and tells nothing: for programs that watch the process.
const OPEN: &str = "/healthz";

/// Minimum time between two equal log lines about a refused client.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// Passes a request on with its principal, or refuses it.
pub(super) async fn admit(
    State(app): State<App>,
    Extension(access): Extension<Access>,
    mut request: Request,
    next: Next,
) -> Response {
    let authorization = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    match access.principal(authorization) {
        Ok(Some(principal)) => {
            request.extensions_mut().insert(principal);
        }
        // Without TLS, while TLS is optional.
        Ok(None) => {}
        Err(_) if request.uri().path() == OPEN => {}
        Err(why) => {
            app.refused_client(access.address(), &why);
            return unauthenticated(&why);
        }
    }
    let mut response = next.run(request).await;
    if access.is_tls()
        && let Some(location) = response.headers_mut().get_mut(LOCATION)
    {
        keep_tls(location);
    }
    response
}

fn unauthenticated(why: &str) -> Response {
    let body = Json(json!({ "error": "unauthenticated", "message": why }));
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], body).into_response()
}

/// A redirect to the leader keeps the client on TLS.
fn keep_tls(location: &mut HeaderValue) {
    let secured = location.to_str().ok().and_then(|url| url.strip_prefix("http://"));
    if let Some(secured) = secured.and_then(|rest| HeaderValue::try_from(format!("https://{rest}")).ok()) {
        *location = secured;
    }
}

impl App {
    /// Counts and logs a client that proved no identity.
    pub(super) fn refused_client(&self, address: IpAddr, why: &str) {
        self.metrics.frames_rejected.inc();
        let line = format!("{address} {why}");
        if let Some(repeats) = self.log_pause.due(&line, REFUSAL_PAUSE, Instant::now()) {
            warn!(%address, error = why, repeats, "refused a client");
        }
    }
}
