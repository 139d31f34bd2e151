//! The wires between nodes: a proxy before each node, so that a test can cut the wire between two
//! of them and leave all others.
//!
//! A node dials every other one, and says in its first frame which node it is; so a connection's wire is
//! known. While it is cut, nothing that is said on it arrives, and neither side is told: the
//! connection stays. What was said arrives late.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use palisade_client::codec;
use parking_lot::{Condvar, Mutex};

/// The wires of a cluster.
#[derive(Clone, Default)]
pub struct Wires(Arc<State>);

#[derive(Default)]
struct State {
    cut: Mutex<BTreeSet<Wire>>,
    mended: Condvar,
}

/// Two nodes, the smaller number first.
type Wire = (u16, u16);
/// The beginning of what a node says first: magic, version, cluster, its own ID (`peers::Hello`).
type Hello = ([u8; 8], u16, u64, u16);
/// What a frame between nodes has before its payload.
const FRAME_HEADER: usize = 8;

fn wire(one: u16, other: u16) -> Wire {
    (one.min(other), one.max(other))
}

impl Wires {
    /// A proxy before the node that listens at `address`: where other nodes are to dial it. It
    /// lives as long as the test.
    pub fn before(&self, node: u16, address: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = listener.local_addr().expect("it has an address").to_string();
        let (wires, address) = (self.clone(), address.to_owned());
        thread::spawn(move || {
            for dialler in listener.incoming().flatten() {
                let (wires, address) = (wires.clone(), address.clone());
                // A connection's end, whatever its reason, is for the nodes to see.
                thread::spawn(move || drop(wires.carry(dialler, node, &address)));
            }
        });
        proxy
    }

    /// From now on these two nodes do not hear one another.
    pub fn cut(&self, one: u16, other: u16) {
        self.0.cut.lock().insert(wire(one, other));
    }

    /// All nodes hear one another again.
    pub fn mend(&self) {
        self.0.cut.lock().clear();
        self.0.mended.notify_all();
    }

    /// Carries one connection to the node that listens at `address`.
    fn carry(&self, mut dialler: TcpStream, to: u16, address: &str) -> io::Result<()> {
        let mut hello = Vec::new();
        let from = loop {
            let mut piece = [0; 1024];
            let length = dialler.read(&mut piece)?;
            if length == 0 {
                return Ok(());
            }
            hello.extend(&piece[..length]);
            let mut payload = hello.get(FRAME_HEADER..).unwrap_or_default();
            if let Ok((_, _, _, from)) = codec::decode_from::<Hello>(&mut payload) {
                break from;
            }
        };
        self.await_whole(wire(from, to));
        let mut node = TcpStream::connect(address)?;
        node.set_nodelay(true)?;
        dialler.set_nodelay(true)?;
        node.write_all(&hello)?;
        let (hears, says) = (node.try_clone()?, dialler.try_clone()?);
        let back = self.clone();
        thread::spawn(move || back.copy(hears, says, wire(from, to)));
        self.copy(dialler, node, wire(from, to));
        Ok(())
    }

    /// Carries what one side says to the other, until one of them ends the connection; then the
    /// other is told.
    fn copy(&self, mut from: TcpStream, mut to: TcpStream, wire: Wire) {
        let mut piece = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            self.await_whole(wire);
            if to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(std::net::Shutdown::Both);
        let _ = to.shutdown(std::net::Shutdown::Both);
    }

    fn await_whole(&self, wire: Wire) {
        let mut cut = self.0.cut.lock();
        while cut.contains(&wire) {
            self.0.mended.wait(&mut cut);
        }
    }
}
