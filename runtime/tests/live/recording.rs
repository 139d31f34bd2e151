//! `palisade serve --record`: a recording is there after a `kill -9`, to its end; and a keeper that
//! is killed takes nothing with it but the recording.
//!
//! What recordings are good for is shown where they are judged, in `conformance/`.

use std::path::{Path, PathBuf};

use palisade::recording::{Reading, Record, cut_mark};
use palisade_spec::lock::LockTable;
use palisade_spec::raft::{Config, Durable, Node, NodeId, Output, Payload, Persist};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::locks::post_to_leader;
use crate::support::process::marked;

/// A node that records.
fn start(directory: &Path) -> Cluster {
    Cluster::start_with(1, &["--record", directory.to_str().expect("a plain path")])
}

fn lock(cluster: &Cluster, key: &str) {
    let path = format!("/v1/locks/{key}/acquire");
    let response = post_to_leader(&cluster.endpoints(), &path, &json!({ "ttl_ms": 60_000 }));
    assert_eq!(response.status, 200, "{}", response.body);
}

/// The recordings, the oldest first.
fn recordings(directory: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "recording")).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Vec<Record> {
    let (header, mut reading) = Reading::open(path).unwrap().expect("it was not killed at once");
    assert_eq!(header.config.id.0, 1);
    let mut records = Vec::new();
    while let Some(record) = reading.record().unwrap() {
        records.push(record);
    }
    assert_eq!(reading.torn(), 0);
    records
}

fn recovered(records: &[Record]) -> &Durable<LockTable> {
    match &records[0] {
        Record::Recovered { durable, .. } => durable,
        other => panic!("a recording begins with what the disk has, and not with {other:?}"),
    }
}

/// Goal: everything that was reported to a killed node as done is in its recording, and the next
/// run begins where that ended.
#[test]
fn a_recording_ends_where_its_node_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = start(directory.path());
    for key in ["a", "b", "c"] {
        lock(&cluster, key);
    }
    cluster.kill(1);
    cluster.restart(1);
    cluster.wait_ready();
    cluster.stop(1);

    let [first, second] = &recordings(directory.path())[..] else { panic!("two runs, two recordings") };
    let records = read(first);
    let mut node = Node::recover(Config::new(NodeId(1)), recovered(&records).clone());
    let mut disk = recovered(&records).clone();
    let (mut asked, mut outputs) = (Vec::new(), Vec::new());
    for record in records.into_iter().skip(1) {
        match record {
            Record::Stepped { input, .. } => {
                node.step(input, &mut outputs);
                let write = |output| if let Output::Persist(write) = output { Some(write) } else { None };
                asked.extend(outputs.drain(..).filter_map(write));
            }
            Record::Written { writes, .. } => {
                asked.drain(..usize::try_from(writes).unwrap()).for_each(|write: Persist<_>| disk.apply(&write));
            }
            other => panic!("{other:?} in the middle"),
        }
    }
    assert_eq!(node.machine().locks().len(), 3);
    let commands = disk.log.entries().iter().filter(|entry| matches!(entry.payload, Payload::Command(_))).count();
    assert!(commands >= 3, "all that was answered was written before");
    let (found, begins) = (read(second), disk);
    let found = recovered(&found);
    assert!(found.log.last().index >= begins.log.last().index && found.hard == begins.hard);
}

/// Goal: without its keeper a node goes on, and says that its recording does not.
#[test]
fn a_node_goes_on_without_its_keeper() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = start(directory.path());
    lock(&cluster, "a");
    let path = recordings(directory.path()).pop().unwrap();
    let [keeper] = marked(&cut_mark(&path).display().to_string())[..] else { panic!("one node has one keeper") };
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    eventually("the recording is marked as cut", || cut_mark(&path).exists().then_some(()));
    lock(&cluster, "b");
    assert!(cluster.log(1).contains("cannot write to the recording"));
    cluster.stop(1);
    assert!(matches!(read(&path).first(), Some(Record::Recovered { .. })));
}
