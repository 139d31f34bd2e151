//! Time-to-live: a dead holder's lock is free after its TTL, not before and not much later,
//! whatever becomes of leaders, nodes and wall clocks; and a living holder's lock is its own
//! through all of it. How the moment is judged stands in support/watch.rs. Clocks that are set are
//! in wall_clock.rs.

use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use palisade_client::{Client, Error, Guard, LockOptions, Options, margin};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::locks::lock;
use crate::support::process::{Running, end_all, lives, marked, palisade};
use crate::support::watch::Dead;

/// A time-to-live that is short for a test, and long beside an election.
const TTL: Duration = Duration::from_secs(4);
/// The log's last stamp trails the leader's clock by at most this much while a deadline is pending
/// (`max_stamp_gap`): so much time may be forgotten when all nodes stop at once.
const STAMP_GAP: Duration = Duration::from_secs(10);

/// A waiter for the dead holder's lock. It sends little, so that the cluster is idle meanwhile.
async fn waiter(cluster: &Cluster, key: &str) -> JoinHandle<Result<Guard, Error>> {
    let options = Options { ask_again: Duration::from_secs(3600), ..Options::default() };
    let client = Client::connect(&cluster.endpoints(), options).await.expect("a leader answers");
    let options = LockOptions::default().ttl(Duration::from_secs(3600)).wait_forever().owner("next");
    let name = key.to_owned();
    let waiter = tokio::spawn(async move { client.lock(name, options).await });
    eventually("it stands in the queue", || (lock(cluster, key).queue.len() == 1).then_some(()));
    waiter
}

/// The waiter has the lock now, under a later token.
async fn succeeded(waiter: JoinHandle<Result<Guard, Error>>, cluster: &Cluster, dead: &Dead) {
    let guard =
        timeout(Duration::from_secs(20), waiter).await.expect("the waiter hears of its grant").unwrap().unwrap();
    assert!(guard.token() > dead.token);
    let holder = lock(cluster, &dead.key).holder.expect("it is held again");
    assert_eq!((holder.session, holder.token), (guard.session().number(), guard.token()));
}

/// Goal: when the machine of a `palisade lock` is lost, and with it the command and the watchdog,
/// which would give the lock back, the next waiter is granted the lock when the TTL is over, counted
/// from the last renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_machine_is_replaced() {
    let mut cluster = Cluster::start(3);
    let directory = tempfile::tempdir().unwrap();
    let note = directory.path().join("pid");
    let mark = directory.path().to_str().expect("a temporary directory has a plain name");
    let mut command = palisade();
    command.env("MARK", mark);
    command.args(["lock", "backup", "--ttl", "4s", "--endpoints", &cluster.endpoints().join(",")]);
    command.args(["--", "sh", "-c", r#"echo $$ > "$0"; exec cat"#]).arg(&note).stdin(Stdio::piped());
    let mut process = Running::start(&mut command);
    let command = eventually("the command runs", || std::fs::read_to_string(&note).ok()?.trim().parse::<i32>().ok());
    let waiter = waiter(&cluster, "backup").await;
    // It has been kept alive for more than its TTL, and not from outside.
    sleep(TTL + TTL / 2);
    assert!(process.runs());

    let processes = marked(mark);
    assert!(processes.len() >= 3, "the command, its wrapper and the watchdog are found: {processes:?}");
    // Stopped first, so that none of them notices the end of another.
    for pid in processes.into_iter().filter_map(Pid::from_raw) {
        kill_process(pid, Signal::STOP).expect("the process takes signals");
    }
    end_all(mark);
    process.wait();
    eventually("the command is dead", || (!lives(command)).then_some(()));
    let dead = Dead::killed(&cluster, "backup", TTL);
    let end = dead.watch(&mut cluster, Duration::ZERO, |_| {});
    println!("{end}");
    succeeded(waiter, &cluster, &dead).await;
}

/// Goal: a client whose connection ends without notice, while it held the lock and kept it alive,
/// is replaced when its TTL is over. Its own guard expired first: its last lease, as last seen,
/// ended no later than the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_replaced() {
    let mut cluster = Cluster::start(3);
    let endpoints = cluster.endpoints();
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let holder = other.spawn(async move {
        let client = Client::connect(&endpoints, Options::default()).await?;
        client.lock("backup", LockOptions::default().ttl(TTL)).await
    });
    let guard = holder.await.unwrap().expect("the lock is free");
    let waiter = waiter(&cluster, "backup").await;
    sleep(TTL + TTL / 2);
    let (asked, trusted) = (Instant::now(), guard.remaining());
    assert!(!trusted.is_zero(), "it was kept alive so far");

    // With its event loop the client's socket is gone, and with it the task that could have
    // released the lock.
    other.shutdown_background();
    let mut dead = Dead::killed(&cluster, "backup", TTL);
    assert_eq!((dead.session, dead.token), (guard.session().number(), guard.token()));
    // By its own reckoning the guard is good until the end of its lease, less the margin.
    dead.not_before = dead.not_before.max(asked + trusted + margin(TTL) - TTL);
    let end = dead.watch(&mut cluster, Duration::ZERO, |_| {});
    println!("{end}");
    assert!(!guard.is_valid(), "the guard does not trust a lock that is gone");
    succeeded(waiter, &cluster, &dead).await;
}

/// Goal: killing the leader every half TTL does not keep a dead holder's lock alive beyond its TTL
/// and the outages: each new leader goes on with the time that its predecessor measured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_that_die_keep_no_dead_holder_alive() {
    let mut cluster = Cluster::start(3);
    let dead = Dead::holder(&cluster, "backup", TTL);
    let waiter = waiter(&cluster, "backup").await;
    let mut killer = Killer::every(TTL / 2);
    let end = dead.watch(&mut cluster, Duration::ZERO, |cluster| killer.turn(cluster));
    println!("{} kills: {end}", killer.kills);
    assert!(killer.kills >= 2, "leaders died during the TTL");
    succeeded(waiter, &cluster, &dead).await;
}

/// Kills the leader every so often, and starts it again when the others have another one.
struct Killer {
    every: Duration,
    next: Instant,
    down: Option<u16>,
    kills: u32,
}

impl Killer {
    fn every(every: Duration) -> Killer {
        Killer { every, next: Instant::now(), down: None, kills: 0 }
    }

    fn turn(&mut self, cluster: &mut Cluster) {
        let Some(leader) = cluster.agreed_leader() else { return };
        if let Some(down) = self.down.take() {
            cluster.restart(down);
        } else if Instant::now() >= self.next {
            cluster.kill(leader);
            self.down = Some(leader);
            self.next = Instant::now() + self.every;
            self.kills += 1;
        }
    }
}

/// Goal: when all nodes stop at once, cluster time goes on from the log's last stamp, and an idle
/// leader has seen to it that this is not long ago. This lock was taken 13 s before the crash, and
/// nothing happened since: without the no-op at 10 s all of the TTL would begin again, and end 2 s
/// after the time that is promised.
#[test]
fn a_crash_of_all_forgets_little_time() {
    const TTL: Duration = Duration::from_secs(14);
    let mut cluster = Cluster::start(3);
    let dead = Dead::holder(&cluster, "backup", TTL);
    let mut crash = Some(Instant::now() + Duration::from_secs(13));
    let end = dead.watch(&mut cluster, STAMP_GAP, |cluster| {
        if crash.take_if(|at| Instant::now() >= *at).is_some() {
            restart_all(cluster);
        }
    });
    println!("{end}");
    assert!(crash.is_none());
    assert_eq!(lock(&cluster, "backup").holder, None);
}

fn restart_all(cluster: &mut Cluster) {
    for id in cluster.ids() {
        cluster.kill(id);
    }
    for id in cluster.ids() {
        cluster.restart(id);
    }
}

/// Goal: a living holder keeps its lock through three leaders in each of three TTLs, and then a
/// crash of all nodes at once. No other client gets the lock, although one waits all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_holder_outlives_them_all() {
    const TTL: Duration = Duration::from_secs(9);
    let mut cluster = Cluster::start(3);
    let client = Client::connect(&cluster.endpoints(), Options::default()).await.expect("a leader answers");
    let guard = client.lock("backup", LockOptions::default().ttl(TTL)).await.expect("the lock is free");
    let waiter = waiter(&cluster, "backup").await;
    let mut killer = Killer::every(TTL / 3);
    while killer.kills < 9 || killer.down.is_some() {
        killer.turn(&mut cluster);
        sleep(Duration::from_millis(10));
        assert!(guard.is_valid(), "lost after {} kills", killer.kills);
    }
    cluster.wait_ready();
    restart_all(&mut cluster);
    cluster.wait_ready();
    sleep(TTL);
    assert!(guard.is_valid(), "lost after the restart of all");
    let now = lock(&cluster, "backup");
    let holder = now.holder.expect("it is held");
    assert_eq!((holder.session, holder.token), (guard.session().number(), guard.token()));
    assert_eq!(now.queue.len(), 1);
    assert!(!waiter.is_finished());

    let token = guard.token();
    guard.release().await.expect("it was held to the end");
    let next = timeout(Duration::from_secs(20), waiter).await.expect("the waiter hears of its grant").unwrap().unwrap();
    assert!(next.token() > token);
}
