//! A stranger who knows everything that a cluster shows, and more: numbers of sessions, keys, tokens,
//! a node's snapshot. It can act for no session but its own.

use std::fs;
use std::path::{Path, PathBuf};

use palisade::core::{NO_PRINCIPAL, Secret, session_id};
use palisade::storage::read_snapshot;
use palisade_client::wire::SessionId;
use palisade_spec::lock::LockTable;
use palisade_spec::raft::MAX_NUMBER;
use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::process::{output, palisade};
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http};

const KEY: &str = "payroll";

fn open(address: &str, owner: &str) -> SessionId {
    let body = json!({ "ttl_ms": 600_000, "owner": owner }).to_string();
    let lease = http::post(address, "/v1/sessions", &body).unwrap().ok();
    serde_json::from_value(lease["session"].clone()).expect("a credential")
}

fn shown(address: &str) -> Value {
    http::get(address, &format!("/v1/locks/{KEY}")).unwrap().ok()
}

/// The state of a node's newest snapshot, as `GET /v1/snapshot` sends it.
fn snapshot(cluster: &Cluster, id: u16) -> LockTable {
    http::post(&cluster.client_addr(id), "/v1/snapshot", "").unwrap().ok();
    newest_snapshot(&cluster.data(id))
}

fn newest_snapshot(directory: &Path) -> LockTable {
    let snapshots = files(directory).into_iter().filter(|path| path.extension().is_some_and(|end| end == "snap"));
    let newest = snapshots.max().expect("a snapshot was taken");
    read_snapshot::<LockTable>(fs::File::open(newest).unwrap(), None).unwrap().0.machine
}

/// Every file below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Goal (row 3 of issue 18): a client that has read all there is to read tries every request in the
/// name of a holder and of a waiter. Each answer says what is wrong, and nothing changes: neither
/// the lock, nor the queue, nor the deadlines, nor the numbers of the victims' operations.
#[test]
fn stranger_acts_for_no_session() {
    let cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let (holder, waiter) = (open(&address, "victim"), open(&address, "patient"));
    let mut victim = WebSocket::open(&address);
    let acquire = |session: SessionId, wait_ms: u64| {
        let options = json!({ "session": session, "wait_ms": wait_ms });
        json!({ "acquire": { "key": KEY, "options": options, "number": 1 } })
    };
    let token = victim.ask(1, &acquire(holder, 0))["ok"]["acquired"]["token"].as_u64().expect("it is free");
    let mut patient = WebSocket::open(&address);
    patient.send(1, &acquire(waiter, 600_000));
    eventually("the waiter waits", || (shown(&address)["queue"].as_array()?.len() == 1).then_some(()));

    let page = http::get(&address, "/v1/locks").unwrap().ok();
    let read = &page["locks"][0];
    assert_eq!((&read["key"], &read["holder"]["token"]), (&json!(KEY), &json!(token)));
    let numbers = [&read["holder"]["session"], &read["queue"][0]["session"]].map(|shown| shown.as_u64().unwrap());
    assert_eq!(numbers, [holder.number(), waiter.number()], "lists show the public number");
    let table = snapshot(&cluster, leader);
    let expires = |view: &Value| view["holder"]["expires_in_ms"].as_u64().unwrap();
    let mut before = shown(&address);
    let mut stranger = WebSocket::open(&address);
    for number in numbers {
        let id = *table.sessions().keys().find(|id| id.number == number).expect("the snapshot has the session");
        // The bytes that a snapshot has of it; none at all; and those of the stranger's own session.
        let proof = u128::from(id.proof).to_be_bytes();
        let own = open(&address, "stranger").secret();
        for secret in [proof.first_chunk().copied().unwrap(), proof.last_chunk().copied().unwrap(), [0; 10], own] {
            let session = SessionId::new(number, secret).unwrap();
            let refused = |status: u16, method: &str, path: &str, body: &Value| {
                let answer = http::send(&address, method, path, &body.to_string()).unwrap();
                let refusal = answer.refused(status, "no_session");
                let whose = format!("session {number} is another client's");
                assert!(refusal["message"].as_str().unwrap().starts_with(&whose), "{method} {path}: {refusal}");
            };
            let path = format!("/v1/sessions/{session}");
            refused(404, "GET", &path, &json!({}));
            refused(404, "DELETE", &path, &json!({}));
            refused(404, "POST", &format!("{path}/keepalive"), &json!({}));
            for wait_ms in [0, 5_000] {
                let body = json!({ "session": session, "wait_ms": wait_ms });
                refused(404, "POST", &format!("/v1/locks/{KEY}/acquire"), &body);
                refused(404, "POST", "/v1/locks/another/acquire", &body);
            }
            let grant = json!({ "session": session, "token": token });
            refused(404, "POST", &format!("/v1/locks/{KEY}/release"), &grant);

            for (operation, error) in
                [(None, "no_session"), (Some(MAX_NUMBER), "no_session"), (Some(u64::MAX), "invalid")]
            {
                for op in [
                    json!({ "withdraw": { "key": KEY, "session": session, "number": operation } }),
                    json!({ "release": { "key": KEY, "grant": grant, "number": operation } }),
                    json!({ "acquire": { "key": KEY, "options": { "session": session }, "number": operation } }),
                ] {
                    let answer = stranger.ask(2, &op);
                    assert_eq!(answer["error"]["error"], error, "{op}: {answer}");
                    let message = answer["error"]["message"].as_str().unwrap();
                    assert!(message.contains("another client's") || message.contains("it may be 1 to"), "{message}");
                }
            }
            let now = shown(&address);
            assert!(expires(&now) <= expires(&before), "the stranger's keepalive renewed nothing");
            let timeless = |view: &Value| (view["holder"]["session"].clone(), view["queue"].clone());
            assert_eq!(timeless(&now), timeless(&before));
            before = now;
        }
    }

    // The victims' next operations are as new as they were.
    let release = json!({ "release": { "key": KEY, "grant": { "session": holder, "token": token }, "number": 2 } });
    assert_eq!(victim.ask(2, &release)["ok"], "released");
    let granted = patient.receive().expect("the connection stays");
    assert_eq!(granted["result"]["ok"]["acquired"]["session"], json!(waiter), "{granted}");
    assert_eq!(shown(&address)["holder"]["session"], waiter.number(), "the waiter holds the lock");
}

/// Goal: a session's secret is in no file of any node (log, snapshots, recordings), in no line that
/// it logs, and in nothing that it shows: in no form that the secret could be read in.
#[test]
fn secret_is_stored_and_shown_nowhere() {
    let recordings = tempfile::tempdir().unwrap();
    let flags = ["--election-timeout", "750ms", "--record", recordings.path().to_str().expect("a plain path")];
    let mut cluster = Cluster::start_with(3, &flags);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);

    let own = open(&address, "marked-owner");
    let body = json!({ "session": own, "ttl_ms": 600_000 }).to_string();
    let grant = http::post(&address, &format!("/v1/locks/{KEY}/acquire"), &body).unwrap().ok();
    let once = http::post(&address, "/v1/locks/other/acquire", r#"{"ttl_ms":600000}"#).unwrap().ok();
    let once: SessionId = serde_json::from_value(once["session"].clone()).unwrap();
    let waiter = open(&address, "marked-waiter");
    let mut socket = WebSocket::open(&address);
    socket.send(1, &json!({ "acquire": { "key": KEY, "options": { "session": waiter, "wait_ms": 600_000 } } }));
    eventually("the waiter waits", || (shown(&address)["queue"].as_array()?.len() == 1).then_some(()));
    for session in [own, once, waiter] {
        http::post(&address, &format!("/v1/sessions/{session}/keepalive"), "").unwrap().ok();
    }
    // A wrong token and a wrong form: what is refused may be logged, too.
    let body = json!({ "session": own, "token": grant["token"].as_u64().unwrap() + 1 }).to_string();
    http::post(&address, &format!("/v1/locks/{KEY}/release"), &body).unwrap().refused(409, "not_holder");
    http::get(&address, &format!("/v1/sessions/{once}x")).unwrap().refused(400, "invalid");
    let forms: Vec<Vec<u8>> = [own, once, waiter].into_iter().flat_map(forms).collect();

    let mut seen: Vec<(String, Vec<u8>)> = Vec::new();
    for id in cluster.ids() {
        let node = cluster.client_addr(id);
        http::post(&node, "/v1/snapshot", "").unwrap().ok();
        for path in ["/v1/locks?consistency=stale", "/v1/status", "/metrics", "/v1/members"] {
            seen.push((path.into(), http::get(&node, path).unwrap().body.into_bytes()));
        }
    }
    let path = format!("/v1/locks/{KEY}");
    seen.push((path.clone(), http::get(&address, &path).unwrap().body.into_bytes()));
    let view = format!("/v1/sessions/{own}");
    seen.push((view.clone(), http::get(&address, &view).unwrap().body.into_bytes()));
    let refused = http::post(&address, &format!("{path}/acquire"), "{}").unwrap();
    refused.refused(409, "held");
    seen.push((format!("{path}/acquire"), refused.body.into_bytes()));
    for arguments in [&["locks"][..], &["locks", "--json"], &["show", KEY], &["show", KEY, "--json"], &["status"]] {
        let shown = output(palisade().args(arguments).args(["--endpoints", &cluster.endpoints().join(",")]));
        assert!(shown.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&shown.stderr));
        seen.push((arguments.join(" "), [shown.stdout, shown.stderr].concat()));
    }
    let listed = String::from_utf8(seen[0].1.clone()).unwrap();
    assert!(listed.contains("marked-owner"), "what is searched has the sessions: {listed}");

    for id in cluster.ids() {
        cluster.stop(id);
    }
    let home = cluster.data(leader).parent().unwrap().to_path_buf();
    let stored = files(&home).into_iter().chain(files(recordings.path()));
    let stored: Vec<(String, Vec<u8>)> =
        stored.map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect();
    let has = |bytes: &[u8], form: &[u8]| bytes.windows(form.len()).any(|part| part == form);
    let with_owner =
        |end: &str| stored.iter().filter(|(name, bytes)| name.ends_with(end) && has(bytes, b"marked-owner")).count();
    assert!(with_owner(".snap") >= 3 && with_owner(".recording") >= 3, "every node has stored the session");
    for (name, bytes) in seen.iter().chain(&stored) {
        for form in &forms {
            assert!(!has(bytes, form), "{name} has the secret as {:?}", String::from_utf8_lossy(form));
        }
    }

    // The search finds what it looks for, and the sessions are there under their numbers and proofs.
    let id = session_id(own, NO_PRINCIPAL);
    assert!(newest_snapshot(&home.join(format!("node-{leader}"))).session(id).is_some());
    let planted = format!("x{own}x");
    assert!(forms.iter().any(|form| has(planted.as_bytes(), form)));
    assert!(forms.iter().any(|form| has(&Secret::of(own).credential(own.number()).secret(), form)));
}

/// What a secret may look like: its bytes in both orders, and its digits, with and without the
/// hyphen of a UUID and in both cases.
fn forms(session: SessionId) -> [Vec<u8>; 6] {
    let secret = session.secret();
    let hyphened = session.to_string()[14..].to_string();
    let digits: String = hyphened.chars().filter(|&digit| digit != '-').collect();
    assert_eq!(digits.len(), 20);
    let last = hyphened.rsplit('-').next().unwrap().to_string();
    [
        secret.to_vec(),
        secret.iter().rev().copied().collect(),
        digits.clone().into_bytes(),
        digits.to_uppercase().into_bytes(),
        last.clone().into_bytes(),
        last.to_uppercase().into_bytes(),
    ]
}
