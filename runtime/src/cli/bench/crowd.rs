//! A crowd for `palisade bench`: very many locks, each with a session of its own, which nobody renews and which end all
//! at once. What the clients notice of it is measured: while it stands, while its snapshot is written, while it ends.

use std::time::{Duration, Instant};

use palisade_client::wire::{Acquire, Answer, Code, Op, Outcome};
use tokio::time::sleep;

use super::super::dev::Cluster;
use super::super::{connect, snapshot};
use super::{Bench, leader};

/// The locks are taken over this many connections, so many at a time on each.
const CONNECTIONS: u64 = 2;
const AT_ONCE: usize = 500;
/// So many are taken before those that were refused are asked for again.
const BLOCK: u64 = 100_000;
/// How long a node may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(200);

/// The measurement around a crowd.
pub(super) struct Crowd<'a> {
    pub(super) bench: &'a Bench,
    pub(super) endpoints: &'a [String],
    pub(super) clients: usize,
    pub(super) locks: u64,
    /// By when all is taken that is to be; then the locks end.
    pub(super) lasts: Duration,
    pub(super) seed: u64,
}

impl Crowd<'_> {
    /// Fills the table, and measures the clients meanwhile and afterwards.
    pub(super) async fn measure(&self, mut cluster: Option<&mut Cluster>) -> Result<(), String> {
        let before = memory(cluster.as_deref());
        let begin = Instant::now();
        let ends = begin + self.lasts;
        let took = self.fill(ends).await?;
        #[expect(clippy::cast_precision_loss)]
        let rate = self.locks as f64 / took.as_secs_f64();
        outln!("{} locks taken in {:.0} s, {rate:.0} a second", self.locks, took.as_secs_f64());

        let leader = leader(self.endpoints).await?;
        self.bench.row("held", self.endpoints, self.clients, sleep(self.bench.time), cluster.as_deref()).await?;
        let mut written = Ok(Duration::ZERO);
        let taking = async {
            let begin = Instant::now();
            written = snapshot::take(&leader).await.map(|()| begin.elapsed());
        };
        self.bench.row("snapshot", self.endpoints, self.clients, taking, cluster.as_deref()).await?;
        let status = status(&leader).await?;
        let bytes = status.snapshot.map_or(0, |snapshot| snapshot.bytes);
        outln!("a snapshot of {bytes} bytes took {:.1} s", written?.as_secs_f64());
        for (before, now) in before.iter().zip(memory(cluster.as_deref())) {
            outln!("{} MB in use by a node, {} bytes a lock", now >> 20, now.saturating_sub(*before) / self.locks);
        }
        if let Some(cluster) = &mut cluster {
            let mut took = Ok(Duration::ZERO);
            let restarting = async { took = restart(cluster, &leader).await };
            self.bench.row("restart", self.endpoints, self.clients, restarting, None).await?;
            outln!("a follower that was killed was back after {:.1} s", took?.as_secs_f64());
        }

        sleep(ends.saturating_duration_since(Instant::now())).await;
        let begin = Instant::now();
        let mut ended = Ok(Duration::ZERO);
        let ending = async { ended = self.end(&leader).await.map(|()| begin.elapsed()) };
        self.bench.row("expiry", self.endpoints, self.clients, ending, cluster.as_deref()).await?;
        outln!("all of them ended within {:.1} s", ended?.as_secs_f64());
        Ok(())
    }

    /// Takes the locks, each until the same moment.
    async fn fill(&self, ends: Instant) -> Result<Duration, String> {
        let begin = Instant::now();
        for first in (0..self.locks).step_by(usize::try_from(BLOCK).expect("it fits")) {
            let mut places: Vec<u64> = (first..self.locks.min(first + BLOCK)).collect();
            while !places.is_empty() {
                let leader = leader(self.endpoints).await?;
                let shares = places.len().div_ceil(usize::try_from(CONNECTIONS).expect("it fits"));
                let asking = places.chunks(shares).map(|share| self.take(&leader, share, ends));
                let refused = futures_util::future::join_all(asking).await;
                places = refused.into_iter().flatten().collect();
                if !places.is_empty() {
                    sleep(PAUSE).await;
                }
                if Instant::now() >= ends {
                    return Err(format!("the locks that came first have ended; give them more than {:?}", self.lasts));
                }
            }
        }
        Ok(begin.elapsed())
    }

    /// Takes some of them, and gives back the places of those that it could not get.
    async fn take(&self, leader: &str, places: &[u64], ends: Instant) -> Vec<u64> {
        let mut taken = vec![false; places.len()];
        let ops = places.iter().map(|&place| self.acquire(place, ends));
        let answered = |place, outcome| {
            // A connection that broke has left some unanswered; those are held all the same.
            let is_held = match outcome {
                Outcome::Ok(answer) => matches!(answer, Answer::Acquired(_)),
                Outcome::Error(failure) => failure.error == Code::Held,
            };
            if is_held && let Some(taken) = usize::try_from(place).ok().and_then(|place| taken.get_mut(place)) {
                *taken = true;
            }
        };
        // What came of those that are not answered is asked again.
        let _ = palisade_client::ask_all(leader, ops, AT_ONCE, PATIENCE, answered).await;
        places.iter().zip(taken).filter(|(_, taken)| !taken).map(|(&place, _)| place).collect()
    }

    fn acquire(&self, place: u64, ends: Instant) -> Op {
        let rest = ends.saturating_duration_since(Instant::now()).as_millis();
        let options = Acquire {
            session: None,
            ttl_ms: u64::try_from(rest).unwrap_or(u64::MAX).max(100),
            wait_ms: 0,
            owner: "crowd".to_string(),
        };
        Op::Acquire { key: format!("crowd/{:016x}", scatter(self.seed, place)), options, number: None }
    }

    /// Waits until there are few left.
    async fn end(&self, leader: &str) -> Result<(), String> {
        loop {
            let status = status(leader).await?;
            if status.locks <= self.clients as u64 {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }
}

fn memory(cluster: Option<&Cluster>) -> Vec<u64> {
    cluster.map(Cluster::memory).unwrap_or_default()
}

/// Kills a follower and starts it again, until it has applied what was committed when it was killed.
async fn restart(cluster: &mut Cluster, leader: &str) -> Result<Duration, String> {
    let committed = status(leader).await?.commit;
    let begin = Instant::now();
    let node = cluster.restart_follower().await?;
    loop {
        // As long as it reads its disk, nobody answers there.
        if status(&node).await.is_ok_and(|status| status.applied >= committed) {
            return Ok(begin.elapsed());
        }
        sleep(PAUSE).await;
    }
}

async fn status(node: &str) -> Result<palisade_client::wire::StatusView, String> {
    palisade_client::status(node, connect::NODE_TIMEOUT).await.map_err(|error| error.to_string())
}

/// The output function of SplitMix64: no two places of one seed have the same number.
fn scatter(seed: u64, place: u64) -> u64 {
    let word = seed.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
