//! Rejected requests: every answer that is not 200 states the reason, in the same form.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use serde_json::json;

use super::{Node, calm};
use crate::support::http;

const UNKNOWN_SESSION: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// Bodies that are wrong are refused, and have no effect at all.
#[test]
fn a_wrong_body_is_refused_and_does_nothing() {
    let (_cluster, node) = calm();
    let owner = "o".repeat(257);
    let for_a_session = [
        r#"{"ttl":30000}"#,
        r#"{"ttl_ms":"30000"}"#,
        r#"{"ttl_ms":null}"#,
        r#"{"ttl_ms":1.5}"#,
        r#"{"ttl_ms":-1}"#,
        r#"{"ttl_ms":0}"#,
        r#"{"ttl_ms":99}"#,
        r#"{"ttl_ms":86400001}"#,
        r#"{"ttl_ms":18446744073709551616}"#,
        r#"{"ttl_ms":30000,"ttl_ms":30000}"#,
        r#"{"owner":7}"#,
        &format!(r#"{{"owner":"{owner}"}}"#),
        r#"{"ttl_ms":30000"#,
        r#"{"ttl_ms":30000}}"#,
        "30000",
        "ttl_ms=30000",
        "null",
    ];
    let for_an_acquire = [
        r#"{"wait_ms":-1}"#,
        r#"{"wait_ms":86400001}"#,
        r#"{"wait_ms":true}"#,
        r#"{"session":"me"}"#,
        r#"{"session":7}"#,
        r#"{"session":""}"#,
        r#"{"number":1}"#,
    ];
    let for_a_release = [
        "",
        "{}",
        r#"{"token":1}"#,
        &format!(r#"{{"session":"{UNKNOWN_SESSION}"}}"#),
        &format!(r#"{{"session":"{UNKNOWN_SESSION}","token":-1}}"#),
        &format!(r#"{{"session":"{UNKNOWN_SESSION}","token":"1"}}"#),
        &format!(r#"{{"session":"{UNKNOWN_SESSION}","token":1,"force":true}}"#),
        r#"{"session":"me","token":1}"#,
    ];
    for body in for_a_session {
        node.send("POST", "/v1/sessions", body).refused(400, "invalid");
    }
    for body in for_a_session.iter().chain(&for_an_acquire) {
        node.send("POST", "/v1/locks/k/acquire", body).refused(400, "invalid");
    }
    for body in for_a_release {
        node.send("POST", "/v1/locks/k/release", body).refused(400, "invalid");
    }
    // Text that is no UTF-8.
    let request = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 13\r\n\r\n";
    http::raw(&node.0, &[request, b"{\"owner\":\"\xff\"}".as_slice()].concat()).unwrap().refused(400, "invalid");

    assert_eq!(node.get("/v1/locks").ok()["locks"], json!([]));
    assert_eq!(node.get("/v1/status").ok()["sessions"], 0, "nothing came to be");
}

/// Sessions that are no UUID, and sessions that do not exist.
#[test]
fn a_session_that_is_none_is_refused() {
    let (_cluster, node) = calm();
    for bad in ["me", "1", "00112233-4455-6677-8899-aabbccddeef", "%FF", "00112233-4455-6677-8899-aabbccddeefg"] {
        node.get(&format!("/v1/sessions/{bad}")).refused(400, "invalid");
        node.send("DELETE", &format!("/v1/sessions/{bad}"), "").refused(400, "invalid");
        node.send("POST", &format!("/v1/sessions/{bad}/keepalive"), "").refused(400, "invalid");
    }
    node.get(&format!("/v1/sessions/{UNKNOWN_SESSION}")).refused(404, "no_session");
    node.send("POST", &format!("/v1/sessions/{UNKNOWN_SESSION}/keepalive"), "").refused(404, "no_session");
    node.acquire("k", &json!({ "session": UNKNOWN_SESSION })).refused(404, "no_session");
    node.acquire("k", &json!({ "session": UNKNOWN_SESSION, "wait_ms": 1_000 })).refused(404, "no_session");
    node.release("k", &json!(UNKNOWN_SESSION), &json!(1)).refused(409, "not_holder");
}

/// Paths and methods that do not exist.
#[test]
fn paths_and_methods_that_do_not_exist_say_so() {
    let (_cluster, node) = calm();
    let nowhere = ["/index.html", "/v1", "/v1/", "/v2/locks", "/v1/lock", "/v1/locks/k/steal", "/v1/locks/a/b/acquire"];
    let paths = nowhere.iter().chain(&["/v1/sessions/x/y", "/metrics/", "/v1/status/1", "/v1/../v1/status"]);
    for path in paths {
        node.get(path).refused(404, "not_found");
        node.send("POST", path, "{}").refused(404, "not_found");
    }
    let wrong = [
        ("GET", "/v1/locks/k/acquire"),
        ("PUT", "/v1/locks/k/acquire"),
        ("DELETE", "/v1/locks/k/release"),
        ("POST", "/v1/locks/k"),
        ("DELETE", "/v1/locks/k"),
        ("POST", "/v1/locks"),
        ("GET", "/v1/sessions"),
        ("PUT", "/v1/sessions/x"),
        ("GET", "/v1/sessions/x/keepalive"),
        ("POST", "/v1/status"),
        ("POST", "/healthz"),
        ("POST", "/readyz"),
        ("DELETE", "/metrics"),
    ];
    for (method, path) in wrong {
        node.send(method, path, "{}").refused(405, "method_not_allowed");
    }
    node.get("/v1/ws").refused(400, "invalid");
}

/// A body over the limit is refused as such: announced, sent, or sent without an end in sight. At
/// the limit it is read.
#[test]
fn a_body_over_the_limit_is_too_large() {
    let (_cluster, node) = calm();
    let body = |length: usize| format!("{{{}}}", " ".repeat(length - 2));
    let limit = 16 * 1024;
    node.send("POST", "/v1/locks/k/acquire", &body(limit)).ok();
    for path in ["/v1/locks/x/acquire", "/v1/locks/x/release", "/v1/sessions"] {
        node.send("POST", path, &body(limit + 1)).refused(413, "too_large");
        node.send("POST", path, &body(20 * limit)).refused(413, "too_large");
    }
    // Only announced: the answer comes before a byte of it.
    let announced = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n";
    http::raw(&node.0, announced).unwrap().refused(413, "too_large");
    let mut chunked = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..limit / 1000 + 1 {
        chunked.extend(format!("3e8\r\n{}\r\n", " ".repeat(1000)).bytes());
    }
    http::raw(&node.0, &chunked).unwrap().refused(413, "too_large");
    assert_eq!(node.lock("x")["held"], false);
}

/// Half a body and then the end of the stream is no request.
#[test]
fn a_body_that_breaks_off_does_nothing() {
    let (_cluster, Node(address)) = calm();
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"POST /v1/locks/k/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{}").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    let _ = std::io::Read::read_to_string(&mut stream, &mut answer);
    assert!(!answer.contains("200 OK"), "{answer}");
    assert_eq!(Node(address).lock("k")["held"], false);
}
