//! Wall clocks play no part: a node whose wall clock is set, by an hour or two, forwards or back,
//! neither shortens nor stretches a lock's life. That no code reads one is a rule of
//! `tests/layering/rules.rs`.
//!
//! Where libfaketime, which sets the clocks, is missing, the test says that it is skipped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_client::{Client, LockOptions, Options};

use crate::support::cluster::Cluster;
use crate::support::eventually;
use crate::support::locks::lock;
use crate::support::wall_clock::WallClock;
use crate::support::watch::Dead;

const HOUR: i64 = 3600;
const TTL: Duration = Duration::from_secs(4);

/// The wall clocks of a cluster's nodes.
struct WallClocks(Arc<Vec<WallClock>>);

impl WallClocks {
    /// A cluster whose nodes look at these clocks, or what is missing for them.
    fn start(offsets: [i64; 3]) -> Result<(WallClocks, Cluster), String> {
        let clocks: Vec<WallClock> = offsets.into_iter().map(WallClock::ahead).collect::<Result<_, _>>()?;
        let clocks = WallClocks(Arc::new(clocks));
        let shown = Arc::clone(&clocks.0);
        let cluster = Cluster::start_adjusted(3, &[], move |id, command| shown[usize::from(id) - 1].show_to(command));
        clocks.note(&cluster);
        Ok((clocks, cluster))
    }

    /// Sets node `id`'s wall clock.
    fn set(&self, id: u16, offset: i64) {
        self.0[usize::from(id) - 1].set(offset);
    }

    fn note(&self, cluster: &Cluster) {
        cluster.running().iter().for_each(|&id| self.0[usize::from(id) - 1].note(cluster.pid(id)));
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
    let mut offsets = [HOUR, -HOUR, 0];
    let (clocks, mut cluster) = match WallClocks::start(offsets) {
        Ok(started) => started,
        Err(missing) => return eprintln!("SKIPPED: {missing}"),
    };
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
