//! `/v1/locks`.

use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use palisade_client::wire::{Consistency, Failure, Op};
use serde::Deserialize;

use super::body::{self, PathParameter};
use super::{Caller, not_taken, perform, reply};
use crate::core::NotTaken;
use crate::limits;

/// `POST /v1/locks/{key}/acquire`
pub(super) async fn acquire(Caller(app): Caller, uri: Uri, path: PathParameter, body: Body) -> Response {
    let op = async { Ok(Op::Acquire { key: body::key(path)?, options: body::json(body).await?, number: None }) };
    perform(&app, &uri, op.await).await
}

/// `POST /v1/locks/{key}/release`
pub(super) async fn release(Caller(app): Caller, uri: Uri, path: PathParameter, body: Body) -> Response {
    let op = async { Ok(Op::Release { key: body::key(path)?, grant: body::json(body).await?, number: None }) };
    perform(&app, &uri, op.await).await
}

/// `POST /v1/locks/{key}/break`
pub(super) async fn break_grant(Caller(app): Caller, uri: Uri, path: PathParameter, body: Body) -> Response {
    let result = async {
        let (key, order) = (body::key(path)?, body::json(body).await?);
        // A task of its own: also a client that does not wait for the answer leaves a line in the log.
        let task = tokio::spawn(async move { app.break_grant(key, order).await });
        task.await.unwrap_or_else(|_| Err(not_taken(NotTaken::Ended)))
    };
    reply::response(result.await, &uri)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShowQuery {
    #[serde(default)]
    consistency: Consistency,
}

/// `GET /v1/locks/{key}`
pub(super) async fn show(Caller(app): Caller, uri: Uri, path: PathParameter) -> Response {
    let op = || {
        let ShowQuery { consistency } = body::query(&uri)?;
        Ok::<Op, Failure>(Op::ShowLock { key: body::key(path)?, consistency })
    };
    perform(&app, &uri, op()).await
}

/// Any of the paths above with an empty key.
pub(super) async fn no_key(Caller(app): Caller, uri: Uri) -> Response {
    perform(&app, &uri, Err(body::invalid(format!("the key has 0 bytes; it may have 1 to {}", limits::KEY_BYTES))))
        .await
}

/// `GET /v1/locks`
pub(super) async fn list(Caller(app): Caller, uri: Uri) -> Response {
    perform(&app, &uri, body::query(&uri).map(Op::ListLocks)).await
}
