//! A network without privileges: a proxy before each node that can hold the traffic from another
//! node.
//!
//! A node dials every other node and sends over the connections that it dialled. So one direction
//! of a pair is one connection, and its first frame names the sender; with TLS, the system is asked which
//! node has the connection. Held traffic is not lost: it
//! arrives late when the direction is opened, like a TCP retransmission; or the connection breaks
//! then, and it never arrives. This needs no privileges. It does not model a host that vanishes
//! silently, because the proxy always acknowledges.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_client::codec;
use palisade_spec::raft::NodeId;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{Address, Direction, free_address};

/// The proxies of a cluster.
#[derive(Debug)]
pub(in super::super) struct Proxies {
    shared: Arc<Shared>,
    runtime: tokio::runtime::Runtime,
}

#[derive(Debug)]
struct Shared {
    /// The closed directions, each as often as it is closed at present.
    closed: Mutex<Vec<Direction>>,
    /// Incremented whenever a direction is opened or closed.
    changed: watch::Sender<u64>,
    /// Directions whose connections break, if they began before this change.
    broken: Mutex<BTreeMap<Direction, u64>>,
    held: AtomicU64,
}

/// The start of a connection's first message: magic, version, cluster, sender.
type Hello = ([u8; 8], u16, u64, NodeId);
/// Length of a frame's header, in bytes.
const FRAME_HEADER: usize = 8;
/// With what a connection with TLS begins. As a frame it would be longer than a hello may be.
const TLS: [u8; 3] = [0x16, 3, 1];

impl Proxies {
    pub(super) fn new() -> io::Result<Proxies> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let shared = Shared {
            closed: Mutex::new(Vec::new()),
            changed: watch::Sender::new(0),
            broken: Mutex::new(BTreeMap::new()),
            held: AtomicU64::new(0),
        };
        Ok(Proxies { shared: Arc::new(shared), runtime })
    }

    /// A node's addresses on the loopback device; peers reach the node through a proxy.
    pub(super) fn address(&self, node: u16) -> io::Result<Address> {
        let [client_addr, peer_addr] = [free_address()?, free_address()?];
        let advertised_addr = self.start_proxy(node, peer_addr.clone())?;
        Ok(Address { client_addr, peer_addr, advertised_addr, namespace: None })
    }

    /// Starts a proxy for the node that listens at `address`. Returns the address that other nodes
    /// dial.
    fn start_proxy(&self, node: u16, address: String) -> io::Result<String> {
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let proxy = listener.local_addr()?.to_string();
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    // Most likely out of file descriptors.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let (shared, address) = (Arc::clone(&shared), address.clone());
                // The nodes observe the end of the connection, whatever its reason.
                tokio::spawn(async move { drop(forward(&shared, stream, node, &address).await) });
            }
        });
        Ok(proxy)
    }

    /// Holds the traffic in these directions, until [`open`](Proxies::open) has been called as
    /// often.
    pub(super) fn close(&self, directions: &BTreeSet<Direction>) {
        self.shared.closed.lock().extend(directions);
        self.shared.changed.send_modify(|changes| *changes += 1);
    }

    /// Opens these directions: held traffic arrives now, or never, if the connections are to break.
    pub(super) fn open(&self, directions: &BTreeSet<Direction>, breaks: bool) {
        let mut closed = self.shared.closed.lock();
        for direction in directions {
            if let Some(position) = closed.iter().position(|other| other == direction) {
                closed.swap_remove(position);
            }
        }
        drop(closed);
        let next = *self.shared.changed.borrow() + 1;
        if breaks {
            self.shared.broken.lock().extend(directions.iter().map(|&direction| (direction, next)));
        }
        self.shared.changed.send_modify(|changes| *changes = next);
    }

    /// How often traffic was held.
    pub(super) fn held(&self) -> u64 {
        self.shared.held.load(Ordering::Relaxed)
    }
}

/// Forwards one connection to the node that listens at `address`.
async fn forward(shared: &Shared, mut dialler: TcpStream, to: u16, address: &str) -> io::Result<()> {
    let began_at = *shared.changed.borrow();
    let mut bytes = Vec::new();
    let from = loop {
        if dialler.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        if bytes.starts_with(&TLS) {
            let Some(node) = node_at(&dialler)? else { return Ok(()) };
            break node;
        }
        let hello = bytes.get(FRAME_HEADER..).unwrap_or_default();
        if let Ok((_, _, _, from)) = codec::decode_from::<Hello>(&mut &hello[..]) {
            break from.number();
        }
    };
    shared.wait_until_open((from, to), began_at).await?;
    let mut node = TcpStream::connect(address).await?;
    dialler.set_nodelay(true)?;
    node.set_nodelay(true)?;
    node.write_all(&bytes).await?;
    let ((mut from_dialler, mut to_dialler), (mut from_node, mut to_node)) = (dialler.split(), node.split());
    tokio::select! {
        end = copy(shared, &mut from_dialler, &mut to_node, (from, to), began_at) => end,
        end = copy(shared, &mut from_node, &mut to_dialler, (to, from), began_at) => end,
    }
}

/// The node whose process has dialled: a child of this one, with its number on the command line.
fn node_at(dialler: &TcpStream) -> io::Result<Option<u16>> {
    let [port, own] = [dialler.peer_addr()?.port(), dialler.local_addr()?.port()];
    let ends = [port, own].map(|port| format!("0100007F:{port:04X}"));
    let sockets = fs::read_to_string("/proc/net/tcp")?;
    let inode = sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1..3)? == ends).then(|| fields.get(9).copied())?
    });
    let Some(inode) = inode else { return Ok(None) };
    let socket = format!("socket:[{inode}]");
    let is_dialler = |process: &Path| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors
            .map(|descriptor| fs::read_link(descriptor.path()))
            .any(|to| to.is_ok_and(|to| to.as_os_str() == socket.as_str()))
    };
    for task in fs::read_dir("/proc/self/task")? {
        // A thread that has ended has no children.
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        let processes = children.split_whitespace().map(|child| Path::new("/proc").join(child));
        if let Some(process) = processes.into_iter().find(|process| is_dialler(process)) {
            let command = fs::read_to_string(process.join("cmdline"))?;
            let id = command.split('\0').skip_while(|word| *word != "--id").nth(1);
            return Ok(id.and_then(|id| id.parse().ok()));
        }
    }
    Ok(None)
}

async fn copy(
    shared: &Shared,
    reader: &mut (impl AsyncReadExt + Unpin),
    writer: &mut (impl AsyncWriteExt + Unpin),
    direction: Direction,
    began_at: u64,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let length = reader.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        shared.wait_until_open(direction, began_at).await?;
        writer.write_all(&bytes[..length]).await?;
    }
}

impl Shared {
    /// Waits until the direction is open. An error if the connection, which `began_at` at that change,
    /// must break.
    async fn wait_until_open(&self, direction: Direction, began_at: u64) -> io::Result<()> {
        let mut changes = self.changed.subscribe();
        let mut waits = false;
        while self.closed.lock().contains(&direction) {
            if !waits {
                self.held.fetch_add(1, Ordering::Relaxed);
                waits = true;
            }
            let _ = changes.changed().await;
        }
        let breaks = self.broken.lock().get(&direction).is_some_and(|&when| when > began_at);
        if breaks { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net;

    use super::*;

    /// Goal: a node that has come back in another generation is the node of its number: what it says passes, and is held
    /// as before.
    #[test]
    fn node_of_a_later_generation_reaches_the_others() {
        let proxies = Proxies::new().unwrap();
        let node = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = proxies.start_proxy(1, node.local_addr().unwrap().to_string()).unwrap();
        for generation in [0, 1, 2] {
            let mut hello = vec![0; FRAME_HEADER];
            codec::encode_into::<Hello>(&(*b"PALISADE", 10, 7, NodeId::new(3, generation)), &mut hello);
            let direction = BTreeSet::from([(3, 1)]);
            let held = proxies.held();
            proxies.close(&direction);
            let mut dialler = net::TcpStream::connect(&proxy).unwrap();
            dialler.write_all(&hello).unwrap();
            for _ in 0..10_000 {
                if proxies.held() > held {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(proxies.held() > held, "the hello of generation {generation} is not understood");
            proxies.open(&direction, false);
            let (mut accepted, _) = node.accept().unwrap();
            let mut bytes = vec![0; hello.len()];
            accepted.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, hello, "generation {generation}");
        }
    }
}
