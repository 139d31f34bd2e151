//! Parsing of requests: path parameters, queries and JSON bodies. Each refusal says what is wrong.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::Uri;
use futures_util::StreamExt;
use palisade_client::wire::{Code, Consistency, Failure, Keys, SessionId};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::limits;

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How a read is made.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ReadQuery {
    /// How current the answer must be.
    #[serde(default)]
    pub(super) consistency: Consistency,
}

/// A path's only parameter.
pub(super) type PathParameter = Result<Path<String>, PathRejection>;

/// Reads a JSON body. An empty body counts as `{}`; the content type is ignored.
pub(super) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, Failure> {
    json_up_to(body, limits::REQUEST_BYTES).await
}

/// The same for a body of at most so many bytes.
pub(super) async fn json_up_to<T: DeserializeOwned>(body: Body, limit: usize) -> Result<T, Failure> {
    let bytes = whole(body, limit).await?;
    let bytes = if bytes.is_empty() { b"{}".as_slice() } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| invalid(format!("the body is not as expected: {error}")))
}

/// Reads a JSON body that has a list of keys beside other fields.
pub(super) async fn with_keys<T: DeserializeOwned>(body: Body) -> Result<(Keys, T), Failure> {
    let unexpected = |error| invalid(format!("the body is not as expected: {error}"));
    let mut fields: Map<String, Value> = json(body).await?;
    let keys = fields.remove("keys").ok_or_else(|| invalid("the body has no `keys`: a list of keys".into()))?;
    let keys: Vec<String> = serde_json::from_value(keys).map_err(unexpected)?;
    Ok((keys.into(), serde_json::from_value(Value::Object(fields)).map_err(unexpected)?))
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn whole(body: Body, limit: usize) -> Result<Vec<u8>, Failure> {
    let read = timeout(BODY_TIMEOUT, bytes(body, limit)).await;
    read.unwrap_or_else(|_| Err(invalid(format!("the body did not arrive within {BODY_TIMEOUT:?}"))))
}

/// Reads a body up to the limit. A body whose announced length exceeds the limit is refused unread.
async fn bytes(body: Body, limit: usize) -> Result<Vec<u8>, Failure> {
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
    // The query's parser would silently replace bytes that are not UTF-8.
    if percent_decode_str(uri.query().unwrap_or_default()).decode_utf8().is_err() {
        return Err(invalid("the query is not percent-encoded UTF-8".into()));
    }
    let query = axum::extract::Query::<T>::try_from_uri(uri);
    query.map(|query| query.0).map_err(|error| invalid(format!("the query is not as expected: {}", error.body_text())))
}

/// The key in the path.
pub(super) fn key(path: PathParameter) -> Result<String, Failure> {
    let Path(key) = path.map_err(|error| invalid(format!("the key is not percent-encoded UTF-8: {error}")))?;
    Ok(key)
}

/// The refusal of an empty key.
pub(super) fn no_key() -> Failure {
    invalid(format!("the key has 0 bytes; it may have 1 to {}", limits::KEY_BYTES))
}

/// The session in the path.
pub(super) fn session(path: PathParameter) -> Result<SessionId, Failure> {
    let Path(id) = path.map_err(|error| invalid(format!("the session is not percent-encoded UTF-8: {error}")))?;
    id.parse().map_err(|error| invalid(format!("the session is not a UUID: {error}")))
}

pub(super) fn invalid(message: String) -> Failure {
    Failure::new(Code::Invalid, message)
}
