//! Bytes that mean nothing, and messages that are too large.

use std::io::{Read, Write};
use std::net::TcpStream;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{BINARY, MIB, TEXT, UPGRADE, Victim, frame, send_and_finish, upgrade};
use crate::support::http;

/// A failure replays with the same seed.
const SEED: u64 = 0x7061_6c69_7361_6465;

fn noise(rng: &mut StdRng, lengths: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(lengths)];
    rng.fill(bytes.as_mut_slice());
    bytes
}

/// Noise on the port for clients: bare, behind the beginning of a request, and inside an open
/// WebSocket.
#[test]
fn noise_on_the_client_port_is_refused() {
    let victim = Victim::start();
    let mut rng = StdRng::seed_from_u64(SEED);
    let before = victim.rejected();
    for round in 0..100 {
        let bytes = noise(&mut rng, 1..4096);
        send_and_finish(&victim.address, &bytes);
        for beginning in [b"POST /v1/locks/k/acquire HTTP/1.1\r\n".as_slice(), b"GET /".as_slice(), UPGRADE] {
            send_and_finish(&victim.address, &[beginning, bytes.as_slice()].concat());
        }
        if round % 25 == 0 {
            victim.expect_honest_service();
        }
    }
    assert!(victim.rejected() > before + 100.0, "most of it was noticed as what it is");
    victim.expect_all_gone();
    // Nothing of it stays: a head's and a frame's buffer for the few connections that were open at
    // one time.
    victim.expect_memory_within(16 * MIB);
    victim.expect_unharmed();
}

/// Well-formed frames with noise in them: each is refused with a reason, counted, and ends its
/// connection.
#[test]
fn noise_in_websocket_frames_is_counted() {
    let victim = Victim::start();
    let mut rng = StdRng::seed_from_u64(SEED);
    let before = victim.rejected();
    for _ in 0..100 {
        let bytes = noise(&mut rng, 64..4096);
        // Noise is no bincode of a request, and as text it is not even UTF-8.
        for opcode in [BINARY, TEXT] {
            let mut stream = upgrade(&victim.address);
            stream.write_all(&frame(opcode, &bytes)).unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(!answer.is_empty(), "the node says why it closes");
        }
    }
    victim.expect_rejected(before, 200);
    victim.expect_unharmed();
}

/// A million bytes of key: in a path, in a body, in a frame of either kind, and announced in a
/// frame's header.
#[test]
fn a_key_of_a_million_bytes_is_refused() {
    let victim = Victim::start();
    let key = "k".repeat(1_000_000);
    let before = victim.rejected();
    for method in ["GET", "POST"] {
        let answer = http::send(&victim.address, method, &format!("/v1/locks/{key}/acquire"), "{}").unwrap();
        assert!((400..500).contains(&answer.status), "{}", answer.head);
    }
    victim.expect_rejected(before, 2);
    let body = format!("{{\"owner\":\"{key}\"}}");
    http::post(&victim.address, "/v1/sessions", &body).unwrap().refused(413, "too_large");
    let request = format!("{{\"id\":1,\"op\":{{\"show_lock\":{{\"key\":\"{key}\"}}}}}}");
    for opcode in [TEXT, BINARY] {
        let whole = frame(opcode, request.as_bytes());
        // All of it, and only its header: it is refused for what it announces.
        for bytes in [whole.as_slice(), &whole[..14]] {
            let mut stream = upgrade(&victim.address);
            let _ = stream.write_all(bytes);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    victim.expect_rejected(before, 7);
    victim.expect_all_gone();
    // No buffer grows past the limits of a head or a request, 16 KiB each.
    victim.expect_memory_within(8 * MIB);
    victim.expect_unharmed();
}

/// A body of 100 MB: refused when it is announced, and not read if it is sent all the same.
#[test]
fn a_body_of_a_hundred_megabytes_is_not_read() {
    let victim = Victim::start();
    let head = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n";
    http::raw(&victim.address, head).unwrap().refused(413, "too_large");
    let mut stream = TcpStream::connect(&victim.address).unwrap();
    stream.write_all(head).unwrap();
    let mut sent = 0;
    while sent < 100_000_000 {
        match stream.write(&[b' '; 65536]) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    // What fits into the system's buffers of a connection may have left before its end was noticed.
    assert!(sent < 50_000_000, "the node read on and on");
    victim.expect_memory_within(8 * MIB);
    victim.expect_unharmed();
}
