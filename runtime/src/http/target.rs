//! The parsers of a request's target that the handlers use, for the fuzzer, which gives them any
//! text.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Uri};
use axum::routing::any;
use futures_util::FutureExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use palisade_client::wire::Failure;
use serde::de::DeserializeOwned;

use super::body::{self, PathParameter, invalid};
use crate::sync::Mutex;

/// The query, as it is read for each request that has one.
///
/// # Errors
/// The refusal of the request.
pub fn query_of<T: DeserializeOwned>(target: &str) -> Result<T, Failure> {
    let uri: Uri = target.parse().map_err(|error| invalid(format!("it is no target of a request: {error}")))?;
    body::query(&uri)
}

/// The key in the path `/v1/locks/{key}`, as it is read in each path that has one; `None` for another path.
pub fn key_of(target: &str) -> Option<Result<String, Failure>> {
    let found = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&found);
    let handler = async move |path: PathParameter| *keep.lock() = Some(body::key(path));
    let router = TowerToHyperService::new(Router::new().route("/v1/locks/{key}", any(handler)));
    let request = Request::builder().uri(target).body(Body::empty()).ok()?;
    drop(router.call(request).now_or_never()?);
    found.lock().take()
}
