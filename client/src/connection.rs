//! One WebSocket to one node, read and written in turns without either blocking the other.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Sink, Stream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::AUTHORIZATION;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue, StatusCode};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Bytes, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::tls::{DialError, Security, Stream as Line};

/// The greatest answer that is accepted: a page of 1,000 locks with full queues stays below it.
const LARGEST_ANSWER: usize = 64 << 20;
/// So many frames are taken in before they are handled and answered, so that a busy connection cannot starve the rest.
const FRAMES_AT_ONCE: usize = 256;

/// Asks a node that follows not to forward a request to the leader.
const X_FORWARD: HeaderName = HeaderName::from_static("x-forward");

/// Something to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// A binary frame.
    Frame(Vec<u8>),
    /// A text frame.
    Text(String),
    /// A probe; any sign of life answers it.
    Ping,
}

/// Something that was read.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A binary frame.
    Frame(Bytes),
    /// A text frame.
    Text(Utf8Bytes),
    /// Something else that shows that the node lives.
    Sign,
}

/// An open WebSocket.
pub(crate) struct Connection {
    stream: WebSocketStream<Line>,
}

impl Connection {
    /// Opens a WebSocket to `endpoint`, or says in a sentence why not. If it is `forwarded`, a node that follows connects
    /// it with the leader; otherwise that node itself answers.
    pub(crate) async fn dial(
        endpoint: &str,
        security: &Security,
        patience: Duration,
        forwarded: bool,
    ) -> Result<Connection, DialError> {
        match timeout(patience, open(endpoint, security, forwarded)).await {
            Ok(Ok(stream)) => Ok(Connection { stream }),
            Ok(Err(DialError { why, refused })) => {
                Err(DialError { why: format!("{endpoint} did not open a WebSocket: {why}"), refused })
            }
            Err(_) => Err(DialError::network(format!(
                "{endpoint} did not open a WebSocket within {} ms",
                patience.as_millis()
            ))),
        }
    }

    /// Writes what is to be written, in one go, and reads what has come. Ready when something was put into `inbox`, or
    /// with an error when the connection is at its end.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        outbox: &mut VecDeque<Outgoing>,
        inbox: &mut Vec<Incoming>,
    ) -> Poll<Result<(), String>> {
        if let Err(error) = self.write(context, outbox) {
            return Poll::Ready(Err(format!("the connection broke: {error}")));
        }
        while inbox.len() < FRAMES_AT_ONCE {
            match Pin::new(&mut self.stream).poll_next(context) {
                Poll::Ready(Some(Ok(Message::Binary(frame)))) => inbox.push(Incoming::Frame(frame)),
                Poll::Ready(Some(Ok(Message::Text(text)))) => inbox.push(Incoming::Text(text)),
                Poll::Ready(Some(Ok(Message::Close(_))) | None) if inbox.is_empty() => {
                    return Poll::Ready(Err("the node closed the connection".to_owned()));
                }
                // What came before the end is handled first; the end is met again at the next call.
                Poll::Ready(Some(Ok(Message::Close(_))) | None) => break,
                Poll::Ready(Some(Ok(_))) => inbox.push(Incoming::Sign),
                Poll::Ready(Some(Err(error))) if inbox.is_empty() => {
                    return Poll::Ready(Err(format!("the connection broke: {error}")));
                }
                Poll::Ready(Some(Err(_))) | Poll::Pending => break,
            }
        }
        if inbox.is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    /// Hands all frames over to the WebSocket's buffer, and the buffer to the socket, as far as it takes it now.
    fn write(&mut self, context: &mut Context<'_>, outbox: &mut VecDeque<Outgoing>) -> Result<(), tungstenite::Error> {
        let mut stream = Pin::new(&mut self.stream);
        while !outbox.is_empty() {
            match stream.as_mut().poll_ready(context) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(()),
            }
            match outbox.pop_front() {
                Some(Outgoing::Frame(frame)) => stream.as_mut().start_send(Message::Binary(frame.into()))?,
                Some(Outgoing::Text(text)) => stream.as_mut().start_send(Message::Text(text.into()))?,
                Some(Outgoing::Ping) => stream.as_mut().start_send(Message::Ping(Bytes::new()))?,
                None => break,
            }
        }
        match stream.poll_flush(context) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => Ok(()),
        }
    }
}

/// Bytes that are read at a time. Every connection allocates them, and each attempt to read fills them with zeros
/// first.
const READ_BUFFER: usize = 4 * 1024;

async fn open(endpoint: &str, security: &Security, forwarded: bool) -> Result<WebSocketStream<Line>, DialError> {
    let line = security.dial(endpoint).await?;
    let encrypted = line.is_tls();
    let scheme = if encrypted { "wss" } else { "ws" };
    let request = format!("{scheme}://{endpoint}/v1/ws").into_client_request();
    let mut request = request.map_err(DialError::network)?;
    if let Some(token) = security.token().map_err(DialError::network)? {
        let value = HeaderValue::try_from(format!("Bearer {token}"));
        request.headers_mut().insert(AUTHORIZATION, value.map_err(DialError::network)?);
    }
    if !forwarded {
        request.headers_mut().insert(X_FORWARD, HeaderValue::from_static("never"));
    }
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .max_message_size(Some(LARGEST_ANSWER))
        .max_frame_size(Some(LARGEST_ANSWER));
    match client_async_with_config(request, line, Some(config)).await {
        Ok((stream, _)) => Ok(stream),
        Err(error) => Err(reason(&error, encrypted)),
    }
}

/// Why a node did not open a WebSocket. A node that refuses this side's certificate says so only now, behind the
/// handshake of TLS.
fn reason(error: &tungstenite::Error, encrypted: bool) -> DialError {
    use tungstenite::error::ProtocolError::{HandshakeIncomplete, HttparseError};
    match error {
        tungstenite::Error::Protocol(HttparseError(_)) if encrypted => {
            DialError::network("it does not speak HTTP: is this the address for clients?")
        }
        // A server that expects TLS answers with an alert, which is no HTTP.
        tungstenite::Error::Protocol(HttparseError(_)) => DialError::network(
            "it does not speak HTTP without TLS: name the CA's certificate (--ca FILE or PALISADE_CA; Options::security in a \
             program), if this is the address for clients",
        ),
        tungstenite::Error::Protocol(HandshakeIncomplete) => {
            DialError::network("it closed the connection without an answer: is this the address for clients?")
        }
        tungstenite::Error::Io(io) if io.kind() == io::ErrorKind::ConnectionReset => {
            DialError::network(format!("{io}; if the node runs, is this its address for clients?"))
        }
        tungstenite::Error::Io(io) => DialError::of(io),
        tungstenite::Error::Http(response) => {
            let refusal = response.body().as_deref().and_then(|body| serde_json::from_slice::<Refusal>(body).ok());
            let status = response.status();
            let why =
                refusal.map_or_else(|| format!("it answered with HTTP status {status}"), |refusal| refusal.message);
            DialError { why, refused: status == StatusCode::UNAUTHORIZED }
        }
        _ => DialError::network(error),
    }
}

/// What the client reads of the body of a refusal, whose code may be a newer node's.
#[derive(serde::Deserialize)]
struct Refusal {
    message: String,
}
