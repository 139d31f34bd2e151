//! `/v1/kv`.

use axum::body::Body;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use palisade_client::wire::{Condition, Content, Failure, Op, RecordChange, Transaction};
use palisade_spec::lock::RECORD_BYTES;
use serde::Deserialize;

use super::body::{self, PathParameter, ReadQuery, invalid};
use super::{Caller, perform};
use crate::limits;

/// The header with the fencing token of a request.
const FENCE_TOKEN: &str = "x-fence-token";

/// The conditions of a change of one record.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeQuery {
    /// The key of the lock that is held with the token of X-Fence-Token; without it, the record's key.
    lock: Option<String>,
    /// The record must have this version; 0: there must be no such record.
    if_version: Option<u64>,
}

/// `GET /v1/kv/{key}`
pub(super) async fn show(Caller(app): Caller, uri: Uri, path: PathParameter) -> Response {
    let op = || {
        let ReadQuery { consistency } = body::query(&uri)?;
        Ok::<Op, Failure>(Op::ShowRecord { key: body::key(path)?, consistency })
    };
    perform(&app, &uri, op()).await
}

/// `GET /v1/kv`
pub(super) async fn list(Caller(app): Caller, uri: Uri) -> Response {
    perform(&app, &uri, body::query(&uri).map(Op::ListRecords)).await
}

/// `PUT /v1/kv/{key}`
pub(super) async fn put(caller: Caller, uri: Uri, path: PathParameter, headers: HeaderMap, body: Body) -> Response {
    let change = |key, value| RecordChange::Put { key, value };
    change_one(caller, uri, path, &headers, body, RECORD_BYTES, change).await
}

/// `POST /v1/kv/{key}/append`
pub(super) async fn append(caller: Caller, uri: Uri, path: PathParameter, headers: HeaderMap, body: Body) -> Response {
    let change = |key, value| RecordChange::Append { key, value };
    change_one(caller, uri, path, &headers, body, RECORD_BYTES, change).await
}

/// `DELETE /v1/kv/{key}`
pub(super) async fn delete(caller: Caller, uri: Uri, path: PathParameter, headers: HeaderMap, body: Body) -> Response {
    change_one(caller, uri, path, &headers, body, 0, |key, _| RecordChange::Delete { key }).await
}

/// `POST /v1/kv`
pub(super) async fn transact(Caller(app): Caller, uri: Uri, body: Body) -> Response {
    let op = async {
        let transaction = body::json_up_to(body, limits::TRANSACTION_JSON_BYTES).await?;
        Ok(Op::Transact { transaction, number: None })
    };
    perform(&app, &uri, op.await).await
}

/// Any of the paths of one record with an empty key.
pub(super) async fn no_key(Caller(app): Caller, uri: Uri) -> Response {
    perform(&app, &uri, Err(body::no_key())).await
}

async fn change_one(
    Caller(app): Caller,
    uri: Uri,
    path: PathParameter,
    headers: &HeaderMap,
    body: Body,
    most: usize,
    change: impl FnOnce(String, Content) -> RecordChange,
) -> Response {
    let op = async {
        let (key, query) = (body::key(path)?, body::query::<ChangeQuery>(&uri)?);
        let conditions = conditions(&key, query, headers)?;
        let content = body::whole(body, most).await?;
        let changes = vec![change(key, Content(content))];
        Ok(Op::Transact { transaction: Transaction { session: None, conditions, changes }, number: None })
    };
    perform(&app, &uri, op.await).await
}

fn conditions(key: &str, query: ChangeQuery, headers: &HeaderMap) -> Result<Vec<Condition>, Failure> {
    let ChangeQuery { lock, if_version } = query;
    let token = headers.get(FENCE_TOKEN).map(|token| {
        let token = token.to_str().ok().and_then(|token| token.parse().ok());
        token.ok_or_else(|| invalid("X-Fence-Token is not a number: it is the token of a grant".into()))
    });
    let mut conditions = Vec::new();
    match (token.transpose()?, lock) {
        (Some(token), lock) => {
            conditions.push(Condition::Held { lock: lock.unwrap_or_else(|| key.to_owned()), token });
        }
        (None, None) => {}
        (None, Some(_)) => return Err(invalid("`lock` needs a token: send the header X-Fence-Token, too".into())),
    }
    conditions.extend(if_version.map(|version| Condition::Version { key: key.to_owned(), version }));
    Ok(conditions)
}
