//! Dialling another node: the connection and the handshake.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_spec::raft::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tracing::warn;

use super::frame::{self, FrameError, HELLO_BYTES, ReadError};
use super::link::LinkState;
use super::versions::{Greeting, Speaks, speaks_only_10};
use super::{Introduction, Link, Peers, Program, Purpose, RangeWelcome, Roster, Welcome, off_the_loop};
use crate::sockets;
use crate::sync::Mutex;
use crate::tls::{HandshakeError, Stream, Tls};

/// Time limit for connecting and the handshake, for each attempt: a node of version 10 may need two.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a node of version 10 that has refused this one is dialled in that version first: it logs and counts
/// the offer of a range as another refusal.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// How long sent data may stay unacknowledged by the peer's host before this node dials again.
const SILENCE: Duration = Duration::from_secs(2);

/// Why a node could not be dialled.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// An I/O error.
    #[error(transparent)]
    Io(std::io::Error),
    /// The peer did not answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The peer's answer could not be decoded.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// One of the two nodes rejects the other.
    #[error("refused: {0}")]
    Refused(String),
    /// The peer rejects this node's hello of version 10, which is all that it reads.
    #[error("refused: {0}")]
    RefusedIn10(String),
}

impl DialError {
    /// Whether one of the two nodes rejects the other.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, DialError::Refused(_) | DialError::RefusedIn10(_))
    }
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
pub(super) async fn connect(peers: &Arc<Peers>, link: &Link, purpose: Purpose) -> Result<Stream, DialError> {
    let peer = link.peer;
    let (address, program, was_refused) = {
        let state = link.state.lock();
        let was_refused = state.refused_in_10.is_some_and(|at| at.elapsed() < REFUSED_FOR);
        (state.address.clone(), state.program.clone(), was_refused)
    };
    let link_state = Some(&link.state);
    let dial = Dial { roster: &peers.roster, address: &address, peer, purpose, limit: DIAL_TIMEOUT, link_state };
    if was_refused {
        match dial.attempt(false).await {
            Err(DialError::Refused(refusal)) => return Err(DialError::RefusedIn10(refusal)),
            Err(error) => return Err(error),
            // The peer may have been upgraded, and is offered a range again.
            Ok(_) => link.state.lock().refused_in_10 = None,
        }
    }
    // The connection for messages finds out anew what the peer speaks: it may have been upgraded.
    let offer_range = purpose == Purpose::Messages || program.is_none_or(|program| program.knows_ranges);
    let met = dial.meet(offer_range).await;
    if let Err(DialError::RefusedIn10(_)) = &met {
        link.state.lock().refused_in_10 = Some(Instant::now());
    }
    let Met { stream, introduction: welcomed, program } = met?;
    let of_peer = Arc::clone(peers);
    let verified = off_the_loop(move || {
        of_peer.verify(peer, welcomed.incarnation, &welcomed.start, &address)?;
        // Used only if this node loses its log.
        if let Err(error) = of_peer.pinned.reached(peer, &address) {
            warn!(
                %peer, address, %error,
                "cannot write a node's new address to peers.json: if this node loses its log, it looks for that node at its \
                 old address. Check the permissions of the data directory and the free space of its disk; the next \
                 connection tries again"
            );
        }
        Ok(())
    });
    verified.await.map_err(DialError::Refused)?;
    let mut state = link.state.lock();
    state.welcomed = true;
    state.learn(program, purpose);
    Ok(stream)
}

/// A connection to a node that has welcomed this one.
struct Met {
    stream: Stream,
    introduction: Introduction,
    /// What it runs, and the version agreed on for this connection.
    program: Program,
}

/// Which node is dialled, and what for.
struct Dial<'a> {
    roster: &'a Roster,
    address: &'a str,
    peer: NodeId,
    purpose: Purpose,
    /// Time limit for each attempt.
    limit: Duration,
    /// Where to keep what the address resolves to.
    link_state: Option<&'a Mutex<LinkState>>,
}

impl Dial<'_> {
    /// Connects to a node and exchanges the hello and its answer. If it refuses the offer of a range of
    /// versions, because it speaks version 10 only, it is dialled once more in that version. So is a node
    /// that ends the connection instead: one of version 10 that takes no part, because it has lost its
    /// log, cannot read the offer, and says why only in its own version.
    async fn meet(&self, offer_range: bool) -> Result<Met, DialError> {
        let mut unanswered = None;
        if offer_range {
            match self.attempt(true).await {
                Err(DialError::Refused(refusal)) if speaks_only_10(&refusal) => {}
                Err(DialError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => unanswered = Some(error),
                met => return met,
            }
        }
        match (self.attempt(false).await, unanswered) {
            (Err(DialError::Refused(refusal)), _) => Err(DialError::RefusedIn10(refusal)),
            // It ended the connection for another reason, as when it is stopped, and may speak a later version.
            (_, Some(error)) => Err(error.into()),
            (met, None) => met,
        }
    }

    /// The dialled node in messages: the answer to an introduction does not say its number.
    fn named(&self) -> String {
        match self.purpose {
            Purpose::Introduction => format!("the node at {}", self.address),
            _ => format!("node {}", self.peer),
        }
    }

    /// The same with one form of the hello.
    async fn attempt(&self, with_range: bool) -> Result<Met, DialError> {
        timeout(self.limit, self.meet_with(with_range)).await.map_err(|_| DialError::Timeout(self.limit))?
    }

    /// With TLS if this node has it, and, while TLS is optional, without it if the other node does not
    /// speak it yet.
    async fn meet_with(&self, with_range: bool) -> Result<Met, DialError> {
        let Dial { roster, peer, purpose, .. } = *self;
        let greeting = Greeting::new(roster.hello(peer, purpose), with_range);
        let greet_over = async |mut stream: Stream| {
            let (introduction, speaks) = greet(&mut stream, &greeting).await?;
            let agreed = speaks.agree(roster.node, &self.named()).map_err(DialError::Refused)?;
            Ok::<_, DialError>(Met { stream, introduction, program: Program::new(speaks, agreed) })
        };
        let Some(tls) = &roster.tls else { return greet_over(Stream::Plain(self.open().await?)).await };
        // The node that answers an introduction may be any of the cluster's.
        let expected = (purpose != Purpose::Introduction).then(|| peer.number());
        match tls.connect_node(self.open().await?, expected).await {
            Ok(stream) => greet_over(stream).await,
            // What a node without TLS does with the first bytes of TLS: it ends the connection.
            Err(HandshakeError::Io(_)) if tls.is_optional() => greet_over(Stream::Plain(self.open().await?)).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn open(&self) -> Result<TcpStream, std::io::Error> {
        let resolved: Vec<SocketAddr> = lookup_host(self.address).await?.collect();
        if let Some(state) = self.link_state {
            state.lock().resolved = resolved.iter().map(|address| address.ip().to_canonical()).collect();
        }
        let stream = TcpStream::connect(&resolved[..]).await?;
        stream.set_nodelay(true)?;
        sockets::keep_alive(&stream)?;
        // A connection over which requests are forwarded may have answers on it that a client does not read.
        if self.purpose == Purpose::Requests {
            sockets::notice_silence(&stream)?;
            return Ok(stream);
        }
        // Without it, this node would write to a host that disappeared for a quarter of an hour, and a
        // host that came back at another address would hear nothing from its leader for as long.
        let silence = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&stream, silence)?;
        Ok(stream)
    }
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
    let welcome = welcome.ok_or_else(|| std::io::Error::from(ErrorKind::UnexpectedEof))?;
    welcome.map_err(DialError::Refused)
}

/// Asks the node at `address` for the addresses at which it answers clients and operators.
///
/// # Errors
/// If the node does not answer, is not of this cluster, or refuses because it waits to be replaced
/// itself.
pub async fn introduction(roster: &Roster, address: &str) -> Result<Introduction, DialError> {
    let (peer, purpose) = (roster.node, Purpose::Introduction);
    let dial = Dial { roster, address, peer, purpose, limit: DIAL_TIMEOUT, link_state: None };
    Ok(dial.meet(true).await?.introduction)
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

    /// A dial to node 2 for messages.
    fn dial<'a>(roster: &'a Roster, address: &'a str) -> Dial<'a> {
        let (peer, purpose) = (NodeId(2), Purpose::Messages);
        Dial { roster, address, peer, purpose, limit: DIAL_TIMEOUT, link_state: None }
    }

    async fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    /// Goal: a node of version 10 cannot read the hello with a range, and refuses it in its sentence; it is dialled again
    /// at once, with a hello that it reads.
    #[tokio::test]
    async fn node_of_version_10_is_dialled_in_its_version() {
        let (listener, address) = listen().await;
        let introduction = introduction_of_2();
        let welcome = Welcome::Ok(introduction.clone());
        let version_10 = tokio::spawn(async move {
            let refusal = "it speaks version 11 of the protocol, this node version 10";
            let offered = answer::<Hello>(&listener, &Welcome::Err(refusal.into())).await;
            assert!(offered.is_err(), "that version expects nothing behind its hello");
            answer::<Hello>(&listener, &welcome).await.unwrap()
        });
        let met = dial(&roster(), &address).meet(true).await.map_err(|error| error.to_string());
        let met = met.unwrap();
        assert_eq!(version_10.await.unwrap().version, 10);
        assert_eq!((met.program.protocol, met.program.version, met.program.knows_ranges), (10, None, false));
        assert_eq!(met.introduction, introduction);
    }

    /// Goal: a node that is refused for another reason is not dialled again in an older version.
    #[tokio::test]
    async fn other_refusals_stand() {
        for refusal in ["it speaks version 11 of the protocol, this node version 9", "node 1 was removed", ""] {
            let (listener, address) = listen().await;
            let reply = RangeWelcome::Err(refusal.into());
            // It accepts no second connection.
            let refuse = tokio::spawn(async move { answer::<Greeting>(&listener, &reply).await });
            let met = dial(&roster(), &address).meet(true).await;
            assert!(matches!(met, Err(DialError::Refused(why)) if why == refusal), "{refusal}");
            assert_eq!(refuse.await.unwrap().unwrap().speaks, Some(Speaks::this_program()));
        }
    }

    /// Goal: a node of a later version, whose welcome has more in it, is met in the newest common version.
    #[tokio::test]
    async fn later_version_is_met_in_the_newest_common_one() {
        let (listener, address) = listen().await;
        let introduction = introduction_of_2();
        let mut speaks = Speaks { program: "0.9.0".into(), later: vec![1, 2, 3], ..Speaks::this_program() };
        for (oldest, newest, common) in [(11, 14, Some(11)), (12, 14, None)] {
            (speaks.versions.oldest, speaks.versions.newest) = (oldest, newest);
            let welcome = RangeWelcome::Ok((introduction.clone(), speaks.clone()));
            let roster = roster();
            let dial = dial(&roster, &address);
            let (greeting, met) = tokio::join!(answer::<Greeting>(&listener, &welcome), dial.meet(true));
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

    /// Ends a connection without an answer to its first frame, as a node of version 10 that takes no part
    /// does with an offer that it cannot read.
    async fn end_unanswered(listener: &TcpListener) {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(frame::read::<Hello>(&mut stream, &mut Vec::new(), HELLO_BYTES).await.is_err());
    }

    /// Goal: a node of version 10 that has lost its log reads no offer of a range, and ends the connection; dialled in its
    /// version, it says what the operator must know.
    #[tokio::test]
    async fn node_that_ends_the_connection_is_asked_in_version_10() {
        let (listener, address) = listen().await;
        let why = "node 2 has lost its log, and waits for a leader to take it back";
        let version_10 = tokio::spawn(async move {
            end_unanswered(&listener).await;
            answer::<Hello>(&listener, &Welcome::Err(why.into())).await.unwrap()
        });
        let met = dial(&roster(), &address).meet(true).await;
        assert!(matches!(met, Err(DialError::RefusedIn10(refusal)) if refusal == why));
        assert_eq!(version_10.await.unwrap().version, 10);
    }

    /// Goal: a node that is stopped before it answers, and welcomes a hello of version 10 when it is back, may speak a
    /// later version: it is not met in version 10.
    #[tokio::test]
    async fn node_that_was_stopped_is_not_met_in_version_10() {
        let (listener, address) = listen().await;
        let welcome = Welcome::Ok(introduction_of_2());
        let restarted = tokio::spawn(async move {
            end_unanswered(&listener).await;
            answer::<Hello>(&listener, &welcome).await.unwrap()
        });
        let met = dial(&roster(), &address).meet(true).await;
        assert!(matches!(met, Err(DialError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof));
        assert_eq!(restarted.await.unwrap().version, 10);
    }

    /// Goal: a node that asks for an introduction knows an address and no number: the refusal has the address, and does not
    /// call both sides by this node's number.
    #[tokio::test]
    async fn introduction_of_another_version_names_the_address() {
        let (listener, address) = listen().await;
        let mut speaks = Speaks::this_program();
        (speaks.versions.oldest, speaks.versions.newest) = (12, 13);
        let welcome = RangeWelcome::Ok((introduction_of_2(), speaks));
        let roster = roster();
        let (greeting, refusal) =
            tokio::join!(answer::<Greeting>(&listener, &welcome), introduction(&roster, &address));
        assert_eq!(greeting.unwrap().hello.purpose, Purpose::Introduction);
        let refusal = refusal.unwrap_err().to_string();
        assert!(refusal.contains(&format!("the node at {address} (Palisade")), "{refusal}");
        assert_eq!(refusal.matches("node 1").count(), 2, "it speaks, and is to be upgraded: {refusal}");
    }

    /// Goal: both attempts have their own time.
    #[tokio::test]
    async fn each_attempt_has_a_time_limit() {
        let (listener, address) = listen().await;
        let busy = tokio::spawn(async move {
            let pause = Duration::from_secs(3);
            let refusal = "it speaks version 11 of the protocol, this node version 10";
            for reply in [Welcome::Err(refusal.into()), Welcome::Ok(introduction_of_2())] {
                let (mut stream, _) = listener.accept().await.unwrap();
                drop(frame::read::<Hello>(&mut stream, &mut Vec::new(), HELLO_BYTES).await);
                tokio::time::sleep(pause).await;
                let mut bytes = Vec::new();
                frame::encode(&reply, &mut bytes);
                stream.write_all(&bytes).await.unwrap();
            }
        });
        let roster = roster();
        let dial = Dial { limit: Duration::from_secs(5), ..dial(&roster, &address) };
        let met = dial.meet(true).await.map_err(|error| error.to_string());
        assert_eq!(met.unwrap().program.protocol, 10);
        busy.await.unwrap();
    }

    fn link(peers: &Peers, address: &str) -> std::sync::Arc<Link> {
        peers.get_or_create_link(NodeId(2), address).unwrap()
    }

    fn protocol(link: &Link) -> Option<u16> {
        link.state.lock().program.as_ref().map(|program| program.protocol)
    }

    /// Goal: a node is upgraded while a connection for requests is dialled in version 10. It is answered after the one for
    /// messages has agreed on version 11, and this stays.
    #[tokio::test]
    async fn late_answer_in_version_10_does_not_hide_an_upgrade() {
        let (directory, (listener, address)) = (tempfile::tempdir().unwrap(), listen().await);
        let (peers, _to_dial) = super::super::tests::peers(directory.path());
        let link = link(&peers, &address);
        link.state.lock().program = Some(Program::new(Speaks::version_10(), 10));
        let (peers_too, link_too) = (std::sync::Arc::clone(&peers), std::sync::Arc::clone(&link));
        let requests = tokio::spawn(async move { connect(&peers_too, &link_too, Purpose::Requests).await.is_ok() });
        let (mut late, _) = listener.accept().await.unwrap();
        let hello = frame::read::<Hello>(&mut late, &mut Vec::new(), HELLO_BYTES).await.ok().flatten();
        assert_eq!(hello.unwrap().version, 10);

        let welcome = RangeWelcome::Ok((introduction_of_2(), Speaks::this_program()));
        let messages = connect(&peers, &link, Purpose::Messages);
        let (greeting, connected) = tokio::join!(answer::<Greeting>(&listener, &welcome), connected_within(messages));
        assert!(greeting.is_ok() && connected);
        assert_eq!(protocol(&link), Some(11));
        let mut bytes = Vec::new();
        frame::encode(&Welcome::Ok(introduction_of_2()), &mut bytes);
        late.write_all(&bytes).await.unwrap();
        assert!(requests.await.unwrap(), "the connection for requests serves");
        assert_eq!(protocol(&link), Some(11));
    }

    async fn connected_within(dial: impl Future<Output = Result<Stream, DialError>>) -> bool {
        dial.await.map_err(|error| panic!("{error}")).is_ok()
    }

    /// Goal: a node of version 10 that refuses this one hears of a range once, not at each attempt; when it is upgraded, it
    /// is offered one again, although it welcomes a hello of version 10.
    #[tokio::test]
    async fn node_of_version_10_that_refuses_is_offered_one_range() {
        let (directory, (listener, address)) = (tempfile::tempdir().unwrap(), listen().await);
        let (peers, _to_dial) = super::super::tests::peers(directory.path());
        let link = link(&peers, &address);
        let other = tokio::spawn(async move {
            let refusal = "it speaks version 11 of the protocol, this node version 10";
            assert!(answer::<Hello>(&listener, &Welcome::Err(refusal.into())).await.is_err());
            for _ in 0..4 {
                let removed = Welcome::Err("node 1 was removed".into());
                assert_eq!(answer::<Hello>(&listener, &removed).await.unwrap().version, 10);
            }
            answer::<Hello>(&listener, &Welcome::Ok(introduction_of_2())).await.unwrap();
            let welcome = RangeWelcome::Ok((introduction_of_2(), Speaks::this_program()));
            assert!(answer::<Greeting>(&listener, &welcome).await.unwrap().speaks.is_some());
        });
        for _ in 0..4 {
            let refused = connect(&peers, &link, Purpose::Messages).await;
            assert!(matches!(refused, Err(DialError::RefusedIn10(why)) if why == "node 1 was removed"));
        }
        assert!(connected_within(connect(&peers, &link, Purpose::Messages)).await);
        assert_eq!(protocol(&link), Some(11));
        other.await.unwrap();
    }
}
