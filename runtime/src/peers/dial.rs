//! Dialling another node: the connection and the handshake.

use std::time::Duration;

use palisade_spec::raft::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::warn;

use super::frame::{self, FrameError, HELLO_BYTES, ReadError};
use super::versions::{Greeting, Speaks, speaks_only_10};
use super::{Introduction, Link, Peers, Program, Purpose, RangeWelcome, Roster, Welcome};
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
    let peer = link.peer;
    let (address, program) = {
        let state = link.state.lock();
        (state.address.clone(), state.program.clone())
    };
    // The connection for messages finds out anew what the peer speaks: it may have been upgraded.
    let offer_range = purpose == Purpose::Messages || program.is_none_or(|program| program.knows_ranges);
    let handshake = async {
        let Met { stream, introduction: welcomed, program } =
            meet(&peers.roster, &address, peer, purpose, offer_range).await?;
        let verified = tokio::task::block_in_place(|| {
            peers.verify(peer, welcomed.incarnation, &welcomed.start, &address)?;
            // Used only if this node loses its log.
            if let Err(error) = peers.pinned.reached(peer, &address) {
                warn!(%peer, address, %error, "cannot record a node's address");
            }
            Ok(())
        });
        verified.map_err(DialError::Refused)?;
        let mut state = link.state.lock();
        (state.welcomed, state.program) = (true, Some(program));
        Ok(stream)
    };
    timeout(DIAL_TIMEOUT, handshake).await.map_err(|_| DialError::Timeout)?
}

/// A connection to a node that has welcomed this one.
struct Met {
    stream: Stream,
    introduction: Introduction,
    program: Program,
}

/// Connects to a node and exchanges the hello and its answer. If it refuses the offer of a range of
/// versions, because it speaks version 10 only, it is dialled once more in that version.
async fn meet(
    roster: &Roster,
    address: &str,
    peer: NodeId,
    purpose: Purpose,
    offer_range: bool,
) -> Result<Met, DialError> {
    if offer_range {
        match meet_with(roster, address, peer, purpose, true).await {
            Err(DialError::Refused(refusal)) if speaks_only_10(&refusal) => {}
            met => return met,
        }
    }
    meet_with(roster, address, peer, purpose, false).await
}

/// The same with one form of the hello: with TLS if this node has it, and, while TLS is optional,
/// without it if the other node does not speak it yet.
async fn meet_with(
    roster: &Roster,
    address: &str,
    peer: NodeId,
    purpose: Purpose,
    with_range: bool,
) -> Result<Met, DialError> {
    let greeting = Greeting::new(roster.hello(peer, purpose), with_range);
    let greet_over = async |mut stream: Stream| {
        let (introduction, speaks) = greet(&mut stream, &greeting).await?;
        let agreed = speaks.agree(roster.node, peer).map_err(DialError::Refused)?;
        Ok::<_, DialError>(Met { stream, introduction, program: Program::new(speaks, agreed) })
    };
    let Some(tls) = &roster.tls else { return greet_over(Stream::Plain(open(address, purpose).await?)).await };
    // The node that answers an introduction may be any of the cluster's.
    let expected = (purpose != Purpose::Introduction).then(|| peer.number());
    match tls.connect_node(open(address, purpose).await?, expected).await {
        Ok(stream) => greet_over(stream).await,
        // What a node without TLS does with the first bytes of TLS: it ends the connection.
        Err(HandshakeError::Io(_)) if tls.is_optional() => {
            greet_over(Stream::Plain(open(address, purpose).await?)).await
        }
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

/// Sends the hello, and waits for the answer, which has the form of the hello.
async fn greet(stream: &mut Stream, greeting: &Greeting) -> Result<(Introduction, Speaks), DialError> {
    let mut bytes = Vec::new();
    frame::encode(greeting, &mut bytes);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    bytes.clear();
    let welcome = match greeting.speaks {
        Some(_) => frame::read::<RangeWelcome>(stream, &mut bytes, HELLO_BYTES).await?,
        None => {
            let welcome = frame::read::<Welcome>(stream, &mut bytes, HELLO_BYTES).await?;
            welcome.map(|welcome| welcome.map(|introduction| (introduction, Speaks::version_10())))
        }
    };
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
        let met = meet(roster, address, roster.node, Purpose::Introduction, true).await?;
        Ok(met.introduction)
    };
    timeout(DIAL_TIMEOUT, handshake).await.map_err(|_| DialError::Timeout)?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::net::TcpListener;

    use super::super::{Greeting, Hello};
    use super::*;
    use crate::storage::{Incarnation, Start};

    fn roster() -> Roster {
        Roster {
            cluster: 7,
            cluster_name: "test".into(),
            node: NodeId(1),
            incarnation: Incarnation(1),
            start: Start::default(),
            client_addr: "one:1".into(),
            admin_addr: None,
            peer_addr: "one:2".into(),
            peer_addrs: BTreeMap::new(),
            tls: None,
        }
    }

    fn introduction_of_2() -> Introduction {
        let start = Start::default();
        Introduction { incarnation: Incarnation(2), client_addr: String::new(), start, admin_addr: None }
    }

    /// Reads the first frame of a connection as `T`, and answers it.
    async fn answer<T: serde::de::DeserializeOwned>(
        listener: &TcpListener,
        reply: &impl serde::Serialize,
    ) -> Result<T, ReadError> {
        let (mut stream, _) = listener.accept().await?;
        let greeting = frame::read::<T>(&mut stream, &mut Vec::new(), HELLO_BYTES).await;
        let mut bytes = Vec::new();
        frame::encode(reply, &mut bytes);
        stream.write_all(&bytes).await?;
        greeting.map(|greeting| greeting.expect("a frame"))
    }

    /// Goal: a node of version 10 cannot read the hello with a range, and refuses it in its sentence; it is dialled again
    /// at once, with a hello that it reads.
    #[tokio::test]
    async fn node_of_version_10_is_dialled_in_its_version() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let introduction = introduction_of_2();
        let welcome = Welcome::Ok(introduction.clone());
        let version_10 = tokio::spawn(async move {
            let refusal = "it speaks version 11 of the protocol, this node version 10";
            let offered = answer::<Hello>(&listener, &Welcome::Err(refusal.into())).await;
            assert!(offered.is_err(), "that version expects nothing behind its hello");
            answer::<Hello>(&listener, &welcome).await.unwrap()
        });
        let met =
            meet(&roster(), &address, NodeId(2), Purpose::Messages, true).await.map_err(|error| error.to_string());
        let met = met.unwrap();
        assert_eq!(version_10.await.unwrap().version, 10);
        assert_eq!((met.program.protocol, met.program.version, met.program.knows_ranges), (10, None, false));
        assert_eq!(met.introduction, introduction);
    }

    /// Goal: a node that is refused for another reason is not dialled again in an older version.
    #[tokio::test]
    async fn other_refusals_stand() {
        for refusal in ["it speaks version 11 of the protocol, this node version 9", "node 1 was removed", ""] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let reply = RangeWelcome::Err(refusal.into());
            // It accepts no second connection.
            let refuse = tokio::spawn(async move { answer::<Greeting>(&listener, &reply).await });
            let met = meet(&roster(), &address, NodeId(2), Purpose::Messages, true).await;
            assert!(matches!(met, Err(DialError::Refused(why)) if why == refusal), "{refusal}");
            assert_eq!(refuse.await.unwrap().unwrap().speaks, Some(Speaks::this_program()));
        }
    }

    /// Goal: a node of a later version, whose welcome has more in it, is met in the newest common version.
    #[tokio::test]
    async fn later_version_is_met_in_the_newest_common_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let introduction = introduction_of_2();
        let mut speaks = Speaks { program: "0.9.0".into(), later: vec![1, 2, 3], ..Speaks::this_program() };
        for (oldest, newest, common) in [(11, 14, Some(11)), (12, 14, None)] {
            (speaks.versions.oldest, speaks.versions.newest) = (oldest, newest);
            let welcome = RangeWelcome::Ok((introduction.clone(), speaks.clone()));
            let roster = roster();
            let dial = meet(&roster, &address, NodeId(2), Purpose::Messages, true);
            let (greeting, met) = tokio::join!(answer::<Greeting>(&listener, &welcome), dial);
            greeting.unwrap();
            match (common, met) {
                (Some(common), Ok(met)) => {
                    assert_eq!((met.program.protocol, met.program.version.as_deref()), (common, Some("0.9.0")));
                }
                (None, Err(DialError::Refused(why))) => assert!(why.contains("none in common"), "{why}"),
                (common, met) => panic!("{common:?}: {:?}", met.err()),
            }
        }
    }
}
