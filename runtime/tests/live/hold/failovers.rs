//! Nodes that cannot go on: a follower, and a leader that is killed, transfers leadership, or stops.

use serde_json::{Value, json};

use super::{Client, get, node, post, queue};
use crate::support::cluster::Cluster;
use crate::support::{eventually, http};

/// Goal: a follower sends a client that asks for it to the leader before it opens a WebSocket, and a node without a
/// leader says so.
#[test]
fn follower_redirects_to_the_leader() {
    let mut cluster = Cluster::start_calm(3);
    let (leader, follower) = cluster.roles();
    let address = cluster.client_addr(leader);
    let redirect = http::send_unforwarded(&cluster.client_addr(follower), "GET", "/v1/hold", "").unwrap();
    assert_eq!(redirect.refused(307, "not_leader")["leader"]["client_addr"], address.as_str());
    assert_eq!(redirect.header("location"), Some(&*format!("http://{address}/v1/hold")));
    for id in cluster.others(follower) {
        cluster.kill(id);
    }
    eventually("the node knows no leader", || {
        let answer = get(&cluster.client_addr(follower), "/v1/hold");
        (answer.status == 503).then(|| answer.refused(503, "no_leader"))
    });
}

/// Resumes at the leader, as soon as there is one.
fn resume(cluster: &Cluster, resume: &Value) -> (Client, (String, Value)) {
    eventually("a leader takes the session over", || {
        let mut client = Client::begin(&cluster.client_addr(cluster.agreed_leader()?), resume);
        let (kind, value) = client.answer_until_news();
        (kind != "interrupted").then_some((client, (kind, value)))
    })
}

/// Goal: when the leader dies, the holder resumes at the next one with the same token, and the waiters at their
/// positions.
#[test]
fn sessions_are_resumed_at_a_new_leader() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let (_holder, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 60_000 }));
    let wait = |owner| json!({ "key": "k", "ttl_ms": 60_000, "wait_ms": 600_000, "owner": owner });
    let (_first, first) = Client::waits(&address, wait("first"));
    queue(&address, "k", 1);
    let (_second, second) = Client::waits(&address, wait("second"));
    queue(&address, "k", 2);
    cluster.kill(leader);

    let again = |session: &Value| json!({ "resume": { "key": "k", "session": session, "wait_ms": 600_000 } });
    let (second, (kind, _)) = resume(&cluster, &again(&second));
    assert_eq!(kind, "waiting");
    let (mut first, (kind, _)) = resume(&cluster, &again(&first));
    assert_eq!(kind, "waiting");
    let held = json!({ "resume": { "key": "k", "session": grant["session"], "token": grant["token"] } });
    let (holder, (kind, granted)) = resume(&cluster, &held);
    assert_eq!((kind.as_str(), &granted), ("granted", &grant));
    holder.release();
    let next = first.next("granted");
    assert!(next["token"].as_u64() > grant["token"].as_u64());
    first.release();
    let mut second = second;
    second.next("granted");
    second.release();
}

/// Goal: no renewal is told before a majority has it: the lease of a client does not rest on what may never be
/// committed.
#[test]
fn renewal_is_reported_when_it_is_committed() {
    let cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let (mut holder, _) = Client::granted(&cluster.client_addr(leader), json!({ "key": "k", "ttl_ms": 6_000 }));
    holder.be_renewed(1);
    let check = loop {
        if let (kind, check) = holder.receive()
            && kind == "check"
        {
            break check;
        }
    };
    let followers = cluster.others(leader);
    followers.iter().for_each(|&id| cluster.freeze(id));
    holder.send(&json!({ "here": check["n"] }));
    let interrupted = loop {
        match holder.receive() {
            (kind, check) if kind == "check" => holder.send(&json!({ "here": check["n"] })),
            (kind, interrupted) if kind == "interrupted" => break interrupted,
            (kind, message) => panic!("no majority has a renewal, and the client was told `{kind}`: {message}"),
        }
    };
    assert!(["leadership_lost", "no_leader"].iter().any(|code| interrupted["error"] == *code), "{interrupted}");
    followers.iter().for_each(|&id| cluster.thaw(id));
}

/// Goal: a leader that transfers leadership interrupts the waiters at once, and the holders long before a check is due,
/// and names the new leader.
#[test]
fn old_leader_interrupts_holders_and_waiters() {
    let cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let (mut holder, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 86_400_000 }));
    let (mut waiter, _) = Client::waits(&address, json!({ "key": "k", "wait_ms": 600_000 }));
    queue(&address, "k", 1);
    post(&address, "/v1/leader/transfer", &json!({})).ok();
    let lost = waiter.last("interrupted");
    assert_eq!(lost["error"], "leadership_lost", "{lost}");
    let interrupted = holder.last("interrupted");
    assert_eq!(interrupted["error"], "not_leader", "{interrupted}");
    let named = interrupted["leader"]["client_addr"].as_str().expect("the leader is known").to_owned();
    assert_ne!(named, address);
    let resume = json!({ "resume": { "key": "k", "session": grant["session"], "token": grant["token"] } });
    let mut holder = Client::begin(&named, &resume);
    assert_eq!(holder.next("granted"), grant);
    holder.release();
}

/// Goal: a node that stops tells its holders, whose locks stay.
#[test]
fn node_that_stops_interrupts_its_holders() {
    let (mut cluster, address) = node();
    let (mut holder, grant) = Client::granted(&address, json!({ "key": "k", "ttl_ms": 86_400_000 }));
    let (mut waiter, _) = Client::waits(&address, json!({ "key": "k", "ttl_ms": 86_400_000, "wait_ms": 600_000 }));
    queue(&address, "k", 1);
    cluster.stop(1);
    for client in [&mut holder, &mut waiter] {
        assert_eq!(client.last("interrupted")["error"], "shutting_down");
    }
    cluster.restart(1);
    let resume = json!({ "resume": { "key": "k", "session": grant["session"], "token": grant["token"] } });
    let (mut resumed, (kind, granted)) = self::resume(&cluster, &resume);
    assert_eq!((kind.as_str(), granted), ("granted", grant));
    resumed.send(&json!({ "release": {} }));
    resumed.last("released");
}
