//! Power cuts: all nodes die at once, under load, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palisade_client::Client;
use palisade_client::wire::LockPage;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::journal::Journal;
use crate::support::load::{Load, options};
use crate::support::locks::read;
use crate::support::proxy::{Faults, Proxies};

const SEED: u64 = 5;
const CRASHES: usize = 5;
/// So many answers lie between two crashes at the least.
const ANSWERS: usize = 300;
/// When this test gives up.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Every lock, as the nodes themselves have it.
fn locks(cluster: &Cluster) -> LockPage {
    serde_json::from_str(&read(&cluster.endpoints(), "/v1/locks?limit=1000")).expect("a page of locks")
}

/// The power fails: what is not on any disk is lost.
fn at_once(cluster: &mut Cluster) {
    cluster.ids().iter().for_each(|&id| cluster.signal(id, Signal::KILL));
    cluster.ids().iter().for_each(|&id| cluster.kill(id));
}

/// The followers die first, and the leader is alone for a moment, with clients that go on asking
/// it.
fn one_last(cluster: &mut Cluster, leader: u16) {
    let followers = cluster.others(leader);
    followers.iter().for_each(|&id| cluster.signal(id, Signal::KILL));
    followers.iter().for_each(|&id| cluster.kill(id));
    std::thread::sleep(Duration::from_millis(50));
    cluster.kill(leader);
}

/// The followers return first and elect a leader between them: what only the old one has on its
/// disk is lost.
fn return_without(cluster: &mut Cluster, leader: u16) {
    cluster.others(leader).into_iter().for_each(|id| cluster.restart(id));
    cluster.wait_ready();
    cluster.restart(leader);
    cluster.wait_ready();
}

/// Goal: `kill -9` of all three nodes in the middle of everything, five times over, in the same
/// instant or the leader last. Every grant that was acknowledged and not released is still held by
/// the same session with the same token; every queue position that was shown is still there, in
/// the same order; every acknowledged release has happened; no token is issued twice. And the
/// clients, which know nothing of all this, go on where they were.
///
/// The clients come through proxies, so that the state can be looked at between a restart and their
/// return.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_the_death_of_all_nodes() {
    let (proxies, mut cluster) = Proxies::before(3, Faults::default()).await;
    let journal = Arc::new(Mutex::new(Journal::default()));
    let ends = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Client::connect(proxies.endpoints(), options()).await.expect("the cluster serves"));
    }
    let mut tasks = Vec::new();
    for (seed, client) in (SEED..).zip(clients.iter().cycle()).take(10) {
        let load = Load::new(client.clone(), &journal, &ends, seed);
        tasks.push(match seed % 5 {
            0 => tokio::spawn(load.collect()),
            1 | 2 => tokio::spawn(load.line()),
            _ => tokio::spawn(load.churn()),
        });
    }

    let mut random = StdRng::seed_from_u64(SEED);
    let mut waited = 0;
    for crash in 1..=CRASHES {
        let enough = journal.lock().acknowledgements() + ANSWERS;
        let busy = async {
            while journal.lock().acknowledgements() < enough {
                assert!(tasks.iter().all(|task| !task.is_finished()), "a task has failed");
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(GIVE_UP, busy).await.expect("the clients get on");
        sleep(Duration::from_micros(random.random_range(0..20_000))).await;

        let acknowledged = block_in_place(|| {
            let leader = cluster.wait_ready();
            if crash % 2 == 1 {
                at_once(&mut cluster)
            } else {
                one_last(&mut cluster, leader)
            }
            proxies.shut();
            eventually("everything that the dead have sent has arrived", || (proxies.connections() == 0).then_some(()));
            return_without(&mut cluster, leader);
            journal.lock().clone()
        });
        // No client has sent a request since: the state is what the disks have kept.
        let stakes = acknowledged.check(&block_in_place(|| locks(&cluster)).locks);
        println!("crash {crash}: {stakes:?}");
        assert!(stakes.held > 5 && stakes.released > ANSWERS / 10, "too little to lose: {stakes:?}");
        waited += stakes.waiting;
        proxies.open();
    }

    assert!(waited > 0, "no session waited at any crash");

    // Every client finishes as if nothing had happened, and nothing is left.
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        timeout(GIVE_UP, task).await.expect("the clients come to an end").expect("nothing went wrong for them");
    }
    for client in clients {
        client.close().await;
    }
    block_in_place(|| eventually("no lock is held", || locks(&cluster).locks.is_empty().then_some(())));
}
