//! Inbound connections: other nodes dial them, and this node receives from them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::codec;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Message, NodeId};
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::frame::{self, BUFFER_KEPT, FrameError, HELLO_BYTES, MESSAGE_BYTES, ReadError};
use super::intake::{Intake, ReadFailure};
use super::versions::{Greeting, Speaks, unknown_hello};
use super::{
    Forwarded, Hello, Introduction, Link, MAGIC, Peers, Program, Purpose, REFUSAL_PAUSE, RangeWelcome, Roster, Welcome,
    expected_incarnation, number_was_removed, snapshots,
};
use crate::addresses::ClientAddress;
use crate::core::{Core, NotTaken};
use crate::descriptors::{ConnectionLimit, Descriptors};
use crate::tls::{HandshakeError, Handshakes, Stream};
use crate::{limits, sockets};

/// Time within which a connection must send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the connection was closed")]
    Closed,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("a message names node {0} as its sender, which is not the connected peer")]
    WrongSender(NodeId),
    #[error("a snapshot came on the connection for messages")]
    SnapshotAsMessage,
    #[error("a request came before the answer to the hello")]
    RequestBeforeWelcome,
    #[error("refused: {0}")]
    Refused(String),
    #[error("no handshake within {HELLO_TIMEOUT:?}")]
    Silent,
    #[error(transparent)]
    Stranger(ReadFailure),
}

impl Ended {
    /// Whether the other side has broken the protocol or was refused: the operator is to know.
    fn is_to_blame(&self) -> bool {
        use Ended::{
            Closed, Frame, Io, Refused, RequestBeforeWelcome, Silent, SnapshotAsMessage, Stranger, WrongSender,
        };
        match self {
            Frame(_) | WrongSender(_) | SnapshotAsMessage | RequestBeforeWelcome | Refused(_) | Stranger(_) => true,
            Io(_) | Closed | Silent => false,
        }
    }
}

/// Accepts connections from peers for as long as the task lives: at most `descriptors.unidentified`
/// that have not completed the handshake, and `descriptors.peers` that have. Half of the former are for connections
/// from the addresses of members, which do not wait for the handshakes of others either.
/// Connections over which other nodes forward requests go to `forwarded`, where they count among those of clients.
pub async fn accept(
    peers: Arc<Peers>,
    core: Core,
    listener: TcpListener,
    descriptors: Descriptors,
    forwarded: mpsc::Sender<Forwarded>,
) {
    let refused = &peers.metrics.peer_connections_refused;
    let unidentified =
        ConnectionLimit::new(descriptors.unidentified, "nodes that have not completed the handshake", refused);
    let strangers = unidentified.half(
        "strangers that have not completed the handshake",
        "A member counts here if it dials from another address than the one in --peers. A firewall keeps other programs \
         away",
    );
    let handshakes = Arc::new(Handshakes::new(limits::PEER_HANDSHAKES));
    let identified = ConnectionLimit::new(descriptors.peers, "nodes", refused);
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely no descriptor is free: that passes, and retrying at full speed would
                // not help.
                warn!(%error, "cannot accept a connection from a node; check the limit of open files (ulimit -n)");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let dialler = ClientAddress::from(address);
        let is_stranger = !peers.is_address_of_member(address.ip());
        let stranger = if is_stranger { strangers.take_at(dialler) } else { None };
        if is_stranger && stranger.is_none() {
            continue;
        }
        let Some(permit) = unidentified.take_at(dialler) else { continue };
        let turns = is_stranger.then(|| Arc::clone(&handshakes));
        let (peers, core, identified) = (Arc::clone(&peers), core.clone(), identified.clone());
        let forwarded = forwarded.clone();
        tokio::spawn(async move {
            let turns = turns.as_deref().map(|handshakes| (handshakes, dialler));
            let greeted = timeout(HELLO_TIMEOUT, greet(&peers, stream, turns)).await;
            // Held until the connection ends. It replaces the permit of an unidentified connection.
            let _permit = match &greeted {
                Ok(Ok((_, Purpose::Requests, _))) => None,
                Ok(Ok(_)) => match identified.take() {
                    Some(permit) => Some(permit),
                    None => return,
                },
                _ => None,
            };
            drop((permit, stranger));
            let ended = match greeted {
                Ok(Ok((link, Purpose::Snapshot, Connection { stream, bytes, .. }))) => {
                    return snapshots::receive(&peers, link.peer, stream, bytes, &core).await;
                }
                Ok(Ok((link, Purpose::Requests, Connection { stream, bytes, is_certified }))) if bytes.is_empty() => {
                    // If nothing receives it, this node is stopping.
                    drop(forwarded.send(Forwarded::new(&link, stream, is_certified, dialler)).await);
                    return;
                }
                Ok(Ok((_, Purpose::Requests, _))) => Ended::RequestBeforeWelcome,
                Ok(Ok((link, _, connection))) => {
                    let intake = Intake::new(&peers, link.peer, dialler, connection.is_certified);
                    receive_as(&peers, &link, connection, intake, core).await
                }
                Ok(Err(error)) => error,
                Err(_) => Ended::Silent,
            };
            if ended.is_to_blame() {
                peers.metrics.frames_rejected.inc();
                let line = ended.to_string();
                if let Some(repeats) = peers.log_pause.due_from(address.ip(), &line, REFUSAL_PAUSE, Instant::now()) {
                    warn!(%address, error = %ended, repeats, "closed a connection to the port for nodes");
                }
            } else {
                debug!(%address, error = %ended, "a connection to the port for nodes ended");
            }
        });
    }
}

struct Connection {
    stream: Stream,
    bytes: Vec<u8>,
    /// Whether a certificate has proved the dialling node's number.
    is_certified: bool,
}

/// What a dialling node has proved by its certificate: its number, or the sentence that says why it
/// is refused; `None` without TLS.
type Proof = Option<Result<u16, String>>;

/// What the handshakes of an address wait for.
type Turns<'a> = Option<(&'a Handshakes, ClientAddress)>;

/// Accepts TLS, if this node has it.
async fn secure(roster: &Roster, stream: TcpStream, turns: Turns<'_>) -> Result<(Stream, Proof), HandshakeError> {
    match (&roster.tls, turns) {
        (Some(tls), Some((handshakes, address))) => {
            // A connection that says nothing takes no turn.
            stream.readable().await?;
            handshakes.run(address, tls.accept_node(stream)).await
        }
        (Some(tls), None) => tls.accept_node(stream).await,
        (None, _) => Ok((Stream::Plain(stream), None)),
    }
}

/// Refuses a hello of a node that has proved to be another one, or none.
fn check_proof(proof: Proof, hello: &Hello) -> Result<(), String> {
    match proof {
        None => Ok(()),
        Some(Err(why)) => Err(why),
        Some(Ok(number)) if number == hello.from.number() => Ok(()),
        Some(Ok(number)) => {
            Err(format!("its certificate names node {number}, and it claims to be node {}", hello.from))
        }
    }
}

/// Reads the hello. One of another version is answered with a refusal.
async fn read_greeting(roster: &Roster, stream: &mut Stream, bytes: &mut Vec<u8>) -> Result<Option<Greeting>, Ended> {
    match frame::read(stream, bytes, HELLO_BYTES).await {
        Ok(greeting) => Ok(greeting),
        Err(error) => {
            // Another version's hello may have other fields: the operator is told the version.
            let Some(refusal) = other_version(roster, bytes) else { return Err(error.into()) };
            reply(stream, &Welcome::Err(refusal.clone())).await?;
            Err(Ended::Refused(refusal))
        }
    }
}

/// Reads the hello, checks it, and answers it.
async fn greet(
    peers: &Arc<Peers>,
    stream: TcpStream,
    turns: Turns<'_>,
) -> Result<(Arc<Link>, Purpose, Connection), Ended> {
    stream.set_nodelay(true)?;
    sockets::keep_alive(&stream).map_err(std::io::Error::from)?;
    let (mut stream, proof) = secure(&peers.roster, stream, turns).await?;
    let mut bytes = Vec::new();
    let Some(Greeting { hello, speaks }) = read_greeting(&peers.roster, &mut stream, &mut bytes).await? else {
        return Err(Ended::Closed);
    };
    let is_certified = proof.is_some();
    let checked = check_proof(proof, &hello).and_then(|()| check_origin(&peers.roster, &hello, speaks.as_ref()));
    let admitted = match hello.purpose {
        Purpose::Introduction => checked.map(|_| None),
        purpose => {
            let checked = checked.and_then(|program| check_identity(peers, &hello).map(|()| program));
            let checked = checked.and_then(|program| match purpose {
                Purpose::Requests => peers.may_forward(hello.from).map(|()| program),
                _ => Ok(program),
            });
            match checked {
                Ok(program) => peers.admit(&hello).await.map(|link| Some((link, program))),
                Err(refusal) => Err(refusal),
            }
        }
    };
    let welcome = admitted.as_ref().map(|_| introduce(&peers.roster)).map_err(String::clone);
    match speaks {
        // The answer has the form of the hello.
        Some(_) => {
            let welcome: RangeWelcome = welcome.map(|introduction| (introduction, Speaks::this_program()));
            reply(&mut stream, &welcome).await?;
        }
        None => reply(&mut stream, &welcome).await?,
    }
    let Some((link, program)) = admitted.map_err(Ended::Refused)? else { return Err(Ended::Closed) };
    {
        let mut state = link.state.lock();
        (state.client_addr, state.admin_addr) = (Some(hello.client_addr), hello.admin_addr);
        state.learn(program, hello.purpose);
    }
    Ok((link, hello.purpose, Connection { stream, bytes, is_certified }))
}

/// What this node says of itself to one that has dialled.
fn introduce(roster: &Roster) -> Introduction {
    let Roster { incarnation, client_addr, start, admin_addr, .. } = roster.clone();
    Introduction { incarnation, client_addr, start, admin_addr }
}

/// Answers a hello. A rejection has the same bytes in every version.
async fn reply<T: Serialize>(stream: &mut Stream, welcome: &Result<T, String>) -> Result<(), std::io::Error> {
    let mut reply = Vec::new();
    frame::encode(welcome, &mut reply);
    stream.write_all(&reply).await?;
    stream.flush().await
}

/// Answers each node of the cluster that dials with the reason why this node does not take part,
/// for as long as the task lives.
pub async fn refuse_all(roster: Roster, listener: TcpListener, why: String) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let refused = async {
            let (mut stream, proof) = secure(&roster, stream, None).await?;
            let mut bytes = Vec::new();
            if let Some(Greeting { hello, speaks }) = read_greeting(&roster, &mut stream, &mut bytes).await? {
                let checked = check_proof(proof, &hello).and_then(|()| check_origin(&roster, &hello, speaks.as_ref()));
                reply(&mut stream, &Welcome::Err(checked.err().unwrap_or_else(|| why.clone()))).await?;
            }
            Ok::<(), Ended>(())
        };
        // One at a time: a slow peer delays only these refusals.
        let _ = timeout(Duration::from_millis(500), refused).await;
    }
}

/// The refusal of a frame that is the hello of another version of the protocol.
fn other_version(roster: &Roster, bytes: &[u8]) -> Option<String> {
    let mut payload = bytes.get(frame::HEADER..)?;
    let (magic, version): ([u8; 8], u16) = codec::decode_from(&mut payload).ok()?;
    unknown_hello(roster.node, version).filter(|_| magic == MAGIC)
}

/// Checks that the dialling node speaks a version of the protocol that this node speaks, and belongs
/// to this cluster. Returns what it runs.
fn check_origin(roster: &Roster, hello: &Hello, speaks: Option<&Speaks>) -> Result<Program, String> {
    if hello.magic != MAGIC {
        return Err("this is not Palisade's protocol between nodes".into());
    }
    if let Some(refusal) = unknown_hello(roster.node, hello.version) {
        return Err(refusal);
    }
    let speaks = speaks.cloned().unwrap_or_else(Speaks::version_10);
    let agreed = speaks.agree(roster.node, &format!("node {}", hello.from))?;
    if hello.cluster != roster.cluster {
        return Err(format!(
            "node {} is not of the same cluster as node {}, which belongs to cluster `{}` (IDs {:016x} and {:016x}). At \
             their first start all founders of a cluster need the same --cluster, --peers and --restore. If they \
             belong to different clusters, one has the address of the other in its --peers: correct it",
            hello.from, roster.node, roster.cluster_name, hello.cluster, roster.cluster
        ));
    }
    Ok(Program::new(speaks, agreed))
}

/// Checks that the dialling node is the member that it claims to be, and means to dial this node.
fn check_identity(peers: &Peers, hello: &Hello) -> Result<(), String> {
    let roster = &peers.roster;
    if hello.to != roster.node {
        return Err(format!(
            "the dialling node looks for node {}, this is node {}: check the addresses",
            hello.to, roster.node
        ));
    }
    if hello.from == roster.node {
        return Err(format!(
            "the dialling node claims to be node {}, which is this node: check the node IDs",
            hello.from
        ));
    }
    let members = Arc::clone(&peers.members.lock());
    if members.was_removed(hello.from) {
        return Err(format!(
            "node {} was removed from this cluster, or came back with another data directory: stop it",
            hello.from
        ));
    }
    // A certificate names a number, and the dialling node chooses the generation.
    if number_was_removed(&members, hello.from.number()) {
        return Err(format!(
            "node {} was removed from this cluster, and node IDs are not reused: stop the server that claims to be node {}",
            hello.from.number(),
            hello.from
        ));
    }
    if expected_incarnation(&members, hello.from).is_some_and(|expected| expected != hello.incarnation) {
        return Err(format!(
            "node {0} of this cluster is another server, with another data directory: give the dialling one another node ID",
            hello.from
        ));
    }
    Ok(())
}

/// Receives from a peer in a task that the peer's next connection aborts.
async fn receive_as(peers: &Arc<Peers>, link: &Link, connection: Connection, intake: Intake, core: Core) -> Ended {
    let reader = tokio::spawn(receive(link.peer, connection, intake, core, Arc::clone(peers)));
    let previous = link.state.lock().inbound.replace(reader.abort_handle());
    if let Some(previous) = previous {
        previous.abort();
    }
    // The peer may have been removed after its handshake, before this task was registered for
    // abortion.
    if link.outbox.is_closed() {
        reader.abort();
    }
    let id = reader.id();
    let ended = reader.await.unwrap_or(Ended::Closed);
    link.state.lock().inbound.take_if(|inbound| inbound.id() == id);
    ended
}

async fn receive(peer: NodeId, connection: Connection, mut intake: Intake, core: Core, peers: Arc<Peers>) -> Ended {
    let Connection { mut stream, mut bytes, .. } = connection;
    loop {
        let mut used = 0;
        let mut messages = Vec::new();
        loop {
            match frame::decode::<Message<LockTable>>(&bytes[used..], MESSAGE_BYTES) {
                Ok(Some((message, _))) if message.from != peer => return Ended::WrongSender(message.from),
                // A snapshot has a connection of its own, so that its bytes are checked and durable
                // before the core gets it.
                Ok(Some((Message { body: Body::InstallSnapshot { .. }, .. }, _))) => return Ended::SnapshotAsMessage,
                Ok(Some((message, length))) => {
                    messages.push(message);
                    used += length;
                }
                Ok(None) => break,
                Err(error) => return error.into(),
            }
        }
        bytes.drain(..used);
        if bytes.is_empty() {
            bytes.shrink_to(BUFFER_KEPT);
        }
        if !messages.is_empty() {
            if let Err(exhausted) = intake.completed(bytes.len()) {
                return Ended::Stranger(exhausted.into());
            }
            // Messages that the core does not accept are lost, as on a bad network; the next
            // heartbeats reveal the loss.
            let count = messages.len() as u64;
            if core.receive(messages) == Err(NotTaken::Full) {
                peers.metrics.overloaded(count);
            }
        }
        match intake.read(&peers, &mut stream, &mut bytes).await {
            Ok(0) => return Ended::Closed,
            Ok(_) => {}
            Err(ReadFailure::Io(error)) => return error.into(),
            Err(stranger) => return Ended::Stranger(stranger),
        }
    }
}

impl From<HandshakeError> for Ended {
    fn from(error: HandshakeError) -> Ended {
        match error {
            HandshakeError::Refused(sentence) => Ended::Refused(sentence),
            HandshakeError::Io(error) => error.into(),
        }
    }
}

impl From<ReadError> for Ended {
    fn from(error: ReadError) -> Ended {
        match error {
            ReadError::Io(error) => error.into(),
            ReadError::Frame(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::tests::peers;

    async fn answer_of(address: std::net::SocketAddr, hello: &impl Serialize) -> Welcome {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut bytes = Vec::new();
        frame::encode(hello, &mut bytes);
        stream.write_all(&bytes).await.unwrap();
        bytes.clear();
        frame::read(&mut stream, &mut bytes, HELLO_BYTES).await.ok().flatten().expect("it answers")
    }

    /// Goal: a node that takes no part answers the hello of a version that it does not know, as any other does.
    #[tokio::test]
    async fn node_that_refuses_all_names_the_version() {
        let directory = tempfile::tempdir().unwrap();
        let (peers, _to_dial) = peers(directory.path());
        let roster = Roster { node: NodeId(2), ..peers.roster.clone() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let refusing = tokio::spawn(refuse_all(roster, listener, "node 2 has lost its log".into()));
        let refusal = answer_of(address, &(MAGIC, 4_u16, 7_u64)).await.unwrap_err();
        assert!(refusal.contains("speaks version 4 of the protocol between nodes"), "{refusal}");
        for with_range in [false, true] {
            let greeting = Greeting::new(peers.roster.hello(NodeId(2), Purpose::Messages), with_range);
            assert_eq!(answer_of(address, &greeting).await, Err("node 2 has lost its log".into()));
        }
        refusing.abort();
    }

    /// Goal: a node that was upgraded dials for requests in the version that it knew of this one before: this does not
    /// hide what its connection for messages has agreed on.
    #[tokio::test]
    async fn hello_of_version_10_for_requests_does_not_hide_an_upgrade() {
        let directory = tempfile::tempdir().unwrap();
        let (peers, _to_dial) = peers(directory.path());
        let members = palisade_spec::raft::Members::of([1, 2].map(NodeId));
        peers.set_members(&members, &Arc::new(members.clone()));
        let other = Roster { node: NodeId(2), incarnation: crate::storage::Incarnation(2), ..peers.roster.clone() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for (purpose, with_range, known) in [
            (Purpose::Messages, true, 11),
            (Purpose::Requests, false, 11),
            (Purpose::Snapshot, false, 11),
            // It was taken back.
            (Purpose::Messages, false, 10),
            (Purpose::Requests, true, 11),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let mut bytes = Vec::new();
            frame::encode(&Greeting::new(other.hello(NodeId(1), purpose), with_range), &mut bytes);
            stream.write_all(&bytes).await.unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            assert!(greet(&peers, accepted, None).await.is_ok());
            let program = peers.program(NodeId(2)).unwrap();
            assert_eq!(program.protocol, known, "{purpose:?}, {with_range}");
        }
    }
}
