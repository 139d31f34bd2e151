//! Strangers that use up the memory of one port, or of their address, take nothing from others.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use palisade_client::Security;
use palisade_client::tls::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Victim;
use super::many_connections::{connection_count, gather, runtime};
use super::peers::{Hello, welcome};
use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::{http, https};
use crate::tls::clients::token;

/// With 15 KiB each, these have more than half of the 48 MiB of a port: what one loopback address may
/// have.
const STRANGERS: usize = 1_900;
/// As many bodies of 250 KiB as heads: a hundred of both have more than that part.
const TLS_STRANGERS: usize = 240;

/// Most of a request's head, without its end.
fn half_a_head(bytes: usize) -> Vec<u8> {
    let mut head = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Half: ".to_vec();
    head.resize(bytes, b'x');
    head
}

/// A transaction's head, and most of its body: the longest body that there is has 256 KiB. Of a client without a token
/// the node reads no body.
fn half_a_body(token: &str, bytes: usize) -> Vec<u8> {
    let token = format!("Authorization: Bearer {token}\r\n");
    let head = format!("POST /v1/kv HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: 262144\r\n\r\n");
    let mut request = head.into_bytes();
    request.resize(bytes, b'x');
    request
}

/// Goal: strangers at one address that send half heads have their part of the memory, and end. A
/// client at another address is served, and a node that is not known yet is heard.
#[test]
fn strangers_use_up_the_part_of_their_address_and_port() {
    let victim = Victim::start();
    assert!(connection_count() >= STRANGERS, "this process may not open enough files");
    let strangers = runtime();
    let head = half_a_head(15 * 1024);
    let open = strangers.block_on(gather(&victim.address, STRANGERS, &head, false));
    // All of them come from 127.0.0.77, and this request from 127.0.0.1.
    let request = [&half_a_head(14 * 1024)[..], b"\r\nConnection: close\r\n\r\n"].concat();
    http::raw(&victim.address, &request).expect("the node answers").ok();
    let log = victim.cluster.log(victim.leader);
    assert!(log.contains("what unknown programs at one address have sent"), "they have used up their part");

    let hello = Hello { from: 1_000, incarnation: 1_000, start: (1, vec![1_000]), ..Hello::good(&victim) };
    let mut stream = TcpStream::connect(victim.cluster.peer_addr(victim.leader)).unwrap();
    stream.write_all(&hello.frame()).unwrap();
    let mut answer = vec![0; 1000];
    let length = stream.read(&mut answer).unwrap();
    assert!(welcome(&answer[..length]).is_ok());
    stream.write_all(&[(1_u32 << 20).to_le_bytes(), [0; 4]].concat()).unwrap();
    stream.write_all(&[7; 64 * 1024]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let ended = stream.read(&mut [0]).expect_err("it is not ended");
    assert_eq!(ended.kind(), std::io::ErrorKind::WouldBlock);
    drop(open);
    victim.expect_unharmed();
}

/// Goal: with TLS, a client with a certificate is served although programs without one at its own
/// address have used up all that the address may have.
#[test]
fn strangers_end_no_connection_of_a_certified_client() {
    let ours = Certificates::of("billing", 1);
    let (worker, line) = token(&ours, "worker");
    let tokens = ours.beside("tokens");
    std::fs::write(&tokens, line).unwrap();
    let cluster = Cluster::start_secured(1, &["--client-tokens", tokens.to_str().unwrap()], &ours);
    let token = worker.token().unwrap().expect("its file has one");
    let address = cluster.client_addr(1);
    let served = async |security: &Security| {
        let mut stream = security.dial(&address).await.ok()?;
        let request = [&half_a_head(14 * 1024)[..], b"\r\nConnection: close\r\n\r\n"].concat();
        stream.write_all(&request).await.ok()?;
        stream.flush().await.ok()?;
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    https::block_on(async {
        let anonymous = ours.anonymous();
        assert!(served(&anonymous).await.is_some(), "strangers are answered while there is memory");
        let mut strangers: VecDeque<Stream> = VecDeque::new();
        let deadline = Instant::now() + Duration::from_secs(120);
        // The node ends a stranger after ten seconds: others come in its place.
        while served(&anonymous).await.is_some() {
            assert!(Instant::now() < deadline, "the strangers have not used up the part of their address");
            // Few handshakes are enough, for slow machines: large bodies take most of the part, heads the rest.
            for half in [half_a_body(&token, 250 * 1024), half_a_head(13 * 1024)] {
                for _ in 0..10 {
                    let mut stream = anonymous.dial(&address).await.expect("the node accepts connections");
                    // The node ends those that come when the memory is used up.
                    let _ = stream.write_all(&half).await;
                    let _ = stream.flush().await;
                    strangers.push_back(stream);
                }
            }
            strangers.drain(..strangers.len().saturating_sub(TLS_STRANGERS));
        }
        assert_eq!(served(&ours.client("test")).await.as_deref(), Some("HTTP/1.1 200"));
        assert!(cluster.log(1).contains("what unknown programs at one address have sent"), "nothing was used up");
    });
}
