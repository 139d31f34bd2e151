//! `GET /v1/ws`: many requests at once over one connection, in JSON or bincode.
//!
//! Requests reach the core in the order in which they were sent, and once one is refused for want of a leader, none
//! after it is done: the connection ends. A session's numbered operations rely on both.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::Uri;
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use palisade_client::codec;
use palisade_client::wire::{Answer, Code, Failure, Op, Request, Response as WireResponse};
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval_at, timeout};

use super::{App, not_taken, reply};
use crate::core::{ConnectionId, Event, Responder, Room, StreamReply};
use crate::limits;
use crate::outbox::Outbox;

/// How often the server asks an idle connection whether anybody is there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long a connection may be silent, pongs included.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a farewell may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn upgrade(
    State(app): State<App>,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    match upgrade {
        Ok(upgrade) => upgrade
            .max_message_size(limits::REQUEST_BYTES)
            .max_frame_size(limits::REQUEST_BYTES)
            // Every connection has this much memory, also an idle one: the default is 128 KiB each.
            .read_buffer_size(limits::REQUEST_BYTES)
            .on_upgrade(move |socket| serve(app, socket)),
        Err(error) => {
            let message = format!("this path speaks WebSocket: {}", error.body_text());
            reply::response(Err(Failure::new(Code::Invalid, message)), &uri)
        }
    }
}

/// One connection's shared part.
struct Connection {
    app: App,
    id: ConnectionId,
    outbox: Arc<Outbox<StreamReply>>,
    /// Room for requests whose answers are not written yet.
    requests: Arc<Semaphore>,
    /// Room for reads of locks whose answers are not written yet.
    reads: Arc<Semaphore>,
}

async fn serve(app: App, socket: WebSocket) {
    let id = app.new_connection();
    let outbox = Arc::new(Outbox::new(limits::UNREAD_ANSWERS));
    let requests = Arc::new(Semaphore::new(limits::OPEN_REQUESTS));
    let reads = Arc::new(Semaphore::new(limits::OPEN_READS));
    let connection = Connection { app, id, outbox, requests, reads };
    let (mut sink, stream) = socket.split();
    let reason = tokio::select! {
        reason = receive(&connection, stream) => reason,
        reason = send(&connection, &mut sink) => reason,
    };
    connection.outbox.close();
    connection.app.core.deliver(Event::Disconnected(id));
    let close = Message::Close(Some(CloseFrame { code: reason.0, reason: reason.1.into() }));
    let _ = timeout(CLOSE_TIMEOUT, sink.send(close)).await;
}

/// Why a connection ends, for its client.
struct Reason(u16, &'static str);

/// Takes requests in until the client is gone or misbehaves.
async fn receive(connection: &Connection, mut stream: SplitStream<WebSocket>) -> Reason {
    loop {
        let message = match timeout(SILENCE, stream.next()).await {
            Ok(Some(Ok(message))) => message,
            Ok(Some(Err(_))) => {
                connection.app.metrics.frames_rejected.inc();
                return Reason(close_code::PROTOCOL, "the frame is broken or too long");
            }
            Ok(None) => return Reason(close_code::NORMAL, "goodbye"),
            Err(_) => return Reason(close_code::POLICY, "no sign of life"),
        };
        let (request, text) = match &message {
            Message::Text(text) => (serde_json::from_str(text).map_err(|error| error.to_string()), true),
            Message::Binary(bytes) => (codec::decode(bytes).map_err(|error| error.to_string()), false),
            Message::Ping(_) | Message::Pong(_) => continue,
            Message::Close(_) => return Reason(close_code::NORMAL, "goodbye"),
        };
        let request: Request = match request {
            Ok(request) => request,
            Err(error) => {
                connection.app.metrics.frames_rejected.inc();
                // Whoever sent this cannot be told which request it was; 0 stands for "the last one".
                let failure = Failure::new(Code::Invalid, format!("the request is not understood: {error}"));
                connection.responder(0, text, None).answer(Err(failure));
                // The sender ends the connection once this answer is written.
                connection.outbox.close();
                return pending().await;
            }
        };
        let room = connection.room(&request.op).await;
        connection.take(request, text, room);
    }
}

impl Connection {
    /// Waits until there is room for a request. That keeps what comes behind it in order, and in the client's hands. It
    /// ends: what has room is answered by and by or stands in a queue, or the client does not read and is cut off.
    async fn room(&self, op: &Op) -> Option<Room> {
        let request = Arc::clone(&self.requests).acquire_owned().await.ok()?;
        let read = match op {
            Op::ShowLock { .. } | Op::ListLocks(_) | Op::ShowSession { .. } => {
                Arc::clone(&self.reads).acquire_owned().await.ok()
            }
            _ => None,
        };
        Some(Room { request, read })
    }

    fn responder(&self, id: u64, text: bool, room: Option<Room>) -> Responder {
        Responder::stream(self.id, id, text, room, Arc::clone(&self.outbox))
    }

    /// Hands a request to the core, or answers it here.
    fn take(&self, request: Request, text: bool, room: Option<Room>) {
        let responder = self.responder(request.id, text, room);
        if request.op == Op::Status {
            responder.answer(Ok(Answer::Status(self.app.status())));
            return;
        }
        match self.app.understand(request.op) {
            Ok(accepted) => {
                if let Err(why) = self.app.core.send(Event::Request(accepted, responder)) {
                    self.responder(request.id, text, None).answer(Err(not_taken(why)));
                }
            }
            Err(failure) => {
                responder.answer(Err(failure));
            }
        }
    }
}

/// Writes answers until the client stops reading or the connection is refused. One wake-up, one flush.
async fn send(connection: &Connection, sink: &mut SplitSink<WebSocket, Message>) -> Reason {
    let mut ping = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
    let mut replies = Vec::new();
    loop {
        let more = tokio::select! {
            more = connection.outbox.take(&mut replies) => more,
            _ = ping.tick() => {
                match timeout(limits::WRITE_TIMEOUT, sink.send(Message::Ping(Vec::new().into()))).await {
                    Ok(Ok(())) => continue,
                    _ => return Reason(close_code::POLICY, "no sign of life"),
                }
            }
        };
        if !more {
            return Reason(close_code::AGAIN, "the last answer says why");
        }
        let write = async {
            for reply in replies.drain(..) {
                sink.feed(encode(&reply.response, reply.text)).await?;
            }
            sink.flush().await
        };
        match timeout(limits::WRITE_TIMEOUT, write).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Reason(close_code::NORMAL, "goodbye"),
            Err(_) => return Reason(close_code::POLICY, "the answers are not being read"),
        }
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
