//! Admits requests by the client's identity: with TLS, each request carries a verified
//! [`Principal`](crate::tls::Principal) as an extension, or is refused.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, LOCATION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use palisade_client::wire::{Code, Failure};
use tracing::warn;

use super::site::ForeignPage;
use super::{App, ui};
use crate::tls::Access;

/// Whether the path is answered without a proof of identity, because the answer tells next to nothing: whether
/// the process lives and can serve clients, for programs that watch it and for balancers, or a file of the
/// page, into which an operator enters the proof.
fn is_open(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz") || ui::has(path)
}

/// Minimum time between two equal log lines about a refused client.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// Passes a request on with its principal, or refuses it.
pub(super) async fn admit(
    State(app): State<App>,
    Extension(access): Extension<Access>,
    mut request: Request,
    next: Next,
) -> Response {
    let authorization = request.headers().get(AUTHORIZATION).cloned();
    let authorization = authorization.as_ref().map(HeaderValue::as_bytes);
    let refused = |why: String| {
        app.refused_client(access.address(), &why);
        unauthenticated(why)
    };
    // Under the user's certificate, which the browser presents by itself, a page could do what it may not even read.
    let is_foreign = access.is_tls() && request.extensions().get::<ForeignPage>().is_some();
    if is_foreign && authorization.is_none() && !is_open(request.uri().path()) {
        return refused(
            "a page of another origin proves who its user is by a bearer token, not by a certificate".into(),
        );
    }
    let principal = match access.principal(authorization) {
        Ok(principal) => principal,
        Err(_) if is_open(request.uri().path()) => None,
        Err(why) => return refused(why),
    };
    let name = principal.as_ref().map(|principal| Arc::clone(&principal.name));
    if let Some(principal) = principal {
        request.extensions_mut().insert(principal);
    }
    // A request that waits in a queue ends with the proof of its client's identity.
    let mut response = tokio::select! {
        biased;
        response = next.run(request) => response,
        why = access.ended(authorization, name.as_deref().unwrap_or_default()), if name.is_some() => return refused(why),
    };
    if access.is_tls()
        && let Some(location) = response.headers_mut().get_mut(LOCATION)
    {
        keep_tls(location);
    }
    response
}

/// The refusal of a client that has proved no identity.
fn unauthenticated(why: String) -> Response {
    let failure = Failure::new(Code::Unauthenticated, why);
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], Json(failure)).into_response()
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
        if let Some(repeats) = self.log_pause.due_from(address, why, REFUSAL_PAUSE, Instant::now()) {
            warn!(%address, error = why, repeats, "refused a client");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::tls::{Authority, NewToken, Principal, Tls, TlsFiles, Validity};

    /// Goal: the handlers find in the request its sender: the client that the certificate names,
    /// or, with a token, the client of the token.
    #[tokio::test]
    async fn request_carries_its_verified_principal() {
        let directory = tempfile::tempdir().unwrap();
        let validity = Validity::starting_now(Duration::from_secs(3600)).unwrap();
        let authority = Authority::create(directory.path(), "billing", validity).unwrap();
        let node = authority.node(1, &["127.0.0.1".to_owned()], validity).unwrap();
        let client = authority.client("worker", validity).unwrap();
        let (token, tokens) = (NewToken::draw("ci"), directory.path().join("tokens"));
        std::fs::write(&tokens, &token.line).unwrap();
        let ca = authority.certificate();
        let files = TlsFiles { ca: ca.clone(), cert: node.cert, key: node.key, tokens: Some(tokens), optional: true };
        let tls = Tls::load(files).unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dial = async |security: Option<palisade_client::Security>| {
            let dialled = async {
                match security {
                    Some(security) => drop(security.dial(&address.to_string()).await.unwrap()),
                    // A request without TLS begins with a letter.
                    None => TcpStream::connect(address).await.unwrap().try_write(b"GET").map(drop).unwrap(),
                }
            };
            let accepted = async {
                let (stream, address) = listener.accept().await.unwrap();
                Access::accept(&tls, stream, address.ip()).await.unwrap().1
            };
            tokio::join!(dialled, accepted).1
        };
        let anonymous = dial(Some(palisade_client::Security::tls(&ca))).await;
        let certified = palisade_client::Security::tls(&ca).with_certificate(client.cert, client.key);
        let certified = dial(Some(certified)).await;
        let plain = dial(None).await;

        let sender = |access: &Access, token: Option<&str>| {
            let header = token.map(|token| format!("Bearer {token}"));
            let principal = access.principal(header.as_ref().map(String::as_bytes))?;
            Ok::<_, String>(principal.map(|it: Principal| it.name.to_string()))
        };
        assert_eq!(sender(&certified, None), Ok(Some("worker".into())));
        assert_eq!(sender(&certified, Some(&token.token)), Ok(Some("ci".into())));
        assert!(sender(&certified, Some("guessed")).unwrap_err().contains("unknown, or was revoked"));
        assert_eq!(sender(&anonymous, Some(&token.token)), Ok(Some("ci".into())));
        assert!(sender(&anonymous, None).unwrap_err().contains("proves no identity"));
        assert_eq!(sender(&plain, None), Ok(None));
    }
}
