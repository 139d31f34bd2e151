//! Snapshots as users see them: the status, the two requests, the command that saves one.

use std::fs;
use std::process::Stdio;

use palisade::storage::{SnapshotFlaw, read_snapshot};
use palisade_client::wire::SnapshotView;
use palisade_spec::lock::LockTable;
use rustix::process::Signal;

use super::OFTEN;
use crate::support::cluster::Cluster;
use crate::support::process::{output, palisade, refusal};
use crate::support::{eventually, http, metrics};

fn acquire(cluster: &Cluster, leader: u16, key: &str) {
    let body = r#"{"ttl_ms":3600000,"owner":"worker"}"#;
    http::post(&cluster.client_addr(leader), &format!("/v1/locks/{key}/acquire"), body).unwrap().ok();
}

fn take(cluster: &Cluster, id: u16) -> SnapshotView {
    serde_json::from_value(http::post(&cluster.client_addr(id), "/v1/snapshot", "").unwrap().ok()).unwrap()
}

/// Goal: once the load has stopped, every node's snapshot has the same bytes; each node takes its
/// own, leader or not.
#[test]
fn the_same_entry_gives_the_same_bytes_on_every_node() {
    let cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    for number in 0..200 {
        acquire(&cluster, leader, &format!("key-{number}"));
    }
    let taken = eventually("all nodes have applied the same", || {
        let taken: Vec<SnapshotView> = cluster.ids().into_iter().map(|id| take(&cluster, id)).collect();
        taken.iter().all(|other| (other.index, other.term) == (taken[0].index, taken[0].term)).then_some(taken)
    });
    for (id, view) in cluster.ids().into_iter().zip(&taken) {
        assert_eq!((&view.hash, view.bytes), (&taken[0].hash, taken[0].bytes), "node {id}");
        let shown = cluster.status(id).unwrap().snapshot.expect("the status shows it");
        assert_eq!((shown.index, &shown.hash, shown.bytes), (view.index, &view.hash, view.bytes));
        // Nothing was applied since: the same one is the answer.
        assert_eq!(take(&cluster, id).hash, view.hash);
        assert_eq!(metrics::value(&cluster.client_addr(id), "palisade_snapshot_index"), view.index as f64);
    }
    let name = format!("snapshot-{:020}-{}.snap", taken[0].index, taken[0].term);
    let files: Vec<Vec<u8>> =
        cluster.ids().into_iter().map(|id| fs::read(cluster.data(id).join(&name)).unwrap()).collect();
    assert!(files.iter().all(|file| *file == files[0] && file.len() as u64 == taken[0].bytes));
    let (snapshot, info) = read_snapshot::<LockTable>(files[0].as_slice(), None).unwrap();
    assert_eq!((snapshot.machine.locks().len(), info.hash.to_string()), (200, taken[0].hash.clone()));
}

/// Goal: `palisade snapshot save` leaves a whole file, or none under that name.
#[test]
fn a_saved_snapshot_is_whole() {
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    for number in 0..50 {
        acquire(&cluster, leader, &format!("key-{number}"));
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("saved.snap");
    let save = |endpoints: &str| {
        let mut command = palisade();
        command.args(["snapshot", "save"]).arg(&file).args(["--endpoints", endpoints]).stdout(Stdio::piped());
        output(&mut command)
    };
    // A node that is down is passed over.
    let down = cluster.others(leader)[0];
    cluster.kill(down);
    let saved = save(&format!("{},{}", cluster.client_addr(down), cluster.client_addr(leader)));
    assert!(saved.status.success(), "{saved:?}");
    let bytes = fs::read(&file).unwrap();
    let (snapshot, info) = read_snapshot::<LockTable>(bytes.as_slice(), None).unwrap();
    assert!(snapshot.machine.locks().len() == 50 && snapshot.machine.next_token().0 == 51);
    let said = String::from_utf8_lossy(&saved.stdout).into_owned();
    assert!(said.contains(&info.hash.to_string()), "{said}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left aside");

    cluster.kill(leader);
    let refused = save(&format!("{},{}", cluster.client_addr(down), cluster.client_addr(leader)));
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    assert_eq!(fs::read(&file).unwrap(), bytes, "what was saved before is still there");
}

/// Goal: `palisade snapshot save` at a follower alone saves what the leader has, which is everything that was
/// acknowledged. Without a leader it saves what there is, and says that something may be missing. A file that
/// another user has put beside it is not followed.
#[test]
fn saved_snapshot_is_the_leaders() {
    let mut cluster = Cluster::start_calm(3);
    let leader = cluster.wait_ready();
    acquire(&cluster, leader, "key");
    let follower = cluster.others(leader)[0];
    let directory = tempfile::tempdir().unwrap();
    let [file, other] = ["saved.snap", "other"].map(|name| directory.path().join(name));
    fs::write(&other, "left alone").unwrap();
    std::os::unix::fs::symlink(&other, directory.path().join("saved.snap.tmp")).unwrap();
    let save = |cluster: &Cluster| {
        let mut command = palisade();
        let address = cluster.client_addr(follower);
        let saved = output(command.args(["snapshot", "save"]).arg(&file).args(["--endpoints", &address]));
        assert!(saved.status.success(), "{saved:?}");
        [saved.stdout, saved.stderr].map(|said| String::from_utf8_lossy(&said).into_owned())
    };
    let [said, warned] = save(&cluster);
    assert!(said.contains(&format!("the snapshot of {} up to", cluster.client_addr(leader))), "{said}");
    assert_eq!(warned, "");
    assert_eq!(fs::read_to_string(&other).unwrap(), "left alone");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "nothing is left aside");

    cluster.others(follower).into_iter().for_each(|id| cluster.kill(id));
    let [said, warned] = save(&cluster);
    assert!(said.contains(&format!("the snapshot of {} up to", cluster.client_addr(follower))), "{said}");
    assert!(warned.contains("may lack the changes that were acknowledged last"), "{warned}");
}

/// Goal: a damaged snapshot keeps the node from starting, and the message names file and byte.
#[test]
fn a_node_does_not_start_from_a_damaged_snapshot() {
    let mut cluster = Cluster::start_with(1, &OFTEN);
    acquire(&cluster, 1, "key");
    let taken = take(&cluster, 1);
    cluster.signal(1, Signal::TERM);
    cluster.kill(1);
    let path = cluster.data(1).join(format!("snapshot-{:020}-{}.snap", taken.index, taken.term));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() - 60;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(read_snapshot::<LockTable>(bytes.as_slice(), None), Err(SnapshotFlaw::Damaged { .. })));
    let said = refusal(&mut cluster.command(1), 74);
    assert!(said.contains(&format!("{} is damaged at byte", path.display())), "{said}");
}

/// Goal: before anything was applied there is nothing to take, and the answer says so; another
/// method is refused.
#[test]
fn requests_that_cannot_be_served_are_refused_in_a_sentence() {
    let mut cluster = Cluster::start_calm(3);
    let address = cluster.client_addr(1);
    http::send(&address, "DELETE", "/v1/snapshot", "").unwrap().refused(405, "method_not_allowed");
    http::get(&address, "/v1/snapshot").unwrap().refused(404, "not_found");
    // Alone and without a memory, it applies nothing.
    cluster.ids().into_iter().for_each(|id| cluster.kill(id));
    fs::remove_dir_all(cluster.data(1)).unwrap();
    cluster.restart(1);
    let refused = eventually("the node serves", || http::post(&address, "/v1/snapshot", "").ok());
    refused.refused(503, "no_leader");
}

/// Goal: what was written before a restart counts for the next snapshot.
#[test]
fn a_node_that_is_restarted_again_and_again_takes_snapshots_too() {
    let mut cluster = Cluster::start_with(1, &OFTEN);
    for start in 0.. {
        cluster.wait_ready();
        // Far from enough for a snapshot.
        for number in 0..20 {
            acquire(&cluster, 1, &format!("key-{start}-{number}"));
        }
        if cluster.status(1).unwrap().snapshot.is_some() {
            assert!(start > 2, "it took more than one start to write so much");
            break;
        }
        assert!(start < 60, "no snapshot after {start} starts");
        cluster.kill(1);
        cluster.restart(1);
    }
}
