//! Many connections that send nothing, or send a request too slowly.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::{MIB, UPGRADE, Victim};
use crate::support::{eventually, metrics};

const CONNECTIONS: usize = 5_000;
const KIB: u64 = 1024;

/// As many connections as the system lets this process have: `CONNECTIONS`, and less only where that is
/// impossible.
pub(super) fn connection_count() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = CONNECTIONS as u64 + 500;
    if current.is_some_and(|current| current < wanted) {
        let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
        setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).expect("the soft limit may be raised");
    }
    let room = getrlimit(Resource::Nofile).current.map_or(wanted, |limit| limit.min(wanted));
    let count = usize::try_from(room - 500).unwrap();
    if count < CONNECTIONS {
        eprintln!("ONLY {count} CONNECTIONS INSTEAD OF {CONNECTIONS}: this process may not open more files");
    }
    count
}

/// Opens connections and sends `greeting` on each; with `answered`, waits for the end of a
/// response's head.
pub(super) async fn gather(address: &str, count: usize, greeting: &[u8], answered: bool) -> Vec<tokio::net::TcpStream> {
    let address = address.parse().unwrap();
    let mut connections = Vec::new();
    while connections.len() < count {
        let some = (0..(count - connections.len()).min(50)).map(|_| async {
            // From an address of their own, so that they take no local port that a server may want.
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.77:0".parse().unwrap()).unwrap();
            let mut stream = socket.connect(address).await.expect("the node accepts connections");
            stream.write_all(greeting).await.unwrap();
            let mut head = Vec::new();
            while answered && !head.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut head).await.unwrap() > 0, "the node answers");
            }
            stream
        });
        connections.extend(futures_util::future::join_all(some).await);
    }
    connections
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits until the node has accepted so many connections. On a slow machine the first may be gone
/// by then.
fn wait_for(victim: &Victim, count: usize) {
    let count = f64::from(u32::try_from(count).unwrap());
    eventually("they have all been connected", || {
        (metrics::value(&victim.address, "palisade_client_connections_accepted_total") >= count).then_some(())
    });
}

/// Thousands that connect and say nothing: others are served meanwhile, and after the time for a
/// head they are gone.
#[test]
fn thousands_of_silent_connections_do_no_harm() {
    let victim = Victim::start();
    let count = connection_count();
    let runtime = runtime();
    let connections = runtime.block_on(gather(&victim.address, count, b"", false));
    wait_for(&victim, count);
    victim.expect_honest_service();
    // Each has a task and a small buffer, which grows only with what is sent.
    victim.expect_memory_within(count as u64 * 32 * KIB);
    victim.expect_all_gone();
    drop(connections);
    victim.expect_unharmed();
}

/// Thousands of open WebSockets that say nothing, which is their good right. They count towards the
/// limit of connections.
#[test]
fn thousands_of_idle_websockets_do_no_harm() {
    let victim = Victim::start();
    let count = connection_count();
    let runtime = runtime();
    let connections = runtime.block_on(gather(&victim.address, count, UPGRADE, true));
    wait_for(&victim, count);
    let open = metrics::value(&victim.address, "palisade_client_connections");
    assert!(open >= f64::from(u32::try_from(count).unwrap()), "{open} of {count} WebSockets are counted");
    victim.expect_honest_service();
    // A task, its request's head, and a buffer for reading of 4 KiB each.
    victim.expect_memory_within(count as u64 * 32 * KIB);
    drop(connections);
    victim.expect_all_gone();
    victim.expect_unharmed();
}

/// A host that vanishes says nothing, like a client that waits for a lock. So the system is told to
/// ask: it has a timer that runs for every connection of a client that is silent, and for what
/// nodes say to one another.
#[test]
fn silent_connections_are_watched() {
    let victim = Victim::start();
    let silent = TcpStream::connect(&victim.address).unwrap();
    eventually("a silent client's connection is watched", || {
        watched(&victim.address, silent.local_addr().unwrap().port())
    });
    let node = victim.cluster.peer_addr(victim.leader);
    eventually("what a node hears the others say is watched", || watched(&node, 0));
}

/// Whether the connections that were accepted at `address`, of a client's port or (0) of all, have
/// a timer for keep-alives that rings within 10 s; from `/proc/net/tcp`.
fn watched(address: &str, client: u16) -> Option<()> {
    let port = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
    let server = address.rsplit_once(':')?.1.parse().ok();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("there is a /proc");
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Connections that stand (01).
    let open = lines.filter(|line| line[3] == "01" && port(line[1]) == server);
    let timers: Vec<(u64, u64)> = open
        .filter(|line| client == 0 || port(line[2]) == Some(client))
        .filter_map(|line| {
            let (kind, ticks) = line[5].split_once(':')?;
            Some((kind.parse().ok()?, u64::from_str_radix(ticks, 16).ok()?))
        })
        .collect();
    // 2 is the timer for keep-alives; a tick is 10 ms.
    (!timers.is_empty() && timers.iter().all(|&(kind, ticks)| kind == 2 && ticks <= 1_001)).then_some(())
}

/// Heads that arrive a byte at a time: each connection is closed when its time is up, however it
/// drips.
#[test]
fn slow_heads_are_cut_off() {
    let victim = Victim::start();
    let mut slow: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&victim.address).unwrap()).collect();
    let begin = Instant::now();
    for stream in &mut slow {
        stream.set_nonblocking(true).unwrap();
        stream.write_all(b"GET /v1/status HTTP/1.1\r\nX-Slow: ").unwrap();
    }
    // The promise is 10 s from the beginning of the head; the rest is for a busy machine.
    while !slow.is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{} may still drip", slow.len());
        slow.retain_mut(|stream| {
            let over = matches!(stream.read(&mut [0; 512]), Ok(0)) || stream.write_all(b"x").is_err();
            !over
        });
        victim.expect_honest_service();
        std::thread::sleep(Duration::from_millis(500));
    }
    victim.expect_memory_within(8 * MIB);
    victim.expect_unharmed();
}
