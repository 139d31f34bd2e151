//! A node's files are readable by its user alone: a directory's files have sessions, which open
//! locks, and votes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::cluster::Cluster;
use crate::support::process::{output, palisade};
use crate::support::{eventually, http};

/// The permissions of the group and of others on a file.
fn of_others(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o077
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A directory and what is in it that other users may use.
fn open_to_others(directory: &Path) -> Vec<PathBuf> {
    let all = files(directory).into_iter().chain([directory.to_owned()]);
    all.filter(|path| of_others(path) != 0).collect()
}

/// Goal: all files of a node are 0600 and its directories 0700: log, snapshots, identity, pins and
/// recordings; and so is a snapshot that an operator saves.
#[test]
fn files_are_their_owners_alone() {
    let elsewhere = tempfile::tempdir().unwrap();
    let recordings = elsewhere.path().join("recordings");
    let cluster = Cluster::start_with(3, &["--record", recordings.to_str().unwrap()]);
    let address = cluster.client_addr(cluster.wait_ready());
    http::post(&address, "/v1/locks/k/acquire", "").unwrap().ok();
    http::post(&address, "/v1/snapshot", "").unwrap().ok();
    let saved = elsewhere.path().join("saved.snap");
    let command = output(palisade().args(["snapshot", "save", saved.to_str().unwrap(), "--endpoints", &address]));
    assert!(command.status.success(), "{command:?}");
    assert_eq!(of_others(&saved), 0, "it can be read by others");
    for id in cluster.ids() {
        let data = cluster.data(id);
        assert!(files(&data).len() >= 5, "{:?}", files(&data));
        assert_eq!(open_to_others(&data), Vec::<PathBuf>::new());
    }
    assert_eq!(files(&recordings).len(), 3);
    assert_eq!(open_to_others(&recordings), Vec::<PathBuf>::new());
}

/// Goal: a directory of an earlier version, which others may read, is theirs no more after the next
/// start. One line in the log says so; a start that finds nothing to change says nothing.
#[test]
fn wider_permissions_are_taken_away_at_the_start() {
    let mut cluster = Cluster::start_calm(1);
    let data = cluster.data(1);
    let line = "other users had permissions on the data directory";
    assert!(!cluster.log(1).contains(line));
    cluster.stop(1);
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    for file in files(&data) {
        fs::set_permissions(file, Permissions::from_mode(0o664)).unwrap();
    }
    for _ in 0..2 {
        cluster.restart(1);
        cluster.wait_ready();
        assert_eq!(open_to_others(&data), Vec::<PathBuf>::new());
        let logged =
            eventually("it is in the log", || Some(cluster.log(1).matches(line).count()).filter(|&logged| logged > 0));
        assert_eq!(logged, 1, "it is said once");
        cluster.stop(1);
    }
}
