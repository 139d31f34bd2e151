//! Outbound connections: this node dials them, and sends over them.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::frame::{self, BUFFER_KEPT, FrameError, HELLO_BYTES, ReadError};
use super::{Hello, Introduction, Link, Peers, Purpose, Roster, ToDial, Welcome, snapshots};
use crate::sockets;

/// Time limit for connecting and the handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long sent data may stay unacknowledged by the peer's host before this node dials again.
const SILENCE: Duration = Duration::from_secs(2);
/// Pause between attempts: doubles from the first value to the second.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Why a node could not be dialled.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// An I/O error.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer did not answer in time.
    #[error("no answer within {DIAL_TIMEOUT:?}")]
    Timeout,
    /// The peer's answer could not be decoded.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// One of the two nodes rejects the other.
    #[error("one of the two refuses the other: {0}")]
    Refused(String),
}

/// Keeps a connection to every other node, also to later members, for as long as the task lives.
pub async fn dial_all(peers: Arc<Peers>, mut to_dial: ToDial) {
    let mut links = JoinSet::new();
    while let Some(link) = to_dial.0.recv().await {
        links.spawn(dial(Arc::clone(&peers), Arc::clone(&link)));
        links.spawn(snapshots::send_all(Arc::clone(&peers), link));
    }
}

/// Keeps a connection to a peer until the peer is removed, and sends the messages of its outbox.
async fn dial(peers: Arc<Peers>, link: Arc<Link>) {
    let peer = link.peer;
    let mut pause = BACKOFF.0;
    while !link.outbox.is_closed() {
        match connect(&peers, &link, Purpose::Messages).await {
            Ok(stream) => {
                info!(%peer, "connected");
                pause = BACKOFF.0;
                let ended = send_all(&link, stream).await;
                link.state.lock().dialled = false;
                info!(%peer, error = %ended, "disconnected");
            }
            Err(error @ DialError::Refused(_)) => {
                let address = link.state.lock().address.clone();
                warn!(%peer, address, %error, "cannot connect");
                pause = BACKOFF.1;
            }
            Err(error) => debug!(%peer, %error, "cannot connect"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

/// Dials a peer for the given purpose.
pub(super) async fn connect(peers: &Peers, link: &Link, purpose: Purpose) -> Result<TcpStream, DialError> {
    let (peer, address) = (link.peer, link.state.lock().address.clone());
    let handshake = async {
        let mut stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        sockets::keep_alive(&stream).map_err(std::io::Error::from)?;
        // Without it, this node would write to a host that disappeared for a quarter of an hour,
        // and a host that came back at another address would hear nothing from its leader for as
        // long.
        let silence = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&stream, silence).map_err(std::io::Error::from)?;
        let welcomed = greet(&mut stream, &peers.roster.hello(peer, purpose)).await?;
        let verified = tokio::task::block_in_place(|| {
            peers.verify(peer, welcomed.incarnation, &address)?;
            // Used only if this node loses its log.
            if let Err(error) = peers.pinned.reached(peer, &address) {
                warn!(%peer, address, %error, "cannot record a node's address");
            }
            Ok(())
        });
        verified.map_err(DialError::Refused)?;
        link.state.lock().welcomed = true;
        Ok(stream)
    };
    timeout(DIAL_TIMEOUT, handshake).await.map_err(|_| DialError::Timeout)?
}

/// Sends the hello, and waits for the answer.
async fn greet(stream: &mut TcpStream, hello: &Hello) -> Result<Introduction, DialError> {
    let mut bytes = Vec::new();
    frame::encode(hello, &mut bytes);
    stream.write_all(&bytes).await?;
    bytes.clear();
    let welcome = frame::read::<Welcome>(stream, &mut bytes, HELLO_BYTES).await?;
    let welcome = welcome.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?;
    welcome.map_err(DialError::Refused)
}

/// Asks the node at `address` for the address at which it serves clients.
///
/// # Errors
/// If the node does not answer, is not of this cluster, or refuses because it waits to be replaced
/// itself.
pub async fn introduction(roster: &Roster, address: &str) -> Result<Introduction, DialError> {
    let handshake = async {
        let mut stream = TcpStream::connect(address).await?;
        greet(&mut stream, &roster.hello(roster.node, Purpose::Introduction)).await
    };
    timeout(DIAL_TIMEOUT, handshake).await.map_err(|_| DialError::Timeout)?
}

/// Sends until the connection breaks; returns the error. All waiting messages are sent with one
/// wake-up and one write.
async fn send_all(link: &Link, mut stream: TcpStream) -> std::io::Error {
    // Messages queued for the previous connection are outdated.
    link.outbox.clear();
    link.state.lock().dialled = true;
    let (mut reader, mut writer) = stream.split();
    let (mut messages, mut bytes) = (Vec::new(), Vec::new());
    let mut nothing = [0; 1];
    loop {
        tokio::select! {
            open = link.outbox.take(&mut messages) => {
                if !open {
                    return std::io::Error::other("the peer was removed from the cluster");
                }
            }
            // The peer sends nothing on this connection: a read that returns means its end.
            end = reader.read(&mut nothing) => {
                return end.err().unwrap_or_else(|| std::io::ErrorKind::ConnectionAborted.into());
            }
        }
        for message in messages.drain(..) {
            frame::encode(&message, &mut bytes);
        }
        if let Err(error) = writer.write_all(&bytes).await {
            return error;
        }
        bytes.clear();
        bytes.shrink_to(BUFFER_KEPT);
    }
}

impl From<ReadError> for DialError {
    fn from(error: ReadError) -> DialError {
        match error {
            ReadError::Io(error) => error.into(),
            ReadError::Frame(error) => error.into(),
        }
    }
}
