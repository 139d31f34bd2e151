//! What comes in: paths, queries and JSON bodies, each refused with a sentence that says what is wrong.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::Uri;
use palisade_client::wire::{Code, Failure, SessionId};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::limits;

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A path's only parameter.
pub(super) type PathParameter = Result<Path<String>, PathRejection>;

/// Reads a JSON body. None at all counts as `{}`; its content type does not matter.
pub(super) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, Failure> {
    let read = timeout(BODY_TIMEOUT, to_bytes(body, limits::REQUEST_BYTES)).await;
    let bytes = read
        .map_err(|_| invalid(format!("the body did not arrive within {BODY_TIMEOUT:?}")))?
        .map_err(|_| invalid(format!("the body is broken off, or has more than {} bytes", limits::REQUEST_BYTES)))?;
    let bytes = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| invalid(format!("the body is not as expected: {error}")))
}

/// Reads the query.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Failure> {
    let query = axum::extract::Query::<T>::try_from_uri(uri);
    query.map(|query| query.0).map_err(|error| invalid(format!("the query is not as expected: {}", error.body_text())))
}

/// The key in the path.
pub(super) fn key(path: PathParameter) -> Result<String, Failure> {
    let Path(key) = path.map_err(|error| invalid(format!("the key is not percent-encoded UTF-8: {error}")))?;
    Ok(key)
}

/// The session in the path.
pub(super) fn session(path: PathParameter) -> Result<SessionId, Failure> {
    let Path(id) = path.map_err(|error| invalid(format!("the session is not percent-encoded UTF-8: {error}")))?;
    id.parse().map_err(|error| invalid(format!("the session is not a UUID: {error}")))
}

fn invalid(message: String) -> Failure {
    Failure::new(Code::Invalid, message)
}
