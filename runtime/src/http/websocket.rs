//! `GET /v1/ws`: many requests at once over one connection, in JSON or bincode.
//!
//! Requests reach the core in the order in which the client sent them. Once a request is refused
//! because this node is not the leader, no later request of the connection is executed: the
//! connection ends. A session's numbered operations rely on both. (Administrative requests have no
//! numbers. Their answers pass a task, so one that is refused ends the connection a moment later.)

use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::FromRequestParts;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Uri};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, Stream, StreamExt};
use palisade_client::codec;
use palisade_client::wire::{Answer, Code, Failure, Op, Outcome, Request, Response as WireResponse, UNASKED};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, interval_at, sleep, timeout};
use tokio_tungstenite::tungstenite;

use super::client_limits::gives_back;
use super::forward::Origin;
use super::listen::ConnectionPermit;
use super::socket_protocols::PROTOCOL;
use super::socket_watches::SocketWatches;
use super::sockets::Socket;
use super::{App, Caller, content_bytes, not_taken, reply};
use crate::addresses::ClientAddress;
use crate::core::{ConnectionId, Event, Responder, Room, StreamReply};
use crate::limits;
use crate::outbox::{Outbox, ROOM_KEPT};
use crate::peers::Removal;
use crate::tls::Access;

/// How often the server sends a ping.
pub(super) const PING_EVERY: Duration = Duration::from_secs(20);
/// How long a client may send nothing, not even a pong, before its connection is closed.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long sending the close frame may take.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn upgrade(
    Caller(app): Caller,
    Extension(permit): Extension<Arc<ConnectionPermit>>,
    credential: Credential,
    through: Option<Extension<Removal>>,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let (ended, removed) = (credential.ended(&app), removed(through));
    match upgrade {
        Ok(upgrade) => upgrade
            .protocols([PROTOCOL])
            .max_message_size(limits::TRANSACTION_JSON_BYTES)
            .max_frame_size(limits::TRANSACTION_JSON_BYTES)
            .read_buffer_size(limits::READ_BUFFER)
            .on_upgrade(move |socket| async move {
                serve(app, socket, ended, removed).await;
                drop(permit);
            }),
        Err(error) => not_a_websocket(&error, &uri),
    }
}

/// What proves the identity of a WebSocket's client.
pub(super) enum Credential {
    /// Nothing.
    None,
    /// What the client has proved to this node: its connection, and the header `Authorization`.
    Own(Access, Option<HeaderValue>),
    /// What it has proved to a follower.
    Forwarded(Origin),
}

impl FromRequestParts<App> for Credential {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Credential, Infallible> {
        if let Some(origin) = parts.extensions.get::<Origin>() {
            return Ok(Credential::Forwarded(origin.clone()));
        }
        let access = parts.extensions.get::<Access>().cloned();
        let authorization = parts.headers.get(AUTHORIZATION).cloned();
        Ok(access.map_or(Credential::None, |access| Credential::Own(access, authorization)))
    }
}

impl Credential {
    /// Resolves when it no longer counts for its client, with the reason.
    pub(super) fn ended(self, app: &App) -> impl Future<Output = String> + Send + use<> {
        let app = app.clone();
        async move {
            match self {
                Credential::None => pending().await,
                Credential::Own(access, authorization) => {
                    let authorization = authorization.as_ref().map(HeaderValue::as_bytes);
                    access.ended(authorization, app.principal.as_str()).await
                }
                Credential::Forwarded(origin) => origin.credential_ended(&app).await,
            }
        }
    }
}

/// Resolves when the node that forwards the connection is removed from the cluster; never if the client is connected
/// to this node.
pub(super) async fn removed(through: Option<Extension<Removal>>) {
    match through {
        Some(Extension(removal)) => removal.done().await,
        None => pending().await,
    }
}

/// The refusal of a request that opens no WebSocket.
pub(super) fn not_a_websocket(error: &WebSocketUpgradeRejection, uri: &Uri) -> Response {
    let message = format!("this path accepts WebSocket connections only: {}", error.body_text());
    reply::response(Err(Failure::new(Code::Invalid, message)), uri)
}

/// The state that a connection's receiver and sender share.
struct Connection {
    app: App,
    id: ConnectionId,
    /// Whether the core has had a request of it.
    is_known: AtomicBool,
    outbox: Arc<Outbox<StreamReply>>,
    /// Limits the number of requests whose answers are not written yet.
    requests: Arc<Semaphore>,
    /// Limits the number of reads whose answers are not written yet.
    reads: Arc<Semaphore>,
    /// The same for the node's status.
    statuses: Arc<Semaphore>,
    watches: Arc<SocketWatches>,
    /// What this node's [`Sockets`](super::sockets::Sockets) know of the connection.
    socket: Arc<Socket>,
}

async fn serve(app: App, socket: WebSocket, ended: impl Future<Output = String>, removed: impl Future<Output = ()>) {
    let id = app.new_connection();
    let outbox = Arc::new(Outbox::new(limits::UNREAD_ANSWERS));
    let requests = Arc::new(Semaphore::new(limits::OPEN_REQUESTS));
    let [reads, statuses] = [(); 2].map(|()| Arc::new(Semaphore::new(limits::OPEN_READS)));
    let principal = app.principal.clone();
    let socket_state = Arc::new(Socket { outbox: Arc::clone(&outbox), principal, text: AtomicBool::new(false) });
    let _entry = app.sockets.enter(id, Arc::clone(&socket_state));
    let watches = SocketWatches::new(Arc::clone(&outbox), Arc::clone(&reads));
    let is_known = AtomicBool::new(false);
    let connection = Connection { app, id, is_known, outbox, requests, reads, statuses, watches, socket: socket_state };
    let (mut sink, stream) = socket.split();
    let reason = tokio::select! {
        reason = receive(&connection, stream) => reason,
        reason = send(&connection, &mut sink) => reason,
        _ = ended => Reason(close_code::POLICY, "the bearer token of this connection was revoked, or has another name"),
        () = removed => Reason(close_code::AWAY, "the node that forwards this connection was removed from the cluster"),
    };
    connection.watches.end_all();
    connection.outbox.close();
    if connection.is_known.load(Ordering::Relaxed) {
        connection.app.core.deliver(Event::Disconnected(id));
    }
    let close = Message::Close(Some(CloseFrame { code: reason.0, reason: reason.1.into() }));
    let _ = timeout(CLOSE_TIMEOUT, sink.send(close)).await;
}

/// Why a connection ends: the close frame's code and reason.
struct Reason(u16, &'static str);

/// Whether a WebSocket ended without a closing handshake, as that of a client that was killed does: this is no violation
/// of the protocol.
pub(super) fn is_end(error: &axum::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<tungstenite::Error>() {
            let without_handshake = tungstenite::error::ProtocolError::ResetWithoutClosingHandshake;
            return match error {
                tungstenite::Error::Io(_) | tungstenite::Error::ConnectionClosed => true,
                tungstenite::Error::Protocol(violation) => *violation == without_handshake,
                _ => false,
            };
        }
        source = error.source();
    }
    false
}

/// Receives requests until the client disconnects, falls silent or violates the protocol.
async fn receive(connection: &Connection, mut stream: SplitStream<WebSocket>) -> Reason {
    let mut silence = pin!(sleep(SILENCE_TIMEOUT));
    loop {
        let message = match next(&mut stream, silence.as_mut(), SILENCE_TIMEOUT).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(error))) if is_end(&error) => {
                return Reason(close_code::NORMAL, "the client ended the connection");
            }
            Ok(Some(Err(_))) => {
                connection.app.metrics.frames_rejected.inc();
                return Reason(close_code::PROTOCOL, "the frame is invalid or too long");
            }
            Ok(None) => return Reason(close_code::NORMAL, "the client ended the connection"),
            Err(Silent) => return Reason(close_code::POLICY, "the client sent nothing for 60 s, not even a pong"),
        };
        let (request, text) = match &message {
            Message::Text(text) => (serde_json::from_str(text).map_err(|error| error.to_string()), true),
            Message::Binary(bytes) => (codec::decode(bytes).map_err(|error| error.to_string()), false),
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Close(_) => return Reason(close_code::NORMAL, "the client ended the connection"),
        };
        let request: Request = match request {
            Ok(request) => request,
            Err(error) => {
                connection.app.metrics.frames_rejected.inc();
                // The request's ID could not be read; ID 0 stands for the last request.
                let failure = Failure::new(Code::Invalid, format!("the request cannot be parsed: {error}"));
                connection.responder(0, text, None).answer(Err(failure));
                // The sender ends the connection once this answer is written.
                connection.outbox.close();
                return pending().await;
            }
        };
        connection.socket.text.store(text, Ordering::Relaxed);
        let room = connection.room(&request.op).await;
        if let Err((failure, _)) = connection.app.within_rate(gives_back(&request.op)) {
            connection.responder(request.id, text, room).answer(Err(failure));
            continue;
        }
        connection.dispatch(request, text, room).await;
    }
}

/// The client sent nothing for so long as it may.
struct Silent;

/// The next message. The timer is moved only when it ends, not for every message: it costs a lock that
/// all connections share.
async fn next<S: Stream + Unpin>(
    stream: &mut S,
    mut silence: Pin<&mut Sleep>,
    allowed: Duration,
) -> Result<Option<S::Item>, Silent> {
    let began = Instant::now();
    loop {
        tokio::select! {
            biased;
            message = stream.next() => return Ok(message),
            () = silence.as_mut() => {
                let end = began + allowed;
                if Instant::now() >= end {
                    return Err(Silent);
                }
                silence.as_mut().reset(end);
            }
        }
    }
}

impl Connection {
    /// Waits until there is room for a request. Meanwhile later requests stay unread, in order, so
    /// that a client that sends too much is slowed down. The wait ends: earlier requests are
    /// answered in time or wait in a lock's queue, and a client that does not read its answers is
    /// disconnected.
    async fn room(&self, op: &Op) -> Option<Room> {
        let request = Arc::clone(&self.requests).acquire_owned().await.ok()?;
        let read = match op {
            Op::ShowLock { .. }
            | Op::ListLocks(_)
            | Op::ShowRecord { .. }
            | Op::ListRecords(_)
            | Op::ShowSession { .. }
            | Op::ShowAccess => Arc::clone(&self.reads).acquire_owned().await.ok(),
            // Clients ask by themselves, and nothing must wait for their other reads.
            Op::Status => Arc::clone(&self.statuses).acquire_owned().await.ok(),
            _ => None,
        };
        let unread = self.app.remote.filter(|_| read.is_some());
        let unread = unread.map(|remote| Box::new(self.app.unread_bytes.share(ClientAddress::from(remote))));
        Some(Room { request, read, unread, contents: None })
    }

    /// For a request that arrives now.
    fn responder(&self, id: u64, text: bool, room: Option<Room>) -> Responder {
        let now = Instant::now().into_std();
        Responder::stream(self.id, now, id, text, room, Arc::clone(&self.outbox)).at(self.app.remote)
    }

    /// Sends a request to the core when it is its client's turn, or answers it here.
    async fn dispatch(&self, request: Request, text: bool, room: Option<Room>) {
        let responder = self.responder(request.id, text, room);
        if request.id == UNASKED {
            let message = format!("the id {UNASKED} is for frames that the server sends by itself; use another one");
            responder.answer(Err(Failure::new(Code::Invalid, message)));
            return;
        }
        match request.op {
            Op::Status => {
                responder.answer(Ok(Answer::Status(self.app.status().into())));
                return;
            }
            Op::Watch(watch) => {
                self.watches.begin(&self.app, request.id, watch, text);
                return;
            }
            Op::Unwatch { watch } => {
                self.watches.end(watch);
                responder.answer(Ok(Answer::Unwatched));
                return;
            }
            _ => {}
        }
        if let Err(refused) = self.app.accepts_op(&request.op) {
            responder.answer(Err(refused));
            return;
        }
        // Later requests of the connection stay unread until the core has this one, and so in order. The request's
        // permit bounds the number of the tasks.
        if let Op::Break { key, order } = request.op {
            let breaking = self.app.begin_break(key, order).await;
            tokio::spawn(async move { responder.answer(breaking.answer_of_core().await) });
            return;
        }
        if self.app.is_audited(&request.op) {
            match self.app.submit_op(request.op).await {
                Ok(submitted) => {
                    tokio::spawn(async move { responder.answer(submitted.answer_of_core().await) });
                }
                Err(failure) => {
                    responder.answer(Err(failure));
                }
            }
            return;
        }
        let bytes = content_bytes(&request.op);
        match self.app.validate(request.op) {
            Ok(accepted) => {
                let responder = responder.of(self.app.account_name(), self.app.turn().await);
                let responder = responder.with_contents(self.app.room_for_contents(bytes).await);
                match self.app.core.send(Event::Request(accepted, responder)) {
                    Ok(()) => self.is_known.store(true, Ordering::Relaxed),
                    Err(why) => drop(self.responder(request.id, text, None).answer(Err(not_taken(why)))),
                }
            }
            Err(failure) => {
                responder.answer(Err(failure));
            }
        }
    }
}

/// Writes answers until the client stops reading or the outbox is closed. Each wake-up writes all
/// waiting answers and flushes once.
async fn send(connection: &Connection, sink: &mut SplitSink<WebSocket, Message>) -> Reason {
    let mut ping = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    let mut replies = Vec::new();
    loop {
        let more = tokio::select! {
            more = connection.outbox.take(&mut replies) => more,
            _ = ping.tick() => {
                match timeout(limits::WRITE_TIMEOUT, sink.send(Message::Ping(Vec::new().into()))).await {
                    Ok(Ok(())) => continue,
                    _ => return Reason(close_code::POLICY, "the client does not read: a ping could not be sent"),
                }
            }
        };
        if !more {
            return Reason(close_code::AGAIN, "the last answer has the reason");
        }
        // Answers are unread, and requests open, until they are written: `feed` only takes them into memory.
        let mut rooms = Vec::new();
        let write = async {
            for mut reply in replies.drain(..) {
                connection.app.complete(match &mut reply.response.result {
                    Outcome::Ok(answer) => Ok(answer),
                    Outcome::Error(failure) => Err(failure),
                });
                let message = encode(&reply.response, reply.text);
                let room = reply.room.take();
                // As JSON an answer may be several times as long.
                let unread = room.as_ref().and_then(|room| room.unread.as_ref());
                if unread.is_some_and(|unread| unread.hold(message_bytes(&message)).is_err()) {
                    return Ok(false);
                }
                rooms.extend(room);
                sink.feed(message).await?;
            }
            sink.flush().await.map(|()| true)
        };
        let written = timeout(limits::WRITE_TIMEOUT, write).await;
        drop(rooms);
        replies.shrink_to(ROOM_KEPT);
        match written {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Reason(close_code::AGAIN, "the memory for answers that are not read is used up"),
            Ok(Err(_)) => return Reason(close_code::NORMAL, "the client ended the connection"),
            Err(_) => return Reason(close_code::POLICY, "the client does not read its answers"),
        }
    }
}

fn message_bytes(message: &Message) -> usize {
    match message {
        Message::Text(text) => text.len(),
        Message::Binary(bytes) | Message::Ping(bytes) | Message::Pong(bytes) => bytes.len(),
        Message::Close(_) => 0,
    }
}

fn encode(response: &WireResponse, text: bool) -> Message {
    if text {
        let json = serde_json::to_string(response).expect("every response has a JSON form");
        Message::Text(json.into())
    } else {
        let mut bytes = Vec::new();
        codec::encode_into(response, &mut bytes);
        Message::Binary(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    /// Goal: a client that sends now and then is not silent, however long that goes on; one that sends
    /// nothing any more is.
    #[tokio::test]
    async fn silence_is_counted_from_the_last_message() {
        let allowed = Duration::from_millis(200);
        let mut silence = pin!(sleep(allowed));
        let mut messages = pin!(stream::unfold(0, |number| async move {
            sleep(allowed / 10).await;
            (number < 30).then_some((number, number + 1))
        }));
        for expected in (0..30).map(Some).chain([None]) {
            assert_eq!(next(&mut messages, silence.as_mut(), allowed).await.ok(), Some(expected));
        }
        assert!(next(&mut stream::pending::<()>(), silence.as_mut(), allowed).await.is_err());
    }

    /// Goal: a client refuses each request that would end its connection, and no other.
    #[test]
    fn clients_know_the_longest_message() {
        assert_eq!(palisade_client::wire::FRAME_BYTES, limits::TRANSACTION_JSON_BYTES);
    }
}
