//! Connections to other nodes that carry requests, nearly all of them a follower's to the leader: each carries one
//! request at a time, and is kept for the next one.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::response::Response;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::CONTENT_LENGTH;
use hyper_util::rt::TokioIo;
use palisade_spec::raft::NodeId;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{App, Failed, Origin, answer, head};
use crate::descriptors::{ConnectionLimit, UsedBy};
use crate::sync::Mutex;

/// How many connections are kept, at most.
const KEPT: usize = 16;
/// How long a connection is kept without a request.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// Bytes of an answer, at most: a page of 1,000 locks with full queues stays below it.
const LARGEST_ANSWER: usize = 64 << 20;

/// The connections to other nodes that carry no request at the moment.
#[derive(Debug)]
pub(in crate::http) struct Lines {
    /// Each takes a descriptor of those for forwarding, so that idle connections of clients leave the others theirs.
    permits: ConnectionLimit,
    idle: Mutex<Vec<(Line, Instant)>>,
}

/// A connection to another node.
#[derive(Debug)]
pub(super) struct Line {
    node: NodeId,
    pub(super) sender: SendRequest<Body>,
    connection: JoinHandle<()>,
    _permit: OwnedSemaphorePermit,
    /// Counts it towards the part of the client whose request it carries.
    used: Option<UsedBy>,
}

impl Lines {
    pub(in crate::http) fn new(permits: ConnectionLimit) -> Lines {
        Lines { permits, idle: Mutex::default() }
    }

    /// A connection to this node that waits for a request.
    fn take(&self, node: NodeId) -> Option<Line> {
        let mut idle = self.idle.lock();
        let now = Instant::now();
        idle.retain(|(line, since)| !line.sender.is_closed() && now < *since + KEPT_FOR);
        let latest = idle.iter().rposition(|(line, _)| line.node == node)?;
        Some(idle.remove(latest).0)
    }

    fn put(&self, mut line: Line) {
        line.used = None;
        if !line.sender.is_ready() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() >= KEPT {
            // The one that has waited longest: it may lead to a node that is asked no more.
            idle.remove(0);
        }
        idle.push((line, Instant::now()));
    }

    /// A descriptor for one more connection; if all are taken, that of the one that has waited longest.
    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.take().or_else(|| {
            let mut idle = self.idle.lock();
            let longest = (!idle.is_empty()).then(|| idle.remove(0));
            drop((idle, longest));
            self.permits.take()
        })
    }

    /// Counts a connection towards the part of the request's client.
    fn used_by(&self, app: &App) -> Result<Option<UsedBy>, Failed> {
        let Some(client) = app.account_name() else { return Ok(None) };
        self.permits.used_by(client.clone()).map(Some).ok_or_else(|| Failed::Limited(app.has_its_part(&client)))
    }

    /// A connection to this node, for a request.
    pub(super) async fn line(&self, app: &App, node: NodeId) -> Result<Line, Failed> {
        let used = self.used_by(app)?;
        while let Some(mut line) = self.take(node) {
            if line.sender.ready().await.is_ok() {
                line.used = used;
                return Ok(line);
            }
        }
        let permit = self.permit();
        let permit =
            permit.ok_or_else(|| Failed::NotSent("this node has too many connections to other nodes open".into()))?;
        let not_sent = |error: &dyn std::fmt::Display| Failed::NotSent(error.to_string());
        let stream = app.peers.dial_for_requests(node).await.map_err(|error| not_sent(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| not_sent(&error))?;
        let connection = tokio::spawn(async move { drop(connection.with_upgrades().await) });
        Ok(Line { node, sender, connection, _permit: permit, used })
    }
}

/// A request that is dropped ends at the other node, too: a leader withdraws its wait.
impl Drop for Line {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Line {
    /// The answer to a request, whose body is yet to be read.
    pub(super) async fn send(&mut self, request: Request) -> Result<hyper::Response<hyper::body::Incoming>, Failed> {
        self.sender.try_send_request(request).await.map_err(|mut error| {
            let why = error.error().to_string();
            if error.take_message().is_some() { Failed::NotSent(why) } else { Failed::Unknown(why) }
        })
    }
}

/// Sends a request to the leader, and returns its whole answer.
pub(super) async fn send(app: &App, leader: NodeId, parts: &Parts, body: Bytes) -> Result<Response, Failed> {
    let client = Origin::of(app, parts);
    tokio::select! {
        answered = exchange(app, leader, parts, body, &client) => answered,
        () = app.no_longer_follows(leader) => Err(Failed::Unknown("another leader is being elected".into())),
    }
}

/// Sends a request to a node, and returns its whole answer.
pub(super) async fn exchange(
    app: &App,
    node: NodeId,
    parts: &Parts,
    body: Bytes,
    client: &Origin,
) -> Result<Response, Failed> {
    let mut line = app.lines.line(app, node).await?;
    let mut request = head(parts, client);
    request.headers_mut().insert(CONTENT_LENGTH, body.len().into());
    let response = line.send(request.map(|()| Body::from(body))).await?;
    let response = whole(response).await?;
    app.lines.put(line);
    Ok(response)
}

/// The whole answer.
pub(super) async fn whole(response: hyper::Response<hyper::body::Incoming>) -> Result<Response, Failed> {
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(Body::new(body), LARGEST_ANSWER).await;
    let body = body.map_err(|error| Failed::Unknown(error.to_string()))?;
    Ok(answer(Response::from_parts(parts, Body::from(body))))
}
