//! Names with control characters: they forge no line of a log, and do not reach a terminal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;

use palisade_client::codec;
use serde_json::{Value, json};

use super::peers::frame;
use crate::support::cluster::Cluster;
use crate::support::process::{Running, output, palisade};
use crate::support::{eventually, http, ports};

/// Clears the screen, ends the line, turns the text around.
const KEY: &str = "tea\u{1b}[2J\r\n\u{202e}";
const KEY_IN_A_PATH: &str = "tea%1B%5B2J%0D%0A%E2%80%AE";
const OWNER: &str = "eve\n2026-01-01T00:00:00Z ERROR forged\u{9b}1m\u{2067}";

/// Goal: whatever a key and an owner have in them, a command prints lines that it made itself, and
/// JSON has the true value.
#[test]
fn names_reach_no_terminal_as_they_are() {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(cluster.wait_ready());
    let path = format!("/v1/locks/{KEY_IN_A_PATH}");
    let taken = http::post(&address, &format!("{path}/acquire"), &json!({ "owner": OWNER }).to_string()).unwrap().ok();
    assert_eq!(taken["key"], KEY);
    assert_eq!(http::get(&address, &path).unwrap().ok()["holder"]["owner"], OWNER);
    let refused = http::post(&address, &format!("{path}/acquire"), "").unwrap().refused(409, "held");
    assert_eq!(refused["holder"]["owner"], OWNER, "a field has the true value");
    let sentence = refused["message"].as_str().unwrap();
    assert!(sentence.contains(r"tea\u{1b}[2J\r\n\u{202e} is held by eve\n2026"), "{sentence}");

    let run = |arguments: &[&str]| {
        let output = output(palisade().args(arguments).env("PALISADE_ENDPOINTS", &address));
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        let hidden = |c: &char| (c.is_control() && *c != '\n') || matches!(c, '\u{202e}' | '\u{2067}');
        assert_eq!(said.chars().find(hidden), None, "{said:?}");
        assert!(said.lines().all(|line| !line.starts_with("2026")), "{said}");
        said
    };
    let locks = run(&["locks"]);
    assert_eq!(locks.lines().count(), 2, "{locks}");
    assert!(locks.contains(r"tea\u{1b}[2J\r\n\u{202e}") && locks.contains(r"eve\n2026"), "{locks}");
    let shown = run(&["show", KEY]);
    assert_eq!(shown.lines().count(), 5, "{shown}");
    assert!(shown.contains(r"is held by eve\n2026-01-01T00:00:00Z ERROR forged\u{9b}1m\u{2067}"), "{shown}");
    for wait in ["0s", "100ms"] {
        let refused = run(&["lock", KEY, "--wait", wait, "--", "true"]);
        assert_eq!(refused.lines().count(), 1, "{refused}");
        assert!(refused.contains(r"eve\n2026"), "{refused}");
    }
    let listed = run(&["locks", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("one lock, one line");
    assert_eq!((&listed["key"], &listed["holder"]["owner"]), (&json!(KEY), &json!(OWNER)));
}

/// Goal: the reason for which another node refuses this one is one part of one line in the log.
#[test]
fn a_refusal_of_a_peer_forges_no_line() {
    let directory = tempfile::tempdir().unwrap();
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer_addr = peer.local_addr().unwrap();
    // It ends with the test.
    std::thread::spawn(move || {
        for mut dialler in peer.incoming().flatten() {
            let reason = format!("go away{}\n2026-01-01T00:00:00Z ERROR forged", '\u{1b}');
            let mut welcome = Vec::new();
            codec::encode_into(&Err::<(u64, String), String>(reason), &mut welcome);
            let _ = dialler.write_all(&frame(&welcome));
            let _ = dialler.read(&mut [0; 4096]);
        }
    });
    let [clients, nodes] = ports::free(2)[..] else { unreachable!() };
    let path = directory.path().join("log");
    let mut command = palisade();
    command
        .args(["serve", "--id", "1", "--peers", &format!("1=127.0.0.1:{nodes},2={peer_addr}")])
        .args(["--client-addr", &format!("127.0.0.1:{clients}"), "--peer-addr", &format!("127.0.0.1:{nodes}")])
        .arg("--data")
        .arg(directory.path().join("data"))
        .stderr(File::create(&path).unwrap());
    let _node = Running::start(&mut command);
    let log = eventually("the refusal is logged", || {
        fs::read_to_string(&path).ok().filter(|log| log.contains("go away") && log.ends_with('\n'))
    });
    assert!(log.contains(r"go away\u{1b}\n2026-01-01T00:00:00Z ERROR forged"), "{log}");
    assert!(!log.contains('\u{1b}') && log.lines().all(|line| !line.starts_with("2026-01-01T")), "{log}");
}
