//! A cluster begins once: with all its founders, with one state, and never a second time by
//! accident.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, holder_and_queue, lock, open_session, post_to_leader, release};
use crate::support::process::{palisade, printed, refusal};
use crate::support::{eventually, http};

const TTL: Duration = Duration::from_secs(600);

/// Long enough for an election, if one were possible.
const LONG: Duration = Duration::from_secs(3);

/// No node that runs knows a leader, for a long time, and a client is told so.
fn expect_no_leader(cluster: &Cluster) {
    sleep(LONG);
    for id in cluster.running() {
        assert!(cluster.status(id).unwrap().leader.is_none(), "node {id}");
        let asked = http::post(&cluster.client_addr(id), "/v1/locks/report/acquire", "{}").unwrap();
        asked.refused(503, "no_leader");
    }
}

/// Kills all nodes; these have lost their disks.
fn lose_disks(cluster: &mut Cluster, lost: &[u16]) {
    cluster.ids().into_iter().for_each(|id| cluster.kill(id));
    lost.iter().for_each(|&id| fs::remove_dir_all(cluster.data(id)).unwrap());
}

/// Goal: two of three founders could elect a leader, and what they decided would be good; but one
/// of them may have decided something with the third before it lost its disk. So all three have to
/// meet once.
#[test]
fn a_cluster_begins_when_all_founders_have_met() {
    let mut cluster = Cluster::start(3);
    lose_disks(&mut cluster, &[1, 2, 3]);
    cluster.begin_anew();
    cluster.restart(1);
    cluster.restart(2);
    expect_no_leader(&cluster);
    cluster.restart(3);
    cluster.wait_ready();
    // Once they have, two are enough, now and after a restart.
    cluster.ids().into_iter().for_each(|id| cluster.kill(id));
    cluster.restart(1);
    cluster.restart(2);
    cluster.wait_ready();
}

/// Goal: a majority that has lost its disks does not found the cluster again beside the node that
/// kept its disk: the state of that node would be lost, and its tokens issued again.
#[test]
fn founders_that_lost_their_disks_do_not_begin_again() {
    let mut cluster = Cluster::start(3);
    let session = open_session(&cluster, "holder", TTL);
    acquire(&cluster, "report", session);
    lose_disks(&mut cluster, &[1, 2]);
    cluster.restart(1);
    cluster.restart(2);
    expect_no_leader(&cluster);
    cluster.restart(3);
    for lost in [1, 2] {
        eventually("the one that has its disk refuses them", || {
            let refused = format!("node {lost} was here before with another data directory");
            cluster.log(lost).contains(&refused).then_some(())
        });
    }
    expect_no_leader(&cluster);
}

/// Goal: an operator cannot remove the last connected voter by mistake.
#[test]
fn a_change_that_would_leave_too_few_is_refused() {
    let mut cluster = Cluster::start_calm(3);
    let session = open_session(&cluster, "holder", TTL);
    let grant = acquire(&cluster, "report", session);
    let leader = cluster.wait_ready();
    let [dead, alive] = [leader % 3 + 1, (leader + 1) % 3 + 1];
    cluster.kill(dead);
    let remove =
        |id: u16| http::send(&cluster.client_addr(leader), "DELETE", &format!("/v1/members/{id}"), "").unwrap();
    // Before that, the cluster would lose the voter that is left: the leader cannot know better.
    eventually("the leader notices that it is gone", || {
        let members = http::get(&cluster.client_addr(leader), "/v1/members").unwrap().ok();
        let member = members["members"].as_array().unwrap().iter().find(|member| member["id"] == dead).cloned();
        (member.expect("it is a member")["connected"] == false).then_some(())
    });
    // The leader alone would be one of two.
    remove(alive).refused(503, "no_majority");
    assert_eq!(holder_and_queue(&lock(&cluster, "report")), (Some((session.number(), grant.token)), vec![]));
    remove(dead).ok();
    assert_eq!(holder_and_queue(&lock(&cluster, "report")), (Some((session.number(), grant.token)), vec![]));
}

/// Goal: a voter whose process stands still counts for no change, although its connections stay open. The removal of the
/// voter that answers would not be committed, and would stop the cluster until the other one goes on.
#[test]
fn voter_that_does_not_answer_counts_for_no_change() {
    let cluster = Cluster::start_calm(3);
    let session = open_session(&cluster, "holder", TTL);
    let grant = acquire(&cluster, "report", session);
    let leader = cluster.wait_connected();
    let address = cluster.client_addr(leader);
    let [frozen, alive] = cluster.others(leader)[..] else { unreachable!("three nodes") };
    let read = |path: &str| http::get(&address, path).unwrap().ok();
    let remove = |id: u16| http::send(&address, "DELETE", &format!("/v1/members/{id}"), "").unwrap();
    cluster.freeze(frozen);
    // The leader notices it at the end of the first period without an answer: each has 1.5 s at most.
    sleep(Duration::from_secs(5));
    let members = read("/v1/members")["members"].clone();
    let member = members.as_array().unwrap().iter().find(|member| member["id"] == frozen).expect("it is a member");
    assert_eq!(member["connected"], true, "its kernel answers");
    let refused = remove(alive).refused(503, "no_majority");
    assert!(refused["message"].as_str().unwrap().contains(&format!("Missing: node {frozen}.")), "{refused}");
    assert_eq!(read("/v1/locks/report")["holder"]["token"], grant.token);
    cluster.thaw(frozen);
    eventually("the voter answers again", || (remove(alive).status == 200).then_some(()));
    assert_eq!(read("/v1/locks/report")["holder"]["token"], grant.token);
}

/// Goal: an operator who founds a cluster with too few `--peers`, and gives more of them later, reads that this node does
/// not wait for the others; a server that was added later may stand there.
#[test]
fn peers_that_are_no_members_are_named() {
    let mut cluster = Cluster::start(1);
    cluster.wait_ready();
    cluster.join(1);
    eventually("node 2 is a member", || (cluster.status(1)?.members.len() == 2).then_some(()));
    cluster.stop(1);
    let peers = format!("1={},2={},3=127.0.0.1:1", cluster.peer_addr(1), cluster.peer_addr(2));
    cluster.name_no_other_node(1);
    cluster.add_flags(&["--peers", &peers]);
    cluster.restart(1);
    cluster.wait_ready();
    let log = cluster.log(1);
    let said = log.lines().find(|line| line.contains("--peers names nodes that are not members")).expect(&log);
    assert!(said.contains("nodes=\"3\"") && said.contains("start it with --join"), "{said}");
}

/// Goal: a founder whose first start was broken off goes on with the backup that it began with, and
/// with no other.
#[test]
fn a_broken_first_start_goes_on_with_the_same_backup() {
    let old = Cluster::start_calm(1);
    let session = open_session(&old, "holder", TTL);
    let backup = tempfile::tempdir().unwrap();
    let save = |name: &str| {
        let file = backup.path().join(name).display().to_string();
        let endpoint = old.client_addr(1);
        printed(palisade().args(["snapshot", "save", &file, "--endpoints", &endpoint]));
        file
    };
    acquire(&old, "first", session);
    let first = save("first.snap");
    acquire(&old, "second", session);
    let second = save("second.snap");
    drop(old);

    let restored = first.clone();
    // Not recorded: its disk is made to lose what was durable.
    let mut new = Cluster::start_unrecorded(1, &[], move |_, command: &mut Command| {
        command.args(["--restore", &restored]);
    });
    // As if it had been killed before the backup's state was its own.
    new.kill(1);
    for file in fs::read_dir(new.data(1)).unwrap() {
        let file = file.unwrap().path();
        let extension = file.extension().unwrap_or_default();
        if extension == "snap" || extension == "log" {
            fs::remove_file(file).unwrap();
        }
    }
    let identity = new.data(1).join("identity.json");
    let mut content: Value = serde_json::from_str(&fs::read_to_string(&identity).unwrap()).unwrap();
    content["segments"] = json!({"first": 1, "last": 0});
    fs::write(&identity, content.to_string()).unwrap();
    let start = |more: &[&str]| refusal(new.command(1).args(more), 78);
    let complained = start(&["--restore", &second]);
    assert!(complained.contains("it is not the one with which this node was started first"), "{complained}");
    let complained = start(&[]);
    assert!(complained.contains("has not finished its first start, with --restore"), "{complained}");
    new.restart(1);
    new.wait_ready();
    let status = http::get(&new.client_addr(1), "/v1/locks").unwrap().ok();
    assert_eq!(status["locks"].as_array().unwrap().len(), 1, "{status}");

    // When its first start is over, it is damaged without its snapshot, unless it is given the same
    // one again.
    new.kill(1);
    for file in fs::read_dir(new.data(1)).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "snap") {
            fs::remove_file(file).unwrap();
        }
    }
    let said = refusal(&mut new.command(1), 74);
    assert!(said.contains("do not fit the log: there is none"), "{said}");
    new.restart(1);
    new.wait_ready();
    let again = http::get(&new.client_addr(1), "/v1/locks").unwrap().ok();
    assert_eq!(again["locks"][0]["holder"]["token"], status["locks"][0]["holder"]["token"]);
}

/// Goal: tokens and versions are skipped whatever the backup has. A client that holds nothing in it may have
/// been granted a lock since.
#[test]
fn restore_skips_numbers_when_no_lock_is_held() {
    let old = Cluster::start_calm(1);
    let session = open_session(&old, "holder", TTL);
    let before = acquire(&old, "report", session);
    release(&old, "report", session, before.token);
    let backup = tempfile::tempdir().unwrap();
    let file = backup.path().join("palisade.snap").display().to_string();
    let endpoint = old.client_addr(1);
    printed(palisade().args(["snapshot", "save", &file, "--endpoints", &endpoint]));
    let after = (write(&old), acquire(&old, "report", session).token);
    drop(old);

    let new = Cluster::start_adjusted(1, &[], move |_, command: &mut Command| {
        command.args(["--restore", &file]);
    });
    let next = (write(&new), acquire(&new, "report", session).token);
    for (what, next, after) in [("version", next.0, after.0), ("token", next.1, after.1)] {
        assert!(next > after, "{what} {next} was given out before, by the old cluster");
    }
}

/// Writes a record; returns its version.
fn write(cluster: &Cluster) -> u64 {
    let put = json!({ "changes": [{ "put": { "key": "state", "value": "x" } }] });
    let written = post_to_leader(&cluster.endpoints(), "/v1/kv", &put).ok();
    written["version"].as_u64().expect("a write has a version")
}
