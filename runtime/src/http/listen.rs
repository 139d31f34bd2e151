//! A listening socket for clients or operators, and the limits on each connection.

use std::convert::Infallible;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutWriter;
use tracing::{debug, info, warn};

use super::App;
use super::client_stream::ClientStream;
use super::intake::Unanswered;
use super::pace::Pace;
use super::shared_stream::SharedStream;
use crate::accounts::{AccountName, Connected};
use crate::addresses::{ClientAddress, RemoteAddress};
use crate::descriptors::{ConnectionLimit, PermitAt, UsedBy};
use crate::metrics::Metrics;
use crate::tls::{Access, HandshakeError, Stream};
use crate::{limits, sockets};

/// How long open connections may take to finish when the node stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves the clients of a listener until `stop` turns true, then lets open connections finish.
pub async fn listen(app: App, listener: TcpListener, permits: ConnectionLimit, mut stop: watch::Receiver<bool>) {
    let router = TowerToHyperService::new(super::router(app.clone()));
    let mut connections = JoinSet::new();
    // With TLS a client is a stranger until its handshake is complete.
    let strangers = app.peers.roster().tls.is_some().then(|| {
        permits.half(
            "clients in the handshake of TLS",
            "Raise the limit of open files (ulimit -n, LimitNOFILE), or keep strangers away by a firewall",
        )
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept a client's connection; check the limit of open files (ulimit -n)");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let stranger = match &strangers {
            Some(limit) => match limit.take_at(ClientAddress::from(address)) {
                Some(permit) => Some(permit),
                None => continue,
            },
            None => None,
        };
        let Some(permit) = permits.take() else { continue };
        let permits = (ConnectionPermit::new(permit, &app.metrics), stranger);
        connections.spawn(serve(app.clone(), (stream, address), router.clone(), permits, stop.clone()));
    }
    finish(&app, connections).await;
}

/// Lets connections finish, and closes those that have not after [`SHUTDOWN_TIMEOUT`].
pub(super) async fn finish(app: &App, mut connections: JoinSet<()>) {
    let finish = async { while connections.join_next().await.is_some() {} };
    let finished = timeout(SHUTDOWN_TIMEOUT, async { tokio::join!(finish, app.holds.stop()) }).await;
    if finished.is_err() && !connections.is_empty() {
        info!(connections = connections.len(), "closed connections that had not finished after {SHUTDOWN_TIMEOUT:?}");
    }
}

/// Counts a connection towards the limits of open connections: that of all clients, and that of its own
/// client as soon as it is known. The connection's task and each of its requests share it, so that the
/// task of a WebSocket can keep it.
pub(super) struct ConnectionPermit {
    _permit: Arc<OwnedSemaphorePermit>,
    of_client: Option<Connected>,
    /// Counts the connection of a node towards the part of the client for which it carries a request.
    _used: Option<UsedBy>,
    /// Whether its client watches.
    pub(super) watches: AtomicBool,
    /// Where it is counted, if it is a client's.
    metrics: Option<Arc<Metrics>>,
}

impl ConnectionPermit {
    /// That of a client's connection.
    pub(super) fn new(permit: OwnedSemaphorePermit, metrics: &Arc<Metrics>) -> ConnectionPermit {
        metrics.connections.inc();
        metrics.accepted.inc();
        let mut permit = ConnectionPermit::of_node(Arc::new(permit), None);
        permit.metrics = Some(Arc::clone(metrics));
        permit
    }

    /// That of a connection over which another node forwards requests, for one of them.
    pub(super) fn of_node(permit: Arc<OwnedSemaphorePermit>, used: Option<UsedBy>) -> ConnectionPermit {
        let watches = AtomicBool::new(false);
        ConnectionPermit { _permit: permit, of_client: None, _used: used, watches, metrics: None }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.connections.dec();
        }
    }
}

/// Resolves when the node stops.
pub(super) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|&stop| stop).await;
}

async fn serve(
    app: App,
    (stream, address): (TcpStream, SocketAddr),
    router: TowerToHyperService<axum::Router>,
    (mut permit, stranger): (ConnectionPermit, Option<PermitAt>),
    mut stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let client = ClientAddress::from(address);
    if let Err(error) = sockets::notice_silence(&stream) {
        debug!(%error, "cannot enable keepalive on a client's connection");
    }
    let secured = tokio::select! {
        secured = secure(&app, stream, address.ip()) => secured,
        () = stopped(&mut stop) => None,
    };
    let Some((stream, access)) = secured else { return };
    drop(stranger);
    let certified = access.as_ref().and_then(Access::certified);
    let unanswered = certified.is_none().then(|| Unanswered::new(&app.stranger_bytes, client));
    // With TLS not before the handshake: strangers must not use up the connections of a client at their
    // address.
    let name = certified.map_or(AccountName::Address(client), |name| AccountName::Principal(Arc::clone(name)));
    let Some(connected) = app.connect(name) else { return };
    let account = Arc::clone(connected.account());
    permit.of_client = Some(connected);
    let permit = Arc::new(permit);
    // Answers that a client does not read stay in memory: a write that makes no progress ends the
    // connection, and so do writes that make too little.
    let shared_stream = SharedStream::new(stream);
    let stream = ClientStream::new(shared_stream.clone(), unanswered.clone(), Pace::for_connection());
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(limits::WRITE_TIMEOUT));
    // Shared, not moved: the stream is closed before the permit is free again.
    let (shared, of_connection) = (Arc::clone(&permit), Arc::clone(&permit));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&shared));
        request.extensions_mut().insert(Arc::clone(&account));
        request.extensions_mut().insert(RemoteAddress::from(address));
        if let Some(access) = &access {
            request.extensions_mut().insert(access.clone());
        }
        let unanswered = unanswered.clone();
        if let Some(unanswered) = &unanswered {
            unanswered.handled();
        }
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            match (&unanswered, &answer) {
                (Some(unanswered), Ok(answer)) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    unanswered.stop()
                }
                (Some(unanswered), _) => unanswered.handled(),
                (None, _) => {}
            }
            answer
        }
    });
    let heads = Heads { within: Some(limits::HEAD_TIMEOUT), bytes: limits::HEAD_BYTES, headers: None };
    let ended = tokio::select! {
        ended = run(&app, stream, service, heads, stop) => ended,
        // Ends its request, too.
        () = shared_stream.ended() => {
            debug!("a client has left while its request was under way");
            Ok(())
        }
    };
    if let Err(error) = ended {
        let does_not_read = error.source().and_then(|cause| cause.downcast_ref()).is_some_and(is_write_timeout);
        if does_not_read && of_connection.watches.load(Ordering::Relaxed) {
            app.metrics.watchers_cut_off.inc();
        }
    }
}

/// The limits on the heads of a connection's requests.
pub(super) struct Heads {
    /// How long one may take.
    pub(super) within: Option<Duration>,
    /// Bytes of one.
    pub(super) bytes: usize,
    /// Headers of one, if not as many as the HTTP server takes by itself: 100.
    pub(super) headers: Option<usize>,
}

/// Speaks HTTP on a connection until it ends.
pub(super) async fn run<I, S>(
    app: &App,
    stream: I,
    service: S,
    heads: Heads,
    mut stop: watch::Receiver<bool>,
) -> Result<(), hyper::Error>
where
    I: AsyncRead + AsyncWrite + Send + 'static,
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(heads.within).max_buf_size(heads.bytes);
    if let Some(headers) = heads.headers {
        server.max_headers(headers);
    }
    let connection = server.serve_connection(TokioIo::new(Box::pin(stream)), service).with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = &ended {
        if error.is_parse() {
            app.metrics.frames_rejected.inc();
        }
        let cause = error.source().map(|cause| match cause.downcast_ref::<io::Error>() {
            Some(cause) if is_write_timeout(cause) => "the client does not read its answers".to_owned(),
            _ => cause.to_string(),
        });
        debug!(%error, cause, "a client's connection ended");
    }
    ended
}

/// Accepts TLS, if this node has it. A connection that is refused is logged and gone.
async fn secure(app: &App, stream: TcpStream, address: IpAddr) -> Option<(Stream, Option<Access>)> {
    let Some(tls) = &app.peers.roster().tls else { return Some((Stream::Plain(stream), None)) };
    let handshake = async {
        // A connection that says nothing takes no turn.
        stream.readable().await?;
        // In memory of its own, which a connection without a handshake does not have.
        let accepted = Box::pin(Access::accept(tls, stream, address));
        app.handshakes.run(ClientAddress::of(address), accepted).await
    };
    match timeout(limits::HEAD_TIMEOUT, handshake).await {
        Ok(Ok((stream, access))) => Some((stream, Some(access))),
        Ok(Err(HandshakeError::Refused(why))) => {
            app.refused_client(address, &why);
            None
        }
        Ok(Err(HandshakeError::Io(error))) => {
            debug!(%error, "a client's connection ended during the handshake of TLS");
            None
        }
        Err(_) => {
            debug!("a client did not complete the handshake of TLS within {:?}", limits::HEAD_TIMEOUT);
            None
        }
    }
}

/// Whether it is the error of [`TimeoutWriter`] or of [`Pace`]. The system's own timeout has an error number.
fn is_write_timeout(error: &io::Error) -> bool {
    error.kind() == ErrorKind::TimedOut && error.raw_os_error().is_none()
}
