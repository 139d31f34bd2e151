//! A node that was down for so long that the entries it lacks are compacted in every log.

use std::path::Path;
use std::time::{Duration, Instant};

use palisade_client::wire::LockPage;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::block_in_place;

use super::OFTEN;
use crate::support::cluster::Cluster;
use crate::support::load::{Clients, GIVE_UP};
use crate::support::{eventually, http};

const SEED: u64 = 11;
/// How often a returning node is killed before it is left alone.
const KILLS: usize = 8;
/// How long each client pauses after an operation while the test waits until the leader has shortened its log. At full
/// speed the clients would write for up to a minute: the log and the state would grow, and other tests would wait.
const SLOW: Duration = Duration::from_millis(20);
/// What a data directory may hold in bytes beside its snapshots and the log that makes the next one
/// due: segments of a few tens of kilobytes each.
const BOUND: u64 = 500_000;

fn size(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    // A file may go between the two looks.
    entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum()
}

/// Whether a directory holds no more than it may. While a follower is away that was being sent a
/// snapshot, the leader keeps the log for a minute; the state grows meanwhile, and with it each
/// snapshot and the log between two of them.
fn is_small(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).unwrap().filter_map(Result::ok);
    let snapshots = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("snapshot-"));
    let largest = snapshots.filter_map(|entry| Some(entry.metadata().ok()?.len())).max().unwrap_or(0);
    size(directory) < BOUND + 6 * largest
}

/// How many segments the log has, and how many it has had.
fn segments(directory: &Path) -> (usize, usize) {
    let names = std::fs::read_dir(directory).unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.strip_prefix("wal-")?.strip_suffix(".log")?.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    (numbers.len(), numbers.into_iter().max().unwrap_or(0))
}

/// Whether a leader's snapshot is seen as it arrives at a node; returns at that moment, or when the node has
/// caught up. One that arrives between two looks is missed.
fn sees_it_arrive(cluster: &Cluster, id: u16) -> bool {
    let leader = cluster.wait_ready();
    let (data, goal) = (cluster.data(id), applied(cluster, leader).expect("the leader answers"));
    let deadline = Instant::now() + GIVE_UP;
    while applied(cluster, id).is_none_or(|applied| applied < goal) {
        assert!(Instant::now() < deadline, "the node does not catch up");
        for _ in 0..1_000 {
            let names =
                std::fs::read_dir(&data).unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            if names.into_iter().any(|name| name.starts_with("incoming-")) {
                return true;
            }
        }
    }
    false
}

/// How many snapshots of a leader a node has installed, in all its lives.
fn installed(cluster: &Cluster, id: u16) -> usize {
    cluster.log(id).matches("installed the leader's snapshot").count()
}

/// The first entry that a node's log has, in memory.
fn log_begins(cluster: &Cluster, id: u16) -> u64 {
    // Both from one page: the log moves.
    let page = http::get(&cluster.client_addr(id), "/metrics").expect("the node answers").body;
    let value = |name: &str| -> u64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("there is no {name} in /metrics"))
    };
    value("palisade_last_index") - value("palisade_log_entries") + 1
}

/// Waits until `leader`'s log no longer has the entry after `index`. If the node that is down was being sent a
/// snapshot, the leader keeps the log for a minute.
fn wait_compacted_past(cluster: &Cluster, leader: u16, index: u64) {
    let deadline = Instant::now() + GIVE_UP;
    while log_begins(cluster, leader) <= index + 1 {
        assert!(Instant::now() < deadline, "the leader's log is not shortened past the node that is down");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What is applied on a node, as far as the interface shows it.
fn applied(cluster: &Cluster, id: u16) -> Option<u64> {
    Some(cluster.status(id)?.applied)
}

fn wait_caught_up(cluster: &Cluster, id: u16) {
    let leader = cluster.wait_ready();
    let goal = applied(cluster, leader).expect("the leader answers");
    eventually("the node has caught up", || applied(cluster, id).filter(|&applied| applied >= goal));
}

fn locks(cluster: &Cluster, id: u16) -> LockPage {
    let body = http::get(&cluster.client_addr(id), "/v1/locks?limit=1000&consistency=stale").unwrap().body;
    serde_json::from_str(&body).expect("a page of locks")
}

/// Goal: a node is killed, the others go on until what it lacks is gone from their logs; it comes
/// back by a snapshot while the cluster serves. On the way it is killed again and again, at any
/// moment of receiving and installing. Then all nodes die at once. Nothing that was acknowledged is
/// lost, and no directory grows beyond its bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_comes_back_by_snapshot_while_the_cluster_serves() {
    let mut cluster = block_in_place(|| Cluster::start_with(3, &OFTEN));
    let clients = Clients::start(&cluster, SEED).await;
    clients.get_on(200).await;
    let mut random = StdRng::seed_from_u64(SEED);
    let leader = block_in_place(|| cluster.wait_ready());
    let away = cluster.others(leader)[0];

    // However fast the machine is, one is caught in the end.
    let (mut caught, mut kill) = (0, 0);
    loop {
        let is_last = kill >= KILLS && (caught > 0 || kill >= 10 * KILLS);
        let had = block_in_place(|| {
            let had = eventually("the node answers", || applied(&cluster, away));
            cluster.kill(away);
            had
        });
        clients.get_on(400).await;
        clients.pause(SLOW);
        block_in_place(|| {
            let leader = cluster.wait_ready();
            wait_compacted_past(&cluster, leader, had);
        });
        clients.pause(Duration::ZERO);
        block_in_place(|| cluster.restart(away));
        if !is_last {
            let moment = Duration::from_millis(random.random_range(0..250));
            block_in_place(|| {
                if kill % 2 == 0 {
                    std::thread::sleep(moment);
                } else {
                    caught += u32::from(sees_it_arrive(&cluster, away));
                }
                cluster.kill(away);
                cluster.restart(away);
            });
        }
        block_in_place(|| {
            wait_caught_up(&cluster, away);
            for id in cluster.ids() {
                // Meanwhile the leader has kept the log that the follower lacked.
                let data = cluster.data(id);
                eventually("a data directory is small again", || is_small(&data).then_some(()));
            }
        });
        if is_last {
            break;
        }
        kill += 1;
    }
    let installed = installed(&cluster, away);
    println!("{installed} snapshots were installed, {caught} were killed as they arrived");
    assert!(installed > KILLS / 2 && caught > 0, "{installed} were installed, {caught} killed as they arrived");

    // All at once, under load.
    clients.get_on(200).await;
    block_in_place(|| {
        cluster.ids().into_iter().for_each(|id| cluster.kill(id));
        cluster.ids().into_iter().for_each(|id| cluster.restart(id));
        cluster.wait_ready();
    });
    clients.get_on(200).await;

    // The clients are idle, and every node holds exactly what they were acknowledged.
    let acknowledged = clients.journal.lock().acknowledgements();
    let journal = clients.finish().await;
    assert!(journal.acknowledgements() > acknowledged);
    block_in_place(|| {
        for id in cluster.ids() {
            wait_caught_up(&cluster, id);
            journal.check(&locks(&cluster, id).locks);
            assert!(locks(&cluster, id).locks.is_empty(), "node {id}: everything was given back");
            let data = cluster.data(id);
            let (size, (present, last)) = (size(&data), segments(&data));
            println!("node {id}: {size} bytes, {present} of {last} segments");
            // The one that was away has not written what it missed.
            let most_are_gone = last > 3 * present || id == away;
            assert!(is_small(&data) && most_are_gone, "node {id}: {size} bytes, {present} of {last} segments");
        }
    });
}
