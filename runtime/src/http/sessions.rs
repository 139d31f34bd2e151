//! `/v1/sessions`.

use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use palisade_client::wire::Op;

use super::body::{self, PathParameter};
use super::{Caller, perform};

/// `POST /v1/sessions`
pub(super) async fn open(Caller(app): Caller, uri: Uri, body: Body) -> Response {
    perform(&app, &uri, body::json(body).await.map(Op::OpenSession)).await
}

/// `GET /v1/sessions/{id}`
pub(super) async fn show(Caller(app): Caller, uri: Uri, path: PathParameter) -> Response {
    perform(&app, &uri, body::session(path).map(|session| Op::ShowSession { session })).await
}

/// `POST /v1/sessions/{id}/keepalive`
pub(super) async fn keep_alive(Caller(app): Caller, uri: Uri, path: PathParameter) -> Response {
    perform(&app, &uri, body::session(path).map(|session| Op::KeepAlive { session })).await
}

/// `DELETE /v1/sessions/{id}`
pub(super) async fn close(Caller(app): Caller, uri: Uri, path: PathParameter) -> Response {
    perform(&app, &uri, body::session(path).map(|session| Op::CloseSession { session })).await
}
