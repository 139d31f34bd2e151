//! The nodes' logs: warnings for what needs an operator, and nothing every second. With
//! `--log-format json` every line is JSON, and a field has one type.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::cluster::Cluster;
use crate::support::process::output;
use crate::support::{eventually, http};

fn warnings(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains(" WARN ")).collect()
}

/// Goal: leadership that is transferred as planned raises no alarm; a leader that dies does.
#[test]
fn planned_transfer_is_no_warning() {
    let mut cluster = Cluster::start_with(3, &["--election-timeout", "2s"]);
    let leader = cluster.wait_ready();
    let before = cluster.ids().into_iter().map(|id| (id, cluster.log(id).len())).collect::<BTreeMap<u16, usize>>();
    http::post(&cluster.client_addr(leader), "/v1/leader/transfer", "{}").unwrap().ok();
    let next = eventually("another leader", || cluster.agreed_leader().filter(|&next| next != leader));
    cluster.stop(next);
    let last = cluster.wait_ready();
    for id in cluster.ids() {
        let log = cluster.log(id);
        assert_eq!(warnings(&log[before[&id]..]), Vec::<&str>::new(), "node {id}");
    }
    assert!(cluster.log(leader).contains("this node no longer leads: it transferred leadership"));
    cluster.kill(last);
    cluster.restart(next);
    cluster.wait_ready();
    let warned = cluster.running().into_iter().any(|id| cluster.log(id).contains("the leader is lost"));
    assert!(warned, "the node that noticed it");
}

/// Goal: a refused server dials every second, and neither side's log grows by a line each time.
#[test]
fn refused_node_is_logged_once_in_a_while() {
    let mut cluster = Cluster::start_calm(3);
    let lost = cluster.wait_ready() % 3 + 1;
    cluster.kill(lost);
    fs::remove_dir_all(cluster.data(lost)).unwrap();
    let begin = Instant::now();
    cluster.restart(lost);
    let refusals = |id: u16| cluster.log(id).matches("was here before with another data directory").count();
    for id in cluster.ids() {
        eventually("the refusal is logged", || (refusals(id) > 0).then_some(()));
    }
    // Six more attempts each way, before a line is repeated.
    sleep(Duration::from_secs(6));
    // Each of the others refuses it and is refused by it, or refuses to dial it.
    for id in cluster.ids() {
        let lines = refusals(id);
        let repeats = begin.elapsed().as_secs() / 10;
        assert!(lines as u64 <= 4 * (1 + repeats), "node {id}: {}", cluster.log(id));
    }
}

/// Goal: a program that reads the log finds JSON in every line, numbers for numbers, and strings for
/// node IDs (`3.1` is one), also in the line that says why the process ended.
#[test]
fn json_log_has_one_type_for_each_field() {
    let mut cluster = Cluster::start_with(3, &["--log-format", "json"]);
    let leader = cluster.wait_ready();
    http::post(&cluster.client_addr(leader), "/v1/snapshot", "").unwrap().ok();
    cluster.stop(leader);
    cluster.wait_ready();
    let wrong = output(cluster.command(leader).args(["--cluster", "other"]));
    assert_eq!(wrong.status.code(), Some(74));
    let fatal = String::from_utf8_lossy(&wrong.stderr).into_owned();
    let last: Value = serde_json::from_str(fatal.lines().last().unwrap()).expect(&fatal);
    assert_eq!((&last["level"], &last["fields"]["exit_code"]), (&"ERROR".into(), &74.into()), "{fatal}");
    assert!(last["fields"]["message"].as_str().unwrap().contains("belongs to cluster `palisade`"), "{fatal}");

    let logs = cluster.ids().into_iter().map(|id| cluster.log(id)).collect::<String>() + &fatal;
    let mut seen = BTreeMap::new();
    for line in logs.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for (name, value) in event["fields"].as_object().unwrap() {
            let is_number = match name.as_str() {
                "node" | "leader" | "peer" | "from" => false,
                "term" | "index" | "bytes" | "snapshot" | "frames" | "segments" => true,
                _ => continue,
            };
            assert_eq!((value.is_number(), value.is_string()), (is_number, !is_number), "{name} in {line}");
            seen.insert(name.clone(), ());
        }
    }
    for name in ["node", "leader", "peer", "term", "index", "snapshot"] {
        assert!(seen.contains_key(name), "no line has {name}");
    }
}
