//! Responses: status codes, bodies and redirects.

use axum::Json;
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use palisade_client::wire::{Answer, Code, Failure, LeaderView, RecordView, Stale};
use serde::Serialize;
use tracing::error;

use crate::limits;

/// An answer or a failure as an HTTP response. `uri` is the request's, for a redirect to the
/// leader.
pub(super) fn response(result: Result<Answer, Failure>, uri: &Uri) -> Response {
    match result {
        Ok(Answer::Session(lease)) => Json(lease).into_response(),
        Ok(Answer::SessionClosed) => Json(Closed { closed: true }).into_response(),
        Ok(Answer::SessionView(session)) => Json(session).into_response(),
        Ok(Answer::Acquired(acquired)) => Json(acquired).into_response(),
        Ok(Answer::Released) => Json(Released { holds: None, released: true }).into_response(),
        Ok(Answer::StillHeld { holds }) => Json(Released { holds: Some(holds), released: false }).into_response(),
        Ok(Answer::Proclaimed) => Json(Proclaimed { proclaimed: true }).into_response(),
        Ok(Answer::Lock(lock)) => Json(lock).into_response(),
        Ok(Answer::Locks(page)) => Json(page).into_response(),
        Ok(Answer::StaleLock(Stale { view, age_ms })) => Json(Aged { view, age_ms }).into_response(),
        Ok(Answer::StaleLocks(Stale { view, age_ms })) => Json(Aged { view, age_ms }).into_response(),
        Ok(Answer::Record(record)) => content(record, None),
        Ok(Answer::StaleRecord(Stale { view, age_ms })) => content(view, age_ms),
        Ok(Answer::Records(page)) => Json(page).into_response(),
        Ok(Answer::StaleRecords(Stale { view, age_ms })) => Json(Aged { view, age_ms }).into_response(),
        Ok(Answer::Written { version }) => Json(Written { version }).into_response(),
        Ok(Answer::Members(members)) => Json(members).into_response(),
        Ok(Answer::Broken(broken)) => Json(broken).into_response(),
        Ok(Answer::Access(rules)) => Json(rules).into_response(),
        Ok(Answer::AccessVerdict(verdict)) => Json(verdict).into_response(),
        Ok(Answer::Transferred(leader)) => Json(Transferred { leader }).into_response(),
        Ok(
            answer @ (Answer::Withdrawn | Answer::Status(_) | Answer::Lost(_) | Answer::Watched(_) | Answer::Unwatched),
        ) => {
            let path = uri.path();
            error!(
                path,
                ?answer,
                "a request over HTTP has an answer that only a WebSocket can have; report this as a defect"
            );
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
        Err(failure) => refusal(failure, uri),
    }
}

/// The content of a record as the body, and the rest in headers.
fn content(record: RecordView, age_ms: Option<u64>) -> Response {
    let RecordView { version, fence, value, .. } = record;
    let mut response = value.0.into_response();
    let headers = response.headers_mut();
    headers.insert("x-version", version.into());
    for (name, number) in [("x-max-fence", fence), ("x-age-ms", age_ms)] {
        if let Some(number) = number {
            headers.insert(name, number.into());
        }
    }
    response
}

/// A stale view: the fields of a linearizable one, and its maximum age. Both have one schema, as generators of clients
/// read only the first of two that an answer may have.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(
    test,
    schemars(
        rename = "Read{T}",
        description = "What was read; with `consistency=stale` it has its age, too.",
        transform = age_is_optional
    )
)]
pub(super) struct Aged<T> {
    #[serde(flatten)]
    view: T,
    /// With `consistency=stale`: the age of the answer, in milliseconds; `null` if the node has not heard from a leader
    /// since its start.
    age_ms: Option<u64>,
}

#[cfg(test)]
fn age_is_optional(schema: &mut schemars::Schema) {
    let required = schema.get_mut("required").and_then(serde_json::Value::as_array_mut).expect("fields are required");
    required.retain(|name| name != "age_ms");
}

/// The session is closed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Closed {
    /// Always `true`.
    #[cfg_attr(test, schemars(extend("const" = true)))]
    closed: bool,
}

/// The locks are free, or a hold was given back.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Released {
    /// The holds that the session still has, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "u32"))]
    holds: Option<u32>,
    /// Whether the session holds the locks no longer.
    released: bool,
}

/// The grant has the value.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Proclaimed {
    /// Always `true`.
    #[cfg_attr(test, schemars(extend("const" = true)))]
    proclaimed: bool,
}

/// The changes are made.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Written {
    /// The version that all records changed by the transaction have.
    version: u64,
}

/// Another node leads.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Transferred {
    /// The new leader.
    leader: LeaderView,
}

fn refusal(failure: Failure, uri: &Uri) -> Response {
    let (status, is_too_soon) = (status(failure.error), failure.error == Code::TooSoon);
    let leader = failure.leader.as_ref().and_then(|leader| leader.client_addr.clone());
    let mut response = (status, Json(failure)).into_response();
    if let Some(address) = leader.filter(|_| status == StatusCode::TEMPORARY_REDIRECT) {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        if let Ok(location) = HeaderValue::try_from(format!("http://{address}{path}")) {
            response.headers_mut().insert(LOCATION, location);
        }
    }
    if is_too_soon {
        response.headers_mut().insert(RETRY_AFTER, limits::TRANSFER_PAUSE.as_secs().into());
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// The refusal of a request that may be sent again after so many seconds.
pub(super) fn too_soon(failure: Failure, seconds: u64, uri: &Uri) -> Response {
    let mut response = refusal(failure, uri);
    response.headers_mut().insert(RETRY_AFTER, seconds.into());
    response
}

pub(super) fn status(code: Code) -> StatusCode {
    match code {
        Code::Held | Code::NotHolder | Code::Gone | Code::Withdrawn | Code::TakenOver => StatusCode::CONFLICT,
        Code::StaleToken | Code::OtherVersion => StatusCode::CONFLICT,
        Code::NotCaughtUp | Code::NodeIdInUse | Code::LastVoter | Code::AccessChanged => StatusCode::CONFLICT,
        Code::Timeout => StatusCode::REQUEST_TIMEOUT,
        Code::NoSession | Code::NotFound | Code::NoMember | Code::NoRecord => StatusCode::NOT_FOUND,
        Code::Invalid => StatusCode::BAD_REQUEST,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Limit | Code::TooSoon | Code::TooSlow => StatusCode::TOO_MANY_REQUESTS,
        Code::NotLeader => StatusCode::TEMPORARY_REDIRECT,
        Code::NoSpace | Code::StoreFull => StatusCode::INSUFFICIENT_STORAGE,
        Code::WrongHost | Code::WrongListener => StatusCode::MISDIRECTED_REQUEST,
        Code::WrongOrigin | Code::Denied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Overloaded
        | Code::NoLeader
        | Code::LeadershipLost
        | Code::ShuttingDown
        | Code::ChangeNotReady
        | Code::NoMajority
        | Code::AuditUnavailable
        | Code::NotTransferred => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The response for an unknown path.
pub(super) async fn not_found(uri: Uri) -> Response {
    refusal(
        Failure::new(Code::NotFound, format!("the path {} does not exist; docs/api.md lists all paths", uri.path())),
        &uri,
    )
}

/// The response for a known path with a method that it does not support.
pub(super) async fn method_not_allowed(uri: Uri) -> Response {
    let message = format!("{} does not support this method; docs/api.md lists the methods of each path", uri.path());
    refusal(Failure::new(Code::MethodNotAllowed, message), &uri)
}

#[cfg(test)]
mod tests {
    use serde_json::to_string;

    use super::*;

    /// Goal: the bytes of the small answers are those of docs/api.md, and do not change with their types.
    #[test]
    fn small_answers_have_their_bytes() {
        let leader = LeaderView { id: 2, client_addr: None };
        let texts = [
            (to_string(&Closed { closed: true }), r#"{"closed":true}"#),
            (to_string(&Released { holds: None, released: true }), r#"{"released":true}"#),
            (to_string(&Released { holds: Some(2), released: false }), r#"{"holds":2,"released":false}"#),
            (to_string(&Proclaimed { proclaimed: true }), r#"{"proclaimed":true}"#),
            (to_string(&Written { version: 7 }), r#"{"version":7}"#),
            (to_string(&Transferred { leader }), r#"{"leader":{"id":2,"client_addr":null}}"#),
        ];
        for (text, expected) in texts {
            assert_eq!(text.unwrap(), expected);
        }
    }

    /// Goal: an answer that only a WebSocket can have fails its request, and not the node's task.
    #[test]
    fn answers_of_websockets_fail_over_http() {
        for answer in [Answer::Withdrawn, Answer::Unwatched] {
            let response = response(Ok(answer), &Uri::from_static("/v1/locks/k/release"));
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        }
    }
}
