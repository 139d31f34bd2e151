//! Limits of the work that a client can cause with snapshots: no more writes than the log's own,
//! and no file that stays on the disk for as long as the client likes.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpSocket;

use crate::support::cluster::Cluster;
use crate::support::process::{output, palisade};
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, metrics};

/// A node with a state of some MiB.
fn large_state() -> (Cluster, String, WebSocket) {
    let cluster = Cluster::start_unrecorded(1, &["--election-timeout", "750ms"], |_, _| {});
    let address = cluster.client_addr(cluster.wait_ready());
    let mut socket = WebSocket::open(&address);
    for session in 0..2 {
        let opened = socket.ask(1, &json!({ "open_session": { "ttl_ms": 86_400_000 } }));
        let options = json!({ "session": opened["ok"]["session"]["session"] });
        for batch in 0..16 {
            for number in 0..500 {
                let key = format!("{session}-{batch}-{number}-{}", "k".repeat(490));
                socket.send(2, &json!({ "acquire": { "key": key, "options": options } }));
            }
            for _ in 0..500 {
                let answer = socket.receive().expect("the connection stays");
                assert!(answer["result"]["ok"].is_object(), "{answer}");
            }
        }
    }
    (cluster, address, socket)
}

/// Goal: clients that request snapshots in a loop, of a state that changes a little between two of
/// them, make the node write few; the answer says when to try again, and the command of an operator
/// waits and gets its snapshot.
#[test]
fn snapshots_in_a_loop_are_written_once_in_a_while() {
    let (_cluster, address, mut socket) = large_state();
    let taken = || metrics::value(&address, "palisade_snapshots_taken_total");
    let mut change = || {
        let opened = socket.ask(3, &json!({ "open_session": { "ttl_ms": 86_400_000 } }));
        assert!(opened["ok"]["session"].is_object(), "{opened}");
    };
    let before = taken();
    let (mut refused, mut granted) = (0, 0);
    for _ in 0..50 {
        change();
        let response = http::post(&address, "/v1/snapshot", "").unwrap();
        if response.status == 200 {
            granted += 1;
            continue;
        }
        let refusal = response.refused(429, "too_soon");
        let seconds: u64 = response.header("retry-after").expect("it says when").parse().unwrap();
        assert!((1..=11).contains(&seconds), "{seconds}");
        assert!(refusal["message"].as_str().unwrap().contains(&format!("try again in {seconds} s")), "{refusal}");
        refused += 1;
    }
    println!("{granted} of 50 requests were granted, {} snapshots were written", taken() - before);
    assert!(granted >= 1 && refused >= 40, "{granted} were granted, {refused} refused");
    assert!(taken() - before <= f64::from(granted));

    change();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved.snap");
    let saved = output(palisade().args(["snapshot", "save", file.to_str().unwrap(), "--endpoints", &address]));
    assert!(saved.status.success(), "{saved:?}");
    // A request that makes the node write nothing is answered at once. An election or a stamp of time may have written an
    // entry since.
    eventually("a request for the newest snapshot is answered", || {
        let response = http::post(&address, "/v1/snapshot", "").unwrap();
        if response.status == 200 {
            return Some(());
        }
        let refusal = response.refused(429, "too_soon");
        assert!(!refusal["message"].as_str().unwrap().contains("only 0 bytes"), "{refusal}");
        None
    });
}

/// Goal: requests whose clients hang up before the answer count like all others.
#[test]
fn a_client_that_hangs_up_shortens_no_pause() {
    let (_cluster, address, mut socket) = large_state();
    let taken = || metrics::value(&address, "palisade_snapshots_taken_total");
    let before = taken();
    for _ in 0..30 {
        let opened = socket.ask(3, &json!({ "open_session": { "ttl_ms": 86_400_000 } }));
        assert!(opened["ok"]["session"].is_object(), "{opened}");
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(b"POST /v1/snapshot HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").unwrap();
        sleep(Duration::from_millis(50));
    }
    eventually("a snapshot is taken", || (taken() > before).then_some(()));
    assert_eq!(taken() - before, 1.0, "the others come too soon");
}

/// A connection from this address of the machine, whose receiver takes little in advance, so that each
/// piece that it reads makes room for the sender.
fn connect_with_a_small_buffer(from: &str, address: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connected = async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(address.parse().unwrap()).await.expect("the node accepts connections")
    };
    let stream = runtime.block_on(connected).into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

const READ: &[u8] = b"GET /v1/snapshot HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Goal: a client reads two snapshots at a time, and leaves the others to other clients.
#[test]
fn one_client_reads_two_snapshots_at_a_time() {
    let (_cluster, address, _socket) = large_state();
    http::post(&address, "/v1/snapshot", "").unwrap().ok();
    let slow = [(); 2].map(|()| {
        let mut stream = connect_with_a_small_buffer("127.0.0.1", &address);
        stream.write_all(READ).unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
        stream
    });
    let refused = http::get(&address, "/v1/snapshot").unwrap().refused(429, "limit");
    let why = "2 snapshots that one client reads at a time is reached by address 127.0.0.1";
    assert!(refused["message"].as_str().unwrap().contains(why), "{refused}");
    let mut other = connect_with_a_small_buffer("127.0.0.77", &address);
    other.write_all(READ).unwrap();
    let mut answer = Vec::new();
    other.read_to_end(&mut answer).unwrap();
    assert_eq!(http::parse(&answer).unwrap().status, 200);
    drop(slow);
    eventually("there is room again", || (http::get(&address, "/v1/snapshot").unwrap().status == 200).then_some(()));
}

/// Goal: a client that reads a snapshot a little at a time, for ever, does not keep its file on the
/// disk.
#[test]
fn a_snapshot_that_is_read_too_slowly_is_closed() {
    let (cluster, address, _socket) = large_state();
    http::post(&address, "/v1/snapshot", "").unwrap().ok();
    let descriptors = format!("/proc/{}/fd", cluster.pid(1).as_raw_nonzero());
    let open = || {
        let links =
            fs::read_dir(&descriptors).expect("the node runs").filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("/snapshot-")).count()
    };
    let mut stream = connect_with_a_small_buffer("127.0.0.1", &address);
    stream.write_all(READ).unwrap();
    eventually("the file is open", || (open() == 1).then_some(()));
    // A third of what the permitted rate is. The node's system takes more bytes only when a third of its
    // buffer, which may have 4 MiB, is free again: a client that were much slower would seem to read nothing.
    let rate = 320;
    let (begun, mut read, mut piece) = (Instant::now(), 0, [0; 16 * 1024]);
    eventually("the file is closed", || {
        while read < begun.elapsed().as_millis() * rate {
            let Ok(more @ 1..) = stream.read(&mut piece) else { break };
            read += more as u128;
        }
        (open() == 0).then_some(())
    });
    assert!(read > 0, "the client has read all the time");
    eventually("the operator is told", || cluster.log(1).contains("the client reads it too slowly").then_some(()));
    // There is room for others.
    http::get(&address, "/v1/snapshot").unwrap();
}
