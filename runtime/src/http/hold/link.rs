//! The socket of one connection: frames in both directions, pings, and the end.

use std::pin::Pin;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures_util::StreamExt;
use palisade_client::wire::{Code, Failure};
use tokio::time::{Instant, Interval, interval_at, timeout};

use super::frames::{ClientFrame, Interruption, Refusal, ServerFrame};
use crate::http::websocket::{CLOSE_TIMEOUT, PING_EVERY, SILENCE_TIMEOUT, is_end};
use crate::limits;

/// How a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client is gone, or does not read.
    Gone,
    /// With this frame.
    Last(Box<ServerFrame>),
}

impl End {
    /// The client's request is refused, or its frame.
    pub(super) fn refused(failure: Failure) -> End {
        End::Last(Box::new(ServerFrame::Error(Refusal { n: None, failure })))
    }

    /// The client has violated the protocol.
    pub(super) fn invalid(message: &str) -> End {
        End::refused(Failure::new(Code::Invalid, message))
    }

    /// The client holds the lock no longer.
    pub(super) fn lost(failure: Failure) -> End {
        End::Last(Box::new(ServerFrame::Lost(failure)))
    }

    /// This connection cannot go on, and the lock is as it was.
    fn interrupted(error: Code, message: &str) -> End {
        let interruption = Interruption { error, message: message.to_owned(), leader: None };
        End::Last(Box::new(ServerFrame::Interrupted(interruption)))
    }

    /// The same end where no session is left to resume.
    pub(super) fn of_closed_session(self) -> End {
        match self {
            End::Last(frame) if matches!(*frame, ServerFrame::Interrupted(_)) => {
                let message = "the node that forwards this connection was removed from the cluster; send the `acquire` \
                               again, to another node";
                End::interrupted(Code::ShuttingDown, message)
            }
            end => end,
        }
    }

    /// Whether the client has sent what no client may send.
    pub(super) fn is_invalid(&self) -> bool {
        let End::Last(frame) = self else { return false };
        matches!(&**frame, ServerFrame::Error(refusal) if refusal.failure.error == Code::Invalid)
    }
}

/// A connection to a client.
pub(super) struct Link {
    socket: WebSocket,
    ping: Interval,
    /// When the client has sent something last, if only a pong.
    heard: Instant,
    /// Resolves when the node that forwards the connection is removed from the cluster.
    removed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Link {
    pub(super) fn new(socket: WebSocket, removed: impl Future<Output = ()> + Send + 'static) -> Link {
        let heard = Instant::now();
        Link { socket, ping: interval_at(heard + PING_EVERY, PING_EVERY), heard, removed: Box::pin(removed) }
    }

    /// The first frame. A connection that sends none in time is ended.
    pub(super) async fn first_frame(&mut self) -> Result<ClientFrame, End> {
        let first = timeout(limits::HEAD_TIMEOUT, self.receive()).await;
        first.unwrap_or_else(|_| Err(End::invalid("no `acquire` or `resume` came within 10 s")))
    }

    /// The next frame. Between frames it sends pings, and a client that does not even answer these is gone.
    pub(super) async fn receive(&mut self) -> Result<ClientFrame, End> {
        loop {
            let message = tokio::select! {
                biased;
                () = &mut self.removed => {
                    let message = "the node that forwards this connection was removed from the cluster; resume the \
                                   session at another node";
                    return Err(End::interrupted(Code::ShuttingDown, message));
                }
                message = self.socket.next() => message,
                _ = self.ping.tick() => {
                    if self.heard.elapsed() >= SILENCE_TIMEOUT {
                        return Err(End::Gone);
                    }
                    self.send(Message::Ping(Vec::new().into())).await?;
                    continue;
                }
            };
            self.heard = Instant::now();
            match message {
                Some(Ok(Message::Text(text))) => return ClientFrame::parse(&text).map_err(End::refused),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Binary(_))) => return Err(End::invalid("frames are text, and this one is binary")),
                Some(Err(error)) if is_end(&error) => return Err(End::Gone),
                Some(Err(_)) => return Err(End::invalid("the frame is broken or has more than 16 KiB")),
                Some(Ok(Message::Close(_))) | None => return Err(End::Gone),
            }
        }
    }

    /// Sends a frame. A client that does not read is gone.
    pub(super) async fn send_frame(&mut self, frame: &ServerFrame) -> Result<(), End> {
        let json = serde_json::to_string(frame).expect("every frame has a JSON form");
        self.send(Message::Text(json.into())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), End> {
        match timeout(limits::WRITE_TIMEOUT, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(End::Gone),
        }
    }

    /// Ends the connection. What the client has sent meanwhile is read for a moment: unread bytes would make the
    /// system reset the connection, and the client might not see the last frame.
    pub(super) async fn end(mut self, end: End) {
        if let End::Last(frame) = &end
            && self.send_frame(frame).await.is_err()
        {
            return;
        }
        let close = Message::Close(Some(CloseFrame { code: close_code::NORMAL, reason: "".into() }));
        let farewell = async {
            let _ = self.socket.send(close).await;
            while let Some(Ok(_)) = self.socket.next().await {}
        };
        let _ = timeout(CLOSE_TIMEOUT, farewell).await;
    }
}
