//! Dialling another node: the connection and the handshake.

use std::time::Duration;

use palisade_spec::raft::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::warn;

use super::frame::{self, FrameError, HELLO_BYTES, ReadError};
use super::{Hello, Introduction, Link, Peers, Purpose, Roster, Welcome};
use crate::sockets;
use crate::tls::{HandshakeError, Stream, Tls};

/// Time limit for connecting and the handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long sent data may stay unacknowledged by the peer's host before this node dials again.
const SILENCE: Duration = Duration::from_secs(2);

/// Why a node could not be dialled.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// An I/O error.
    #[error(transparent)]
    Io(std::io::Error),
    /// The peer did not answer in time.
    #[error("no answer within {DIAL_TIMEOUT:?}")]
    Timeout,
    /// The peer's answer could not be decoded.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// One of the two nodes rejects the other.
    #[error("refused: {0}")]
    Refused(String),
}

/// A node that refuses this node's certificate says so behind the handshake, as an error of the first
/// read or write.
impl From<std::io::Error> for DialError {
    fn from(error: std::io::Error) -> DialError {
        match Tls::late_refusal(&error) {
            Some(sentence) => DialError::Refused(sentence),
            None => DialError::Io(error),
        }
    }
}

impl From<HandshakeError> for DialError {
    fn from(error: HandshakeError) -> DialError {
        match error {
            HandshakeError::Refused(sentence) => DialError::Refused(sentence),
            HandshakeError::Io(error) => DialError::Io(error),
        }
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

/// Dials a peer for the given purpose.
pub(super) async fn connect(peers: &Peers, link: &Link, purpose: Purpose) -> Result<Stream, DialError> {
    let (peer, address) = (link.peer, link.state.lock().address.clone());
    let handshake = async {
        let (stream, welcomed) = meet(&peers.roster, &address, peer, purpose).await?;
        let verified = tokio::task::block_in_place(|| {
            peers.verify(peer, welcomed.incarnation, &welcomed.start, &address)?;
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

/// Connects to a node and exchanges the hello and its answer: with TLS if this node has it, and,
/// while TLS is optional, without it if the other node does not speak it yet.
async fn meet(
    roster: &Roster,
    address: &str,
    peer: NodeId,
    purpose: Purpose,
) -> Result<(Stream, Introduction), DialError> {
    let hello = roster.hello(peer, purpose);
    let plain = || async {
        let mut stream = Stream::Plain(open(address, purpose).await?);
        let welcomed = greet(&mut stream, &hello).await?;
        Ok::<_, DialError>((stream, welcomed))
    };
    let Some(tls) = &roster.tls else { return plain().await };
    // The node that answers an introduction may be any of the cluster's.
    let expected = (purpose != Purpose::Introduction).then(|| peer.number());
    match tls.connect_node(open(address, purpose).await?, expected).await {
        Ok(mut stream) => {
            let welcomed = greet(&mut stream, &hello).await?;
            Ok((stream, welcomed))
        }
        // What a node without TLS does with the first bytes of TLS: it ends the connection.
        Err(HandshakeError::Io(_)) if tls.is_optional() => plain().await,
        Err(error) => Err(error.into()),
    }
}

async fn open(address: &str, purpose: Purpose) -> Result<TcpStream, std::io::Error> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    sockets::keep_alive(&stream)?;
    // A connection over which requests are forwarded may have answers on it that a client does not read.
    if purpose == Purpose::Requests {
        sockets::notice_silence(&stream)?;
        return Ok(stream);
    }
    // Without it, this node would write to a host that disappeared for a quarter of an hour, and a
    // host that came back at another address would hear nothing from its leader for as long.
    let silence = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(&stream, silence)?;
    Ok(stream)
}

/// Sends the hello, and waits for the answer.
async fn greet(stream: &mut Stream, hello: &Hello) -> Result<Introduction, DialError> {
    let mut bytes = Vec::new();
    frame::encode(hello, &mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    bytes.clear();
    let welcome = frame::read::<Welcome>(stream, &mut bytes, HELLO_BYTES).await?;
    let welcome = welcome.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?;
    welcome.map_err(DialError::Refused)
}

/// Asks the node at `address` for the addresses at which it answers clients and operators.
///
/// # Errors
/// If the node does not answer, is not of this cluster, or refuses because it waits to be replaced
/// itself.
pub async fn introduction(roster: &Roster, address: &str) -> Result<Introduction, DialError> {
    let handshake = async {
        let (_, introduction) = meet(roster, address, roster.node, Purpose::Introduction).await?;
        Ok(introduction)
    };
    timeout(DIAL_TIMEOUT, handshake).await.map_err(|_| DialError::Timeout)?
}
