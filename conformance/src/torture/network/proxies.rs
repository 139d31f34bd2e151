//! A network for everybody: a proxy before each node, that can hold what one node says to another.
//!
//! A node dials every other one and sends over the connections that it dialled, so one direction of a pair is one
//! connection, and its first frame says whose it is. What is held is not lost: like TCP's own repetitions it arrives when the
//! direction is opened again, late; or the connection breaks then, and it never does. Needs no privileges, so it runs
//! everywhere; what it does not show is a host that vanishes without a word, for the proxy always acknowledges.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade_client::codec;
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
    /// The directions that are closed, each as often as it was and was not opened again.
    closed: Mutex<Vec<Direction>>,
    /// Changes whenever a direction is opened or closed.
    changed: watch::Sender<u64>,
    /// Directions whose connections are to break, if they began before this change.
    broken: Mutex<BTreeMap<Direction, u64>>,
    held: AtomicU64,
}

/// The beginning of what a node says first: magic, version, cluster, who it is.
type Hello = ([u8; 8], u16, u64, u16);
/// What a frame between nodes has before its payload.
const FRAME_HEADER: usize = 8;

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

    /// A place for a node: on the loopback device, behind a proxy.
    pub(super) fn seat(&self, node: u16) -> io::Result<Address> {
        let [client_addr, peer_addr] = [free_address()?, free_address()?];
        let reached_at = self.before(node, peer_addr.clone())?;
        Ok(Address { client_addr, peer_addr, reached_at, within: None })
    }

    /// A proxy before the node that listens at `address`: where other nodes are to dial it.
    fn before(&self, node: u16, address: String) -> io::Result<String> {
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let proxy = listener.local_addr()?.to_string();
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    // Out of descriptors, most likely.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let (shared, address) = (Arc::clone(&shared), address.clone());
                // A connection's end, whatever its reason, is for the nodes to see.
                tokio::spawn(async move { drop(carry(&shared, stream, node, &address).await) });
            }
        });
        Ok(proxy)
    }

    /// What is said in these directions does not arrive, until as many calls of [`open`](Proxies::open) have been made.
    pub(super) fn close(&self, directions: &BTreeSet<Direction>) {
        self.shared.closed.lock().extend(directions);
        self.shared.changed.send_modify(|changes| *changes += 1);
    }

    /// It arrives again; what was said meanwhile arrives now, or, if the connections are to break, never.
    pub(super) fn open(&self, directions: &BTreeSet<Direction>, breaks: bool) {
        let mut closed = self.shared.closed.lock();
        for direction in directions {
            if let Some(place) = closed.iter().position(|other| other == direction) {
                closed.swap_remove(place);
            }
        }
        drop(closed);
        let next = *self.shared.changed.borrow() + 1;
        if breaks {
            self.shared.broken.lock().extend(directions.iter().map(|&direction| (direction, next)));
        }
        self.shared.changed.send_modify(|changes| *changes = next);
    }

    /// How often something was held.
    pub(super) fn held(&self) -> u64 {
        self.shared.held.load(Ordering::Relaxed)
    }
}

/// Carries one connection to the node that listens at `address`.
async fn carry(shared: &Shared, mut dialler: TcpStream, to: u16, address: &str) -> io::Result<()> {
    let began = *shared.changed.borrow();
    let mut bytes = Vec::new();
    let from = loop {
        if dialler.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        let hello = bytes.get(FRAME_HEADER..).unwrap_or_default();
        if let Ok((_, _, _, from)) = codec::decode_from::<Hello>(&mut &hello[..]) {
            break from;
        }
    };
    shared.pass((from, to), began).await?;
    let mut node = TcpStream::connect(address).await?;
    dialler.set_nodelay(true)?;
    node.set_nodelay(true)?;
    node.write_all(&bytes).await?;
    let ((mut hears, mut says), (mut answers, mut asked)) = (dialler.split(), node.split());
    tokio::select! {
        end = copy(shared, &mut hears, &mut asked, (from, to), began) => end,
        end = copy(shared, &mut answers, &mut says, (to, from), began) => end,
    }
}

async fn copy(
    shared: &Shared,
    reader: &mut (impl AsyncReadExt + Unpin),
    writer: &mut (impl AsyncWriteExt + Unpin),
    direction: Direction,
    began: u64,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let length = reader.read(&mut bytes).await?;
        if length == 0 {
            return Ok(());
        }
        shared.pass(direction, began).await?;
        writer.write_all(&bytes[..length]).await?;
    }
}

impl Shared {
    /// Waits until the direction is open. An error if a connection that `began` then has broken meanwhile.
    async fn pass(&self, direction: Direction, began: u64) -> io::Result<()> {
        let mut changes = self.changed.subscribe();
        let mut waits = false;
        while self.closed.lock().contains(&direction) {
            if !waits {
                self.held.fetch_add(1, Ordering::Relaxed);
                waits = true;
            }
            let _ = changes.changed().await;
        }
        let breaks = self.broken.lock().get(&direction).is_some_and(|&when| when > began);
        if breaks { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}
