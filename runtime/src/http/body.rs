//! Parsing of requests: path parameters, queries and JSON bodies. Each refusal says what is wrong.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::Uri;
use futures_util::StreamExt;
use palisade_client::wire::{Code, Failure, SessionId};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::limits;

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A path's only parameter.
pub(super) type PathParameter = Result<Path<String>, PathRejection>;

/// Reads a JSON body. An empty body counts as `{}`; the content type is ignored.
pub(super) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, Failure> {
    let read = timeout(BODY_TIMEOUT, bytes(body)).await;
    let bytes = read.unwrap_or_else(|_| Err(invalid(format!("the body did not arrive within {BODY_TIMEOUT:?}"))))?;
    let bytes = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| invalid(format!("the body is not as expected: {error}")))
}

/// Reads a body up to the limit. A body whose announced length exceeds the limit is refused unread.
async fn bytes(body: Body) -> Result<Vec<u8>, Failure> {
    let limit = limits::REQUEST_BYTES;
    let too_large = || Failure::new(Code::TooLarge, format!("the body has more than {limit} bytes"));
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| invalid(format!("the body ended early: {error}")))?;
        if bytes.len() + chunk.len() > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Reads the query.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Failure> {
    if !is_utf8(uri.query().unwrap_or_default()) {
        return Err(invalid("the query is not percent-encoded UTF-8".into()));
    }
    let query = axum::extract::Query::<T>::try_from_uri(uri);
    query.map(|query| query.0).map_err(|error| invalid(format!("the query is not as expected: {}", error.body_text())))
}

/// Whether the query is UTF-8 after percent-decoding. The query's parser would silently replace
/// invalid bytes.
fn is_utf8(query: &str) -> bool {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(query.len());
    let mut rest = query.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let escaped = match tail {
            [high, low, ..] if *first == b'%' => digit(*high).zip(digit(*low)),
            _ => None,
        };
        decoded.push(escaped.map_or(*first, |(high, low)| high << 4 | low));
        rest = escaped.map_or(rest, |_| &rest[2..]);
    }
    std::str::from_utf8(&decoded).is_ok()
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

pub(super) fn invalid(message: String) -> Failure {
    Failure::new(Code::Invalid, message)
}
