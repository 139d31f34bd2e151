//! The other side: connections over which other nodes forward requests to this one, which leads as far as they know, or
//! ask it for its status.

use std::sync::Arc;

use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Uri};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::service::TowerToHyperService;
use palisade_client::wire::{Code, Failure};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_io_timeout::TimeoutWriter;

use super::super::listen::{ConnectionPermit, Heads, finish, run, stopped};
use super::super::{not_taken, reply};
use super::{App, FAREWELL, Origin};
use crate::core::NotTaken;
use crate::descriptors::{ConnectionLimit, UsedBy};
use crate::limits;
use crate::peers::{Forwarded, Removal};

/// Headers of a request: one more than a client may send.
const HEADERS: usize = 101;
/// Bytes of the header that a follower adds.
const ORIGIN_BYTES: usize = 4 * 1024;

/// Serves connections of other nodes until `stop` turns true, then lets them finish. They have
/// descriptors of their own, and count among the connections of no client: each of its connections does, where it
/// has arrived. Of those that carry requests, one client has a part.
pub async fn accept(
    app: App,
    mut forwarded: mpsc::Receiver<Forwarded>,
    permits: ConnectionLimit,
    mut stop: watch::Receiver<bool>,
) {
    let router = TowerToHyperService::new(super::super::forwarded_router(app.clone()));
    let mut connections = JoinSet::new();
    loop {
        let connection = tokio::select! {
            Some(connection) = forwarded.recv() => connection,
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
        };
        let permit = permits.take().map(Arc::new).map(|permit| (permits.clone(), permit));
        connections.spawn(serve(app.clone(), connection, router.clone(), permit, stop.clone()));
    }
    finish(&app, connections).await;
}

/// Serves a connection of a node until it ends, or the node is removed: then no request that comes is taken, nor one
/// that has come and was not begun, and the answers that are under way are carried for a moment. The answer to the
/// node's own removal may be one of them.
async fn serve(
    app: App,
    Forwarded { stream, is_certified, address, removal }: Forwarded,
    router: TowerToHyperService<axum::Router>,
    permit: Option<(ConnectionLimit, Arc<OwnedSemaphorePermit>)>,
    stop: watch::Receiver<bool>,
) {
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(limits::WRITE_TIMEOUT));
    // One that this node has no room for does not stay.
    let within = permit.is_none().then_some(limits::HEAD_TIMEOUT);
    let (of_node, counts) = (removal.clone(), app.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        let origin = Origin::take(request.headers_mut());
        let has_origin = origin.is_some();
        let taken = match (origin, &permit) {
            _ if of_node.is_done() => Err(removed(&of_node)),
            (Some(origin), Some((limit, permit))) => {
                let origin = origin.through(address, is_certified);
                used(&counts, limit, &origin)
                    .map(|used| (origin, Arc::new(ConnectionPermit::of_node(Arc::clone(permit), used))))
            }
            _ => Err(not_taken(NotTaken::Full)),
        };
        // For the requests of other clients.
        let stays = has_origin && permit.is_some() && !of_node.is_done();
        let answer = taken.map(|(origin, permit)| {
            request.extensions_mut().insert(Arc::clone(&permit));
            request.extensions_mut().insert(origin);
            request.extensions_mut().insert(of_node.clone());
            (router.call(request), permit)
        });
        async move {
            match answer {
                Ok((answer, permit)) => {
                    let answer = answer.await;
                    drop(permit);
                    answer
                }
                // Nothing was done, and the follower is told so.
                Err(failure) => {
                    let mut refusal = reply::response(Err(failure), &Uri::default());
                    if !stays {
                        refusal.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok(refusal)
                }
            }
        }
    });
    // The follower has added a header.
    let heads = Heads { within, bytes: limits::HEAD_BYTES + ORIGIN_BYTES, headers: Some(HEADERS) };
    tokio::select! {
        _ = run(&app, stream, service, heads, stop) => {}
        () = async { removal.done().await; sleep(FAREWELL).await } => {}
    }
}

/// Counts a request towards the part of its client.
fn used(app: &App, limit: &ConnectionLimit, origin: &Origin) -> Result<Option<UsedBy>, Failure> {
    let Some(client) = origin.account() else { return Ok(None) };
    limit.used_by(client.clone()).map(Some).ok_or_else(|| app.has_its_part(&client))
}

/// The refusal of a request that a removed node forwards.
fn removed(removal: &Removal) -> Failure {
    let node = removal.node;
    let message = format!("node {node} was removed from the cluster and forwards no requests; ask another node");
    Failure::new(Code::NoLeader, message)
}
