//! Disks that fill up: each node's data is on a small file system of its own, in memory.
//!
//! Mounting needs root. Each test runs once more in a mount namespace of its own, which no other
//! process sees and which vanishes with it; where that is not allowed, the test says that it was
//! skipped.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::Worker;
use crate::support::cluster::Cluster;
use crate::support::process::{lives, output, palisade};
use crate::support::{eventually, http, metrics};

/// Says that this process is in a mount namespace of its own.
const ENTERED: &str = "PALISADE_TEST_MOUNTS";
/// How large each node's disk is.
const SIZE: &str = "size=48m";

/// Runs this module's test of this name again where it may mount, and says whether it was run there
/// by now: then the caller has nothing more to do.
fn ran_elsewhere(test: &str) -> bool {
    if std::env::var_os(ENTERED).is_some() {
        return false;
    }
    let enter = ["--mount", "--propagation", "private", "--"];
    let trial = Command::new("unshare").args(enter).args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    if !trial.is_ok_and(|trial| trial.status.success()) {
        eprintln!("SKIPPED: {test} fills disks, and this process may not mount any");
        return true;
    }
    let program = std::env::current_exe().expect("a test knows its program");
    let (_, module) = module_path!().split_once("::").expect("this module is in a crate");
    let mut again = Command::new("unshare");
    again.args(enter).arg(program).args(["--exact", &format!("{module}::{test}"), "--nocapture"]).env(ENTERED, "1");
    let output = again.stdin(Stdio::null()).output().expect("the test can be run");
    let [report, trouble] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{report}{trouble}");
    assert!(output.status.success(), "{test} failed in a mount namespace of its own");
    assert!(report.contains("1 passed"), "{test} was not found, and did not run");
    true
}

/// A cluster whose nodes have a small disk each.
fn start(size: u16, flags: &[&str]) -> Cluster {
    let flags = [&["--election-timeout", "3s"][..], flags].concat();
    Cluster::start_unrecorded(size, &flags, |_, command| {
        let data = command.get_args().skip_while(|flag| *flag != "--data").nth(1).map(PathBuf::from);
        mount(&data.expect("a node has a data directory"));
    })
}

fn mount(data: &Path) {
    if data.exists() {
        return;
    }
    fs::create_dir_all(data).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(data).status();
    assert!(mounted.expect("there is a mount").success(), "a small disk can be mounted");
}

fn ballast(data: &Path) -> PathBuf {
    data.join("ballast")
}

/// Writes until there is no room.
fn fill(data: &Path) {
    let mut file = File::options().append(true).create(true).open(ballast(data)).unwrap();
    for piece in [1 << 20, 4096, 1] {
        let piece = vec![0xA5; piece];
        loop {
            match file.write_all(&piece) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn free(data: &Path) {
    fs::remove_file(ballast(data)).unwrap();
}

fn acquire(address: &str, key: &str) -> http::Response {
    http::post(address, &format!("/v1/locks/{key}/acquire"), "{\"ttl_ms\":60000}").expect("the node answers")
}

/// Goal: disks that fill up under load stop nothing but what is new. Releases, keepalives, closes
/// and expiries go on; the nodes say what they lack, wherever an operator looks; and when space is
/// freed, all goes on by itself.
#[test]
fn full_disks_refuse_what_is_new_and_nothing_else() {
    if ran_elsewhere("full_disks_refuse_what_is_new_and_nothing_else") {
        return;
    }
    let cluster =
        start(3, &["--segment-bytes", "1048576", "--snapshot-log-bytes", "4194304", "--snapshot-margin", "64"]);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let pids: Vec<i32> = cluster.ids().iter().map(|&id| cluster.pid(id).as_raw_nonzero().get()).collect();
    let mut worker = Worker::start(&address);
    let mut held: Vec<_> =
        (0..2_000).map(|number| format!("held-{number}")).map(|key| (worker.hold(&key), key)).collect();
    // One that will expire, and one that will be closed.
    let short: serde_json::Value = http::post(&address, "/v1/sessions", "{\"ttl_ms\":4000}").unwrap().ok();
    let body = json!({"session": short["session"]}).to_string();
    http::post(&address, "/v1/locks/expires/acquire", &body).unwrap().ok();
    let mut waiter = Worker::start(&address);
    let waits = json!({"acquire": {"key": "expires", "options": {"session": waiter.session, "wait_ms": 60_000}}});
    waiter.socket.send(7, &waits);

    for id in cluster.ids() {
        fill(&cluster.data(id));
    }
    // Under load: what is granted is given back, until nothing is granted any more.
    let mut granted = 0;
    eventually("acquires are refused", || {
        let response = acquire(&address, "new");
        if response.status == 507 {
            response.refused(507, "no_space");
            return Some(());
        }
        let grant = response.ok();
        let body = json!({"session": grant["session"], "token": grant["token"]}).to_string();
        http::post(&address, "/v1/locks/new/release", &body).unwrap().ok();
        granted += 1;
        None
    });
    println!("{granted} acquires were granted after the disks were full");
    http::post(&address, "/v1/sessions", "").unwrap().refused(507, "no_space");
    assert_eq!(worker.acquire("new")["error"]["error"], "no_space");

    // What ends claims, or keeps them, goes on.
    for _ in 0..1_000 {
        let (token, key) = held.pop().unwrap();
        worker.release(&key, &token);
        worker.keep_alive();
    }
    let answer = waiter.socket.receive().expect("the connection stays");
    assert_eq!(
        (&answer["id"], answer["result"]["ok"]["acquired"]["key"].as_str()),
        (&json!(7), Some("expires")),
        "{answer}"
    );
    let gone = format!("/v1/sessions/{}", waiter.session.as_str().unwrap());
    http::send(&address, "DELETE", &gone, "").unwrap().ok();
    eventually("the lock of a closed session is free", || {
        let lock = http::get(&address, "/v1/locks/expires").unwrap().ok();
        (lock["held"] == false).then_some(())
    });

    for id in cluster.ids() {
        let address = cluster.client_addr(id);
        eventually("every node says so", || {
            let status = http::get(&address, "/v1/status").unwrap().ok();
            let ready = http::get(&address, "/readyz").unwrap();
            let says = status["disk"]["low"] == true && ready.status == 200 && ready.body.contains("no_space");
            (says && metrics::value(&address, "palisade_disk_low") == 1.0).then_some(())
        });
    }
    assert!(metrics::value(&address, "palisade_no_space_refusals_total") >= 3.0);
    let shown = output(palisade().args(["status", "--endpoints", &cluster.endpoints().join(",")]));
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(shown.matches("disk nearly full").count(), 3, "{shown}");
    let tried = output(palisade().args(["lock", "new", "--wait", "0s", "--endpoints", &address, "--", "true"]));
    assert_eq!(tried.status.code(), Some(75));
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    assert!(said.contains("the leader's disk is nearly full"), "{said}");

    for id in cluster.ids() {
        free(&cluster.data(id));
    }
    eventually("acquires are taken again", || (acquire(&address, "after").status == 200).then_some(()));
    eventually("every node has space again", || {
        let addresses = cluster.endpoints();
        let low = addresses.iter().map(|address| metrics::value(address, "palisade_disk_low"));
        let ready = addresses.iter().map(|address| http::get(address, "/readyz").unwrap().body);
        (low.sum::<f64>() == 0.0 && ready.into_iter().all(|body| body == "ok\n")).then_some(())
    });
    for _ in 0..1_000 {
        let (token, key) = held.pop().unwrap();
        worker.release(&key, &token);
    }
    assert!(pids.into_iter().all(lives), "a node has stopped");
}

/// Goal: a segment that cannot be prepared is no silent matter: it is logged with what there is to
/// know, and counted. As soon as there is space, it is prepared, and the log goes on as if nothing
/// had been.
#[test]
fn segment_that_cannot_be_prepared_is_reported_and_tried_again() {
    if ran_elsewhere("segment_that_cannot_be_prepared_is_reported_and_tried_again") {
        return;
    }
    let cluster = start(1, &["--segment-bytes", "1048576", "--min-free-bytes", "0"]);
    let address = cluster.client_addr(cluster.wait_ready());
    let mut worker = Worker::start(&address);
    let token = worker.hold("held");
    fill(&cluster.data(1));
    let failures = || metrics::value(&address, "palisade_segment_preparation_failures_total");
    // Without a mark, values are taken until it is clear that the next segment cannot be prepared.
    eventually("a preparation fails", || {
        worker.proclaim("held", &token);
        (failures() > 0.0).then_some(())
    });
    eventually("acquires are refused", || (acquire(&address, "new").status == 507).then_some(()));
    eventually("it is tried again", || (failures() >= 3.0).then_some(()));
    let log = cluster.log(1);
    let line = log.lines().find(|line| line.contains("cannot be prepared")).expect("it is in the log");
    for part in ["WARN", "wal-00000000000000000002.log", "No space left on device", "left_in_segment=", "free space"] {
        assert!(line.contains(part), "{part} is missing in: {line}");
    }
    worker.release("held", &token);

    free(&cluster.data(1));
    eventually("acquires are taken again", || (acquire(&address, "after").status == 200).then_some(()));
    let next = cluster.data(1).join("wal-00000000000000000004.log");
    eventually("the log goes on", || {
        let token = worker.hold("busy");
        assert_eq!(worker.proclaim("busy", &token)["ok"], "proclaimed");
        worker.release("busy", &token);
        next.exists().then_some(())
    });
}

/// Goal: a follower whose disk is full says so, and the cluster goes on to grant locks.
#[test]
fn a_followers_full_disk_is_its_own_affair() {
    if ran_elsewhere("a_followers_full_disk_is_its_own_affair") {
        return;
    }
    let cluster = start(3, &["--segment-bytes", "4194304"]);
    let (leader, follower) = cluster.roles();
    fill(&cluster.data(follower));
    let (address, low) = (cluster.client_addr(leader), cluster.client_addr(follower));
    eventually("the follower says so", || {
        let ready = http::get(&low, "/readyz").unwrap();
        (ready.status == 200 && ready.body.contains("no_space")).then_some(())
    });
    assert_eq!(metrics::value(&low, "palisade_disk_low"), 1.0);
    for number in 0..20 {
        acquire(&address, &format!("key-{number}")).ok();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(metrics::value(&address, "palisade_disk_low"), 0.0);
}

/// Goal: while the disk of the audit log is full, no administrative request is done, and the refusal
/// says why. Everything else goes on, and what the log lacks is counted.
#[test]
fn full_audit_log_refuses_administration_and_nothing_else() {
    if ran_elsewhere("full_audit_log_refuses_administration_and_nothing_else") {
        return;
    }
    let audit_of = |data: PathBuf| data.with_extension("audit");
    let cluster = Cluster::start_unrecorded(1, &["--election-timeout", "750ms"], move |_, command| {
        let data = command.get_args().skip_while(|flag| *flag != "--data").nth(1).map(PathBuf::from);
        let audit = audit_of(data.expect("a node has a data directory"));
        mount(&audit);
        command.arg("--audit").arg(audit);
    });
    cluster.wait_ready();
    let (address, audit) = (cluster.client_addr(1), audit_of(cluster.data(1)));
    let held = acquire(&address, "held").ok();
    let order = json!({"token": held["token"], "reason": "stuck"}).to_string();
    let break_it = || http::post(&address, "/v1/locks/held/break", &order).unwrap();

    fill(&audit);
    // The last page of the file has room for some more records.
    for number in 0..50 {
        acquire(&address, &format!("more-{number}")).ok();
    }
    let refused = break_it().refused(503, "audit_unavailable");
    let sentence = refused["message"].as_str().unwrap();
    let expected = ["the audit log cannot be written: No space left on device", "; nothing was done"];
    assert!(expected.iter().all(|part| sentence.contains(part)), "{sentence}");
    http::post(&address, "/v1/snapshot", "").unwrap().refused(503, "audit_unavailable");
    http::post(&address, "/v1/members", "{\"id\":7,\"peer_addr\":\"127.0.0.1:1\"}")
        .unwrap()
        .refused(503, "audit_unavailable");
    let lock = http::get(&address, "/v1/locks/held").unwrap().ok();
    assert_eq!(lock["holder"]["token"], held["token"], "the lock is held as before");
    eventually("records are dropped, and counted", || {
        acquire(&address, &format!("dropped-{}", metrics::value(&address, "palisade_entries_applied_total"))).ok();
        (metrics::value(&address, "palisade_audit_dropped_total") > 0.0).then_some(())
    });
    assert!(cluster.log(1).contains("the audit log cannot be written"));

    free(&audit);
    eventually("the log is written again, and the grant can be broken", || (break_it().status == 200).then_some(()));
    let verified = output(palisade().args(["audit", "verify"]).arg(&audit));
    let said = String::from_utf8_lossy(&verified.stdout);
    assert!(verified.status.success() && said.contains("records were dropped"), "{said}");
}
