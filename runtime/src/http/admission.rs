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
    match identify(&access, &mut request) {
        Ok(()) => {}
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

/// Attaches the verified principal to a request. A request without TLS, while TLS is optional, has
/// none.
fn identify(access: &Access, request: &mut Request) -> Result<(), String> {
    let authorization = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    if let Some(principal) = access.principal(authorization)? {
        request.extensions_mut().insert(principal);
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::tls::{Authority, NewToken, Principal, Proof, Tls, TlsFiles, Validity};

    /// Goal: the handlers find in the request who sends it: the client that the certificate names,
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
            let mut request = Request::new(Body::empty());
            if let Some(token) = token {
                let value = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            identify(access, &mut request)?;
            Ok::<_, String>(request.extensions().get::<Principal>().map(|it| (it.name.to_string(), it.proof)))
        };
        assert_eq!(sender(&certified, None), Ok(Some(("worker".into(), Proof::Certificate))));
        assert_eq!(sender(&certified, Some(&token.token)), Ok(Some(("ci".into(), Proof::Token))));
        assert!(sender(&certified, Some("guessed")).unwrap_err().contains("unknown, or was revoked"));
        assert_eq!(sender(&anonymous, Some(&token.token)), Ok(Some(("ci".into(), Proof::Token))));
        assert!(sender(&anonymous, None).unwrap_err().contains("proves no identity"));
        assert_eq!(sender(&plain, None), Ok(None));
    }
}
