//! Hostile and broken clients: whatever they send to a node, and however many they are, the node
//! answers the next honest request, its memory stays bounded, no process dies, and the node counts
//! what it could not parse.

mod half_frames;
mod hoarders;
mod many_connections;
mod names;
mod noise;
pub(crate) mod peers;
mod ports;
mod quotas;
mod shares;
mod strangers;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::{eventually, http, metrics, process};

/// How soon an honest request is answered, whatever else goes on: less than the 10 s after which
/// the node closes a connection that sends a head too slowly.
const HONEST: Duration = Duration::from_secs(8);
const MIB: u64 = 1 << 20;

/// A cluster whose leader is under attack.
struct Victim {
    cluster: Cluster,
    leader: u16,
    address: String,
    memory: u64,
    processes: Vec<Pid>,
}

impl Victim {
    fn start() -> Victim {
        Victim::of(Cluster::start_calm(3))
    }

    fn of(cluster: Cluster) -> Victim {
        let leader = cluster.wait_ready();
        let address = cluster.client_addr(leader);
        let processes = cluster.ids().into_iter().map(|id| cluster.pid(id)).collect();
        let mut victim = Victim { cluster, leader, address, memory: 0, processes };
        // What every node uses sooner or later is not the attacker's doing.
        victim.expect_honest_service();
        victim.memory = process::peak_memory(victim.cluster.pid(victim.leader));
        victim
    }

    /// An honest client gets its lock and gives it back, soon.
    #[track_caller]
    fn expect_honest_service(&self) {
        self.expect_service_within(HONEST);
    }

    #[track_caller]
    fn expect_service_within(&self, bound: Duration) {
        let begin = Instant::now();
        let grant = http::post(&self.address, "/v1/locks/honest/acquire", "{}").expect("the node answers").ok();
        let body = json!({ "session": grant["session"], "token": grant["token"] }).to_string();
        http::post(&self.address, "/v1/locks/honest/release", &body).expect("the node answers").ok();
        assert!(begin.elapsed() < bound, "an honest client had to wait for {:?}", begin.elapsed());
    }

    /// The attack has at no time cost the node more memory than this.
    #[track_caller]
    fn expect_memory_within(&self, bytes: u64) {
        let grown = process::peak_memory(self.cluster.pid(self.leader)).saturating_sub(self.memory);
        println!("memory grew by {} KiB of {} KiB", grown / 1024, bytes / 1024);
        assert!(grown <= bytes, "the node's memory grew by {} MiB; {} MiB are allowed", grown / MIB, bytes / MIB);
    }

    /// No process has died, and the leader still leads.
    fn expect_unharmed(&self) {
        self.expect_honest_service();
        for &pid in &self.processes {
            assert!(process::lives(pid.as_raw_nonzero().get()), "a node died");
        }
        assert_eq!(self.cluster.wait_ready(), self.leader, "the leader was unseated");
    }

    /// How many frames and requests the leader has failed to parse.
    fn rejected(&self) -> f64 {
        metrics::value(&self.address, "palisade_frames_rejected_total")
    }

    /// Waits until exactly so many more have been counted.
    fn expect_rejected(&self, before: f64, more: usize) {
        let more = f64::from(u32::try_from(more).unwrap());
        let mut last = 0.0;
        let counted = eventually("what was not understood is counted", || {
            last = self.rejected() - before;
            (last >= more).then_some(last)
        });
        assert_eq!(counted, more, "each is counted once");
    }

    /// Waits until the only connection is that of the caller.
    fn expect_all_gone(&self) {
        self.expect_all_gone_but(0);
    }

    /// The same, with so many more that the test keeps open itself.
    fn expect_all_gone_but(&self, kept: u32) {
        eventually("the connections have ended", || {
            let open = metrics::value(&self.address, "palisade_client_connections");
            (open <= f64::from(kept) + 1.0).then_some(())
        });
    }
}

/// Sends bytes, says that there is nothing more, and waits until the other side has had enough.
/// Returns what it said.
pub(crate) fn send_and_finish(address: &str, bytes: &[u8]) -> Vec<u8> {
    try_send_and_finish(address, bytes).expect("the node accepts connections")
}

/// The same, at a node that may have ended.
pub(crate) fn try_send_and_finish(address: &str, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    // A node that has had enough may reset the connection at any point.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(answer)
}

/// Opens a WebSocket by hand, for what no library would send.
fn upgrade(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the node accepts connections");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(UPGRADE).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the node answers");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

const UPGRADE: &[u8] = b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// One WebSocket frame of a client: the last of its message, masked with zeros.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | u8::try_from(length).unwrap()),
        length @ 126..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

const TEXT: u8 = 1;
const BINARY: u8 = 2;
