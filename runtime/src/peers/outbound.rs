//! The connections that this node dials, and sends over.

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

/// How long a connection and its handshake may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long what was sent may go unacknowledged by the peer's host before it is dialled anew.
const SILENCE: Duration = Duration::from_secs(2);
/// The pauses between attempts: doubled from the first to the last.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Why a node could not be dialled.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// What the system says.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It takes too long.
    #[error("no answer within {DIAL_TIMEOUT:?}")]
    Timeout,
    /// It said something else than an answer.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// One of the two does not want the other.
    #[error("one of the two refuses the other: {0}")]
    Refused(String),
}

/// Keeps a connection to every other node for as long as the task lives, those that come later included.
pub async fn dial_all(peers: Arc<Peers>, mut to_dial: ToDial) {
    let mut links = JoinSet::new();
    while let Some(link) = to_dial.0.recv().await {
        links.spawn(dial(Arc::clone(&peers), Arc::clone(&link)));
        links.spawn(snapshots::send_all(Arc::clone(&peers), link));
    }
}

/// Keeps a connection to a peer until it is removed, and sends what is put out for it.
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

/// Dials a peer, and says what for.
pub(super) async fn connect(peers: &Peers, link: &Link, purpose: Purpose) -> Result<TcpStream, DialError> {
    let (peer, address) = (link.peer, link.state.lock().address.clone());
    let handshake = async {
        let mut stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        sockets::keep_alive(&stream).map_err(std::io::Error::from)?;
        // Otherwise a host that vanished without a word would be written to for a quarter of an hour, and one that came
        // back elsewhere would hear nothing from its leader for as long.
        let silence = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&stream, silence).map_err(std::io::Error::from)?;
        let welcomed = greet(&mut stream, &peers.roster.hello(peer, purpose)).await?;
        let verified = tokio::task::block_in_place(|| {
            peers.verify(peer, welcomed.incarnation, &address)?;
            // Only a hint for a time when this node has lost its log.
            if let Err(error) = peers.pinned.reached(peer, &address) {
                warn!(%peer, address, %error, "cannot remember a node's address");
            }
            Ok(())
        });
        verified.map_err(DialError::Refused)?;
        link.state.lock().welcomed = true;
        Ok(stream)
    };
    timeout(DIAL_TIMEOUT, handshake).await.map_err(|_| DialError::Timeout)?
}

/// Says hello, and waits for the answer.
async fn greet(stream: &mut TcpStream, hello: &Hello) -> Result<Introduction, DialError> {
    let mut bytes = Vec::new();
    frame::encode(hello, &mut bytes);
    stream.write_all(&bytes).await?;
    bytes.clear();
    let welcome = frame::read::<Welcome>(stream, &mut bytes, HELLO_BYTES).await?;
    let welcome = welcome.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?;
    welcome.map_err(DialError::Refused)
}

/// Asks the node at `address` where it serves clients.
///
/// # Errors
/// If it does not answer, or is not of this cluster, or cannot be asked anything itself.
pub async fn introduction(roster: &Roster, address: &str) -> Result<Introduction, DialError> {
    let handshake = async {
        let mut stream = TcpStream::connect(address).await?;
        greet(&mut stream, &roster.hello(roster.node, Purpose::Introduction)).await
    };
    timeout(DIAL_TIMEOUT, handshake).await.map_err(|_| DialError::Timeout)?
}

/// Sends until the connection breaks, and says how it did. One wake-up, one write, however many messages wait.
async fn send_all(link: &Link, mut stream: TcpStream) -> std::io::Error {
    // What was put out for the connection before this one is outdated.
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
            // The peer says nothing here: whatever comes is the end.
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
