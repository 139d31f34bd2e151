//! Strangers that send half of something, and wait: their memory is bounded, however many they are,
//! and their connections end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use super::peers::{Hello, welcome};
use super::{MIB, Victim};

/// What each stranger announces, and what it sends of that at the most.
const ANNOUNCED: u32 = 64 * 1024 * 1024;
const SENT: usize = 20 * 1024 * 1024;

/// A node that no member knows says hello, announces a large frame, and sends a part of it. Returns
/// how much the node took, and whether it ended the connection.
fn half_a_frame(port: &str, hello: &Hello) -> (usize, bool) {
    let mut stream = TcpStream::connect(port).expect("the node accepts connections");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(&hello.frame()).unwrap();
    let mut answer = vec![0; 1000];
    let length = stream.read(&mut answer).expect("the hello is answered");
    assert!(welcome(&answer[..length]).is_ok(), "a node that is not known yet is let in");
    let mut sent = 0;
    if stream.write_all(&[ANNOUNCED.to_le_bytes(), [0; 4]].concat()).is_ok() {
        let piece = vec![7; 64 * 1024];
        while sent < SENT && stream.write_all(&piece).is_ok() {
            sent += piece.len();
        }
    }
    let ended = match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    let _ = stream.shutdown(Shutdown::Both);
    (sent, ended)
}

/// Goal: ten, then a hundred nodes that are no members send 20 MiB of a frame each and stop. The
/// memory for all of them has one bound, all their connections end, and the cluster works.
#[test]
fn half_frames_of_strangers_have_one_bound_and_an_end() {
    let victim = Victim::start();
    let port = victim.cluster.peer_addr(victim.leader);
    let good = Hello::good(&victim);
    for count in [10, 100] {
        let strangers: Vec<_> = (0..count)
            .map(|number| {
                let (port, from) = (port.clone(), 1_000 + count + number);
                let hello = Hello { from, incarnation: from.into(), start: (1, vec![from.into()]), ..good.clone() };
                thread::spawn(move || half_a_frame(&port, &hello))
            })
            .collect();
        victim.expect_honest_service();
        for stranger in strangers {
            let (_, ended) = stranger.join().expect("a stranger does not fail");
            assert!(ended, "a connection with half a frame is still there");
        }
        victim.expect_honest_service();
        // 24 MiB for all of them, half of `STRANGER_BYTES`, because all are at one loopback address. Their buffers grow
        // by doubling, and each takes whole pages; a page may have 2 MiB. Without a bound, ten strangers took 200 MiB,
        // and a hundred 2 GiB.
        victim.expect_memory_within(150 * MIB);
    }
    victim.expect_unharmed();
}
