//! File descriptors: connections that want nothing cannot take those that the log needs.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use super::{SMALL, Worker};
use crate::support::certificates::Certificates;
use crate::support::cluster::{CALM, Cluster};
use crate::support::process::{self, palisade};
use crate::support::{eventually, http, https, metrics, ports};

/// How many files each node may have open.
const LIMIT: u32 = 68;
/// How many connections are opened to each port.
const CONNECTIONS: usize = 200;

/// Runs a command in a process that may have only so many files open.
fn limit(command: &mut Command, files: u32) {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {files} && exec \"$@\""), "sh"]);
    limited.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    *command = limited;
}

/// Keeps many connections to an address open, each with the beginning of a request; opens new
/// ones for those that are closed. Stops when it is dropped.
struct UnfinishedRequests {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl UnfinishedRequests {
    fn start(address: String, greeting: &'static [u8]) -> UnfinishedRequests {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let thread = spawn(move || {
            let mut connections: Vec<TcpStream> = Vec::new();
            while !stops.load(Ordering::Relaxed) {
                connections.retain_mut(
                    |stream| matches!(stream.read(&mut [0; 64]), Err(error) if error.kind() == ErrorKind::WouldBlock),
                );
                while connections.len() < CONNECTIONS {
                    let Ok(mut stream) = TcpStream::connect(&address) else { break };
                    let _ = stream.write_all(greeting);
                    stream.set_nonblocking(true).unwrap();
                    connections.push(stream);
                }
                sleep(Duration::from_millis(50));
            }
        });
        UnfinishedRequests { stop, thread: Some(thread) }
    }
}

impl Drop for UnfinishedRequests {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The number of the newest segment, and the entry of the newest snapshot.
fn newest(data: &Path) -> (u64, u64) {
    let names = std::fs::read_dir(data).expect("there is a data directory").map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let number = |prefix: &str, suffix: &str| {
        let numbers = names.iter().filter_map(|name| name.strip_prefix(prefix)?.strip_suffix(suffix));
        numbers.filter_map(|number| number.split('-').next()?.parse().ok()).max().unwrap_or(0)
    };
    (number("wal-", ".log"), number("snapshot-", ".snap"))
}

/// Goal: hundreds of connections that say nothing, at the port for clients and at the one for
/// nodes, and a process that may have 64 files open: the log goes on to its next segments,
/// snapshots are taken, a follower that restarts is let in, and connected clients are served. Once,
/// the leader had no descriptor for its next segment, and stopped.
#[test]
fn unfinished_requests_leave_the_log_its_descriptors() {
    let flags = [&["--election-timeout", "3s"][..], &SMALL].concat();
    let mut cluster = Cluster::start_adjusted(3, &flags, |_, command| limit(command, LIMIT));
    let leader = cluster.wait_ready();
    let (address, data) = (cluster.client_addr(leader), cluster.data(leader));
    let mut worker = Worker::start(&address);
    let began = Instant::now();
    let unfinished = [
        UnfinishedRequests::start(address.clone(), b"GET /v1/status HTTP/1.1\r\nX-Slow: "),
        UnfinishedRequests::start(cluster.peer_addr(leader), b"\x40\0\0"),
    ];
    let (segments, snapshot) = newest(&data);
    let mut work = |turns: u32| {
        for turn in 0..turns {
            let key = format!("key-{turn}");
            let token = worker.hold(&key);
            worker.release(&key, &token);
        }
        newest(&data)
    };
    for further in 1..=2 {
        eventually("segments come and go", || (work(50).0 >= segments + further).then_some(()));
    }
    let follower = cluster.others(leader)[0];
    cluster.kill(follower);
    cluster.restart(follower);
    for further in 3..=6 {
        eventually("segments come and go beside a follower", || (work(50).0 >= segments + further).then_some(()));
    }
    eventually("snapshots come and go", || (work(50).1 > snapshot).then_some(()));
    eventually("the follower is let in", || {
        worker.keep_alive();
        let status = worker.ask(&serde_json::json!("status"));
        let members = status["ok"]["status"]["members"].as_array().expect("a status").clone();
        members.iter().all(|member| member["connected"] == true).then_some(())
    });
    drop(unfinished);
    assert_eq!(cluster.wait_ready(), leader, "the leader has stayed");
    for refused in ["palisade_client_connections_refused_total", "palisade_peer_connections_refused_total"] {
        assert!(metrics::value(&address, refused) > 0.0, "{refused}");
    }
    let log = cluster.log(leader);
    assert!(!log.contains("Too many open files"), "a descriptor was missing somewhere");
    // For each limit a line at first, and one every ten seconds.
    let most = 1 + began.elapsed().as_secs() / 10;
    let mut lines: BTreeMap<&str, u64> = BTreeMap::new();
    for line in log.lines() {
        if let Some((start, _)) = line.split_once(" are closed at once") {
            *lines.entry(start.split_once("connections of ").expect("it names the limit").1).or_default() += 1;
        }
    }
    assert!(lines.len() >= 2, "{lines:?}: a limit at each port");
    assert!(
        lines.values().all(|&count| count <= most),
        "{lines:?}: thousands of connections, {most} lines are allowed for each limit"
    );
    eventually("clients are served again", || http::get(&address, "/healthz").ok().filter(|ok| ok.status == 200));
}

/// Goal: with TLS, hundreds of connections that say nothing leave connections to a client with a certificate.
#[test]
fn silent_strangers_leave_connections_to_certified_clients() {
    let ours = Certificates::of("billing", 1);
    let secure = ours.adjust();
    let adjust = move |id, command: &mut Command| {
        secure(id, command);
        limit(command, LIMIT);
    };
    let cluster = Cluster::start_adjusted_secured(1, adjust, ours.client("test"));
    let address = cluster.client_addr(cluster.wait_ready());
    let silent: Vec<TcpStream> = (0..CONNECTIONS).map(|_| http::connect_from("127.0.0.77", &address)).collect();
    // The node accepts it after all of those.
    https::get(&address, &ours.client("test"), "/healthz").unwrap().ok();
    drop(silent);
}

/// Goal: clients that use up their connections leave some to operators, at the address for administration.
#[test]
fn clients_leave_connections_to_operators() {
    let admin = format!("127.0.0.1:{}", ports::free(1)[0]);
    let given = admin.clone();
    let adjust = move |_, command: &mut Command| {
        command.args(["--admin-addr", &given]);
        // Enough for operators whose connections are just being closed.
        limit(command, 3 * LIMIT);
    };
    let cluster = Cluster::start_adjusted(1, &CALM, adjust);
    let address = cluster.client_addr(cluster.wait_ready());
    // Each client has a part of the connections, and together they have all.
    let silent = (0..CONNECTIONS).map(|number| http::connect_from(&format!("127.0.0.{}", 70 + number % 20), &address));
    let _silent: Vec<TcpStream> = silent.collect();
    eventually("the last of them are closed", || {
        (metrics::value(&admin, "palisade_client_connections_refused_total") > 0.0).then_some(())
    });
    http::get(&address, "/healthz").expect_err("clients have no connection left");
    http::get(&admin, "/healthz").unwrap().ok();
}

/// Goal: a client that reads a snapshot slowly holds one more descriptor; only so many clients may.
#[test]
fn snapshots_are_read_by_a_few_at_a_time() {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(cluster.wait_ready());
    let mut worker = Worker::start(&address);
    // Larger than what sockets buffer.
    for number in 0..9_000 {
        let key = format!("{number}-{}", "k".repeat(500));
        worker.hold(&key);
    }
    http::post(&address, "/v1/snapshot", "").unwrap().ok();
    // One client reads two at the most.
    let readers: Vec<TcpStream> = ["127.0.0.77", "127.0.0.77", "127.0.0.78", "127.0.0.78"]
        .iter()
        .map(|from| {
            let mut stream = http::connect_from(from, &address);
            stream.write_all(b"GET /v1/snapshot HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut head = [0; 12];
            stream.read_exact(&mut head).unwrap();
            assert_eq!(&head, b"HTTP/1.1 200");
            stream
        })
        .collect();
    http::get(&address, "/v1/snapshot").unwrap().refused(503, "overloaded");
    drop(readers);
    eventually("others may read it", || http::get(&address, "/v1/snapshot").ok().filter(|read| read.status == 200));
}

/// Goal: a node that cannot have enough files open does not start, and says what to change.
#[test]
fn too_few_descriptors_are_a_refusal() {
    let directory = tempfile::tempdir().unwrap();
    let [clients, peers] = ports::free(2)[..] else { unreachable!() };
    for (files, others) in [(40, 0), (54, 4)] {
        let data = directory.path().join(files.to_string());
        let founders: Vec<String> = (1..=others + 1).map(|id| format!("{id}=127.0.0.1:{}", peers + id - 1)).collect();
        let mut command = palisade();
        command
            .args(["serve", "--id", "1", "--peers", &founders.join(",")])
            .args(["--client-addr", &format!("127.0.0.1:{clients}"), "--peer-addr", &format!("127.0.0.1:{peers}")])
            .arg("--data")
            .arg(data);
        limit(&mut command, files);
        let output = process::output(&mut command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{said}");
        let expected = format!("this process may have {files} files open, and a node with {others} peers needs ");
        assert!(said.contains(&expected) && said.contains("ulimit -n 1024"), "{said}");
    }
}
