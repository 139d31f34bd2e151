//! The message gate: it receives every frame between two nodes and forwards it only when the trace
//! says so.
//!
//! Each node's peers have the gate's addresses, so a node dials the gate for each peer. The gate
//! answers as the intended node, reads the messages and stores them: messages as frames, snapshots
//! as files. To deliver one, it dials the receiver with the sender's own handshake and forwards the
//! same bytes. A message that the gate never delivers is lost; one that it delivers twice is
//! duplicated.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::peers::frame::{self, HELLO_BYTES, MESSAGE_BYTES};
use palisade::peers::{Answer, Greeting, Hello, Introduction, Offer, Purpose, RangeWelcome, Verdict, Welcome};
use palisade::storage::{Incarnation, Start, read_snapshot};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Message, NodeId};
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long the gate waits for a message or handshake, generous enough for a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The version of the protocol between nodes whose nodes do not negotiate, and what they answer to those that do.
const WITHOUT_RANGE: u16 = 10;
const REFUSAL_OF_10: &str = "it speaks version 11 of the protocol, this node version 10";

/// Time that a node of that version may need after a snapshot connection ends before it accepts the next.
const SETTLED: Duration = Duration::from_millis(50);

/// A link: sender and receiver.
pub type Link = (NodeId, NodeId);

/// Why a message did not pass the gate.
#[derive(Debug, thiserror::Error)]
pub enum MessageGateError {
    /// A connection failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// An expected message or handshake did not arrive in time.
    #[error("{0} has not arrived within {PATIENCE:?}")]
    Missing(String),
    /// A node refused the connection.
    #[error("the connection is refused: {0}")]
    Refused(String),
    /// The receiver already has what the snapshot includes.
    #[error("the snapshot has nothing that the node lacks")]
    Enough,
    /// A node sent something invalid.
    #[error("{0}")]
    Invalid(String),
}

/// The gate of one cluster.
#[derive(Debug)]
pub struct MessageGate {
    shared: Arc<Shared>,
    /// The gate's address for each node, as the other nodes see it.
    pub addresses: BTreeMap<NodeId, String>,
}

#[derive(Debug)]
struct Shared {
    cluster: u64,
    /// The nodes that run a program which speaks version 10 of the protocol only.
    of_version_10: BTreeSet<NodeId>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// All messages sent on each link, in order of arrival.
    sent: BTreeMap<Link, Vec<Sent>>,
    /// The last handshake on each link.
    hellos: BTreeMap<Link, Greeting>,
    /// The nodes' own addresses.
    nodes: BTreeMap<NodeId, SocketAddr>,
    /// The connections on which messages are delivered.
    onward: BTreeMap<Link, TcpStream>,
    /// The first invalid thing that a node sent.
    violation: Option<String>,
    is_over: bool,
}

/// A message that a node sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The message; a snapshot is an `InstallSnapshot`.
    pub message: Message<LockTable>,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
enum Bytes {
    Frame(Arc<[u8]>),
    /// The frame of the offer, and the file.
    Snapshot(Arc<[u8]>, Arc<[u8]>),
}

impl MessageGate {
    /// Opens a gate for these nodes, all of one cluster. Those `of_version_10` run a program that speaks that version
    /// of the protocol only: in their name the gate refuses other ones, as they would, and it dials them in that one.
    ///
    /// # Errors
    /// If no port is free.
    pub fn open(
        cluster: u64,
        nodes: impl IntoIterator<Item = NodeId>,
        of_version_10: BTreeSet<NodeId>,
    ) -> Result<MessageGate, MessageGateError> {
        let shared = Arc::new(Shared { cluster, of_version_10, state: Mutex::default(), changed: Condvar::new() });
        let mut addresses = BTreeMap::new();
        for node in nodes {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            addresses.insert(node, listener.local_addr()?.to_string());
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("gate".into()).spawn(move || accept(&shared, &listener, node))?;
        }
        Ok(MessageGate { shared, addresses })
    }

    /// Sets a node's present address and drops the old connections to it.
    ///
    /// # Errors
    /// If `address` does not parse.
    pub fn set_address(&self, node: NodeId, address: &str) -> Result<(), MessageGateError> {
        let address =
            address.parse().map_err(|_| MessageGateError::Invalid(format!("`{address}` is not an address")))?;
        let mut state = self.shared.state.lock();
        state.nodes.insert(node, address);
        state.onward.retain(|(_, to), _| *to != node);
        Ok(())
    }

    /// Number of messages sent on a link.
    pub fn count(&self, link: Link) -> usize {
        self.shared.state.lock().sent.get(&link).map_or(0, Vec::len)
    }

    /// The message with this number on a link, counted from 0; waits until it arrives.
    ///
    /// # Errors
    /// If it does not arrive in time, or a node sent something invalid.
    pub fn sent(&self, link: Link, number: usize) -> Result<Sent, MessageGateError> {
        let begun = Instant::now();
        let mut state = self.shared.state.lock();
        loop {
            if let Some(violation) = &state.violation {
                return Err(MessageGateError::Invalid(violation.clone()));
            }
            if let Some(sent) = state.sent.get(&link).and_then(|sent| sent.get(number)) {
                return Ok(sent.clone());
            }
            let Some(left) = PATIENCE.checked_sub(begun.elapsed()) else {
                return Err(MessageGateError::Missing(format!(
                    "message {number} from node {} to node {}",
                    link.0, link.1
                )));
            };
            self.shared.changed.wait_for(&mut state, left);
        }
    }

    /// The invalid thing that a node sent, if any.
    pub fn violation(&self) -> Option<String> {
        self.shared.state.lock().violation.clone()
    }

    /// The latest message on a link that satisfies `is_it`.
    pub fn find(&self, link: Link, is_it: impl Fn(&Message<LockTable>) -> bool) -> Option<Sent> {
        let state = self.shared.state.lock();
        state.sent.get(&link)?.iter().rev().find(|sent| is_it(&sent.message)).cloned()
    }

    /// Delivers a sent message, byte for byte.
    ///
    /// # Errors
    /// If the receiver does not accept it.
    pub fn deliver(&self, sent: &Sent) -> Result<(), MessageGateError> {
        let link = (sent.message.from, sent.message.to);
        match &sent.bytes {
            Bytes::Frame(frame) => self.pass(link, frame),
            Bytes::Snapshot(offer, file) => self.offer(link, offer, file),
        }
    }

    /// Delivers a message that no node has sent.
    ///
    /// # Errors
    /// If the receiver does not accept it.
    pub fn forge(&self, to: NodeId, message: &Message<LockTable>) -> Result<(), MessageGateError> {
        let mut bytes = Vec::new();
        frame::encode(message, &mut bytes);
        self.pass((message.from, to), &bytes)
    }

    /// Whether a node has sent a handshake to any peer, so that the gate can impersonate it.
    pub fn knows(&self, node: NodeId) -> bool {
        self.shared.state.lock().hellos.keys().any(|(from, _)| *from == node)
    }

    fn pass(&self, link: Link, frame: &[u8]) -> Result<(), MessageGateError> {
        let standing = self.shared.state.lock().onward.remove(&link);
        let mut stream = match standing {
            Some(stream) => stream,
            None => self.dial(link, Purpose::Messages)?,
        };
        stream.write_all(frame)?;
        self.shared.state.lock().onward.insert(link, stream);
        Ok(())
    }

    /// Delivers to a node a snapshot that another one has sent.
    fn offer(&self, link: Link, offer: &[u8], file: &[u8]) -> Result<(), MessageGateError> {
        let mut stream = self.dial(link, Purpose::Snapshot)?;
        stream.write_all(offer)?;
        let mut bytes = Vec::new();
        let from = match read::<Answer>(&mut stream, &mut bytes, HELLO_BYTES)?.0 {
            Answer::From(from) => usize::try_from(from).unwrap_or(usize::MAX),
            Answer::Enough => return Err(MessageGateError::Enough),
            Answer::Refused(why) => return Err(MessageGateError::Refused(why)),
        };
        stream.write_all(file.get(from..).unwrap_or_default())?;
        let verdict: Verdict = read(&mut stream, &mut bytes, HELLO_BYTES)?.0;
        verdict.map_err(MessageGateError::Refused)
    }

    /// Dials a node in the name of another one.
    fn dial(&self, link: Link, purpose: Purpose) -> Result<TcpStream, MessageGateError> {
        let begun = Instant::now();
        let (hello, address) = loop {
            let state = self.shared.state.lock();
            // A sender that has not dialled this receiver yet uses its handshake with another peer.
            let other = || state.hellos.values().find(|greeting| greeting.hello.from == link.0);
            let greeting = state.hellos.get(&link).or_else(other);
            let address = state.nodes.get(&link.1).copied();
            if let (Some(greeting), Some(address)) = (greeting, address) {
                break (self.shared.introduction(greeting, link.1, purpose), address);
            }
            drop(state);
            if begun.elapsed() > PATIENCE {
                return Err(MessageGateError::Missing(format!("node {}'s handshake with node {}", link.0, link.1)));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write(&mut stream, &hello)?;
        let refused = match hello.speaks {
            Some(_) => read::<RangeWelcome>(&mut stream, &mut Vec::new(), HELLO_BYTES)?.0.err(),
            None => read::<Welcome>(&mut stream, &mut Vec::new(), HELLO_BYTES)?.0.err(),
        };
        refused.map_or(Ok(stream), |refusal| Err(MessageGateError::Refused(refusal)))
    }
}

impl Drop for MessageGate {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_over = true;
        state.onward.clear();
        drop(state);
        for address in self.addresses.values() {
            // The connection only wakes the listening thread.
            let _ = address.parse::<SocketAddr>().map(TcpStream::connect);
        }
    }
}

/// The incarnation of each node's data directory. Any number works if it never changes.
pub fn incarnation(node: NodeId) -> Incarnation {
    Incarnation(0x00AB_1E00 + u64::from(node.0))
}

/// Accepts connections for the node `to` until the gate closes.
fn accept(shared: &Arc<Shared>, listener: &TcpListener, to: NodeId) {
    for stream in listener.incoming() {
        if shared.state.lock().is_over {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        let listen = move || {
            if let Err(MessageGateError::Invalid(violation)) = listen(&shared, stream, to) {
                shared.state.lock().violation = Some(violation);
                shared.changed.notify_all();
            }
        };
        if std::thread::Builder::new().name("gate-link".into()).spawn(listen).is_err() {
            return;
        }
    }
}

/// Reads what a node sends to `to`.
fn listen(shared: &Shared, mut stream: TcpStream, to: NodeId) -> Result<(), MessageGateError> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    let (greeting, _) = read::<Greeting>(&mut stream, &mut bytes, HELLO_BYTES)?;
    let (link, purpose) = ((greeting.hello.from, to), greeting.hello.purpose);
    if greeting.hello.to != to {
        return Err(MessageGateError::Invalid(format!(
            "node {} dialled the address of node {to} as node {}",
            link.0, greeting.hello.to
        )));
    }
    if greeting.speaks.is_some() && shared.of_version_10.contains(&to) {
        return write(&mut stream, &Welcome::Err(REFUSAL_OF_10.to_owned()));
    }
    let introduction = Introduction {
        incarnation: incarnation(to),
        client_addr: String::new(),
        start: Start::default(),
        admin_addr: None,
    };
    match &greeting.speaks {
        // The node that the gate stands for runs the program of the one that dials.
        Some(speaks) => write(&mut stream, &RangeWelcome::Ok((introduction, speaks.clone())))?,
        None => write(&mut stream, &Welcome::Ok(introduction))?,
    }
    {
        let mut state = shared.state.lock();
        state.hellos.insert(link, greeting);
        if purpose == Purpose::Messages {
            // A new connection replaces the previous one, as it does between two nodes.
            state.onward.remove(&link);
        }
    }
    let is_from = |message: &Message<LockTable>| {
        let wrong =
            || MessageGateError::Invalid(format!("{message:?} is sent on the link from node {} to node {to}", link.0));
        if (message.from, message.to) == link { Ok(()) } else { Err(wrong()) }
    };
    if purpose == Purpose::Snapshot {
        let sent = take_snapshot(shared, &mut stream, &mut bytes, link)?;
        is_from(&sent.message)?;
        shared.keep(link, sent);
        return Ok(());
    }
    loop {
        let (message, frame) = read::<Message<LockTable>>(&mut stream, &mut bytes, MESSAGE_BYTES)?;
        is_from(&message)?;
        shared.keep(link, Sent { message, bytes: Bytes::Frame(frame.into()) });
    }
}

/// Receives a whole snapshot from a node, as the intended receiver would.
fn take_snapshot(
    shared: &Shared,
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    link: Link,
) -> Result<Sent, MessageGateError> {
    let (Offer { term, info }, offer) = read::<Offer>(stream, bytes, HELLO_BYTES)?;
    write(stream, &Answer::From(0))?;
    let length = usize::try_from(info.bytes).unwrap_or(usize::MAX);
    let mut file = std::mem::take(bytes);
    while file.len() < length {
        more(stream, &mut file)?;
    }
    let (snapshot, found) = read_snapshot::<LockTable>(file.as_slice(), Some(shared.cluster))
        .map_err(|flaw| MessageGateError::Invalid(format!("node {} sends an invalid snapshot: {flaw}", link.0)))?;
    if found != info {
        return Err(MessageGateError::Invalid(format!("node {} sends {found:?} as {info:?}", link.0)));
    }
    write(stream, &Verdict::Ok(()))?;
    // The sender is done with this snapshot when it closes the connection.
    let _ = stream.read(&mut [0]);
    if shared.of_version_10.contains(&link.0) {
        std::thread::sleep(SETTLED);
    }
    let body = Body::InstallSnapshot { snapshot: Arc::new(snapshot) };
    let message = Message { from: link.0, to: link.1, term, body };
    Ok(Sent { message, bytes: Bytes::Snapshot(offer.into(), file.into()) })
}

impl Shared {
    /// The handshake of the node that sent `greeting`, addressed to another node, in a form that this one understands.
    fn introduction(&self, greeting: &Greeting, to: NodeId, purpose: Purpose) -> Greeting {
        let Greeting { hello, speaks } = greeting.clone();
        let hello = Hello { to, purpose, ..hello };
        if self.of_version_10.contains(&to) {
            return Greeting { hello: Hello { version: WITHOUT_RANGE, ..hello }, speaks: None };
        }
        Greeting { hello, speaks }
    }

    fn keep(&self, link: Link, sent: Sent) {
        self.state.lock().sent.entry(link).or_default().push(sent);
        self.changed.notify_all();
    }
}

fn write<T: Serialize>(stream: &mut TcpStream, value: &T) -> Result<(), MessageGateError> {
    let mut bytes = Vec::new();
    frame::encode(value, &mut bytes);
    Ok(stream.write_all(&bytes)?)
}

/// Reads a frame and decodes it; what follows the frame stays in `bytes`.
fn read<T: DeserializeOwned>(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    limit: usize,
) -> Result<(T, Vec<u8>), MessageGateError> {
    loop {
        let decoded = frame::decode(bytes, limit).map_err(|error| MessageGateError::Invalid(error.to_string()))?;
        if let Some((value, length)) = decoded {
            return Ok((value, bytes.drain(..length).collect()));
        }
        more(stream, bytes)?;
    }
}

fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<(), MessageGateError> {
    let mut piece = [0; 16 * 1024];
    let count = stream.read(&mut piece)?;
    if count == 0 {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    bytes.extend_from_slice(&piece[..count]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an invalid handshake is reported even if no caller was waiting for a message.
    #[test]
    fn invalid_handshake_is_reported() {
        let gate = MessageGate::open(1, [NodeId(1), NodeId(2)], BTreeSet::new()).unwrap();
        let mut stream = TcpStream::connect(&gate.addresses[&NodeId(2)]).unwrap();
        let (client_addr, peer_addr) = (String::new(), String::new());
        let (from, to) = (NodeId(1), NodeId(1));
        let (magic, version) = (*b"whatever", 0);
        let (incarnation, purpose) = (incarnation(from), Purpose::Messages);
        let hello = Hello {
            magic,
            version,
            cluster: 1,
            from,
            to,
            client_addr,
            peer_addr,
            incarnation,
            purpose,
            start: Start::default(),
            admin_addr: None,
        };
        assert_eq!(gate.violation(), None);
        write(&mut stream, &hello).unwrap();
        assert!(gate.sent((from, NodeId(2)), 0).is_err());
        assert!(gate.violation().unwrap().contains("as node 1"));
    }
}
