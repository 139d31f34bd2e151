//! `palisade bench --locks`: very many locks, each with a session of its own, which are not
//! renewed and all expire at the same time. The clients are measured while the locks are held,
//! while a snapshot is written, while a follower restarts, and while the locks expire.

use std::time::{Duration, Instant};

use palisade_client::wire::{Acquire, Answer, Code, Op, Outcome, StatusView};
use tokio::time::sleep;

use super::super::dev::Cluster;
use super::super::{connect, snapshot};
use super::{Bench, Target, leader};

/// Number of connections over which the locks are acquired, and number of concurrent requests on
/// each.
const CONNECTIONS: u64 = 2;
const AT_ONCE: usize = 500;
/// Number of locks to request before those that were refused are requested again.
const BLOCK: u64 = 100_000;
/// How long a node may take to send the next answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The measurement around very many locks.
pub(super) struct ManyLocks<'a> {
    pub(super) bench: &'a Bench,
    pub(super) target: &'a Target,
    pub(super) clients: usize,
    pub(super) locks: u64,
    /// The time from the first acquire to the expiry of all locks; all of them must be acquired by
    /// then.
    pub(super) lasts: Duration,
    pub(super) seed: u64,
}

impl ManyLocks<'_> {
    /// Acquires the locks, and measures the clients in each phase after that.
    pub(super) async fn measure(&self, mut cluster: Option<&mut Cluster>) -> Result<(), String> {
        let before = memory(cluster.as_deref());
        let begin = Instant::now();
        let ends = begin + self.lasts;
        let took = self.fill(ends).await?;
        #[expect(clippy::cast_precision_loss)]
        let rate = self.locks as f64 / took.as_secs_f64();
        outln!("{} locks acquired in {:.0} s, {rate:.0} locks/s", self.locks, took.as_secs_f64());

        let leader = leader(self.target).await?;
        self.bench.row("held", self.target, self.clients, sleep(self.bench.time), cluster.as_deref()).await?;
        let mut written = Ok(Duration::ZERO);
        let taking = async {
            let begin = Instant::now();
            written = snapshot::take(&leader, &self.target.security).await.map(|()| begin.elapsed());
        };
        self.bench.row("snapshot", self.target, self.clients, taking, cluster.as_deref()).await?;
        let status = self.status(&leader).await?;
        let bytes = status.snapshot.map_or(0, |snapshot| snapshot.bytes);
        outln!("a snapshot of {bytes} bytes took {:.1} s", written?.as_secs_f64());
        for (before, now) in before.iter().zip(memory(cluster.as_deref())) {
            let per_lock = now.saturating_sub(*before) / self.locks;
            outln!("a node uses {} MB of memory, {per_lock} bytes more than before for each lock", now >> 20);
        }
        if let Some(cluster) = &mut cluster {
            let mut took = Ok(Duration::ZERO);
            let restarting = async { took = self.restart(cluster, &leader).await };
            self.bench.row("restart", self.target, self.clients, restarting, None).await?;
            outln!("a killed and restarted follower had caught up after {:.1} s", took?.as_secs_f64());
        }

        sleep(ends.saturating_duration_since(Instant::now())).await;
        let begin = Instant::now();
        let mut ended = Ok(Duration::ZERO);
        let ending = async { ended = self.end(&leader).await.map(|()| begin.elapsed()) };
        self.bench.row("expiry", self.target, self.clients, ending, cluster.as_deref()).await?;
        outln!("all of these locks expired within {:.1} s", ended?.as_secs_f64());
        Ok(())
    }

    /// Acquires the locks, with TTLs that all end at `ends`.
    async fn fill(&self, ends: Instant) -> Result<Duration, String> {
        let begin = Instant::now();
        for first in (0..self.locks).step_by(usize::try_from(BLOCK).expect("it fits")) {
            let mut numbers: Vec<u64> = (first..self.locks.min(first + BLOCK)).collect();
            while !numbers.is_empty() {
                let leader = leader(self.target).await?;
                let shares = numbers.len().div_ceil(usize::try_from(CONNECTIONS).expect("it fits"));
                let requests = numbers.chunks(shares).map(|share| self.take(&leader, share, ends));
                let refused = futures_util::future::join_all(requests).await;
                numbers = refused.into_iter().flatten().collect();
                if !numbers.is_empty() {
                    sleep(PAUSE).await;
                }
                if Instant::now() >= ends {
                    return Err(format!(
                        "the first locks expired before all were acquired: set --locks-last to more than {:?}",
                        self.lasts
                    ));
                }
            }
        }
        Ok(begin.elapsed())
    }

    /// Acquires the locks with these numbers, and returns the numbers of those that it could not
    /// acquire.
    async fn take(&self, leader: &str, numbers: &[u64], ends: Instant) -> Vec<u64> {
        let mut taken = vec![false; numbers.len()];
        let ops = numbers.iter().map(|&number| self.acquire(number, ends));
        let answered = |index, outcome| {
            // `Held` also counts: an earlier request got the lock, and its answer was lost with the
            // connection.
            let is_held = match outcome {
                Outcome::Ok(answer) => matches!(answer, Answer::Acquired(_)),
                Outcome::Error(failure) => failure.error == Code::Held,
            };
            if is_held && let Some(taken) = usize::try_from(index).ok().and_then(|index| taken.get_mut(index)) {
                *taken = true;
            }
        };
        // On an error the caller repeats the requests without an answer.
        let _ = self.target.security.ask_all(leader, ops, AT_ONCE, ANSWER_TIMEOUT, answered).await;
        numbers.iter().zip(taken).filter(|(_, taken)| !taken).map(|(&number, _)| number).collect()
    }

    fn acquire(&self, number: u64, ends: Instant) -> Op {
        let rest = ends.saturating_duration_since(Instant::now()).as_millis();
        let options = Acquire {
            ttl_ms: u64::try_from(rest).unwrap_or(u64::MAX).max(100),
            owner: "bench".to_string(),
            ..Acquire::default()
        };
        Op::Acquire { keys: format!("locks/{:016x}", scatter(self.seed, number)).into(), options, number: None }
    }

    /// Waits until no more locks are held than the clients can hold themselves.
    async fn end(&self, leader: &str) -> Result<(), String> {
        loop {
            let status = self.status(leader).await?;
            if status.locks <= self.clients as u64 {
                return Ok(());
            }
            sleep(PAUSE).await;
        }
    }

    /// Kills a follower and starts it again. Returns the time until it has applied every entry that
    /// was committed before the kill.
    async fn restart(&self, cluster: &mut Cluster, leader: &str) -> Result<Duration, String> {
        let committed = self.status(leader).await?.commit;
        let begin = Instant::now();
        let node = cluster.restart_follower().await?;
        loop {
            // The node answers no requests while it recovers from its disk.
            if self.status(&node).await.is_ok_and(|status| status.applied >= committed) {
                return Ok(begin.elapsed());
            }
            sleep(PAUSE).await;
        }
    }

    async fn status(&self, node: &str) -> Result<StatusView, String> {
        let status = self.target.security.status(node, connect::NODE_TIMEOUT).await;
        status.map_err(|error| error.to_string())
    }
}

fn memory(cluster: Option<&Cluster>) -> Vec<u64> {
    cluster.map(Cluster::memory).unwrap_or_default()
}

/// The output function of SplitMix64: distinct numbers have distinct outputs for one seed.
fn scatter(seed: u64, number: u64) -> u64 {
    let word = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
