//! A data directory that is older than what its node has acknowledged: nothing in it is damaged, so
//! only the leader can tell.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, open_session};
use crate::support::{eventually, metrics};

const TTL: Duration = Duration::from_secs(60);

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("the copy does not exist yet");
    for entry in fs::read_dir(from).expect("the directory can be listed") {
        let entry = entry.expect("the directory can be listed");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("the file can be copied");
    }
}

/// Goal: a follower comes back with an old copy of its directory, and so without entries that it
/// had acknowledged, which its leader has counted. The leader notices, says so, stops counting them
/// and sends them again. Before, it dropped the follower's rejections as stale: once the third node
/// died, writes stopped although two of three were up and ready.
#[test]
fn follower_with_an_old_copy_of_its_directory_is_noticed_and_repaired() {
    // Not recorded: a disk that goes back is what no recording may show.
    let mut cluster = Cluster::start_unrecorded(3, &["--election-timeout", "750ms"], |_, _| {});
    let leader = cluster.wait_ready();
    let others: Vec<u16> = cluster.ids().into_iter().filter(|&id| id != leader).collect();
    let (restored, third) = (others[0], others[1]);
    let data = cluster.data(restored);
    let (backup, current) = (data.with_extension("backup"), data.with_extension("current"));

    let session = open_session(&cluster, "worker", TTL);
    cluster.kill(restored);
    copy(&data, &backup);
    cluster.restart(restored);
    for number in 0..50 {
        acquire(&cluster, &format!("key-{number}"), session);
    }
    let commit = cluster.status(leader).expect("it answers").commit;
    eventually("the follower has everything", || {
        let status = cluster.status(restored)?;
        (status.commit >= commit).then_some(())
    });

    cluster.kill(restored);
    fs::rename(&data, &current).expect("the directory can be moved");
    fs::rename(&backup, &data).expect("the copy takes its place");
    cluster.kill(third);
    cluster.restart(restored);
    acquire(&cluster, "two-of-three", session);

    let lost = metrics::value(&cluster.client_addr(leader), "palisade_followers_lost_entries_total");
    assert!(lost >= 1.0, "the leader has noticed");
    assert!(cluster.log(leader).contains("rejected an entry that it had acknowledged"), "and says so");
}
