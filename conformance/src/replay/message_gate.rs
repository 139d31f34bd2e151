//! The gate: every frame from one node to another comes here, and goes on only when the trace says so.
//!
//! Each node is told that the others are reached at the gate, so it dials the gate for each of them. The gate answers for
//! the node that is meant, reads what comes, and keeps it: messages by their frames, snapshots by their files. To deliver
//! one, it dials the node that is meant with the very handshake of the node that sent it, and passes the same bytes on. What
//! it never delivers is lost, what it delivers twice is repeated.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::peers::frame::{self, HELLO_BYTES, MESSAGE_BYTES};
use palisade::peers::{Answer, Hello, Introduction, Offer, Purpose, Verdict, Welcome};
use palisade::storage::{Incarnation, read_snapshot};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Body, Message, NodeId};
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long something may take that is on its way, on the slowest of machines.
const PATIENCE: Duration = Duration::from_secs(30);
/// So long a node may take, after the end of a connection for a snapshot, to be ready for the next.
const SETTLED: Duration = Duration::from_millis(5);

/// From whom, to whom.
pub type Way = (NodeId, NodeId);

/// Why nothing came through.
#[derive(Debug, thiserror::Error)]
pub enum MessageGateError {
    /// The network.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// What is expected does not come.
    #[error("{0} has not come within {PATIENCE:?}")]
    Missing(String),
    /// A node does not let another one in.
    #[error("the connection is refused: {0}")]
    Refused(String),
    /// A node has no use for a snapshot.
    #[error("the snapshot is of no use to it")]
    Enough,
    /// Somebody says what makes no sense.
    #[error("{0}")]
    Senseless(String),
}

/// The gate of one cluster.
#[derive(Debug)]
pub struct MessageGate {
    shared: Arc<Shared>,
    /// Where each node is reached, as the others see it.
    pub addresses: BTreeMap<NodeId, String>,
}

#[derive(Debug)]
struct Shared {
    cluster: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Everything that was said, in the order in which it came, by the way that it takes.
    said: BTreeMap<Way, Vec<Said>>,
    /// The last handshake on each way.
    hellos: BTreeMap<Way, Hello>,
    /// Where the nodes are.
    nodes: BTreeMap<NodeId, SocketAddr>,
    /// The connections on which messages are delivered.
    onward: BTreeMap<Way, TcpStream>,
    /// What came that must not.
    trouble: Option<String>,
    is_over: bool,
}

/// Something that was said.
#[derive(Clone, Debug)]
pub struct Said {
    /// The message. A snapshot is one, too.
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
    /// A gate before these nodes, all of one cluster.
    ///
    /// # Errors
    /// If there is no port left.
    pub fn open(cluster: u64, nodes: impl IntoIterator<Item = NodeId>) -> Result<MessageGate, MessageGateError> {
        let shared = Arc::new(Shared { cluster, state: Mutex::default(), changed: Condvar::new() });
        let mut addresses = BTreeMap::new();
        for node in nodes {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            addresses.insert(node, listener.local_addr()?.to_string());
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("gate".into()).spawn(move || accept(&shared, &listener, node))?;
        }
        Ok(MessageGate { shared, addresses })
    }

    /// A node is here now. What there was of connections to it is over.
    ///
    /// # Errors
    /// If that is no address.
    pub fn is_at(&self, node: NodeId, address: &str) -> Result<(), MessageGateError> {
        let address = address.parse().map_err(|_| MessageGateError::Senseless(format!("`{address}` is no address")))?;
        let mut state = self.shared.state.lock();
        state.nodes.insert(node, address);
        state.onward.retain(|(_, to), _| *to != node);
        Ok(())
    }

    /// How much was said on a way.
    pub fn count(&self, way: Way) -> usize {
        self.shared.state.lock().said.get(&way).map_or(0, Vec::len)
    }

    /// What is said on a way, with this number, counted from 0; waits for it.
    ///
    /// # Errors
    /// If it does not come.
    pub fn said(&self, way: Way, number: usize) -> Result<Said, MessageGateError> {
        let begun = Instant::now();
        let mut state = self.shared.state.lock();
        loop {
            if let Some(trouble) = &state.trouble {
                return Err(MessageGateError::Senseless(trouble.clone()));
            }
            if let Some(said) = state.said.get(&way).and_then(|said| said.get(number)) {
                return Ok(said.clone());
            }
            let Some(left) = PATIENCE.checked_sub(begun.elapsed()) else {
                return Err(MessageGateError::Missing(format!(
                    "message {number} from node {} to node {}",
                    way.0, way.1
                )));
            };
            self.shared.changed.wait_for(&mut state, left);
        }
    }

    /// What came that must not, if anything did.
    pub fn trouble(&self) -> Option<String> {
        self.shared.state.lock().trouble.clone()
    }

    /// Something like this that was said on a way.
    pub fn find(&self, way: Way, is_it: impl Fn(&Message<LockTable>) -> bool) -> Option<Said> {
        let state = self.shared.state.lock();
        state.said.get(&way)?.iter().rev().find(|said| is_it(&said.message)).cloned()
    }

    /// Delivers what was said, bytes and all.
    ///
    /// # Errors
    /// If the node does not take it.
    pub fn deliver(&self, said: &Said) -> Result<(), MessageGateError> {
        let way = (said.message.from, said.message.to);
        match &said.bytes {
            Bytes::Frame(frame) => self.pass(way, frame),
            Bytes::Snapshot(offer, file) => self.offer(way, offer, file),
        }
    }

    /// Delivers to a node what nobody has said.
    ///
    /// # Errors
    /// If the node does not take it.
    pub fn forge(&self, to: NodeId, message: &Message<LockTable>) -> Result<(), MessageGateError> {
        let mut bytes = Vec::new();
        frame::encode(message, &mut bytes);
        self.pass((message.from, to), &bytes)
    }

    /// Whether a node has introduced itself to anybody, so that the gate can speak in its name.
    pub fn knows(&self, node: NodeId) -> bool {
        self.shared.state.lock().hellos.keys().any(|(from, _)| *from == node)
    }

    fn pass(&self, way: Way, frame: &[u8]) -> Result<(), MessageGateError> {
        let standing = self.shared.state.lock().onward.remove(&way);
        let mut stream = match standing {
            Some(stream) => stream,
            None => self.dial(way, Purpose::Messages)?,
        };
        stream.write_all(frame)?;
        self.shared.state.lock().onward.insert(way, stream);
        Ok(())
    }

    /// Gives a node a snapshot that another one has sent.
    fn offer(&self, way: Way, offer: &[u8], file: &[u8]) -> Result<(), MessageGateError> {
        let mut stream = self.dial(way, Purpose::Snapshot)?;
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

    /// Dials a node in another one's name.
    fn dial(&self, way: Way, purpose: Purpose) -> Result<TcpStream, MessageGateError> {
        let begun = Instant::now();
        let (hello, address) = loop {
            let state = self.shared.state.lock();
            // A node that has not dialled this one yet would introduce itself as it does to others.
            let hello = state.hellos.get(&way).or_else(|| state.hellos.values().find(|hello| hello.from == way.0));
            let address = state.nodes.get(&way.1).copied();
            if let (Some(hello), Some(address)) = (hello, address) {
                break (introduction(hello, way.1, purpose), address);
            }
            drop(state);
            if begun.elapsed() > PATIENCE {
                return Err(MessageGateError::Missing(format!("node {}'s handshake with node {}", way.0, way.1)));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write(&mut stream, &hello)?;
        let welcome: Welcome = read(&mut stream, &mut Vec::new(), HELLO_BYTES)?.0;
        welcome.map_err(MessageGateError::Refused)?;
        Ok(stream)
    }
}

impl Drop for MessageGate {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_over = true;
        state.onward.clear();
        drop(state);
        for address in self.addresses.values() {
            // Only to wake who listens there.
            let _ = address.parse::<SocketAddr>().map(TcpStream::connect);
        }
    }
}

/// What each node says of its directory. Any number will do that is always the same.
pub fn incarnation(node: NodeId) -> Incarnation {
    Incarnation(0x00AB_1E00 + u64::from(node.0))
}

/// How the node that said `hello` introduces itself to another one.
fn introduction(hello: &Hello, to: NodeId, purpose: Purpose) -> Hello {
    Hello {
        magic: hello.magic,
        version: hello.version,
        cluster: hello.cluster,
        from: hello.from,
        to,
        client_addr: hello.client_addr.clone(),
        peer_addr: hello.peer_addr.clone(),
        incarnation: hello.incarnation,
        purpose,
    }
}

/// Answers for the node `to` as long as the gate is there.
fn accept(shared: &Arc<Shared>, listener: &TcpListener, to: NodeId) {
    for stream in listener.incoming() {
        if shared.state.lock().is_over {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        let listen = move || {
            if let Err(MessageGateError::Senseless(trouble)) = listen(&shared, stream, to) {
                shared.state.lock().trouble = Some(trouble);
                shared.changed.notify_all();
            }
        };
        if std::thread::Builder::new().name("gate-way".into()).spawn(listen).is_err() {
            return;
        }
    }
}

/// Hears what a node has to say to `to`.
fn listen(shared: &Shared, mut stream: TcpStream, to: NodeId) -> Result<(), MessageGateError> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    let (hello, _) = read::<Hello>(&mut stream, &mut bytes, HELLO_BYTES)?;
    let (way, purpose) = ((hello.from, to), hello.purpose);
    if hello.to != to {
        return Err(MessageGateError::Senseless(format!(
            "node {} looks for node {} where node {to} is",
            way.0, hello.to
        )));
    }
    let introduction = Introduction { incarnation: incarnation(to), client_addr: String::new() };
    write(&mut stream, &Welcome::Ok(introduction))?;
    {
        let mut state = shared.state.lock();
        state.hellos.insert(way, hello);
        if purpose == Purpose::Messages {
            // Like the node's connection, what there was of the one before is over.
            state.onward.remove(&way);
        }
    }
    let is_from = |message: &Message<LockTable>| {
        let wrong =
            || MessageGateError::Senseless(format!("{message:?} takes the way from node {} to node {to}", way.0));
        if (message.from, message.to) == way { Ok(()) } else { Err(wrong()) }
    };
    if purpose == Purpose::Snapshot {
        let said = take_snapshot(shared, &mut stream, &mut bytes, way)?;
        is_from(&said.message)?;
        shared.keep(way, said);
        return Ok(());
    }
    loop {
        let (message, frame) = read::<Message<LockTable>>(&mut stream, &mut bytes, MESSAGE_BYTES)?;
        is_from(&message)?;
        shared.keep(way, Said { message, bytes: Bytes::Frame(frame.into()) });
    }
}

/// Takes a whole snapshot from a node, as the node that is meant would.
fn take_snapshot(
    shared: &Shared,
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    way: Way,
) -> Result<Said, MessageGateError> {
    let (Offer { term, info }, offer) = read::<Offer>(stream, bytes, HELLO_BYTES)?;
    write(stream, &Answer::From(0))?;
    let length = usize::try_from(info.bytes).unwrap_or(usize::MAX);
    let mut file = std::mem::take(bytes);
    while file.len() < length {
        more(stream, &mut file)?;
    }
    let (snapshot, found) = read_snapshot::<LockTable>(file.as_slice(), Some(shared.cluster))
        .map_err(|flaw| MessageGateError::Senseless(format!("node {} sends a snapshot that is none: {flaw}", way.0)))?;
    if found != info {
        return Err(MessageGateError::Senseless(format!("node {} sends {found:?} as {info:?}", way.0)));
    }
    write(stream, &Verdict::Ok(()))?;
    // It is done with this one when it lets go.
    let _ = stream.read(&mut [0]);
    std::thread::sleep(SETTLED);
    let body = Body::InstallSnapshot { snapshot: Arc::new(snapshot) };
    let message = Message { from: way.0, to: way.1, term, body };
    Ok(Said { message, bytes: Bytes::Snapshot(offer.into(), file.into()) })
}

impl Shared {
    fn keep(&self, way: Way, said: Said) {
        self.state.lock().said.entry(way).or_default().push(said);
        self.changed.notify_all();
    }
}

fn write<T: Serialize>(stream: &mut TcpStream, value: &T) -> Result<(), MessageGateError> {
    let mut bytes = Vec::new();
    frame::encode(value, &mut bytes);
    Ok(stream.write_all(&bytes)?)
}

/// Reads a frame, and what it says; what follows it stays in `bytes`.
fn read<T: DeserializeOwned>(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    limit: usize,
) -> Result<(T, Vec<u8>), MessageGateError> {
    loop {
        let decoded = frame::decode(bytes, limit).map_err(|error| MessageGateError::Senseless(error.to_string()))?;
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

    /// Goal: what must not come is not forgotten, although nobody waits for it.
    #[test]
    fn trouble_is_kept() {
        let gate = MessageGate::open(1, [NodeId(1), NodeId(2)]).unwrap();
        let mut stream = TcpStream::connect(&gate.addresses[&NodeId(2)]).unwrap();
        let (client_addr, peer_addr) = (String::new(), String::new());
        let (from, to) = (NodeId(1), NodeId(1));
        let (magic, version) = (*b"whatever", 0);
        let (incarnation, purpose) = (incarnation(from), Purpose::Messages);
        let hello = Hello { magic, version, cluster: 1, from, to, client_addr, peer_addr, incarnation, purpose };
        assert_eq!(gate.trouble(), None);
        write(&mut stream, &hello).unwrap();
        assert!(gate.said((from, NodeId(2)), 0).is_err());
        assert!(gate.trouble().unwrap().contains("looks for node 1"));
    }
}
