//! Requests under other names than the node's: a hostile page can make its own name mean a node's
//! address (DNS rebinding), and then read what the node answers, unless the node looks at the name.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use super::{Node, calm};
use crate::support::cluster::Cluster;
use crate::support::http;
use crate::support::process::{output, palisade};

const UPGRADE: &str = "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Sends a request with these lines in its head.
fn ask(address: &str, request: &str, lines: &str) -> http::Response {
    http::raw(address, format!("{request} HTTP/1.1\r\nConnection: close\r\n{lines}\r\n").as_bytes()).unwrap()
}

/// Goal: a request for the host of another site, for none or for two is refused, whatever it asks
/// for, and changes nothing.
#[test]
fn requests_for_another_host_are_refused() {
    let (_cluster, Node(address)) = calm();
    let read = "GET /v1/locks?consistency=stale";
    for request in [read, "POST /v1/locks/k/acquire", "GET /v1/status", "GET /metrics", "GET /nothing"] {
        let refused = ask(&address, request, "Host: evil.example:7400\r\n").refused(421, "wrong_host");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("`evil.example:7400`") && message.contains("--allow-host evil.example"), "{message}");
    }
    ask(&address, "GET /v1/ws", &format!("Host: evil.example\r\n{UPGRADE}")).refused(421, "wrong_host");
    let none = ask(&address, read, "").refused(421, "wrong_host");
    assert!(none["message"].as_str().unwrap().contains("no Host header"), "{none}");
    let two = ask(&address, read, "Host: localhost\r\nHost: evil.example\r\n").refused(421, "wrong_host");
    assert!(two["message"].as_str().unwrap().contains("two different hosts"), "{two}");
    ask(&address, "GET http://evil.example/v1/locks", "Host: localhost\r\n").refused(421, "wrong_host");
    let page = format!("Host: localhost\r\n{UPGRADE}Origin: http://evil.example\r\n");
    ask(&address, "GET /v1/ws", &page).refused(403, "wrong_origin");

    for host in [address.as_str(), "localhost", "LocalHost:80", "[::1]:7400", "192.0.2.1"] {
        assert_eq!(ask(&address, read, &format!("Host: {host}\r\n")).ok()["locks"], serde_json::json!([]));
    }
}

/// Goal: a proxy's name that an operator allows is answered, and so is the name under which the node
/// is advertised; a client that uses another name is told which option allows it.
#[test]
fn allowed_names_are_answered() {
    let flags = ["--allow-host", "locks.example", "--allow-host", "other.example"];
    let cluster = Cluster::start_adjusted(1, &flags, |_, command| {
        let port = command.get_args().skip_while(|flag| *flag != "--client-addr").nth(1).unwrap();
        let port = port.to_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
        command.arg("--advertise-client-addr").arg(format!("node-1.example:{port}"));
    });
    let address = cluster.client_addr(1);
    for host in ["locks.example", "other.example:8443", "Node-1.Example:80"] {
        ask(&address, "GET /v1/locks", &format!("Host: {host}\r\n")).ok();
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(format!("GET /v1/ws HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}\r\n").as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 101");
    }
    ask(&address, "GET /v1/locks", "Host: third.example\r\n").refused(421, "wrong_host");

    // A name that means this machine for the command, and that the node does not know.
    let name = String::from_utf8(rustix::system::uname().nodename().to_bytes().to_vec()).unwrap();
    let port = address.rsplit_once(':').unwrap().1;
    let endpoint = format!("{name}:{port}");
    if TcpStream::connect(&endpoint).is_err() {
        eprintln!("SKIPPED the last part: the name {name} of this machine does not lead to 127.0.0.1");
        return;
    }
    let shown = output(palisade().args(["status", "--endpoints", &endpoint]).stderr(Stdio::null()));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("--allow-host {name}")), "{shown}");
}

/// Goal: a page of an allowed origin may send every request and read the answers, and its browser is told
/// so beforehand, without a proof of who the user is; pages of all other origins are refused, and a
/// refusal names the option that allows them.
#[test]
fn allowed_origins_are_answered() {
    let cluster = Cluster::start_with(
        1,
        &["--allow-origin", "https://App.example:443", "--allow-origin", "http://b.example:3000"],
    );
    let address = cluster.client_addr(1);
    let from = |origin: &str| format!("Host: {address}\r\nOrigin: {origin}\r\n");
    for origin in ["https://app.example", "http://b.example:3000"] {
        let preflight = format!("{}Access-Control-Request-Method: PUT\r\n", from(origin));
        let asked = ask(&address, "OPTIONS /v1/kv/report", &preflight);
        assert_eq!((asked.status, &*asked.body), (204, ""));
        assert_eq!(asked.header("access-control-allow-origin"), Some(origin));
        assert!(asked.header("access-control-allow-methods").unwrap().contains("PUT"));
        assert!(asked.header("access-control-allow-headers").unwrap().contains("x-fence-token"));
        let answered = ask(&address, "PUT /v1/kv/report", &format!("{}Content-Length: 4\r\n\r\ntext", from(origin)));
        assert_eq!(answered.status, 200);
        assert_eq!(answered.header("access-control-allow-origin"), Some(origin));
        let missing = ask(&address, "GET /v1/kv/none", &from(origin));
        assert_eq!((missing.status, missing.header("access-control-allow-origin")), (404, Some(origin)));
        assert_eq!(missing.header("vary"), Some("origin"));
        // No browser is to present a certificate or a cookie for a page of another origin.
        assert_eq!(missing.header("access-control-allow-credentials"), None);
        let mut stream = TcpStream::connect(&address).unwrap();
        let upgrade = format!("GET /v1/hold HTTP/1.1\r\n{}{UPGRADE}\r\n", from(origin));
        stream.write_all(upgrade.as_bytes()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 101");
    }
    for origin in ["http://app.example", "https://app.example:8443", "http://b.example", "null", "https://c.example"] {
        let preflight = format!("{}Access-Control-Request-Method: PUT\r\n", from(origin));
        for (request, lines) in [("OPTIONS /v1/kv/report", &preflight), ("GET /v1/kv/report", &from(origin))] {
            let refused = ask(&address, request, lines);
            assert_eq!(refused.header("access-control-allow-origin"), None, "{origin}");
            let message = refused.refused(403, "wrong_origin")["message"].to_string();
            assert_eq!(message.contains(&format!("--allow-origin {origin}")), origin != "null", "{message}");
        }
    }
    let none = ask(&address, "GET /v1/kv/report", &format!("Host: {address}\r\n"));
    assert_eq!((none.status, none.header("access-control-allow-origin")), (200, None));
    let wrong = output(palisade().args(["serve", "--allow-origin", "https://app.example/page"]));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("is no origin"), "{wrong:?}");
}
