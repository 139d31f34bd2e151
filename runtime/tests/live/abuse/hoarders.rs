//! Clients that exceed their share: answers that they do not read, and sessions without end.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use palisade_client::codec;
use palisade_client::wire::{Code, Op, OpenSession, Outcome, Request, Response};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::{BINARY, HONEST, MIB, TEXT, Victim, frame, upgrade};
use crate::support::cluster::Cluster;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, process};

const REQUESTS: usize = 200_000;

/// Sends the same request over and over without reading, until all are sent or the node has had
/// enough. Other clients are served meanwhile.
fn never_read(victim: &Victim, op: &serde_json::Value) -> usize {
    let mut stream = upgrade(&victim.address);
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let batch = frame(TEXT, json!({ "id": 7, "op": op }).to_string().as_bytes()).repeat(100);
    let begin = Instant::now();
    let mut sent = 0;
    while sent < REQUESTS {
        match stream.write_all(&batch) {
            Ok(()) => sent += 100,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(begin.elapsed() < Duration::from_secs(30), "the node neither reads nor closes");
            }
            Err(_) => break,
        }
        if sent % 5_000 == 0 {
            victim.expect_honest_service();
        }
    }
    victim.expect_honest_service();
    let _ = stream.shutdown(Shutdown::Both);
    sent
}

/// Small requests and small answers, two hundred thousand of them, and a client that does not read.
#[test]
fn a_client_that_never_reads_is_cut_off() {
    let victim = Victim::start();
    for op in [json!("status"), json!({ "show_lock": { "key": "k" } }), json!({ "open_session": { "ttl_ms": 1000 } })] {
        never_read(&victim, &op);
        victim.expect_all_gone();
    }
    // At most 1,024 unanswered requests, after which nothing more is read, and their answers of
    // less than a KiB; the log has the sessions that were opened.
    victim.expect_memory_within(32 * MIB);
    victim.expect_unharmed();
}

/// The same with the largest answers that there are, whole pages of long keys and owners, and with
/// a client that knows how many requests it may have open, and stops there.
#[test]
fn a_client_that_never_reads_large_answers_is_cut_off() {
    let victim = Victim::start();
    let _socket = hold_a_full_page(&victim);
    let list = json!({ "list_locks": { "limit": 1000 } });
    let mut hoarder = upgrade(&victim.address);
    let request = frame(TEXT, json!({ "id": 7, "op": list }).to_string().as_bytes());
    hoarder.write_all(&request.repeat(1000)).unwrap();
    victim.expect_honest_service();
    // It is closed when its time to read is over.
    victim.expect_all_gone_but(1);
    never_read(&victim, &list);
    victim.expect_all_gone_but(1);
    victim.expect_memory_within(64 * MIB);
    victim.expect_unharmed();
}

/// The same over plain HTTP: a client that sends request after request and reads no answer is cut
/// off when its time to read is over; its connection and its answers would be there for ever
/// otherwise.
#[test]
fn a_client_that_never_reads_large_answers_over_http_is_cut_off() {
    let victim = Victim::start();
    let _socket = hold_a_full_page(&victim);
    let mut hoarders: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&victim.address).unwrap()).collect();
    for hoarder in &mut hoarders {
        let request = b"GET /v1/locks?limit=1000&consistency=stale HTTP/1.1\r\nHost: localhost\r\n\r\n";
        // More than the system takes in for an application that does not read.
        hoarder.write_all(&request.repeat(100)).unwrap();
    }
    // Behind the lists, which a server that is not optimised takes long to write: that it is served at all is what
    // counts.
    victim.expect_service_within(4 * HONEST);
    victim.expect_all_gone_but(1);
    let cut_off = victim.cluster.log(victim.leader).matches("the client does not read its answers").count();
    // The system would do so a little later, and on a slow machine it is the first for some of them.
    assert!(cut_off > 0, "the node ended none of them itself");
    // An answer of 1.5 MiB each, as it is put together and as it is written.
    victim.expect_memory_within(128 * MIB);
    victim.expect_unharmed();
}

/// A thousand locks with long keys and a holder with a long name, held over the connection that is
/// returned.
fn hold_a_full_page(victim: &Victim) -> WebSocket {
    let mut socket = WebSocket::open(&victim.address);
    let opened = socket.ask(1, &json!({ "open_session": { "ttl_ms": 600_000, "owner": "o".repeat(256) } }));
    let session = &opened["ok"]["session"]["session"];
    for number in 0..1000 {
        let acquire = json!({ "key": format!("{number:0512}"), "options": { "session": session } });
        assert!(socket.ask(2, &json!({ "acquire": acquire }))["ok"].is_object());
    }
    socket
}

/// Opens sessions until there is no room for another one. Then only the opener of sessions is
/// turned away.
#[test]
fn sessions_end_at_their_limit() {
    let limit = session_limit();
    let most = ["--max-sessions", &limit.to_string()];
    // A node's own limit is the one in `runtime/src/limits.rs`.
    let option = if limit == 1_000_000 { &[][..] } else { &most };
    // A million sessions are 70 MB of recordings, a third of it for each node, and nothing is in
    // them that fewer do not show.
    let calm = [&["--election-timeout", "750ms", "--max-sessions-per-client", "0"], option].concat();
    let victim = Victim::of(Cluster::start_unrecorded(3, &calm, |_, _| {}));
    // Open already: an honest client's, which goes on.
    let opened = WebSocket::open(&victim.address).ask(1, &json!({ "open_session": { "ttl_ms": 600_000 } }));
    let session = &opened["ok"]["session"]["session"];
    let refused: usize = std::thread::scope(|scope| {
        let openers: Vec<_> = (0..2).map(|_| scope.spawn(|| open_until_refused(&victim))).collect();
        openers.into_iter().map(|opener| opener.join().unwrap()).sum()
    });
    assert!(refused > 0);
    let status = eventually("the view of the node's last round", || {
        let status = http::get(&victim.address, "/v1/status").ok()?.ok();
        (status["sessions"].as_u64()? >= limit).then_some(status)
    });
    // The limit is checked against what is applied: what was under way, up to 1,024 requests of
    // each opener, may exceed it.
    assert!(status["sessions"].as_u64().unwrap() <= limit + 2 * 1024, "{status}");
    http::post(&victim.address, "/v1/sessions", "{}").unwrap().refused(429, "limit");
    http::post(&victim.address, "/v1/locks/k/acquire", "{}").unwrap().refused(429, "limit");
    let acquire = json!({ "acquire": { "key": "k", "options": { "session": session } } });
    // Over a new connection: the first would have been silent for as long as all the sessions took.
    let answer = WebSocket::open(&victim.address).ask(2, &acquire);
    assert!(answer["ok"]["acquired"].is_object(), "a client that has a session goes on");
    // 366 bytes a session were measured: its entry in the log, in the table and among the
    // deadlines. Twice that is allowed.
    victim.expect_memory_within(limit * 732);
    for pid in &victim.processes {
        assert!(process::lives(pid.as_raw_nonzero().get()), "a node died");
    }
}

/// How many sessions the cluster may have. `SESSIONS=1000000` is the limit of a node without the option
/// `--max-sessions`, and takes half a minute.
fn session_limit() -> u64 {
    std::env::var("SESSIONS").map_or(100_000, |count| count.parse().expect("SESSIONS must be a number"))
}

/// Opens sessions, a thousand at a time, and says how many of the last thousand were refused.
fn open_until_refused(victim: &Victim) -> usize {
    let mut socket = WebSocket::open(&victim.address).0;
    let mut request = Vec::new();
    let open = OpenSession { ttl_ms: 86_400_000, owner: String::new() };
    codec::encode_into(&Request { id: 7, op: Op::OpenSession(open) }, &mut request);
    let batch = frame(BINARY, &request).repeat(1000);
    for round in 1.. {
        socket.get_mut().write_all(&batch).expect("the node reads");
        let mut refused = 0;
        let mut answered = 0;
        while answered < 1000 {
            let Message::Binary(bytes) = socket.read().expect("the node answers") else { continue };
            answered += 1;
            let response: Response = codec::decode(&bytes).unwrap();
            match response.result {
                Outcome::Ok(_) => {}
                Outcome::Error(failure) if failure.error == Code::Limit => refused += 1,
                Outcome::Error(failure) => panic!("{failure}"),
            }
        }
        if refused > 0 {
            return refused;
        }
        if round % 10 == 0 {
            let begin = Instant::now();
            http::get(&victim.address, "/v1/locks/honest").expect("the node answers").ok();
            assert!(begin.elapsed() < HONEST, "an honest client had to wait for {:?}", begin.elapsed());
        }
    }
    unreachable!("there is a limit")
}
