//! The listening socket for clients, and the limits on each connection.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::write_timeout::WriteTimeout;
use super::{App, router};
use crate::descriptors::Places;
use crate::metrics::Metrics;
use crate::{limits, sockets};

/// How long open connections may take to finish when the node stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves clients until `stop` turns true, then lets open connections finish.
pub async fn listen(app: App, listener: TcpListener, permits: Places, mut stop: watch::Receiver<bool>) {
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
                warn!(%error, "cannot accept a client's connection; check the limit of open files (ulimit -n)");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(permit) = permits.take() else { continue };
        let permit = ConnectionPermit::new(permit, &app.metrics);
        connections.spawn(serve(app.clone(), stream, service.clone(), permit, stop.clone()));
    }
    let _ = timeout(SHUTDOWN_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

/// Counts a connection towards the limit of open connections. The connection's stream owns it, so
/// that it stays with a connection that is upgraded to WebSocket.
pub(super) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

impl ConnectionPermit {
    fn new(permit: OwnedSemaphorePermit, metrics: &Arc<Metrics>) -> ConnectionPermit {
        metrics.connections.inc();
        metrics.accepted.inc();
        ConnectionPermit { _permit: permit, metrics: Arc::clone(metrics) }
    }
}

impl Drop for ConnectionPermit {
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
    permit: ConnectionPermit,
    mut stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    if let Err(error) = sockets::notice_silence(&stream) {
        debug!(%error, "cannot enable keepalive on a client's connection");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIMEOUT)
        .max_buf_size(limits::HEAD_BYTES)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, permit)), service)
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
