//! The leader's side: connections over which other nodes forward requests.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutWriter;

use super::super::listen::{ConnectionPermit, finish, run, stopped};
use super::{App, Origin};
use crate::descriptors::ConnectionLimit;
use crate::limits;
use crate::peers::Forwarded;

/// Serves connections of other nodes until `stop` turns true, then lets them finish. They count among the
/// connections of all clients, and not among those of one client: each of its requests does, where it has
/// arrived.
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
        let Some(permit) = permits.take() else { continue };
        let permit = Arc::new(ConnectionPermit::new(permit, &app.metrics));
        connections.spawn(serve(app.clone(), connection, router.clone(), permit, stop.clone()));
    }
    finish(&app, connections).await;
}

async fn serve(
    app: App,
    Forwarded { stream, is_certified }: Forwarded,
    router: TowerToHyperService<axum::Router>,
    permit: Arc<ConnectionPermit>,
    stop: watch::Receiver<bool>,
) {
    // Where clients have identities, only a node that has proved its own may say what a client's is.
    let is_believed = is_certified || app.peers.roster().tls.is_none();
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(limits::WRITE_TIMEOUT));
    let of_connection = Arc::clone(&permit);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let origin = Origin::take(request.headers_mut());
        let answer = origin.map(|origin| {
            let origin = if is_believed { origin } else { origin.anonymous() };
            request.extensions_mut().insert(Arc::clone(&permit));
            request.extensions_mut().insert(origin);
            router.call(request)
        });
        async move {
            match answer {
                Some(answer) => answer.await,
                None => Ok((StatusCode::BAD_REQUEST, "the request does not say which client sent it").into_response()),
            }
        }
    });
    run(&app, stream, service, &of_connection, None, stop).await;
}
