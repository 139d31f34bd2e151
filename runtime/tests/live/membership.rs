//! Membership changes: servers join, become voters, are removed; leaders transfer leadership; a
//! cluster begins with another one's state.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use palisade_client::wire::MembersView;
use palisade_client::{Client, LockOptions, Options};
use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, holder_and_queue, lock, open_session, post_to_leader, release};
use crate::support::process::{palisade, printed};
use crate::support::{eventually, http};

const TTL: Duration = Duration::from_secs(600);

/// Runs `palisade` against the cluster's running nodes, and returns what it prints.
fn palisade_says(cluster: &Cluster, arguments: &[&str]) -> String {
    let endpoints: Vec<String> = cluster.running().into_iter().map(|id| cluster.client_addr(id)).collect();
    printed(palisade().args(arguments).args(["--endpoints", &endpoints.join(",")]))
}

/// The members, as the leader knows them: numbers, and whether they vote.
fn members(cluster: &Cluster) -> Vec<(u16, bool)> {
    let view: MembersView = serde_json::from_str(&palisade_says(cluster, &["members", "list", "--json"])).unwrap();
    view.members.into_iter().map(|member| (member.id, member.voter)).collect()
}

/// Waits until the node has applied what the leader has.
fn await_caught_up(cluster: &Cluster, node: u16) {
    eventually("the node has caught up", || {
        let leader = cluster.status(cluster.agreed_leader()?)?;
        let status = cluster.status(node)?;
        (status.applied >= leader.commit && leader.commit > 0).then_some(())
    });
}

/// Goal: a server that the cluster has admitted, and that could not write its identity, joins at its next start, under the
/// same node ID.
#[test]
fn join_that_failed_after_the_cluster_has_agreed_is_repeated() {
    let mut cluster = Cluster::start_calm(1);
    // The file cannot be created while there is a directory of its name.
    let obstacle = cluster.data(2).join("identity.json.tmp");
    fs::create_dir_all(&obstacle).unwrap();
    let joined = cluster.join(1);
    eventually("it cannot write its identity", || cluster.log(joined).contains("identity.json.tmp").then_some(()));
    cluster.kill(joined);
    assert_eq!(members(&cluster), [(1, true), (2, false)], "the cluster has admitted it");
    fs::remove_dir(&obstacle).unwrap();
    cluster.restart(joined);
    await_caught_up(&cluster, joined);
    assert!(!cluster.data(joined).join("join.json").exists());
}

/// Goal: a new server needs one address to join. It receives everything, and does not count for
/// majorities until it is promoted to a voter.
#[test]
fn a_server_joins_learns_and_becomes_a_voter() {
    let mut cluster = Cluster::start_calm(3);
    let session = open_session(&cluster, "holder", TTL);
    let grant = acquire(&cluster, "report", session);
    let joined = cluster.join(2);
    await_caught_up(&cluster, joined);
    assert_eq!(members(&cluster), [(1, true), (2, true), (3, true), (4, false)]);

    // One of three voters dies: two are enough. The learner is no fourth, and cannot be the second
    // of two either.
    let leader = cluster.wait_ready();
    let others: Vec<u16> = (1..=3).filter(|&id| id != leader).collect();
    cluster.kill(others[0]);
    assert_eq!(holder_and_queue(&lock(&cluster, "report")), (Some((session.number(), grant.token)), vec![]));
    cluster.kill(others[1]);
    eventually("the leader steps down", || {
        let status = cluster.status(leader)?;
        (status.role != "leader").then_some(())
    });
    cluster.restart(others[0]);
    cluster.restart(others[1]);
    cluster.wait_ready();

    palisade_says(&cluster, &["members", "promote", "4"]);
    assert_eq!(members(&cluster), [(1, true), (2, true), (3, true), (4, true)]);
    // Repeating the request is no error.
    palisade_says(&cluster, &["members", "promote", "4"]);
    let founder = (1..=3).find(|&id| Some(id) != cluster.agreed_leader()).unwrap();
    palisade_says(&cluster, &["members", "remove", &founder.to_string()]);
    cluster.kill(founder);
    // It counts now: with one more of the three gone, two are a majority.
    let other = (1..=3).find(|&id| id != founder && Some(id) != cluster.agreed_leader()).unwrap();
    cluster.kill(other);
    assert_eq!(holder_and_queue(&lock(&cluster, "report")), (Some((session.number(), grant.token)), vec![]));
    cluster.kill(joined);
    cluster.restart(joined);
    cluster.wait_ready();
    assert_eq!(cluster.status(joined).unwrap().members.len(), 3, "the list of members is on its disk");
}

/// The observations of a client that takes and releases one lock after the other.
#[derive(Debug, Default)]
struct Seen {
    grants: u64,
    longest: Duration,
    last_token: u64,
}

/// Takes and releases a lock of its own, all the time, until the test stops it. No call may fail.
async fn work(endpoints: Vec<String>, key: String, stop: Arc<AtomicBool>) -> Seen {
    let client = Client::connect(&endpoints, Options::default()).await.expect("a leader answers");
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let guard = client.lock(&key, LockOptions::default().wait_forever()).await.expect("the lock is granted");
        assert!(guard.token() > seen.last_token, "tokens grow: {} came after {}", guard.token(), seen.last_token);
        seen.last_token = guard.token();
        guard.release().await.expect("the lock is given back");
        seen.longest = seen.longest.max(asked.elapsed());
        seen.grants += 1;
    }
    client.close().await;
    seen
}

/// Goal: under load, all three servers are replaced by new ones with new data directories, one
/// after the other. No client loses a lock or a queue position, no token is issued twice, and no
/// call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_servers_are_replaced_one_after_the_other_under_load() {
    let mut cluster = Cluster::start(3);
    let holder = open_session(&cluster, "holder", TTL);
    let grant = acquire(&cluster, "line", holder);
    let mut waiting = Vec::new();
    for number in 1..=3 {
        let client = Client::connect(&cluster.endpoints(), Options::default()).await.expect("a leader answers");
        waiting.push(tokio::spawn(async move {
            let guard = client.lock("line", LockOptions::default().wait_forever()).await.expect("the lock is granted");
            guard.release().await.expect("the lock is given back");
        }));
        eventually("the waiter is in the queue", || {
            (holder_and_queue(&lock(&cluster, "line")).1.len() == number).then_some(())
        });
    }
    let before = holder_and_queue(&lock(&cluster, "line"));
    let stop = Arc::new(AtomicBool::new(false));
    // The founders and those that replace them: a client finds the leader through any that is left.
    let mut workers = Vec::new();
    for number in 0..4 {
        workers.push(tokio::spawn(work(cluster.endpoints(), format!("own-{number}"), Arc::clone(&stop))));
    }
    for old in 1..=3 {
        let new = cluster.join(cluster.running()[0]);
        await_caught_up(&cluster, new);
        palisade_says(&cluster, &["members", "promote", &new.to_string()]);
        palisade_says(&cluster, &["members", "remove", &old.to_string()]);
        cluster.kill(old);
        cluster.wait_ready();
        assert_eq!(holder_and_queue(&lock(&cluster, "line")), before, "the holder and the line stand where they stood");
        assert_eq!(members(&cluster).len(), 3);
        // Clients ask for the members every five seconds: in that time not all known members may
        // go.
        sleep(Duration::from_secs(6));
    }
    assert_eq!(members(&cluster), [(4, true), (5, true), (6, true)]);
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        let seen = worker.await.expect("no call failed");
        println!("{seen:?}");
        assert!(seen.grants > 10, "{seen:?}");
        assert!(seen.last_token > grant.token);
    }
    release(&cluster, "line", holder, grant.token);
    for waiter in waiting {
        waiter.await.expect("each waiter is granted the lock");
    }
}

/// Goal: a leader that is asked to stop transfers leadership first: no client waits for an election
/// timeout, which is ten seconds here.
#[test]
fn a_leader_that_stops_transfers_leadership() {
    let mut cluster = Cluster::start_with(3, &["--election-timeout", "10s"]);
    let session = open_session(&cluster, "holder", TTL);
    for round in 1..=3 {
        let grant = acquire(&cluster, &format!("key-{round}"), session);
        let leader = cluster.wait_ready();
        let before = Instant::now();
        cluster.stop(leader);
        let next = acquire(&cluster, &format!("next-{round}"), session);
        let gap = before.elapsed();
        assert!(next.token > grant.token);
        assert!(gap < Duration::from_secs(9), "it took {gap:?}, as long as an election timeout");
        cluster.restart(leader);
        cluster.wait_ready();
    }
}

/// Goal: an operator can choose the leader.
#[test]
fn the_leadership_goes_where_an_operator_wants_it() {
    let cluster = Cluster::start_with(3, &["--election-timeout", "5s"]);
    for round in 0..4 {
        let leader = cluster.wait_ready();
        let to = leader % 3 + 1;
        let target = to.to_string();
        let said = if round % 2 == 0 {
            palisade_says(&cluster, &["transfer", "--to", &target])
        } else {
            palisade_says(&cluster, &["transfer"])
        };
        assert!(said.contains("is the leader now"), "{said}");
        let now = cluster.wait_ready();
        assert!(now != leader && (round % 2 == 1 || now == to), "{said}");
    }
    let response = post_to_leader(&cluster.endpoints(), "/v1/leader/transfer", &json!({"to": 9}));
    response.refused(404, "no_member");
    assert_eq!(cluster.wait_ready(), cluster.wait_ready());
}

/// Goal: an invalid request is refused with a reason, and changes nothing.
#[test]
fn changes_that_make_no_sense_are_refused() {
    let cluster = Cluster::start_calm(3);
    let leader = cluster.client_addr(cluster.wait_ready());
    let post = |path: &str, body: &Value| http::post(&leader, path, &body.to_string()).unwrap();
    post("/v1/members", &json!({"id": 1, "peer_addr": "127.0.0.1:1"})).refused(409, "node_id_in_use");
    post("/v1/members", &json!({"id": 4, "peer_addr": "nowhere"})).refused(400, "invalid");
    post("/v1/members", &json!({"id": 4})).refused(400, "invalid");
    post("/v1/members", &json!({"id": 70000, "peer_addr": "127.0.0.1:1"})).refused(400, "invalid");
    post("/v1/members/9/promote", &json!({})).refused(404, "no_member");
    post("/v1/members/x/promote", &json!({})).refused(400, "invalid");
    http::send(&leader, "DELETE", "/v1/members/9", "").unwrap().refused(404, "no_member");
    assert_eq!(members(&cluster), [(1, true), (2, true), (3, true)]);
}

/// Goal: what docs/operations.md says of removals: two in a row, without a pause, make one voter of three. It serves alone,
/// with every lock and queue; the last voter cannot be removed, and the removed ones are refused for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_removals_in_a_row_leave_one_voter() {
    // The leader stays: a busy machine gives no other node a reason for an election.
    let cluster = Cluster::start_with(3, &["--election-timeout", "10s"]);
    let holder = open_session(&cluster, "holder", TTL);
    let grant = acquire(&cluster, "report", holder);
    let leader = cluster.wait_ready();
    let address = cluster.client_addr(leader);
    let client = Client::connect(&cluster.endpoints(), Options::default()).await.expect("a leader answers");
    let waiting = tokio::spawn(async move {
        let guard = client.lock("report", LockOptions::default().ttl(TTL).wait_forever()).await;
        let guard = guard.expect("the lock is granted");
        let token = guard.token();
        guard.release().await.expect("the lock is given back");
        token
    });
    let before = eventually("the waiter is in the queue", || {
        let found = holder_and_queue(&lock(&cluster, "report"));
        (found.1.len() == 1).then_some(found)
    });
    assert_eq!(before.0, Some((holder.number(), grant.token)));

    let remove = |id: u16| http::send(&address, "DELETE", &format!("/v1/members/{id}"), "").unwrap();
    let others = cluster.others(leader);
    for (&id, left) in others.iter().zip([2, 1]) {
        assert_eq!(remove(id).ok()["members"].as_array().unwrap().len(), left);
    }
    remove(leader).refused(409, "last_voter");

    assert_eq!(cluster.status(leader).unwrap().role, "leader");
    assert_eq!(holder_and_queue(&lock(&cluster, "report")), before);
    release(&cluster, "report", holder, grant.token);
    assert!(waiting.await.expect("the waiter is granted the lock") > grant.token);
    for &id in &others {
        eventually("the removed node is told", || {
            cluster.log(id).contains("was removed from this cluster").then_some(())
        });
        let body = json!({"id": id, "peer_addr": cluster.peer_addr(id)}).to_string();
        http::post(&address, "/v1/members", &body).unwrap().refused(409, "node_id_in_use");
    }
}

/// Goal: a server that has lost its disk is not taken for the one it was, though its command line
/// is the same; a new one takes its place. And a number that was removed stays removed.
#[test]
fn a_server_that_lost_its_disk_does_not_come_back_under_its_number() {
    let mut cluster = Cluster::start_calm(3);
    let session = open_session(&cluster, "holder", TTL);
    let grant = acquire(&cluster, "report", session);
    let leader = cluster.wait_ready();
    let lost = leader % 3 + 1;
    cluster.kill(lost);
    fs::remove_dir_all(cluster.data(lost)).unwrap();
    cluster.restart(lost);
    eventually("it is told why it is refused", || {
        let refused = format!("node {lost} was here before with another data directory");
        cluster.log(lost).contains(&refused).then_some(())
    });
    assert!(cluster.status(lost).unwrap().leader.is_none(), "no other member talks to it");
    cluster.kill(lost);
    let new = cluster.join(leader);
    await_caught_up(&cluster, new);
    palisade_says(&cluster, &["members", "promote", &new.to_string()]);
    palisade_says(&cluster, &["members", "remove", &lost.to_string()]);
    assert_eq!(holder_and_queue(&lock(&cluster, "report")), (Some((session.number(), grant.token)), vec![]));
    let body = json!({"id": lost, "peer_addr": "127.0.0.1:1"});
    post_to_leader(&cluster.endpoints(), "/v1/members", &body).refused(409, "node_id_in_use");
}

/// Goal: a new cluster begins with the state of a snapshot. A holder of a lock still holds it; later tokens
/// are greater than any that the old cluster can have given out; a server that joins later has that
/// state too; and a founder that does not begin with it is not let in.
#[test]
fn a_cluster_is_restored_from_a_backup() {
    let old = Cluster::start_calm(3);
    let session = open_session(&old, "holder", TTL);
    let grant = acquire(&old, "report", session);
    let backup = tempfile::tempdir().unwrap();
    let file = backup.path().join("palisade.snap").display().to_string();
    palisade_says(&old, &["snapshot", "save", &file]);
    let after = acquire(&old, "later", session);
    drop(old);

    let restore = file.clone();
    let mut new = Cluster::start_adjusted(3, &["--election-timeout", "750ms"], move |id, command: &mut Command| {
        if id <= 3 {
            command.args(["--restore", &restore]);
        }
    });
    assert_eq!(holder_and_queue(&lock(&new, "report")), (Some((session.number(), grant.token)), vec![]));
    assert!(lock(&new, "later").holder.is_none(), "it was taken after the backup");
    let next = acquire(&new, "later", session);
    assert!(next.token > after.token + 1_000_000_000, "{} after {}", next.token, after.token);
    let joined = new.join(1);
    await_caught_up(&new, joined);
    let report = crate::support::locks::lock_at(&new, joined, "report").unwrap();
    assert_eq!(report.holder.map(|holder| holder.token), Some(grant.token));
    // A founder's restart needs the backup no more, and goes on from its own disk.
    new.kill(2);
    fs::remove_file(&file).unwrap();
    new.restart(2);
    new.wait_ready();
}
