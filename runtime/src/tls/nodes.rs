//! Connections between nodes: both sides prove which node of which cluster they are.

use std::io::{self, ErrorKind};
use std::time::Duration;

use palisade_client::tls::{Side, Stream, explain};
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::timeout;
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

/// How long the alert of a refused connection may take to arrive.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a refused connection that are read and dropped meanwhile.
const DROPPED: u64 = 64 << 10;

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
        let stream = accept(TlsAcceptor::from(material.nodes.clone()), stream).await?.with_large_writes();
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
        let stream = Stream::tls(connected.map_err(|error| refusal(error, Side::Server))?).with_large_writes();
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
        Subject::Administrator(name) => {
            Err(format!("its certificate is that of the administrator `{name}`, and no node's"))
        }
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
                let _ = timeout(CLOSE_TIMEOUT, close_after_alert(&mut stream)).await;
            }
            Err(refusal)
        }
    }
}

/// Ends a connection behind an alert. A socket that is closed with bytes unread would take the
/// alert back.
async fn close_after_alert(stream: &mut TcpStream) -> io::Result<()> {
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

/// Whether a connection begins with a handshake of TLS, without taking a byte from it. Waits for the
/// bytes that decide it, and wakes only when more have come.
pub(super) async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    loop {
        let ready = stream.ready(Interest::READABLE).await?;
        let decided = stream.try_io(Interest::READABLE, || {
            let mut first = [0; 3];
            let (_, length) = recv(stream, &mut first[..], RecvFlags::PEEK)?;
            // This error clears the readiness, so that the next wait is one for more bytes.
            are_of_tls(&first[..length]).ok_or_else(|| ErrorKind::WouldBlock.into())
        });
        match decided {
            // The other side has ended the connection behind too few bytes.
            Err(error) if error.kind() == ErrorKind::WouldBlock && ready.is_read_closed() => return Ok(false),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            decided => return decided,
        }
    }
}

/// Whether the first bytes of a connection are those of a handshake of TLS; `None` for too few. A
/// frame between nodes begins with its length, and a hello's third byte is 0; a request in HTTP
/// begins with a letter.
fn are_of_tls(first: &[u8]) -> Option<bool> {
    const HANDSHAKE: u8 = 0x16;
    match *first {
        [HANDSHAKE] | [HANDSHAKE, 3] => None,
        [HANDSHAKE, 3, version, ..] => Some(version != 0),
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::net::{TcpListener, TcpSocket};
    use tokio::time::sleep;

    use super::super::{Access, Authority, Issued, TlsFiles, Validity};
    use super::*;

    /// What the first bytes of a connection are, which arrive in these pieces with pauses between them;
    /// and how often the node looked.
    async fn look(pieces: &[&[u8]]) -> (bool, u32) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let mut looks = 0;
        let mut looking = pin!(begins_with_tls(&server));
        let counted = poll_fn(|context| {
            looks += 1;
            looking.as_mut().poll(context)
        });
        let sent = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                sleep(Duration::from_millis(100)).await;
            }
            client.shutdown().await.unwrap();
        };
        let (found, ()) = tokio::join!(counted, sent);
        (found.unwrap(), looks)
    }

    /// Goal: a connection whose first bytes come slowly, or not at all, costs no look but for each
    /// piece of them.
    #[tokio::test]
    async fn first_bytes_are_awaited_without_spinning() {
        for (pieces, is_tls) in [
            (&[&b"\x16\x03\x01"[..]][..], true),
            (&[b"\x16", b"\x03", b"\x01"], true),
            (&[b"\x16", b"\x03", b"\x00"], false),
            (&[b"\x16\x01"], false),
            (&[b"GET / HTTP/1.1"], false),
            (&[b"\x16", b"\x03"], false),
            (&[b"\x16"], false),
            (&[], false),
        ] {
            let (found, looks) = look(pieces).await;
            assert_eq!(found, is_tls, "{pieces:?}");
            // `join!` polls both sides when one of them wakes.
            assert!(looks <= 8, "{looks} looks at {pieces:?}");
        }
    }

    /// Bytes that a side takes to write although the other one reads nothing.
    async fn unread(mut stream: Stream) -> usize {
        let (piece, mut taken) = (vec![0; 16 << 10], 0);
        while let Ok(Ok(length)) = timeout(Duration::from_millis(200), stream.write(&piece)).await {
            taken += length;
        }
        taken
    }

    /// Goal: answers that a client does not read take little memory beside the socket's; only a node has
    /// the large buffer.
    #[tokio::test]
    async fn only_a_node_has_a_large_write_buffer() {
        let directory = tempfile::tempdir().unwrap();
        let validity = Validity::starting_now(Duration::from_secs(3600)).unwrap();
        let authority = Authority::create(directory.path(), "billing", validity).unwrap();
        let Issued { cert, key } = authority.node(1, &["127.0.0.1".to_owned()], validity).unwrap();
        let files = TlsFiles { ca: authority.certificate(), cert, key, tokens: None, optional: false };
        let tls = Tls::load(files).unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        // The accepted sockets have it, too.
        socket.set_send_buffer_size(4 << 10).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(8).unwrap();
        let address = listener.local_addr().unwrap();
        let dial = || async { TcpStream::connect(address).await.unwrap() };

        let accepted = async {
            let (stream, remote) = listener.accept().await.unwrap();
            Access::accept(&tls, stream, remote.ip()).await.unwrap().0
        };
        let client = tls.security();
        let endpoint = address.to_string();
        let (_client, accepted) = tokio::join!(client.dial(&endpoint), accepted);
        let to_client = unread(accepted).await;

        let accepted = async { tls.accept_node(listener.accept().await.unwrap().0).await.unwrap().0 };
        let (_node, accepted) = tokio::join!(async { tls.connect_node(dial().await, Some(1)).await }, accepted);
        let to_node = unread(accepted).await;
        assert!(to_node > 1 << 20 && to_client < to_node - (512 << 10), "{to_client} and {to_node} bytes");
    }
}
