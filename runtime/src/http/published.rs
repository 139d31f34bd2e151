//! The description of this interface, for programs: an OpenAPI document, and the schemas of the messages that it
//! cannot describe. Both are generated from the types that the handlers read and write (`description`, a test),
//! and are a part of the program, so a node describes the interface that it has.

use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::{Caller, reply};

const OPENAPI: &str = include_str!("../../../docs/openapi.json");
const MESSAGES: &str = include_str!("../../../docs/messages.json");

/// `GET /v1/openapi.json`
pub(super) async fn openapi(caller: Caller, uri: Uri) -> Response {
    document(&caller, &uri, "application/json", OPENAPI)
}

/// `GET /v1/messages.json`
pub(super) async fn messages(caller: Caller, uri: Uri) -> Response {
    document(&caller, &uri, "application/schema+json", MESSAGES)
}

fn document(Caller(app): &Caller, uri: &Uri, kind: &'static str, text: &'static str) -> Response {
    match app.within_rate(false) {
        Ok(()) => ([(CONTENT_TYPE, kind)], text).into_response(),
        Err((failure, seconds)) => reply::too_soon(failure, seconds, uri),
    }
}
