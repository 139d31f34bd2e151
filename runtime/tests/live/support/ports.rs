//! Free ports.
//!
//! They lie below the range from which the system draws the local ports of outgoing connections:
//! while a node is down, no connection can take the port that it will come back to. And they
//! are reserved, so that no other test of this machine takes them either: a reservation is a socket
//! with a name that is no file, and ends with this process.

use std::net::SocketAddr as Address;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use parking_lot::Mutex;
use rand::Rng;
use tokio::net::TcpSocket;

const RANGE: std::ops::Range<u16> = 10_000..32_000;

static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Reserves a port, if no other process has reserved it or listens on it.
fn reserve(port: u16) -> Option<UnixListener> {
    let name = SocketAddr::from_abstract_name(format!("palisade-test-port-{port}")).expect("a short name");
    let reservation = UnixListener::bind_addr(&name).ok()?;
    // Bound, but not listening: a process that another thread starts at this moment has a copy of
    // the socket until it is another program, and a copy that listened would keep the port from
    // the test that it is meant for.
    let probe = TcpSocket::new_v4().ok()?;
    probe.set_reuseaddr(true).ok()?;
    probe.bind(Address::from(([127, 0, 0, 1], port))).ok()?;
    Some(reservation)
}

/// `count` free ports.
pub fn free(count: usize) -> Vec<u16> {
    let mut found = Vec::new();
    while found.len() < count {
        let port = rand::rng().random_range(RANGE);
        if let Some(reservation) = reserve(port) {
            RESERVED.lock().push(reservation);
            found.push(port);
        }
    }
    found
}

/// A port P such that P+1 to P+`nodes` and P+101 to P+100+`nodes` are free, as `palisade dev --port
/// P` needs them.
pub fn free_for_dev(nodes: u16) -> u16 {
    loop {
        let port = rand::rng().random_range(RANGE);
        let needed = (1..=nodes).flat_map(|node| [port + node, port + 100 + node]);
        let reservations: Option<Vec<UnixListener>> = needed.map(reserve).collect();
        if let Some(reservations) = reservations {
            RESERVED.lock().extend(reservations);
            return port;
        }
    }
}
