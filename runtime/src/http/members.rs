//! `/v1/members` and `/v1/leader`: requests of operators.

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use palisade_client::wire::{MemberChange, MembersView, Op, ReplaceMember, StatusView};
use serde::Deserialize;

use super::body::{self, PathParameter};
use super::{Caller, perform, reply};

/// `GET /v1/members`: the members according to this node.
pub(super) async fn list(Caller(app): Caller, uri: Uri) -> Response {
    if let Err((failure, seconds)) = app.within_rate(false) {
        return reply::too_soon(failure, seconds, &uri);
    }
    let StatusView { members, leader, .. } = app.status();
    Json(MembersView { members, leader }).into_response()
}

/// `POST /v1/members`
pub(super) async fn add(Caller(app): Caller, uri: Uri, body: Body) -> Response {
    let op = body::json(body).await.map(|member| Op::ChangeMembers(MemberChange::Add(member)));
    perform(&app, &uri, op).await
}

/// `POST /v1/members/{id}/promote`
pub(super) async fn promote(Caller(app): Caller, uri: Uri, path: PathParameter) -> Response {
    let op = member(path).map(|id| Op::ChangeMembers(MemberChange::Promote { id }));
    perform(&app, &uri, op).await
}

/// `POST /v1/members/{id}/replace`
pub(super) async fn replace(Caller(app): Caller, uri: Uri, path: PathParameter, body: Body) -> Response {
    let replacement = body::json::<Replacement>(body).await;
    let op = member(path).and_then(|id| {
        let Replacement { generation, cluster, lost_incarnation, incarnation, peer_addr } = replacement?;
        let member = ReplaceMember { id, generation, cluster, lost_incarnation, incarnation, peer_addr };
        Ok(Op::ChangeMembers(MemberChange::Replace(member)))
    });
    perform(&app, &uri, op).await
}

/// The body of a request to replace the member that the path names.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Replacement {
    /// The generation of the directory that is lost.
    generation: u16,
    /// The cluster's number, 16 hexadecimal digits.
    cluster: String,
    /// The number of the data directory that is lost, 16 hexadecimal digits.
    lost_incarnation: String,
    /// The number of the new data directory, 16 hexadecimal digits.
    incarnation: String,
    /// `host:port` where the other nodes reach the member, if that is another address than before.
    #[serde(default)]
    peer_addr: Option<String>,
}

/// `DELETE /v1/members/{id}`
pub(super) async fn remove(Caller(app): Caller, uri: Uri, path: PathParameter) -> Response {
    let op = member(path).map(|id| Op::ChangeMembers(MemberChange::Remove { id }));
    perform(&app, &uri, op).await
}

/// `POST /v1/leader/transfer`
pub(super) async fn transfer(Caller(app): Caller, uri: Uri, body: Body) -> Response {
    perform(&app, &uri, body::json(body).await.map(Op::Transfer)).await
}

/// The node ID in the path.
fn member(path: PathParameter) -> Result<u16, palisade_client::wire::Failure> {
    let Path(id) = path.map_err(|error| body::invalid(format!("the member is not percent-encoded UTF-8: {error}")))?;
    id.parse().map_err(|_| body::invalid(format!("`{id}` is not a node ID (an integer from 0 to 65535)")))
}
