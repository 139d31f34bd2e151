//! The listening socket, and the bounds on what strangers may take of it.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::impatient::Impatient;
use super::{App, router};
use crate::metrics::Metrics;
use crate::{limits, sockets};

/// How long open connections may take to finish when the node stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves clients until `stop` turns true, then lets open connections finish.
pub async fn listen(app: App, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let service = TowerToHyperService::new(router(app.clone()));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a client's connection; are there enough file descriptors?");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            debug!("the limit of {} connections is reached; one was closed", limits::CONNECTIONS);
            continue;
        };
        let place = Place::take(permit, &app.metrics);
        connections.spawn(serve(app.clone(), stream, service.clone(), place, stop.clone()));
    }
    let _ = timeout(FAREWELL, async { while connections.join_next().await.is_some() {} }).await;
}

/// A connection's place among all that may be open. A WebSocket takes it over: its connection outlives the HTTP one.
#[derive(Clone)]
pub(super) struct Place {
    _seat: Arc<Seat>,
}

struct Seat {
    _permit: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

impl Place {
    fn take(permit: OwnedSemaphorePermit, metrics: &Arc<Metrics>) -> Place {
        metrics.connections.inc();
        metrics.accepted.inc();
        Place { _seat: Arc::new(Seat { _permit: permit, metrics: Arc::clone(metrics) }) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

/// Resolves when the node stops.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|&stop| stop).await;
}

async fn serve(
    app: App,
    stream: TcpStream,
    service: TowerToHyperService<axum::Router>,
    place: Place,
    mut stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    if let Err(error) = sockets::notice_silence(&stream) {
        debug!(%error, "a client's connection cannot be watched");
    }
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(place.clone());
        service.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIMEOUT)
        .max_buf_size(limits::HEAD_BYTES)
        .serve_connection(TokioIo::new(Impatient::new(stream)), service)
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        if error.is_parse() {
            app.metrics.frames_rejected.inc();
        }
        let cause = error.source().map(ToString::to_string);
        debug!(%error, cause, "a client's connection ended");
    }
}
