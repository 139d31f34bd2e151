//! Audit logs of real nodes: who did what, from where, and what a crash leaves of it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_client::wire::{AccessRules, Code, Failure, Watch};
use palisade_client::{Client, Error, Options, Security};
use serde_json::{Value, json};

use crate::support::certificates::Certificates;
use crate::support::cluster::Cluster;
use crate::support::http::Response;
use crate::support::process::{palisade, printed};
use crate::support::{eventually, http, https};

/// Gives each node an audit log beside its data.
pub(crate) fn keep(_: u16, command: &mut Command) {
    let data = command.get_args().skip_while(|flag| *flag != "--data").nth(1).map(PathBuf::from);
    let directory = beside(&data.expect("a node has a data directory"));
    command.arg("--audit").arg(directory);
}

fn beside(data: &Path) -> PathBuf {
    data.with_extension("audit")
}

fn directory(cluster: &Cluster, id: u16) -> PathBuf {
    beside(&cluster.data(id))
}

/// The records of a node's first file.
fn records(cluster: &Cluster, id: u16) -> Vec<Value> {
    let content = fs::read_to_string(directory(cluster, id).join("audit-00000001.jsonl")).unwrap_or_default();
    let whole = content.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Expects this program to find an audit log whole.
pub(crate) fn verify(program: &mut Command, directory: &Path) {
    let said = printed(program.args(["audit", "verify"]).arg(directory));
    assert!(said.contains("the chain is whole"), "{said}");
}

/// A cluster with these certificates and audit logs.
fn start_secured(size: u16, ours: &Certificates) -> Cluster {
    let secured = ours.adjust();
    let adjust = move |id: u16, command: &mut Command| {
        secured(id, command);
        keep(id, command);
    };
    Cluster::start_adjusted_secured(size, adjust, ours.client("test"))
}

/// The results of an intent.
fn results(records: &[Value], intent: &Value) -> Vec<String> {
    let of_intent = records.iter().filter(|record| record["intent"] == intent["n"]);
    of_intent.map(|record| record["result"].as_str().unwrap().to_owned()).collect()
}

/// What an applied entry did, as every node has it: without the client's address.
fn applied_events(records: &[Value]) -> Vec<Value> {
    let applied = records.iter().filter(|record| record.get("term").is_some());
    let same = applied.map(|record| {
        let mut record = record.clone();
        let fields = record.as_object_mut().unwrap();
        ["n", "time", "node", "address", "hash"].iter().for_each(|field| drop(fields.remove(*field)));
        // The leader alone knows who asked for a change of the members; the others have its entry.
        if fields["event"].as_str().unwrap().starts_with("member_") {
            fields.remove("principal");
        }
        record
    });
    same.collect()
}

fn find<'a>(records: &'a [Value], event: &str, key: Option<&str>) -> &'a Value {
    let fits = |record: &&Value| record["event"] == event && key.is_none_or(|key| record["key"] == key);
    records.iter().find(fits).unwrap_or_else(|| panic!("no record {event} {key:?} in {records:#?}"))
}

fn send(address: &str, security: &Security, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    https::send(address, security, method, path, &body).unwrap()
}

/// Goal: every node's log has every grant, release, break, expiry, member and rule change, with the
/// principal; the node that answered has the client's address, and what administrators meant to do.
#[test]
fn every_node_records_what_happened_and_who_did_it() {
    let ours = Certificates::of("billing", 3);
    ours.issue_client("worker-7", &[]);
    let mut cluster = start_secured(3, &ours);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let (alice, worker) = (ours.administrator("alice"), ours.client("worker-7"));
    let acquire = |key: &str, ttl: u64| {
        let options = json!({ "ttl_ms": ttl, "wait_ms": 30_000 });
        send(&address, &worker, "POST", &format!("/v1/locks/{key}/acquire"), &options).ok()
    };

    let grant = acquire("released", 60_000);
    let body = json!({ "session": grant["session"], "token": grant["token"] });
    send(&address, &worker, "POST", "/v1/locks/released/release", &body).ok();
    acquire("expires", 300);
    let taken = acquire("broken", 60_000);
    let order = json!({ "token": taken["token"], "reason": "stuck\nfor an hour" });
    send(&address, &alice, "POST", "/v1/locks/broken/break", &order).ok();
    let rules = json!({ "revision": 0, "rules": [{ "subject": "*", "prefix": "", "rights": ["read", "acquire"] }] });
    send(&address, &alice, "PUT", "/v1/access", &rules).ok();
    send(&address, &worker, "DELETE", "/v1/members/3", &Value::Null).refused(403, "denied");
    let learner = json!({ "id": 9, "peer_addr": "127.0.0.1:1" });
    send(&address, &alice, "POST", "/v1/members", &learner).ok();
    send(&address, &alice, "DELETE", "/v1/members/9", &Value::Null).ok();

    let all = eventually("every node has recorded the same", || {
        let all: Vec<_> = cluster.ids().into_iter().map(|id| records(&cluster, id)).collect();
        let applied: Vec<_> = all.iter().map(|records| applied_events(records)).collect();
        let is_whole =
            ["expired", "member_removed"].iter().all(|name| applied[0].iter().any(|event| event["event"] == *name));
        (is_whole && applied.iter().all(|other| *other == applied[0])).then_some(all)
    });
    for (id, records) in cluster.ids().into_iter().zip(&all) {
        let is_leader = id == leader;
        let of = |event, key| find(records, event, key);
        for (event, key) in
            [("granted", "released"), ("released", "released"), ("granted", "expires"), ("released", "expires")]
        {
            assert_eq!(of(event, Some(key))["principal"], "worker-7");
        }
        let has_address = |record: &Value| record["address"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:"));
        assert_eq!(of("expired", None)["principal"], "worker-7");
        let broken = of("broken", Some("broken"));
        assert_eq!((&broken["principal"], &broken["operator"]), (&json!("worker-7"), &json!("admin/alice")));
        assert_eq!(of("access_set", None)["principal"], "admin/alice");
        assert_eq!(of("member_added", None)["member"], "9");
        for record in
            [of("granted", Some("released")), of("released", Some("released")), broken, of("access_set", None)]
        {
            assert_eq!(has_address(record), is_leader, "{record}");
        }
        assert!(!has_address(of("released", Some("expires"))), "no request released it");
        if is_leader {
            assert_eq!(of("member_added", None)["principal"], "admin/alice");
            let intent = of("intent", None);
            assert_eq!((&intent["act"], &intent["reason"]), (&json!("break"), &json!("stuck\nfor an hour")));
            assert_eq!(intent["principal"], "admin/alice");
            assert_eq!(results(records, intent), ["done"]);
            let intents = records.iter().filter(|record| record["event"] == "intent");
            let mut intending = intents.map(|intent| &intent["principal"]);
            assert!(intending.all(|principal| principal == "admin/alice"), "a denied request has no intent");
            assert_eq!(of("refused", None)["principal"], "worker-7");
            let positions: Vec<_> = ["intent", "broken", "answered"]
                .iter()
                .map(|event| records.iter().position(|record| record["event"] == *event).unwrap())
                .collect();
            assert!(positions.is_sorted(), "the intent comes first: {positions:?}");
        }
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let directory = directory(&cluster, id);
        assert_eq!((mode(directory.clone()), mode(directory.join("audit-00000001.jsonl"))), (0o700, 0o600));
    }
    for id in cluster.ids() {
        cluster.stop(id);
        verify(&mut palisade(), &directory(&cluster, id));
        assert_eq!(records(&cluster, id).last().unwrap()["event"], "stopped");
    }
}

/// Goal: an administrative request has its result in the log, also if its client hangs up before the answer.
#[test]
fn request_whose_client_hangs_up_has_a_result() {
    let mut cluster = Cluster::start_adjusted(3, &["--election-timeout", "750ms"], keep);
    let leader = cluster.wait_ready();
    let followers = cluster.others(leader);
    followers.iter().for_each(|&id| cluster.freeze(id));
    let body = json!({ "id": 9, "peer_addr": "127.0.0.1:1" }).to_string();
    let request = format!(
        "POST /v1/members HTTP/1.1\r\nHost: localhost\r\nX-Forward: never\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(cluster.client_addr(leader)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let of_intent = |records: &[Value]| records.iter().find(|record| record["event"] == "intent").cloned();
    let intent = eventually("the intent is recorded", || of_intent(&records(&cluster, leader)));
    drop(stream);
    followers.iter().for_each(|&id| cluster.thaw(id));
    let results = |cluster: &Cluster| results(&records(cluster, leader), &intent);
    eventually("the result is recorded", || (!results(&cluster).is_empty()).then_some(()));
    cluster.wait_ready();
    cluster.stop(leader);
    let results = results(&cluster);
    assert!(results.len() == 1 && results[0] != "abandoned", "{results:?}");
}

/// Goal: what is denied on a WebSocket is recorded once.
#[test]
fn denial_on_a_websocket_is_recorded_once() {
    let ours = Certificates::of("billing", 1);
    ours.issue_client("worker-7", &[]);
    let mut cluster = start_secured(1, &ours);
    let address = cluster.client_addr(cluster.wait_ready());
    let (alice, worker) = (ours.administrator("alice"), ours.client("worker-7"));
    let rules = json!({ "revision": 0, "rules": [{ "subject": "*", "prefix": "", "rights": [] }] });
    send(&address, &alice, "PUT", "/v1/access", &rules).ok();

    https::block_on(async {
        let options = Options { security: worker, ..Options::default() };
        let client = Client::connect(&[&address], options).await.unwrap();
        let denied =
            |error: Error| assert!(matches!(error, Error::Refused(Failure { error: Code::Denied, .. })), "{error}");
        denied(client.break_lock("broken", 1, "to try").await.unwrap_err());
        denied(client.set_access_rules(AccessRules::default()).await.unwrap_err());
        denied(client.watch(Watch { key: Some("watched".into()), ..Watch::default() }).next().await.unwrap_err());
    });

    cluster.stop(1);
    let records = records(&cluster, 1);
    let refused = records.iter().filter(|record| record["event"] == "refused");
    let whys: Vec<&str> = refused.map(|record| record["why"].as_str().unwrap()).collect();
    for (what, index) in [("may not break broken", 0), ("may not administer", 1), ("may not read watched", 2)] {
        assert!(whys.get(index).is_some_and(|why| why.contains(what)), "{what}: {whys:?}");
    }
    assert_eq!(whys.len(), 3, "{whys:?}");
}

/// Goal: a client without a right fills neither the audit log nor the node's log: its requests have no intents, and one
/// record and one line of each right in ten seconds.
#[test]
fn denied_acts_fill_no_log() {
    let ours = Certificates::of("billing", 1);
    ours.issue_client("worker-7", &[]);
    let mut cluster = start_secured(1, &ours);
    let address = cluster.client_addr(cluster.wait_ready());
    let (alice, worker) = (ours.administrator("alice"), ours.client("worker-7"));
    let rules = json!({ "revision": 0, "rules": [{ "subject": "*", "prefix": "", "rights": ["acquire"] }] });
    send(&address, &alice, "PUT", "/v1/access", &rules).ok();
    let order = json!({ "token": 1, "reason": "to fill the disk" });
    let off = json!({ "revision": 1, "enabled": false });
    for number in 0..20 {
        send(&address, &worker, "POST", &format!("/v1/locks/{number}/break"), &order).refused(403, "denied");
        send(&address, &worker, "PUT", "/v1/access", &off).refused(403, "denied");
    }
    cluster.stop(1);
    let records = records(&cluster, 1);
    let of_worker: Vec<&Value> = records.iter().filter(|record| record["principal"] == "worker-7").collect();
    let refusals = |right: &str| {
        let is_of = |record: &&&Value| {
            record["event"] == "refused" && record["why"].as_str().is_some_and(|why| why.contains(right))
        };
        of_worker.iter().filter(is_of).count()
    };
    let (breaks, changes) = (refusals("may not break"), refusals("may not administer"));
    assert_eq!(breaks + changes, of_worker.len(), "{of_worker:#?}");
    let lines = cluster.log(1).matches("an operator did not break the grant of a lock").count();
    // A second one of each, if the machine is slow.
    for count in [breaks, changes, lines] {
        assert!((1..=2).contains(&count), "{breaks} {changes} {lines}");
    }
}

/// Goal: a crash repeats nothing in the log, and what was not written comes from the cluster's log at the
/// next start.
#[test]
fn crash_repeats_nothing_and_loses_nothing() {
    let mut cluster = Cluster::start_adjusted(1, &["--snapshot-log-bytes", "20000", "--snapshot-margin", "4"], keep);
    let mut tokens = 0;
    for round in 0..4 {
        cluster.wait_ready();
        let address = cluster.client_addr(1);
        for number in 0..30 {
            let key = format!("{round}-{number}");
            let grant = http::post(&address, &format!("/v1/locks/{key}/acquire"), "{\"ttl_ms\":60000}").unwrap().ok();
            tokens = grant["token"].as_u64().unwrap();
            let body = json!({ "session": grant["session"], "token": tokens }).to_string();
            http::post(&address, &format!("/v1/locks/{key}/release"), &body).unwrap().ok();
        }
        // A snapshot may replace entries that the writer has not written yet; that has a record, `unseen`.
        std::thread::sleep(std::time::Duration::from_millis(50));
        cluster.kill(1);
        cluster.restart(1);
    }
    cluster.wait_ready();
    let records = eventually("all grants are recorded", || {
        let records = records(&cluster, 1);
        (records.iter().filter(|record| record["event"] == "released").count() as u64 >= tokens).then_some(records)
    });
    for event in ["granted", "released"] {
        let of = records.iter().filter(|record| record["event"] == event);
        let recorded: Vec<u64> = of.map(|record| record["token"].as_u64().unwrap()).collect();
        assert!(recorded.iter().copied().eq(1..=tokens), "{event}: {recorded:?}");
    }
    let starts = records.iter().filter(|record| record["event"] == "started").count();
    assert_eq!(starts, 5);
    let lines: BTreeSet<String> = applied_events(&records).iter().map(Value::to_string).collect();
    assert_eq!(lines.len(), applied_events(&records).len(), "no record is there twice");
    verify(&mut palisade(), &directory(&cluster, 1));
}
