//! `GET /metrics`: each number counts what it says, and nothing else.

use std::fs;
use std::net::TcpStream;
use std::time::UNIX_EPOCH;

use serde_json::json;

use super::{Node, calm};
use crate::support::{eventually, metrics, process};

/// Every number that docs/monitoring.md promises stands on every node's page.
#[test]
fn the_page_has_every_number() {
    let (cluster, leader) = calm();
    leader.acquire("k", &json!({})).ok();
    let names = [
        "palisade_leader",
        "palisade_leader_known",
        "palisade_term",
        "palisade_commit_index",
        "palisade_last_index",
        "palisade_sessions",
        "palisade_claimed_bytes",
        "palisade_locks_held",
        "palisade_waiters",
        "palisade_entries_applied_total",
        "palisade_acquire_attempts_total",
        "palisade_acquire_grants_total",
        "palisade_acquire_timeouts_total",
        "palisade_acquire_latency_seconds_count",
        "palisade_releases_by_non_owner_total",
        "palisade_sessions_expired_total",
        "palisade_fsync_seconds_count",
        "palisade_commit_latency_seconds_count",
        "palisade_frames_rejected_total",
        "palisade_peer_messages_dropped_total",
        "palisade_log_entries",
        "palisade_log_since_snapshot_bytes",
        "palisade_snapshot_index",
        "palisade_snapshot_bytes",
        "palisade_snapshots_taken_total",
        "palisade_snapshots_sent_total",
        "palisade_snapshots_installed_total",
        "palisade_snapshot_sent_bytes_total",
        "palisade_snapshot_write_seconds_count",
        "palisade_log_segments_removed_total",
        "palisade_core_iteration_seconds_count",
        "palisade_client_connections",
        "palisade_client_connections_accepted_total",
        "process_cpu_seconds_total",
        "process_virtual_memory_bytes",
    ];
    for id in cluster.ids() {
        let node = Node(cluster.client_addr(id));
        let page = node.get("/metrics");
        assert_eq!(page.status, 200);
        assert!(page.header("content-type").unwrap().starts_with("application/openmetrics-text"));
        assert!(page.body.ends_with("# EOF\n"), "the page is whole");
        for name in names {
            metrics::value(&node.0, name);
        }
        let leads = f64::from(u8::from(node.0 == leader.0));
        assert_eq!(metrics::value(&node.0, "palisade_leader"), leads);
        let status = node.get("/v1/status").ok();
        assert_eq!(metrics::value(&node.0, "palisade_term"), status["term"].as_f64().unwrap());
        assert!(metrics::value(&node.0, "palisade_fsync_seconds_count") >= 1.0, "every node wrote its vote");
    }
    for peer in cluster.ids().into_iter().filter(|&id| cluster.client_addr(id) != leader.0) {
        let name = format!("palisade_replication_lag_entries{{peer=\"{peer}\"}}");
        eventually("the follower has caught up", || (metrics::value(&leader.0, &name) == 0.0).then_some(()));
    }
}

/// Goal: the page says which program runs, and what the system knows of its process.
#[test]
fn the_page_shows_the_program_and_its_process() {
    let (cluster, node) = calm();
    let id = cluster.ids().into_iter().find(|&id| cluster.client_addr(id) == node.0).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let page = node.get("/metrics").body;
    let build = page.lines().find(|line| line.starts_with("palisade_build_info{")).expect("the program is shown");
    assert!(build.contains(&format!("version=\"{version}\"")) && build.ends_with(" 1"), "{build}");
    assert_eq!(node.get("/v1/status").ok()["version"], version);

    let value = |name: &str| metrics::value(&node.0, name);
    let memory = value("process_resident_memory_bytes");
    #[expect(clippy::cast_precision_loss, reason = "less than 2^53 bytes")]
    let peak = process::peak_memory(cluster.pid(id)) as f64;
    assert!(memory > 1e6 && memory <= peak, "{memory} bytes in memory, {peak} at most so far");
    let limits = fs::read_to_string(format!("/proc/{}/limits", cluster.pid(id).as_raw_nonzero())).unwrap();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let limit: f64 = limit.split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(value("process_max_fds"), limit);
    let open = value("process_open_fds");
    let idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&node.0).unwrap()).collect();
    eventually("the node has accepted them", || (value("process_open_fds") >= open + 30.0).then_some(()));
    drop(idle);

    // This file is younger than the process.
    let file = tempfile::NamedTempFile::new().unwrap();
    let now = file.as_file().metadata().unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let start = value("process_start_time_seconds");
    assert!(start <= now + 1.0 && start > now - 3600.0, "started at {start}, and it is {now}");
}

/// One event at a time: what it is counted as, and what not.
#[test]
fn each_event_moves_its_own_number() {
    let (_cluster, node) = calm();
    let counters = [
        "acquire_attempts_total",
        "acquire_grants_total",
        "acquire_timeouts_total",
        "acquire_latency_seconds_count",
        "releases_by_non_owner_total",
        "sessions_expired_total",
        "frames_rejected_total",
    ];
    let read = || counters.map(|name| metrics::value(&node.0, &format!("palisade_{name}")));
    // What there is, as of the node's last round: an answer may be a moment ahead of it.
    let there_are = |expected: [f64; 3]| {
        eventually("the sessions, locks and waiters that there should be", || {
            let now =
                ["sessions", "locks_held", "waiters"].map(|name| metrics::value(&node.0, &format!("palisade_{name}")));
            (now == expected).then_some(())
        });
    };
    let moved = |what: &str, before: [f64; 7], by: [f64; 7]| {
        let after = read();
        let difference: Vec<f64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        assert_eq!(difference, by, "{what}: {counters:?}");
        after
    };
    let begin = read();
    let commits = metrics::value(&node.0, "palisade_commit_latency_seconds_count");
    let grant = node.acquire("k", &json!({})).ok();
    let now = moved("a grant", begin, [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    assert!(metrics::value(&node.0, "palisade_commit_latency_seconds_count") > commits);
    there_are([1.0, 1.0, 0.0]);

    node.acquire("k", &json!({})).refused(409, "held");
    let now = moved("a refusal", now, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);

    node.acquire("k", &json!({ "wait_ms": 100 })).refused(408, "timeout");
    let now = moved("a wait in vain", now, [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);

    node.release("k", &grant["session"], &json!(99)).refused(409, "not_holder");
    let now = moved("a release with another token", now, [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);

    let waiting = node.acquire_later("k", json!({ "wait_ms": 60_000, "ttl_ms": 60_000 }));
    node.wait_for_queue("k", 1);
    there_are([2.0, 1.0, 1.0]);
    node.release("k", &grant["session"], &grant["token"]).ok();
    let waited = waiting.join().unwrap().ok();
    let now = moved("a wait that is rewarded", now, [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    there_are([1.0, 1.0, 0.0]);

    // The session that comes and goes here is another one than the holder's.
    node.post("/v1/sessions", &json!({ "ttl_ms": 100 })).ok();
    eventually("the session expires", || (read()[5] > now[5]).then_some(()));
    there_are([1.0, 1.0, 0.0]);
    let now = moved("an expiry", now, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);

    node.release("k", &waited["session"], &waited["token"]).ok();
    let now = moved("a release", now, [0.0; 7]);
    there_are([0.0, 0.0, 0.0]);

    // A request that cannot be understood, and bytes that are no HTTP at all.
    node.acquire("k", &json!({ "ttl_ms": 1 })).refused(400, "invalid");
    let now = moved("a mistake", now, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    node.send("POST", "/v1/sessions", &" ".repeat(20_000)).refused(413, "too_large");
    let now = moved("a body too large", now, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    let _ = super::http::raw(&node.0, b"\0\0\0\0 nonsense\r\n\r\n");
    eventually("it is counted", || (read()[6] > now[6]).then_some(()));
    moved("nonsense", now, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
}
