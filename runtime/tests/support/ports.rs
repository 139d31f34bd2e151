//! Free ports.
//!
//! They lie below the range from which the system draws the local ports of outgoing connections: while a node is down,
//! nobody's connection can take the port that it will come back to.

use std::net::TcpListener;

use rand::Rng;

const RANGE: std::ops::Range<u16> = 10_000..32_000;

/// `count` free ports.
pub fn free(count: usize) -> Vec<u16> {
    // All are held until all are known, so that no two are the same.
    let mut held: Vec<TcpListener> = Vec::new();
    while held.len() < count {
        held.extend(TcpListener::bind(("127.0.0.1", rand::rng().random_range(RANGE))));
    }
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// A port P such that P+1 to P+`nodes` and P+101 to P+100+`nodes` are free, as `palisade dev --port P` needs them.
pub fn free_for_dev(nodes: u16) -> u16 {
    loop {
        let port = rand::rng().random_range(RANGE);
        let needed = (1..=nodes).flat_map(|node| [port + node, port + 100 + node]);
        let held: Result<Vec<TcpListener>, _> = needed.map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
        if held.is_ok() {
            return port;
        }
    }
}
