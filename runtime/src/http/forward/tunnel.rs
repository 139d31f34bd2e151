//! A WebSocket through a follower: once the leader has accepted it, this node copies bytes in both directions.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONNECTION};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use palisade_spec::raft::NodeId;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, split};
use tokio::time::timeout;

use super::super::listen::ConnectionPermit;
use super::{App, Failed, Origin, head, lines};
use crate::sync::Mutex;
use crate::tls::Access;

/// How long one side may take to end after the other one.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// The client's side of a WebSocket that is to be forwarded; empty for any other request.
pub(super) struct Client {
    /// The connection once it speaks the other protocol.
    upgrade: Mutex<Option<OnUpgrade>>,
    permit: Option<Arc<ConnectionPermit>>,
    access: Option<Access>,
    authorization: Option<HeaderValue>,
}

impl Client {
    pub(super) fn of(parts: &mut Parts) -> Client {
        Client {
            upgrade: Mutex::new(parts.extensions.remove()),
            permit: parts.extensions.get().cloned(),
            access: parts.extensions.get().cloned(),
            authorization: parts.headers.get(AUTHORIZATION).cloned(),
        }
    }

    /// Lets this node answer the request itself.
    pub(super) fn return_to(&self, parts: &mut Parts) {
        if let Some(upgrade) = self.upgrade.lock().clone() {
            parts.extensions.insert(upgrade);
        }
    }

    /// Resolves when the client's identity is proved no longer.
    fn identity_ended(&self, app: &App) -> impl Future<Output = ()> + Send + 'static {
        let (access, authorization) = (self.access.clone(), self.authorization.clone());
        let principal = app.principal.clone();
        async move {
            match access {
                Some(access) if !principal.as_str().is_empty() => {
                    drop(access.ended(authorization.as_ref().map(HeaderValue::as_bytes), principal.as_str()).await);
                }
                _ => pending().await,
            }
        }
    }
}

/// Opens a WebSocket to the leader for a client, and connects the two if the leader accepts it.
pub(super) async fn open(app: &App, leader: NodeId, parts: &Parts, client: &Client) -> Result<Response, Failed> {
    let opening = async {
        let mut line = app.lines.line(app, leader).await?;
        let mut request = head(parts, &Origin::of(app, parts));
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        let mut response = line.send(request.map(|()| Body::empty())).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok((lines::whole(response).await?, None));
        }
        let to_leader = hyper::upgrade::on(&mut response);
        Ok((response.map(|_| Body::empty()), Some((line, to_leader))))
    };
    let opened = tokio::select! {
        opened = opening => opened?,
        () = app.no_longer_follows(leader) => return Err(Failed::NotSent("another leader is being elected".into())),
    };
    let (response, accepted) = opened;
    if let (Some((line, to_leader)), Some(of_client)) = (accepted, client.upgrade.lock().take()) {
        let permit = client.permit.clone();
        let (no_longer_follows, identity_ended) = (app.no_longer_follows(leader), client.identity_ended(app));
        tokio::spawn(async move {
            tokio::select! {
                () = copy(of_client, to_leader) => {}
                () = no_longer_follows => {}
                () = identity_ended => {}
            }
            drop((permit, line));
        });
    }
    Ok(response)
}

/// Copies until both sides have ended. When one has, the other one has a moment to end, too: a client that stands still
/// must not keep the connection.
async fn copy(of_client: OnUpgrade, to_leader: OnUpgrade) {
    let (Ok(client), Ok(leader)) = tokio::join!(of_client, to_leader) else { return };
    let (mut from_client, mut into_client) = split(TokioIo::new(client));
    let (mut from_leader, mut into_leader) = split(TokioIo::new(leader));
    let mut questions = pin!(carry(&mut from_client, &mut into_leader));
    let mut answers = pin!(carry(&mut from_leader, &mut into_client));
    tokio::select! {
        () = &mut questions => drop(timeout(LAST_BYTES, answers).await),
        () = &mut answers => drop(timeout(LAST_BYTES, questions).await),
    }
}

/// Copies one direction, and ends it.
async fn carry(from: &mut (impl AsyncRead + Unpin), into: &mut (impl AsyncWrite + Unpin)) {
    drop(tokio::io::copy(from, into).await);
    drop(into.shutdown().await);
}
