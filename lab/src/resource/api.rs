//! The resource's HTTP interface. Every answer is JSON, except the metrics.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use palisade_history::Client;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;

use super::log::{Entry, Op};
use super::signature::Signatures;
use super::store::{MAX_VALUE, Outcome, Request, Stopped, Store};
use crate::metrics::OPEN_METRICS;

/// The header with the fencing token.
pub const TOKEN: &str = "X-Fence-Token";
/// The header with the signed fencing token, at a resource that requires one.
pub const SIGNED_TOKEN: &str = "X-Signed-Token";
/// The header with the client's name in the resource's history; optional.
pub const CLIENT: &str = "X-Client";
/// Maximum length of a body, in bytes.
pub const MAX_BODY: usize = 1 << 20;
/// Maximum length of a key, in bytes.
pub const MAX_KEY: usize = 1024;

/// A request that is answered with an error.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    #[serde(skip)]
    status: StatusCode,
    error: String,
    /// The part of the request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'static str>,
    /// The highest token seen, if the token is stale.
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    got: Option<u64>,
}

#[derive(Serialize)]
struct Written {
    max_fence: u64,
}

#[derive(Serialize)]
struct Value {
    key: String,
    value: String,
    max_fence: u64,
}

/// What the handlers need.
#[derive(Clone)]
pub struct App {
    /// The values.
    pub store: Store,
    /// Writes that were refused because their token has no signature that counts.
    pub untrusted: Counter,
    /// Which tokens are the cluster's; `None`: the resource believes every number.
    pub signatures: Option<Arc<Signatures>>,
    /// The text of `GET /metrics`.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// The routes.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/r/{key}", get(read).put(put))
        .route("/r/{key}/append", post(append))
        .route("/metrics", get(metrics))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(app)
}

type PathPart = Result<Path<String>, PathRejection>;
type Body = Result<Bytes, BytesRejection>;

async fn put(State(app): State<App>, key: PathPart, headers: HeaderMap, body: Body) -> Result<Response, Failure> {
    write(&app, Op::Put, key, &headers, body).await
}

async fn append(State(app): State<App>, key: PathPart, headers: HeaderMap, body: Body) -> Result<Response, Failure> {
    write(&app, Op::Append, key, &headers, body).await
}

async fn write(app: &App, op: Op, key: PathPart, headers: &HeaderMap, body: Body) -> Result<Response, Failure> {
    let key = key_of(key)?;
    let token = match &app.signatures {
        None => token_of(headers)?,
        Some(signatures) => signed_token_of(signatures, &key, headers).inspect_err(|_| {
            app.untrusted.inc();
        })?,
    };
    let body = body_of(body)?;
    let client = match client_of(headers)? {
        Some(name) => Client::from(name),
        None => Client::from(format!("holder of token {token}").as_str()),
    };
    let entry = Entry { key, token, op, body };
    match app.store.write(Request { entry, client }).await? {
        Outcome::Accepted { max_fence } => Ok(Json(Written { max_fence }).into_response()),
        Outcome::Stale { seen } => Err(Failure {
            seen: Some(seen),
            got: Some(token),
            ..Failure::new(StatusCode::CONFLICT, None, "stale fencing token")
        }),
        Outcome::TooLong => {
            let error = format!("the value would be longer than {MAX_VALUE} bytes; put a shorter one first");
            Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, Some("body"), error))
        }
    }
}

async fn read(State(app): State<App>, key: PathPart) -> Result<Response, Failure> {
    let key = key_of(key)?;
    match app.store.read(key.clone()).await? {
        Some(cell) => Ok(Json(Value { key, value: cell.value, max_fence: cell.max_fence }).into_response()),
        None => Err(Failure::new(StatusCode::NOT_FOUND, Some("key"), format!("no write to {key} was accepted yet"))),
    }
}

async fn metrics(State(app): State<App>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], (app.metrics)())
}

async fn unknown_route(uri: Uri) -> Failure {
    let error = format!("no such route: {}; there are /r/KEY, /r/KEY/append and /metrics", uri.path());
    Failure::new(StatusCode::NOT_FOUND, None, error)
}

async fn wrong_method(uri: Uri) -> Failure {
    let error = format!("{} does not take this method; GET or PUT /r/KEY, POST /r/KEY/append", uri.path());
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, None, error)
}

fn key_of(key: PathPart) -> Result<String, Failure> {
    let invalid = |error: String| Failure::new(StatusCode::BAD_REQUEST, Some("key"), error);
    let Path(key) = key.map_err(|error| invalid(format!("the key is not text: {}", error.body_text())))?;
    if key.len() > MAX_KEY {
        return Err(invalid(format!("the key has {} bytes; {MAX_KEY} are allowed", key.len())));
    }
    Ok(key)
}

fn token_of(headers: &HeaderMap) -> Result<u64, Failure> {
    let invalid = |error: String| Err(Failure::new(StatusCode::BAD_REQUEST, Some(TOKEN), error));
    let mut values = headers.get_all(TOKEN).iter();
    let Some(value) = values.next() else {
        return invalid(format!("the header {TOKEN} is missing; send the fencing token of your lock in it"));
    };
    if values.next().is_some() {
        return invalid(format!("there are several headers {TOKEN}; send one"));
    }
    let Ok(text) = value.to_str() else {
        return invalid(format!("{TOKEN} is not text; send a whole number"));
    };
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return invalid(format!("{TOKEN} is `{text}`; send a whole number from 0 to {}", u64::MAX));
    }
    text.parse().or_else(|_| invalid(format!("{TOKEN} is {text}, which is above {}", u64::MAX)))
}

/// The token of a signed one. A number in [`TOKEN`] counts for nothing here, and may be absent; one
/// that differs is a mistake of the client, or a lie.
fn signed_token_of(signatures: &Signatures, key: &str, headers: &HeaderMap) -> Result<u64, Failure> {
    let mut values = headers.get_all(SIGNED_TOKEN).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        let error = format!("this resource requires one header {SIGNED_TOKEN}: send the signed token of your grant");
        return Err(Failure::new(StatusCode::FORBIDDEN, Some(SIGNED_TOKEN), error));
    };
    let refused = |error: String| Failure::new(StatusCode::FORBIDDEN, Some(SIGNED_TOKEN), error);
    let text = value.to_str().map_err(|_| refused("the signed token is not text".to_owned()))?;
    let token = signatures.token(key, text).map_err(refused)?;
    if headers.contains_key(TOKEN) && token_of(headers)? != token {
        return Err(refused(format!(
            "{TOKEN} differs from the signed token, which is {token}: send the signed one alone"
        )));
    }
    Ok(token)
}

fn client_of(headers: &HeaderMap) -> Result<Option<&str>, Failure> {
    let Some(value) = headers.get(CLIENT) else { return Ok(None) };
    let name = value.to_str();
    name.map(Some).map_err(|_| Failure::new(StatusCode::BAD_REQUEST, Some(CLIENT), format!("{CLIENT} is not text")))
}

fn body_of(body: Body) -> Result<String, Failure> {
    let bytes = body.map_err(|error| {
        let text = match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => format!("the body is longer than {MAX_BODY} bytes"),
            _ => format!("the body could not be read: {}", error.body_text()),
        };
        Failure::new(error.status(), Some("body"), text)
    })?;
    let text = String::from_utf8(bytes.into());
    text.map_err(|_| Failure::new(StatusCode::BAD_REQUEST, Some("body"), "the body is not text in UTF-8"))
}

impl Failure {
    fn new(status: StatusCode, field: Option<&'static str>, error: impl Into<String>) -> Failure {
        Failure { status, error: error.into(), field, seen: None, got: None }
    }
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Failure {
        let error = "the resource stops because it cannot write its log; whether the write was done is unknown";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, None, error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(&self)).into_response()
    }
}
