//! Limits of what one client, or one operator's script in a loop, takes from all others: sessions,
//! members, transfers of leadership.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::locks::post_to_leader;
use crate::support::websocket::WebSocket;
use crate::support::{eventually, http, metrics};

/// `POST path` from another address of this machine.
pub(super) fn post_from(local: &str, address: &str, path: &str, body: &str) -> Value {
    let mut stream = http::connect_from(local, address);
    // The request may wait for long.
    stream.set_read_timeout(None).unwrap();
    stream.write_all(http::request("POST", path, "", body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the node answers");
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer has a body");
    serde_json::from_str(body).expect("the body is JSON")
}

/// Opens sessions on one connection until one is refused; returns how many were opened, and the
/// refusal.
fn open_until_refused(address: &str) -> (u64, Value) {
    let mut socket = WebSocket::open(address);
    for opened in 0.. {
        let answer = socket.ask(1, &json!({ "open_session": { "ttl_ms": 86_400_000 } }));
        if answer["error"].is_object() {
            return (opened, answer["error"].clone());
        }
    }
    unreachable!("there is a limit")
}

/// Goal: the keys and values of locks cannot fill the memory of the nodes. Above the bound a client gets no further lock
/// and no longer value; it may release, and the number that operators see says how far it is.
#[test]
fn bytes_of_claims_end_at_their_limit() {
    let cluster = Cluster::start_calm_with(1, &["--max-claim-bytes", "10000"]);
    let address = cluster.client_addr(cluster.wait_ready());
    let acquire = |key: &str, value: usize| {
        let body = json!({ "value": "v".repeat(value) }).to_string();
        http::post(&address, &format!("/v1/locks/{key}/acquire"), &body).unwrap()
    };
    let grants: Vec<Value> = ["a", "b"].map(|key| acquire(key, 4000).ok()).into();
    let refused = acquire("c", 4000).refused(429, "limit");
    assert!(refused["message"].as_str().unwrap().contains("--max-claim-bytes"), "{refused}");
    acquire("c", 1000).ok();
    let taken = 2.0 * (1.0 + 4000.0 + 64.0) + (1.0 + 1000.0 + 64.0);
    eventually("the page shows the bytes", || {
        (metrics::value(&address, "palisade_claimed_bytes") == taken).then_some(())
    });
    let of = |grant: &Value| json!({ "session": grant["session"], "token": grant["token"], "value": "v".repeat(4096) });
    http::post(&address, "/v1/locks/a/proclaim", &of(&grants[0]).to_string()).unwrap().ok();
    let release = json!({ "session": grants[1]["session"], "token": grants[1]["token"] }).to_string();
    http::post(&address, "/v1/locks/b/release", &release).unwrap().ok();
    acquire("d", 4000).ok();
}

/// Goal: one client opens sessions without end. It gets its share of them, and the answer says which
/// limit that is; clients at other addresses have room. What it closes it may open again.
#[test]
fn sessions_of_one_address_leave_room_for_others() {
    let cluster = Cluster::start_calm_with(3, &["--max-sessions", "2000"]);
    let address = cluster.client_addr(cluster.wait_ready());
    let (opened, refusal) = open_until_refused(&address);
    assert_eq!((opened, &refusal["error"]), (1000, &json!("limit")), "half of all, for a loopback address");
    let message = refusal["message"].as_str().unwrap();
    assert!(message.contains("1000 sessions of one client") && message.contains("127.0.0.1"), "{message}");
    let refused = http::post(&address, "/v1/locks/k/acquire", "").unwrap().refused(429, "limit");
    assert!(refused["message"].as_str().unwrap().contains("sessions of one client"), "{refused}");

    let other = post_from("127.0.0.77", &address, "/v1/sessions", "{\"ttl_ms\":60000}");
    assert!(other["session"].is_string(), "{other}");
    let granted = post_from("127.0.0.77", &address, "/v1/locks/k/acquire", "");
    assert!(granted["token"].is_u64(), "{granted}");
    let path = format!("/v1/sessions/{}", other["session"].as_str().unwrap());
    http::send(&address, "DELETE", &path, "").unwrap().ok();
    http::post(&address, "/v1/sessions", "").unwrap().refused(429, "limit");

    // A share of its own for each address, as the operator sets it.
    let cluster = Cluster::start_calm_with(1, &["--max-sessions-per-client", "10"]);
    let address = cluster.client_addr(cluster.wait_ready());
    let session = http::post(&address, "/v1/sessions", "").unwrap().ok()["session"].as_str().unwrap().to_owned();
    assert_eq!(open_until_refused(&address).0, 9);
    http::send(&address, "DELETE", &format!("/v1/sessions/{session}"), "").unwrap().ok();
    assert_eq!(open_until_refused(&address).0, 1, "a closed session makes room");
    let short = post_from("127.0.0.77", &address, "/v1/sessions", "{\"ttl_ms\":200}");
    assert!(short["session"].is_string(), "{short}");
}

/// Makes the node the leader; returns its address once its table has all that was committed before.
fn lead(cluster: &Cluster, id: u16) -> String {
    let address = cluster.client_addr(id);
    eventually("the node leads", || {
        if cluster.agreed_leader()? == id {
            let read = http::get(&address, "/v1/locks/k").ok()?;
            return (read.status == 200).then(|| address.clone());
        }
        post_to_leader(&cluster.endpoints(), "/v1/leader/transfer", &json!({ "to": id }));
        None
    })
}

/// Goal: a client without a name changes the leader again and again, and opens its share of the sessions at each. Each
/// time it gets less, and not all sessions in the end: a client at another address has room.
#[test]
fn changes_of_the_leader_give_no_client_all_sessions() {
    let cluster = Cluster::start_calm_with(3, &["--max-sessions", "2000"]);
    let ids = cluster.ids();
    for (&id, expected) in ids.iter().chain(&ids).zip([1000, 500, 250, 0, 0, 0]) {
        let (opened, refusal) = open_until_refused(&lead(&cluster, id));
        assert_eq!((opened, &refusal["error"]), (expected, &json!("limit")), "node {id}: {refusal}");
    }
    let other = post_from("127.0.0.77", &lead(&cluster, 1), "/v1/sessions", "{\"ttl_ms\":60000}");
    assert!(other["session"].is_string(), "{other}");
}

/// Goal: learners are added in a loop. The cluster has 31 members at the most, and the refusal says
/// so; a member that is there may still be added again, which changes nothing.
#[test]
fn a_cluster_has_31_members_at_the_most() {
    let cluster = Cluster::start_calm(1);
    let address = cluster.client_addr(cluster.wait_ready());
    let add = |id: u16| {
        let body = json!({ "id": id, "peer_addr": format!("127.0.0.1:{id}") }).to_string();
        eventually("the change before is committed", || {
            let response = http::post(&address, "/v1/members", &body).unwrap();
            (response.status != 503).then_some(response)
        })
    };
    for id in 1_001..=1_030 {
        add(id).ok();
    }
    for id in 1_031..1_041 {
        let refused = add(id).refused(429, "limit");
        assert!(refused["message"].as_str().unwrap().contains("31 members, learners included"), "{refused}");
    }
    add(1_030).ok();
    assert_eq!(cluster.status(1).unwrap().members.len(), 31);
    http::send(&address, "DELETE", "/v1/members/1030", "").unwrap().ok();
    add(1_040).ok();
}

/// Goal: a client requests transfers of leadership in a loop, at whichever node leads. Few are
/// made, the others are refused with the time to wait, and an honest client's acquires succeed.
#[test]
fn transfers_in_a_loop_do_not_stop_acquires() {
    let mut cluster = Cluster::start_calm(3);
    cluster.pause_transfers();
    for id in cluster.ids() {
        cluster.stop(id);
    }
    for id in cluster.ids() {
        cluster.restart(id);
    }
    cluster.wait_ready();
    let addresses = cluster.endpoints();
    let (mut transferred, mut refused, mut acquired, mut failed) = (0, 0, 0, 0);
    let begin = Instant::now();
    while acquired < 100 || transferred < 3 {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{acquired} acquires, {failed} failed, {transferred} transfers"
        );
        for address in &addresses {
            let response = http::post(address, "/v1/leader/transfer", "{}").unwrap();
            match response.status {
                200 => transferred += 1,
                429 => {
                    let refusal = response.refused(429, "too_soon");
                    assert!(response.header("retry-after").is_some());
                    assert!(refusal["message"].as_str().unwrap().contains("try again in "), "{refusal}");
                    refused += 1;
                }
                _ => {}
            }
        }
        let leader =
            cluster.ids().into_iter().find(|&id| cluster.status(id).is_some_and(|status| status.role == "leader"));
        let Some(leader) = leader else { continue };
        let key = format!("/v1/locks/key-{acquired}-{failed}/acquire");
        let response = http::post(&cluster.client_addr(leader), &key, "{\"ttl_ms\":1000}").unwrap();
        if response.status == 200 { acquired += 1 } else { failed += 1 }
    }
    println!("{transferred} transfers, {refused} refused; {acquired} acquires, {failed} failed");
    // Two transfers are 3 s apart.
    let elapsed = begin.elapsed();
    assert!(transferred <= 1 + elapsed.as_secs() / 3, "{transferred} transfers in {elapsed:?}");
    assert!(refused > 20, "{refused} refused");
    assert!(failed <= 3 * transferred, "{failed} acquires failed in {transferred} transfers");
}
