//! Nodes that have lost their logs and come back by themselves, as new members under their old
//! numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use palisade_client::wire::{MemberView, SessionId};
use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, lock, open_session};
use crate::support::process::Running;
use crate::support::{eventually, http};

const TTL: Duration = Duration::from_secs(3600);

/// The files of a directory whose names begin and end so.
fn files(directory: &Path, begin: &str, end: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(directory).expect("the directory can be listed").map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    names.filter(|path| name(path).starts_with(begin) && name(path).ends_with(end)).collect()
}

/// One bit flips in the middle of a node's log. The node does not run.
pub(crate) fn damage(cluster: &Cluster, id: u16) {
    let data = cluster.data(id);
    let [segment] = &files(&data, "wal-", ".log")[..] else { panic!("the log is short") };
    let mut bytes = fs::read(segment).unwrap();
    // In the checksum of the first frame.
    bytes[1536 + 22] ^= 1;
    fs::write(segment, bytes).unwrap();
}

/// The number of a node's data directory.
fn incarnation(data: &Path) -> String {
    let identity = fs::read(data.join("identity.json")).expect("the directory has an owner");
    let identity: Value = serde_json::from_slice(&identity).expect("it is JSON");
    format!("{:016x}", identity["incarnation"].as_u64().expect("it is a number"))
}

/// How the leader sees a node.
fn member(cluster: &Cluster, id: u16) -> Option<MemberView> {
    let leader =
        cluster.running().into_iter().find_map(|id| cluster.status(id).filter(|status| status.role == "leader"))?;
    leader.members.into_iter().find(|member| member.id == id)
}

pub(crate) fn wait_until_it_votes(cluster: &Cluster, id: u16, generation: u16) {
    eventually("the node has its vote back", || {
        member(cluster, id).filter(|member| member.voter && member.generation == generation)
    });
}

struct Held {
    session: SessionId,
    tokens: Vec<u64>,
}

impl Held {
    fn take(&mut self, cluster: &Cluster) {
        let key = format!("key-{}", self.tokens.len());
        self.tokens.push(acquire(cluster, &key, self.session).token);
    }

    fn assert_held(&self, cluster: &Cluster) {
        for (number, token) in self.tokens.iter().enumerate() {
            let holder = lock(cluster, &format!("key-{number}")).holder.expect("it is held");
            assert_eq!((holder.session, holder.token), (self.session.number(), *token));
        }
    }
}

fn calm() -> (Cluster, Held) {
    let cluster = Cluster::start_calm(3);
    let mut held = Held { session: open_session(&cluster, "worker", TTL), tokens: Vec::new() };
    (0..10).for_each(|_| held.take(&cluster));
    (cluster, held)
}

/// Goal: a follower's log is damaged. It comes back as a voter without an operator, in the next
/// generation, and counts: when the third node is killed, the cluster goes on with it. It keeps its
/// new identity over restarts, and the damaged files are kept for an operator who examines them.
/// The same again, with the leader's log.
#[test]
fn node_that_has_lost_its_log_comes_back_as_a_voter() {
    let (mut cluster, mut held) = calm();
    for generation in 1..=2 {
        let leader = cluster.wait_ready();
        let lost = if generation == 1 { leader % 3 + 1 } else { leader };
        let before = member(&cluster, lost).expect("it is a member").generation;
        cluster.kill(lost);
        damage(&cluster, lost);
        cluster.restart(lost);
        wait_until_it_votes(&cluster, lost, before + 1);
        held.take(&cluster);

        let data = cluster.data(lost);
        assert_eq!(files(&data, &format!("damaged-{before}-wal-"), ".log").len(), 1, "the damaged log is kept");
        assert!(files(&data, "return", ".json").is_empty(), "the return is over");
        let log = cluster.log(lost);
        assert!(log.contains("asking the cluster to replace this node"));
        assert!(!log.contains("--peers names nodes that are not members"), "its log is empty for a moment");

        let leader = cluster.wait_ready();
        let third = cluster.ids().into_iter().find(|&id| id != leader && id != lost).unwrap_or(lost % 3 + 1);
        cluster.kill(third);
        held.take(&cluster);
        cluster.kill(lost);
        cluster.restart(lost);
        cluster.restart(third);
        cluster.wait_ready();
        held.take(&cluster);
        wait_until_it_votes(&cluster, lost, before + 1);
        assert_eq!(cluster.status(lost).expect("it answers").generation, before + 1);
        held.assert_held(&cluster);
    }
}

/// Goal: two of three logs are damaged. A commit may be on those two alone, so the cluster takes no
/// node back, nothing is granted, and each node says which nodes are missing. When one of the
/// directories is brought back as it was, everything goes on: that node votes, and the third one
/// returns.
#[test]
fn majority_that_has_lost_its_logs_is_not_taken_back() {
    let (mut cluster, mut held) = calm();
    let leader = cluster.wait_ready();
    let (sound, lost) = (leader, [leader % 3 + 1, (leader + 1) % 3 + 1]);
    lost.iter().for_each(|&id| cluster.kill(id));
    let data = cluster.data(lost[0]);
    let [segment] = &files(&data, "wal-", ".log")[..] else { panic!("the log is short") };
    let intact = fs::read(segment).unwrap();
    lost.iter().for_each(|&id| damage(&cluster, id));
    lost.iter().for_each(|&id| cluster.restart(id));
    for id in lost {
        eventually("it says that it is not taken back", || {
            cluster.log(id).contains("not taken back yet").then_some(())
        });
        let other = lost.into_iter().find(|&other| other != id).unwrap();
        eventually("it names the other one", || {
            cluster.log(id).contains(&format!("node {other} has lost its log, and waits for a leader")).then_some(())
        });
        eventually("the sound node names it", || {
            cluster.log(sound).contains(&format!("node {id} has lost its log, and waits for a leader")).then_some(())
        });
    }
    eventually("no node leads", || (cluster.status(sound)?.leader.is_none()).then_some(()));
    let grant = http::post(&cluster.client_addr(sound), "/v1/locks/other/acquire", "{}").expect("it answers");
    assert_eq!(grant.status, 503, "{}", grant.body);

    // It stops when it is told to, although it waits.
    cluster.stop(lost[0]);
    fs::write(segment, intact).unwrap();
    cluster.restart(lost[0]);
    wait_until_it_votes(&cluster, lost[1], 1);
    assert_eq!(member(&cluster, lost[0]).map(|member| member.generation), Some(0), "it was not replaced");
    held.take(&cluster);
    held.assert_held(&cluster);
}

/// Goal: the node is killed again and again while it comes back. It ends as a voter, in the next
/// generation and no later one.
#[test]
fn return_survives_kills() {
    let (mut cluster, mut held) = calm();
    let leader = cluster.wait_ready();
    let lost = leader % 3 + 1;
    cluster.kill(lost);
    damage(&cluster, lost);
    // At once, when it may have asked, when the cluster has agreed; and at many other moments.
    let begun = |cluster: &Cluster| !files(&cluster.data(lost), "return", ".json").is_empty();
    let agreed = |cluster: &Cluster| member(cluster, lost).is_some_and(|member| member.generation == 1);
    cluster.restart(lost);
    eventually("it has begun to return", || (begun(&cluster) || agreed(&cluster)).then_some(()));
    cluster.kill(lost);
    cluster.restart(lost);
    eventually("the cluster has agreed", || agreed(&cluster).then_some(()));
    cluster.kill(lost);
    for pause in (0..200).step_by(10) {
        cluster.restart(lost);
        std::thread::sleep(Duration::from_millis(pause));
        cluster.kill(lost);
    }
    cluster.restart(lost);
    wait_until_it_votes(&cluster, lost, 1);
    held.take(&cluster);
    held.assert_held(&cluster);
}

/// Goal: the leader replaces no node that is connected, none in another generation than its last,
/// and none whose lost directory is of another cluster or another server's. In the end it replaces
/// the one that is down, and once only.
#[test]
fn only_a_node_that_is_gone_and_known_is_replaced() {
    let (mut cluster, _) = calm();
    let leader = cluster.wait_ready();
    let own = cluster.status(leader).expect("it answers").cluster;
    let incarnations: BTreeMap<u16, String> =
        cluster.ids().into_iter().map(|id| (id, incarnation(&cluster.data(id)))).collect();
    let address = cluster.client_addr(leader);
    let replace = |id: u16, generation: u16, cluster: &str, lost: &str, new: &str| {
        let body = json!({
            "generation": generation, "cluster": cluster, "lost_incarnation": lost, "incarnation": new,
        });
        http::post(&address, &format!("/v1/members/{id}/replace"), &body.to_string()).expect("it answers")
    };
    let (new, third) = ("00000000000000c1", "00000000000000c2");
    for id in cluster.ids() {
        let refused = eventually("it is connected", || {
            Some(replace(id, 0, &own, &incarnations[&id], new)).filter(|response| response.status != 200)
        });
        refused.refused(503, "change_not_ready");
    }
    let lost = leader % 3 + 1;
    let known = &incarnations[&lost];
    replace(9, 0, &own, known, new).refused(409, "node_id_in_use");
    // A follower leaves it to the leader.
    let body = json!({ "generation": 0, "cluster": own, "lost_incarnation": third, "incarnation": new }).to_string();
    let path = format!("/v1/members/{lost}/replace");
    let redirected = http::send_unforwarded(&cluster.client_addr(lost), "POST", &path, &body).expect("it answers");
    assert_eq!(redirected.status, 307, "{}", redirected.body);
    cluster.kill(lost);
    eventually("the leader sees that it is down", || member(&cluster, lost).filter(|member| !member.connected));
    replace(lost, 1, &own, known, new).refused(409, "node_id_in_use");
    replace(lost, 0, &own, third, new).refused(409, "node_id_in_use");
    replace(lost, 0, "00000000000000c3", known, new).refused(400, "invalid");
    replace(lost, 0, &own, "c1c1c1c1c1c1c1c1c1", new).refused(400, "invalid");
    let before = member(&cluster, lost).expect("it is a member");
    assert!(before.generation == 0 && before.voter);

    replace(lost, 0, &own, known, new).ok();
    replace(lost, 0, &own, known, new).ok();
    replace(lost, 0, &own, known, third).refused(409, "node_id_in_use");
    let now = member(&cluster, lost).expect("it is a member");
    assert!(now.generation == 1 && now.returning && now.peer_addr == before.peer_addr, "{now:?}");
    // Of the new one, the log says which directory it has.
    replace(lost, 1, &own, known, third).refused(409, "node_id_in_use");
    replace(lost, 1, &own, new, third).ok();
}

/// Goal: a founder whose command line names no node any more, and no address for other nodes but
/// the one that it binds, keeps the address that the members know.
#[test]
fn node_that_comes_back_keeps_its_address() {
    let (mut cluster, mut held) = calm();
    let lost = cluster.wait_ready() % 3 + 1;
    let before = member(&cluster, lost).expect("it is a member").peer_addr;
    cluster.kill(lost);
    damage(&cluster, lost);
    cluster.name_no_other_node(lost);
    cluster.listen_for_nodes_at(lost, before.replace("127.0.0.1", "127.1"));
    cluster.restart(lost);
    wait_until_it_votes(&cluster, lost, 1);
    assert_eq!(member(&cluster, lost).expect("it is a member").peer_addr, before);
    held.take(&cluster);
    held.assert_held(&cluster);
}

/// Goal: a copy of a damaged directory whose node has come back since does not have that node
/// replaced again, nor does it take over its identity: not even a copy that was made while the node
/// waited, and knows the incarnation of the new member.
#[test]
fn damaged_copy_of_an_older_generation_is_not_taken_back() {
    let (mut cluster, _) = calm();
    let lost = cluster.wait_ready() % 3 + 1;
    let others = cluster.others(lost);
    cluster.ids().into_iter().for_each(|id| cluster.kill(id));
    damage(&cluster, lost);
    cluster.restart(lost);
    eventually("it waits", || cluster.log(lost).contains("not taken back yet").then_some(()));
    cluster.kill(lost);
    others.into_iter().for_each(|id| cluster.restart(id));
    let (data, elsewhere) = (cluster.data(lost), tempfile::tempdir().unwrap());
    let (copy, original) = (elsewhere.path().join("copy"), elsewhere.path().join("original"));
    fs::create_dir(&copy).unwrap();
    for file in files(&data, "", "") {
        fs::copy(&file, copy.join(file.file_name().unwrap())).unwrap();
    }
    cluster.restart(lost);
    wait_until_it_votes(&cluster, lost, 1);
    cluster.kill(lost);

    fs::rename(&data, &original).unwrap();
    fs::rename(&copy, &data).unwrap();
    let log = elsewhere.path().join("log");
    let stderr = fs::File::create(&log).unwrap();
    let mut process = Running::start(cluster.command(lost).stdin(Stdio::piped()).stderr(stderr));
    let code = process.exit_code();
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(code, 69, "{said}");
    assert!(said.contains("its cluster does not take it back"), "{said}");
    fs::rename(&data, &copy).unwrap();
    fs::rename(&original, &data).unwrap();
    cluster.restart(lost);
    wait_until_it_votes(&cluster, lost, 1);
}

/// Goal: a node that joined later, and whose command line names no other node any more, asks the
/// nodes that it has met.
#[test]
fn learner_that_has_lost_its_log_comes_back_as_a_learner() {
    let mut cluster = Cluster::start_calm(3);
    let session = open_session(&cluster, "worker", TTL);
    acquire(&cluster, "key", session);
    let leader = cluster.wait_ready();
    let learner = cluster.join(leader);
    eventually("it learns", || cluster.status(learner).filter(|status| status.commit > 1));
    cluster.kill(learner);
    damage(&cluster, learner);
    cluster.name_no_other_node(learner);
    cluster.restart(learner);
    let back = eventually("it is back", || {
        member(&cluster, learner)
            .filter(|member| member.generation == 1 && member.connected && member.matched > Some(1))
    });
    assert!(!back.voter && !back.returning, "no operator has promoted it");
}
