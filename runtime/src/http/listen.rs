//! The listening socket for clients, and the limits on each connection.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutWriter;
use tracing::{debug, warn};

use super::App;
use crate::descriptors::ConnectionLimit;
use crate::metrics::Metrics;
use crate::{limits, sockets};

/// How long open connections may take to finish when the node stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves clients until `stop` turns true, then lets open connections finish.
pub async fn listen(app: App, listener: TcpListener, permits: ConnectionLimit, mut stop: watch::Receiver<bool>) {
    let router = TowerToHyperService::new(super::router(app.clone()));
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
        let permit = Arc::new(ConnectionPermit::new(permit, &app.metrics));
        connections.spawn(serve(app.clone(), stream, router.clone(), permit, stop.clone()));
    }
    let _ = timeout(SHUTDOWN_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

/// Counts a connection towards the limit of open connections. The connection's task and each of its
/// requests share it, so that the task of a WebSocket can keep it.
pub(super) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

/// The address from which a client has connected.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientAddress(pub(super) SocketAddr);

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
    router: TowerToHyperService<axum::Router>,
    permit: Arc<ConnectionPermit>,
    mut stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let address = stream.peer_addr().ok().map(ClientAddress);
    if let Err(error) = sockets::notice_silence(&stream) {
        debug!(%error, "cannot enable keepalive on a client's connection");
    }
    // Answers that a client does not read stay in memory: a write that makes no progress ends the
    // connection.
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(limits::WRITE_TIMEOUT));
    // Shared, not moved: the stream is closed before the permit is free again.
    let shared = Arc::clone(&permit);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&shared));
        if let Some(address) = address {
            request.extensions_mut().insert(address);
        }
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIMEOUT)
        .max_buf_size(limits::HEAD_BYTES)
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
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
        let cause = error.source().map(|cause| match cause.downcast_ref::<io::Error>() {
            Some(cause) if is_write_timeout(cause) => "the client does not read its answers".to_owned(),
            _ => cause.to_string(),
        });
        debug!(%error, cause, "a client's connection ended");
    }
}

/// Whether it is the error of [`TimeoutWriter`]. The system's own timeout has an error number.
fn is_write_timeout(error: &io::Error) -> bool {
    error.kind() == ErrorKind::TimedOut && error.raw_os_error().is_none()
}
