//! Wall clocks play no part: a node whose wall clock is set, by an hour or two, forwards or back,
//! neither shortens nor stretches a lock's life. That no code reads one is a rule of
//! `tests/layering/rules.rs`.
//!
//! The clocks are set by libfaketime (the Debian package `faketime`), under the nodes' own feet and
//! only the wall clock; where it is missing, that test says that it is skipped.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use palisade_client::{Client, LockOptions, Options};
use tempfile::TempDir;

use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::locks::lock;
use crate::support::watch::Dead;

const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
const HOUR: i64 = 3600;
const TTL: Duration = Duration::from_secs(4);

/// The wall clocks of a cluster's nodes, each as far off as its file says.
struct WallClocks {
    directory: TempDir,
    /// libfaketime leaves something behind in /dev/shm when its process is killed.
    processes: Vec<i32>,
}

impl WallClocks {
    fn file(directory: &Path, id: u16) -> PathBuf {
        directory.join(format!("clock-{id}"))
    }

    /// A cluster whose nodes look at these clocks.
    fn start(offsets: [i64; 3]) -> (WallClocks, Cluster) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let mut clocks = WallClocks { directory, processes: Vec::new() };
        for (id, offset) in (1..).zip(offsets) {
            clocks.set(id, offset);
        }
        let cluster = Cluster::start_adjusted(3, &[], move |id, command| {
            command
                .env("LD_PRELOAD", FAKETIME)
                .env("FAKETIME_TIMESTAMP_FILE", WallClocks::file(&path, id))
                // Looked at whenever the process asks for the time.
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        });
        clocks.note(&cluster);
        (clocks, cluster)
    }

    /// Sets node `id`'s wall clock.
    fn set(&self, id: u16, offset: i64) {
        // In one step, so that no process reads half a number.
        let file = WallClocks::file(self.directory.path(), id);
        std::fs::write(file.with_extension("new"), format!("{offset:+}\n")).unwrap();
        std::fs::rename(file.with_extension("new"), file).unwrap();
    }

    fn note(&mut self, cluster: &Cluster) {
        self.processes.extend(cluster.running().iter().map(|&id| cluster.pid(id).as_raw_nonzero().get()));
    }
}

impl Drop for WallClocks {
    fn drop(&mut self) {
        for process in &self.processes {
            for name in ["faketime_shm", "sem.faketime_sem"] {
                // Most are there once only; some processes are noted twice.
                let _ = std::fs::remove_file(format!("/dev/shm/{name}_{process}"));
            }
        }
    }
}

/// How far node `id`'s wall clock was ahead of node `other`'s when they last wrote into their logs,
/// in seconds.
fn ahead(cluster: &Cluster, id: u16, other: u16) -> i64 {
    let last = |id| {
        let log = cluster.log(id);
        let line = log.lines().rfind(|line| line.get(10..11) == Some("T")).expect("every node logs").to_owned();
        let number = |range: std::ops::Range<usize>| {
            line.get(range).and_then(|digits| digits.parse::<i64>().ok()).expect("a time of day")
        };
        number(11..13) * HOUR + number(14..16) * 60 + number(17..19)
    };
    (last(id) - last(other) + 12 * HOUR).rem_euclid(24 * HOUR) - 12 * HOUR
}

/// Goal: three nodes that disagree by hours on the time of day; while a lock's holder is dead, the
/// leader's clock is set two hours on, then the leader dies and one takes over whose clock says
/// another hour again. The lock lives exactly as long as ever, and that of a living holder stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setting_wall_clocks_changes_nothing() {
    if !Path::new(FAKETIME).exists() {
        eprintln!("skipped: {FAKETIME} is missing (apt-get install faketime)");
        return;
    }
    let mut offsets = [HOUR, -HOUR, 0];
    let (mut clocks, mut cluster) = WallClocks::start(offsets);
    let client = Client::connect(&cluster.endpoints(), Options::default()).await.expect("a leader answers");
    let alive = client.lock("alive", LockOptions::default().ttl(TTL)).await.expect("the lock is free");
    let dead = Dead::holder(&cluster, "backup", TTL);
    let begin = Instant::now();
    let (mut set, mut killed) = (None, None);
    let end = dead.watch(&mut cluster, Duration::ZERO, |cluster| {
        let Some(leader) = cluster.agreed_leader() else { return };
        if set.is_none() && begin.elapsed() >= TTL / 4 {
            offsets[usize::from(leader) - 1] += 2 * HOUR;
            clocks.set(leader, offsets[usize::from(leader) - 1]);
            set = Some(leader);
        } else if killed.is_none() && begin.elapsed() >= TTL / 2 {
            cluster.kill(leader);
            killed = Some(leader);
        }
    });
    println!("{end}");
    cluster.restart(killed.expect("a leader died during the TTL"));
    clocks.note(&cluster);
    cluster.wait_ready();
    assert!(alive.is_valid(), "a living holder does not notice");
    assert_eq!(lock(&cluster, "alive").holder.map(|holder| holder.token), Some(alive.token()));
    alive.release().await.expect("it was held to the end");

    // That the clocks were off at all. A log may be a little older than another.
    for (a, b) in [(1, 2), (2, 3), (3, 1)] {
        let expected = offsets[a - 1] - offsets[b - 1];
        let (a, b) = (u16::try_from(a).unwrap(), u16::try_from(b).unwrap());
        eventually("the nodes' logs show how far their clocks are off", || {
            ((ahead(&cluster, a, b) - expected).abs() < HOUR / 4).then_some(())
        });
    }
}
