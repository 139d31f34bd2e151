//! Copies of a data directory: older than what its node has acknowledged, or started beside the
//! original. Nothing in them is damaged, so only the other nodes can tell.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::locks::{acquire, open_session};
use crate::support::process::Running;
use crate::support::{eventually, metrics, ports};

const TTL: Duration = Duration::from_secs(60);

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("the copy does not exist yet");
    for entry in fs::read_dir(from).expect("the directory can be listed") {
        let entry = entry.expect("the directory can be listed");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("the file can be copied");
    }
}

/// Goal: a follower comes back with an old state of its log, and so without entries that it had
/// acknowledged, which its leader has counted. The leader notices, says so, stops counting them
/// and sends them again. Before, it dropped the follower's rejections as stale: once the third node
/// died, writes stopped although two of three were up and ready.
#[test]
fn follower_with_an_old_copy_of_its_directory_is_noticed_and_repaired() {
    // Not recorded: a disk that goes back is what no recording may show.
    let mut cluster = Cluster::start_unrecorded(3, &["--election-timeout", "750ms"], |_, _| {});
    let leader = cluster.wait_ready();
    let others = cluster.others(leader);
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
    // Only the log is old: the record of the node's starts, by which the others know a copy, is not.
    fs::copy(current.join("start.json"), data.join("start.json")).expect("the file can be copied");
    cluster.kill(third);
    cluster.restart(restored);
    acquire(&cluster, "two-of-three", session);

    let lost = metrics::value(&cluster.client_addr(leader), "palisade_followers_lost_entries_total");
    assert!(lost >= 1.0, "the leader has noticed");
    assert!(cluster.log(leader).contains("rejected an entry that it had acknowledged"), "and says so");
}

/// What the refusal of a copy says.
const COPY: &str = "runs on a copy of its data directory, or on an older state of it";

/// A node's process on a copy of its directory, as a person starts it on another machine: with other
/// addresses to listen on.
struct Copy {
    _process: Running,
    log: PathBuf,
}

impl Copy {
    fn start(cluster: &Cluster, id: u16, data: &Path) -> Copy {
        let log = data.with_extension("log");
        let [clients, peers] = ports::free(2)[..] else { unreachable!() };
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_palisade"));
        command
            .args(["serve", "--id", &id.to_string(), "--election-timeout", "750ms", "--stop-with-stdin"])
            .args(["--client-addr", &format!("127.0.0.1:{clients}"), "--peer-addr", &format!("127.0.0.1:{peers}")])
            .arg("--data")
            .arg(data)
            .stdin(Stdio::piped())
            .stderr(fs::File::create(&log).expect("a log file"));
        assert!(cluster.ids().contains(&id));
        Copy { _process: Running::start(&mut command), log }
    }

    /// Waits until every one of these nodes has refused it.
    fn is_refused_by(&self, others: &[u16]) {
        for other in others {
            eventually("the copy is refused", || {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                let refused = |line: &str| line.contains(&format!("peer={other} ")) && line.contains(COPY);
                log.lines().any(refused).then_some(())
            });
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        assert!(!log.contains("connected to a node"), "a node has taken the copy in: {log}");
    }
}

fn calm(size: u16) -> Cluster {
    // Not recorded: two runs of one node at once are what no recording may show.
    Cluster::start_unrecorded(size, &["--election-timeout", "750ms"], |_, _| {})
}

/// Goal: a copied directory that is started beside its original is refused by all other nodes, again
/// and again, however often it is started; the original goes on, and comes back after a restart.
#[test]
fn copy_beside_its_original_is_refused() {
    let mut cluster = calm(3);
    let (_, copied) = cluster.roles();
    let others = cluster.others(copied);
    let data = cluster.data(copied);
    let aside = data.with_extension("copy");
    cluster.kill(copied);
    copy(&data, &aside);
    cluster.restart(copied);
    cluster.wait_connected();
    // The first start of the copy has the number of the original's latest one; the later ones have
    // higher numbers.
    for _ in 0..3 {
        Copy::start(&cluster, copied, &aside).is_refused_by(&others);
    }
    cluster.wait_connected();
    for &other in &others {
        assert!(cluster.log(other).contains(COPY), "node {other} tells its own operator");
    }

    // Not in the original's absence either.
    cluster.kill(copied);
    Copy::start(&cluster, copied, &aside).is_refused_by(&others);
    for _ in 0..3 {
        cluster.restart(copied);
        cluster.wait_connected();
        cluster.kill(copied);
    }
}

/// Goal: a copy that was made while the node ran is refused, although its start follows the original's, as long as the
/// original answers; the original goes on, and comes back after a restart. Before, the copy was believed, and the original
/// was refused for good.
#[test]
fn copy_of_a_running_node_is_refused() {
    let mut cluster = calm(3);
    let (_, copied) = cluster.roles();
    let others = cluster.others(copied);
    cluster.wait_connected();
    let data = cluster.data(copied);
    let aside = data.with_extension("copy");
    copy(&data, &aside);
    for _ in 0..2 {
        Copy::start(&cluster, copied, &aside).is_refused_by(&others);
    }
    cluster.wait_connected();
    cluster.kill(copied);
    cluster.restart(copied);
    cluster.wait_connected();
    // By now the original's starts have another past than the copy's.
    Copy::start(&cluster, copied, &aside).is_refused_by(&others);
}

/// Goal: the same for an old state of the directory that was brought back in its place.
#[test]
fn restored_old_directory_is_refused() {
    let mut cluster = calm(3);
    let (_, restored) = cluster.roles();
    let data = cluster.data(restored);
    let (backup, current) = (data.with_extension("backup"), data.with_extension("current"));
    cluster.kill(restored);
    copy(&data, &backup);
    cluster.restart(restored);
    cluster.wait_connected();
    cluster.kill(restored);
    fs::rename(&data, &current).expect("the directory can be moved");
    fs::rename(&backup, &data).expect("the copy takes its place");
    cluster.restart(restored);
    eventually("it is refused", || (cluster.log(restored).matches(COPY).count() >= 2).then_some(()));
    cluster.kill(restored);
    fs::remove_dir_all(&data).expect("the copy can be removed");
    fs::rename(&current, &data).expect("the directory can be brought back");
    cluster.restart(restored);
    cluster.wait_connected();
}
