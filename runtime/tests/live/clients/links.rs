//! The network between clients and nodes: a proxy before each node that carries bytes, and can delay
//! answers, freeze, reset connections, and lose one answer.
//!
//! The nodes advertise the proxies' addresses, so that a client that follows a redirect stays behind
//! the proxies. Another client goes past them, by a node's own address. Or one proxy, a load
//! balancer, stands before all nodes, and the addresses that they advertise [lead nowhere](Nowhere).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade_client::codec;
use palisade_client::wire::{Answer, Outcome, Response};
use parking_lot::Mutex;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::support::cluster::{CALM, Cluster};
use crate::support::{eventually, http, ports};

/// The proxies of a cluster.
pub struct Links {
    addresses: Vec<String>,
    shared: Arc<Shared>,
    /// Where the proxies run; they end with it.
    runtime: Option<Runtime>,
}

struct Shared {
    frozen: watch::Sender<bool>,
    /// Changes when every connection is to be reset.
    cut: watch::Sender<u64>,
    /// The answer that is to be lost next.
    lose: Mutex<Option<Reply>>,
    /// The answer after which everything freezes.
    freeze_after: Mutex<Option<Reply>>,
    lost: AtomicUsize,
    carried: AtomicUsize,
    /// How long what a node sends is under way.
    delay: Mutex<Duration>,
}

/// An answer of a node that something happens at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A grant.
    Granted,
    /// That a lease was renewed, or a session opened.
    Renewed,
    /// That a lock was released.
    Released,
    /// That records were changed.
    Written,
}

impl Links {
    /// Starts three nodes, each behind a proxy, whose leader stays.
    pub fn before_cluster() -> (Links, Cluster) {
        let addresses: Vec<String> = ports::free(3).into_iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let advertised = addresses.clone();
        let cluster = Cluster::start_adjusted(3, &CALM, move |id, command| {
            command.args(["--advertise-client-addr", &advertised[usize::from(id) - 1]]);
        });
        let nodes = cluster.endpoints().into_iter().map(|node| vec![node]);
        (Links::start(addresses.into_iter().zip(nodes).collect()), cluster)
    }

    /// A load balancer: one proxy before all nodes of a cluster.
    pub fn balancer(cluster: &Cluster) -> Links {
        let address = format!("127.0.0.1:{}", ports::free(1)[0]);
        Links::start(vec![(address, cluster.endpoints())])
    }

    /// Starts a proxy at each of these addresses, before these nodes.
    fn start(proxies: Vec<(String, Vec<String>)>) -> Links {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread");
        let shared = Arc::new(Shared {
            frozen: watch::Sender::new(false),
            cut: watch::Sender::new(0),
            lose: Mutex::new(None),
            freeze_after: Mutex::new(None),
            lost: AtomicUsize::new(0),
            carried: AtomicUsize::new(0),
            delay: Mutex::new(Duration::ZERO),
        });
        let addresses = proxies.iter().map(|(address, _)| address.clone()).collect();
        for (address, nodes) in proxies {
            let listener = runtime.block_on(TcpListener::bind(address)).expect("the port is still free");
            runtime.spawn(accept(Arc::clone(&shared), listener, nodes));
        }
        Links { addresses, shared, runtime: Some(runtime) }
    }

    /// Where clients come in.
    pub fn endpoints(&self) -> &[String] {
        &self.addresses
    }

    /// From now on no byte arrives, on old connections and on new ones, and neither side is told.
    pub fn freeze(&self) {
        self.shared.frozen.send_replace(true);
    }

    /// The same, as soon as the next answer of this kind has arrived.
    pub fn freeze_after(&self, reply: Reply) {
        *self.shared.freeze_after.lock() = Some(reply);
        eventually("the answer comes", || self.shared.frozen.borrow().then_some(()));
    }

    /// Bytes arrive again, on new connections. The old ones lack some, and are reset.
    pub fn thaw(&self) {
        self.shared.frozen.send_replace(false);
        self.cut();
    }

    /// Resets every connection (RST).
    pub fn cut(&self) {
        self.shared.cut.send_modify(|generation| *generation += 1);
    }

    /// From now on what nodes send arrives so much later. What clients send arrives at once.
    pub fn delay_answers(&self, delay: Duration) {
        *self.shared.delay.lock() = delay;
    }

    /// Resets a connection instead of carrying the next answer of this kind.
    pub fn lose(&self, reply: Reply) {
        *self.shared.lose.lock() = Some(reply);
    }

    /// How many answers were lost.
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// How many connections are carried to a node.
    pub fn carried(&self) -> usize {
        self.shared.carried.load(Ordering::SeqCst)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Carries each connection to the next of the nodes that accepts it.
async fn accept(shared: Arc<Shared>, listener: TcpListener, mut nodes: Vec<String>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let (shared, turn) = (Arc::clone(&shared), nodes.clone());
        nodes.rotate_left(1);
        tokio::spawn(async move {
            let mut cut = shared.cut.subscribe();
            let _ = set_socket_linger(&client, Some(Duration::ZERO));
            let orderly = tokio::select! {
                orderly = connect(&shared, &client, &turn) => orderly,
                _ = cut.changed() => false,
            };
            // On a network that is frozen, neither side sees the other's end.
            if *shared.frozen.borrow() {
                let _ = cut.changed().await;
            } else if orderly {
                let _ = set_socket_linger(&client, None);
            }
        });
    }
}

/// Carries a connection; returns whether it ended in an orderly way. Where it did not, to close its
/// socket resets it.
async fn connect(shared: &Shared, client: &TcpStream, nodes: &[String]) -> bool {
    if *shared.frozen.borrow() {
        return false;
    }
    let mut accepted = None;
    for node in nodes {
        if accepted.is_none() {
            accepted = TcpStream::connect(node).await.ok();
        }
    }
    let Some(node) = accepted else { return false };
    let _ = (client.set_nodelay(true), node.set_nodelay(true));
    shared.carried.fetch_add(1, Ordering::SeqCst);
    let orderly = tokio::select! {
        () = requests(shared, client, &node) => true,
        orderly = answers(shared, &node, client) => orderly,
    };
    shared.carried.fetch_sub(1, Ordering::SeqCst);
    orderly
}

async fn read(from: &TcpStream, piece: &mut [u8]) -> usize {
    loop {
        if from.readable().await.is_err() {
            return 0;
        }
        match from.try_read(piece) {
            Ok(length) => return length,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return 0,
        }
    }
}

async fn write(to: &TcpStream, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        if to.writable().await.is_err() {
            return false;
        }
        match to.try_write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    true
}

/// Carries what a client sends, to its end.
async fn requests(shared: &Shared, client: &TcpStream, node: &TcpStream) {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let length = read(client, &mut piece).await;
        if length == 0 {
            return;
        }
        if !*shared.frozen.borrow() && !write(node, &piece[..length]).await {
            return;
        }
    }
}

/// Carries what a node sends; returns whether that came to its own end: not if an answer was lost.
async fn answers(shared: &Shared, node: &TcpStream, client: &TcpStream) -> bool {
    let (sender, mut sent) = mpsc::unbounded_channel();
    let receive = async {
        let mut piece = vec![0; 64 * 1024];
        loop {
            let length = read(node, &mut piece).await;
            let due = Instant::now() + *shared.delay.lock();
            if sender.send((due, piece[..length].to_vec())).is_err() || length == 0 {
                return std::future::pending().await;
            }
        }
    };
    let deliver = async {
        let mut stream = Frames::default();
        while let Some((due, piece)) = sent.recv().await {
            sleep_until(due).await;
            if piece.is_empty() {
                break;
            }
            stream.bytes.extend(piece);
            while let Some(part) = stream.next() {
                if shared.is_lost(&part) {
                    return false;
                }
                if !*shared.frozen.borrow() && !write(client, &part.bytes).await {
                    return true;
                }
                shared.delivered(&part);
            }
        }
        true
    };
    tokio::select! {
        orderly = deliver => orderly,
        () = receive => unreachable!("it has no end"),
    }
}

impl Shared {
    fn is_lost(&self, part: &Part) -> bool {
        let mut lose = self.lose.lock();
        let lost = part.reply.is_some() && part.reply == *lose;
        if lost {
            *lose = None;
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
        lost
    }

    fn delivered(&self, part: &Part) {
        let mut freeze_after = self.freeze_after.lock();
        if part.reply.is_some() && part.reply == *freeze_after {
            *freeze_after = None;
            self.frozen.send_replace(true);
        }
    }
}

/// What a node sends, taken apart: the answer to an upgrade, then frames; or one answer after the
/// other. What follows an answer without a length is carried as it comes.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
    kind: Stream,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stream {
    #[default]
    Head,
    WebSocket,
    Plain,
}

/// A piece that is carried as a whole.
struct Part {
    bytes: Vec<u8>,
    reply: Option<Reply>,
}

impl Frames {
    fn next(&mut self) -> Option<Part> {
        match self.kind {
            Stream::Head => {
                let head = self.bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
                let answer = http::parse(&self.bytes[..head]).ok()?;
                let length = answer.header("content-length").and_then(|length| length.parse().ok());
                match (answer.status, length) {
                    (101, _) => self.kind = Stream::WebSocket,
                    (200.., None) => self.kind = Stream::Plain,
                    _ => {}
                }
                let end = head + length.unwrap_or(0);
                let body = self.bytes.get(head..end)?;
                let reply = is_version(body).then_some(Reply::Written);
                Some(Part { bytes: self.bytes.drain(..end).collect(), reply })
            }
            Stream::WebSocket => {
                let (header, length) = frame(&self.bytes)?;
                let bytes: Vec<u8> = self.bytes.drain(..header + length).collect();
                let reply = reply(bytes[0] & 0xf, &bytes[header..]);
                Some(Part { bytes, reply })
            }
            Stream::Plain => {
                let bytes = std::mem::take(&mut self.bytes);
                (!bytes.is_empty()).then_some(Part { bytes, reply: None })
            }
        }
    }
}

/// Whether this is the answer to a write over HTTP.
fn is_version(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|answer| answer["error"].is_null() && answer["version"].is_u64())
}

/// The lengths of the header and the content of the first frame, if all of it is there (RFC 6455,
/// section 5.2; a server masks nothing).
fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    let (header, length) = match bytes.get(1)? & 0x7f {
        126 => (4, u64::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?))),
        127 => (10, u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)),
        length => (2, u64::from(length)),
    };
    let length = usize::try_from(length).ok()?;
    (bytes.len() >= header + length).then_some((header, length))
}

/// Which answer a frame is: of the hold protocol in JSON, or of the Rust client's in bincode.
fn reply(opcode: u8, content: &[u8]) -> Option<Reply> {
    match opcode {
        1 => {
            let message: Value = serde_json::from_slice(content).ok()?;
            let kinds = [("granted", Reply::Granted), ("renewed", Reply::Renewed), ("released", Reply::Released)];
            kinds.into_iter().find(|(kind, _)| message.get(kind).is_some()).map(|(_, reply)| reply)
        }
        2 => match codec::decode::<Response>(content).ok()?.result {
            Outcome::Ok(Answer::Acquired(_)) => Some(Reply::Granted),
            Outcome::Ok(Answer::Session(_)) => Some(Reply::Renewed),
            Outcome::Ok(Answer::Released) => Some(Reply::Released),
            Outcome::Ok(Answer::Written { .. }) => Some(Reply::Written),
            _ => None,
        },
        _ => None,
    }
}

/// An address that leads nowhere: nothing listens there, until it swallows connections.
pub struct Nowhere {
    port: u16,
    listener: Option<std::net::TcpListener>,
    /// They fill its queue.
    queue: Vec<std::net::TcpStream>,
}

impl Nowhere {
    /// Nothing listens.
    pub fn closed() -> Nowhere {
        Nowhere { port: ports::free(1)[0], listener: None, queue: Vec::new() }
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// From now on the system drops what asks for a connection (SYN), as a firewall does: the queue of
    /// a listener that accepts none is full.
    pub fn swallow(&mut self) {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        bind(&socket, &address).expect("the port is still free");
        listen(&socket, 0).expect("it listens");
        self.listener = Some(socket.into());
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            self.queue.push(stream);
        }
    }
}
