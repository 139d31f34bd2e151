//! Connections between nodes: both sides prove which node of which cluster they are.

use std::io;
use std::time::Duration;

use palisade_client::tls::{Side, Stream, explain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::Tls;
use super::identity::{Identity, Subject};

/// Why a connection did not come to be.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// One side refuses the other: a sentence.
    #[error("{0}")]
    Refused(String),
    /// The network.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How long the last words of a refused connection may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes of a refused connection that are read and dropped meanwhile.
const DROPPED: u64 = 64 << 10;
/// The pause between two looks at a connection whose first bytes are not complete.
const PEEK_PAUSE: Duration = Duration::from_millis(2);

impl Tls {
    /// Accepts a connection of another node. Without a certificate of the cluster's CA there is no
    /// connection. The inner result is the dialling node's number, or the end of a sentence that
    /// says why its certificate does not admit it: the caller can still answer. `None` stands for a
    /// connection without TLS, which is accepted only while TLS is optional.
    ///
    /// # Errors
    /// If the handshake fails.
    pub async fn accept_node(
        &self,
        stream: TcpStream,
    ) -> Result<(Stream, Option<Result<u16, String>>), HandshakeError> {
        if self.files.optional && !begins_with_tls(&stream).await? {
            return Ok((Stream::Plain(stream), None));
        }
        let material = self.material();
        let stream = accept(TlsAcceptor::from(material.nodes.clone()), stream).await?;
        let identity = match Identity::of_peer(&stream) {
            Some(Ok(identity)) => node_of(identity, &material.cluster),
            Some(Err(what)) => Err(format!("its certificate {what}")),
            None => Err("it presented no certificate".into()),
        };
        Ok((stream, Some(identity)))
    }

    /// Makes TLS of a connection to another node, and checks that it is that node.
    ///
    /// # Errors
    /// If the handshake fails, or another node answers.
    pub async fn connect_node(&self, stream: TcpStream, expected: Option<u16>) -> Result<Stream, HandshakeError> {
        let material = self.material();
        let unnamed = ServerName::try_from("palisade.invalid").expect("a host name");
        let connected = TlsConnector::from(material.dial.clone()).connect(unnamed, stream).await;
        let stream = Stream::tls(connected.map_err(|error| refusal(error, Side::Server))?);
        let identity = Identity::of_peer(&stream).unwrap_or_else(|| Err("is missing".into()));
        let identity = identity.map_err(|what| HandshakeError::Refused(format!("its certificate {what}")))?;
        let node = node_of(identity, &material.cluster).map_err(HandshakeError::Refused)?;
        match expected {
            Some(expected) if expected != node => Err(HandshakeError::Refused(format!(
                "its certificate names node {node}, not node {expected}: check the addresses in --peers, and which \
                 certificate that node has"
            ))),
            _ => Ok(stream),
        }
    }

    /// What a node that was dialled says against this node's certificate. In TLS 1.3 that comes
    /// behind the handshake, as an error of the first read.
    pub fn late_refusal(error: &io::Error) -> Option<String> {
        explain(error, Side::Server)
    }
}

/// The number of the node that a certificate names.
fn node_of(identity: Identity, cluster: &str) -> Result<u16, String> {
    if identity.cluster != cluster {
        return Err(format!("its certificate is of cluster `{}`, not of cluster `{cluster}`", identity.cluster));
    }
    match identity.subject {
        Subject::Node(number) => Ok(number),
        Subject::Client(name) => Err(format!("its certificate is that of the client `{name}`, and no node's")),
        Subject::Authority => Err("its certificate is the CA's, and no node's".into()),
    }
}

/// Accepts TLS. A dialling side that is refused gets the reason before the connection ends.
pub(super) async fn accept(acceptor: TlsAcceptor, stream: TcpStream) -> Result<Stream, HandshakeError> {
    match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => Ok(Stream::tls(stream)),
        Err((error, mut stream)) => {
            let refusal = refusal(error, Side::Client);
            if matches!(refusal, HandshakeError::Refused(_)) {
                let _ = timeout(LAST_WORDS, last_words(&mut stream)).await;
            }
            Err(refusal)
        }
    }
}

/// Ends a connection behind an alert. A socket that is closed with bytes unread would take the
/// alert back.
async fn last_words(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(DROPPED);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(|_| ())
}

pub(super) fn refusal(error: io::Error, other: Side) -> HandshakeError {
    match explain(&error, other) {
        Some(sentence) => HandshakeError::Refused(sentence),
        None => HandshakeError::Io(error),
    }
}

/// Whether a connection begins with a handshake of TLS, without taking a byte from it. A frame
/// between nodes begins with its length, and a hello's third byte is 0; a request in HTTP begins
/// with a letter.
pub(super) async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    const HANDSHAKE: u8 = 0x16;
    let mut first = [0; 3];
    loop {
        match stream.peek(&mut first).await? {
            0 => return Ok(false),
            1.. if first[0] != HANDSHAKE => return Ok(false),
            3.. => return Ok(first[1] == 3 && first[2] != 0),
            _ => sleep(PEEK_PAUSE).await,
        }
    }
}
