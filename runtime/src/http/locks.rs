//! `/v1/locks`.

use std::time::Instant;

use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use palisade_client::wire::{Answer, Break, Code, Failure, Op};
use tracing::warn;

use super::access::DENIAL_PAUSE;
use super::body::{self, PathParameter, ReadQuery};
use super::{App, Caller, Submitted, not_taken, perform, reply};
use crate::core::NotTaken;

/// An operator's break of a grant.
pub(super) struct Breaking {
    app: App,
    key: String,
    order: Break,
    submitted: Result<Submitted, Failure>,
}

impl App {
    /// Sends an operator's break to the core, which has it before every later event when this returns.
    pub(super) async fn begin_break(&self, key: String, order: Break) -> Breaking {
        let op = Op::Break { key: key.clone(), order: order.clone() };
        let submitted = match self.accepts_op(&op) {
            Ok(()) => self.submit_op(op).await,
            Err(refused) => Err(refused),
        };
        Breaking { app: self.clone(), key, order, submitted }
    }
}

impl Breaking {
    /// Waits for the answer, and tells the holder and every WebSocket of this node. Whatever comes of it is logged: this
    /// is the only request that takes something from another client. Repeated refusals share a line.
    pub(super) async fn answer_of_core(self) -> Result<Answer, Failure> {
        let Breaking { app, key, order: Break { token, reason }, submitted } = self;
        let result = match submitted {
            Ok(submitted) => submitted.answer_of_core().await,
            Err(failure) => Err(failure),
        };
        let address = app.remote.map_or_else(|| "an unknown address".to_owned(), |address| address.to_string());
        let principal = app.principal.as_str();
        match &result {
            Ok(Answer::Broken(broken)) => {
                warn!(
                    ?key,
                    token,
                    session = broken.session,
                    ?reason,
                    principal,
                    address,
                    "an operator broke the grant of a lock"
                );
                app.holds.notify(broken);
                app.sockets.notify(broken, &app.core.view().access());
            }
            Err(failure) => {
                let (outcome, repeats) = match failure.error {
                    // An earlier attempt may have broken it.
                    Code::NotHolder => ("an operator's break found no such grant", Some(0)),
                    Code::LeadershipLost | Code::ShuttingDown => {
                        ("it is unknown whether an operator broke the grant of a lock", Some(0))
                    }
                    // A client without the right can cause this as often as it likes.
                    code => {
                        let line = format!("{principal} break {code:?}");
                        let repeats = app.log_pause.due(&line, DENIAL_PAUSE, Instant::now());
                        ("an operator did not break the grant of a lock", repeats)
                    }
                };
                if let Some(repeats) = repeats {
                    let failure = failure.to_string();
                    warn!(?key, token, ?reason, principal, address, ?failure, repeats, "{outcome}");
                }
            }
            Ok(_) => {}
        }
        result
    }
}

/// `POST /v1/locks/{key}/acquire`
pub(super) async fn acquire(Caller(app): Caller, uri: Uri, path: PathParameter, body: Body) -> Response {
    let op =
        async { Ok(Op::Acquire { keys: body::key(path)?.into(), options: body::json(body).await?, number: None }) };
    perform(&app, &uri, op.await).await
}

/// `POST /v1/acquire`
pub(super) async fn acquire_several(Caller(app): Caller, uri: Uri, body: Body) -> Response {
    let op = async {
        let (keys, options) = body::with_keys(body).await?;
        Ok(Op::Acquire { keys, options, number: None })
    };
    perform(&app, &uri, op.await).await
}

/// `POST /v1/release`
pub(super) async fn release_several(Caller(app): Caller, uri: Uri, body: Body) -> Response {
    let op = async {
        let (keys, grant) = body::with_keys(body).await?;
        Ok(Op::Release { keys, grant, number: None })
    };
    perform(&app, &uri, op.await).await
}

/// `POST /v1/locks/{key}/release`
pub(super) async fn release(Caller(app): Caller, uri: Uri, path: PathParameter, body: Body) -> Response {
    let op = async { Ok(Op::Release { keys: body::key(path)?.into(), grant: body::json(body).await?, number: None }) };
    perform(&app, &uri, op.await).await
}

/// `POST /v1/locks/{key}/proclaim`
pub(super) async fn proclaim(Caller(app): Caller, uri: Uri, path: PathParameter, body: Body) -> Response {
    let op = async { Ok(Op::Proclaim { key: body::key(path)?, proclamation: body::json(body).await?, number: None }) };
    perform(&app, &uri, op.await).await
}

/// `POST /v1/locks/{key}/break`
pub(super) async fn break_grant(Caller(app): Caller, uri: Uri, path: PathParameter, body: Body) -> Response {
    if let Err((failure, seconds)) = app.within_rate(false) {
        return reply::too_soon(failure, seconds, &uri);
    }
    let result = async {
        let (key, order) = (body::key(path)?, body::json(body).await?);
        // A task of its own: also a client that does not wait for the answer leaves a line in the log.
        let task = tokio::spawn(async move {
            let mut result = app.begin_break(key, order).await.answer_of_core().await;
            app.complete(result.as_mut());
            result
        });
        task.await.unwrap_or_else(|_| Err(not_taken(NotTaken::Ended)))
    };
    reply::response(result.await, &uri)
}

/// `GET /v1/locks/{key}`
pub(super) async fn show(Caller(app): Caller, uri: Uri, path: PathParameter) -> Response {
    let op = || {
        let ReadQuery { consistency } = body::query(&uri)?;
        Ok::<Op, Failure>(Op::ShowLock { key: body::key(path)?, consistency })
    };
    perform(&app, &uri, op()).await
}

/// Any of the paths above with an empty key.
pub(super) async fn no_key(Caller(app): Caller, uri: Uri) -> Response {
    perform(&app, &uri, Err(body::no_key())).await
}

/// `GET /v1/locks`
pub(super) async fn list(Caller(app): Caller, uri: Uri) -> Response {
    perform(&app, &uri, body::query(&uri).map(Op::ListLocks)).await
}
