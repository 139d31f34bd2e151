//! One window: clients that make pairs in a closed loop, and what they achieved.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::done::{Done, Pair};
use super::drivers::{Driver, System};
use super::machine::{Cores, Usage, sync_us};
use super::record::{CLIENTS, Record};
use crate::contend::summary::Latency;
use crate::event::micros;
use crate::history::Judgement;
use crate::servers::Identity;

/// Connections that clients share in a cell of that kind.
pub const SHARED: usize = 4;
/// Load before the window, which is not counted: so long, and so much longer for each client, until all of them have asked.
const WARM_UP: Duration = Duration::from_millis(300);
const WARM_UP_EACH: Duration = Duration::from_millis(1);
/// And until as many pairs as clients are complete, but not longer than this: while a long queue forms, some systems grant
/// nothing.
pub const WARM_UP_MOST: Duration = Duration::from_secs(40);
/// How long clients that were stopped may take to clean up.
const CLEAN_UP: Duration = Duration::from_secs(2);
/// How long clients may take to end after the window: the queue drains.
const DRAIN: Duration = Duration::from_secs(60);

/// How clients use the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Each client has a connection and a key of its own.
    Own,
    /// Each client has a key of its own, and all share four connections.
    Shared,
    /// Each client has a connection of its own, and all want one key.
    Hot,
}

/// A cell of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// How clients use the system.
    #[serde(rename = "use")]
    pub how: Use,
    /// Number of clients.
    pub clients: usize,
}

/// What was measured in a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The round, from 1.
    pub round: u64,
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Whether as many pairs as clients were complete before the window: otherwise it measures how the queue forms.
    pub steady: bool,
    /// Pairs a second; of one hot lock, only those in which it went to another client than in the pair before.
    pub rate: f64,
    /// Of one hot lock: the share of all pairs in which a client took the lock again that it had itself released.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub own: Option<f64>,
    /// The median latency of the counted pairs.
    pub p50_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
    /// Pairs that failed, warm-up and drain included.
    pub errors: u64,
    /// The first error.
    pub error: Option<String>,
    /// The median of an append with `fdatasync` just before the window.
    pub sync_us: u64,
    /// Processor time of the generator, the servers and other processes in the window.
    pub cores: Cores,
}

/// The servers of a window.
#[derive(Debug, Clone)]
pub struct Target {
    /// For clients.
    pub endpoints: Vec<String>,
    /// The leader's address; the first server's where none leads.
    pub leader: String,
    /// All their processes.
    pub processes: Vec<Identity>,
}

/// Measures one window.
///
/// # Errors
/// The clients could not connect, or the disk could not be probed.
pub async fn measure(
    target: &Target,
    system: System,
    cell: Cell,
    (round, window): (u64, Duration),
    disk: &Path,
) -> Result<Window, String> {
    let shared = (cell.how == Use::Shared).then_some(SHARED);
    let hot = cell.how == Use::Hot;
    let driver = Driver::connect(system, &target.endpoints, &target.leader, cell.clients, shared, hot).await?;
    let driver = Arc::new(driver);
    let sync_us = sync_us(disk)?;
    let (over, pairs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    // Keys of each round and system: what a stopped client has left delays no later window.
    let name = system.name();
    let key = |client| {
        if hot { format!("{name}-{round}-hot-{}", cell.clients) } else { format!("{name}-{round}-own-{client}") }
    };
    let tasks = start(&driver, (0..cell.clients).map(key).collect(), (&over, &pairs), None);
    let started = Instant::now();
    tokio::time::sleep(WARM_UP + WARM_UP_EACH * u32::try_from(cell.clients).unwrap_or(u32::MAX)).await;
    let steady = || pairs.load(Ordering::Relaxed) >= cell.clients as u64;
    while !steady() && started.elapsed() < WARM_UP_MOST {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let steady = steady();
    let begin = Usage::now(&target.processes);
    let from = Instant::now();
    tokio::time::sleep(window).await;
    let to = Instant::now();
    let cores = Usage::now(&target.processes).since(&begin);
    over.store(true, Ordering::Relaxed);
    let all = drain(tasks).await;
    if let Some(driver) = Arc::into_inner(driver) {
        driver.close().await;
    }
    let (counted, own) = counted(all.pairs, from..to, hot);
    let latency = Latency::of(counted.into_iter().map(micros));
    let rate = (latency.count as f64 / (to - from).as_secs_f64() * 10.0).round() / 10.0;
    let Latency { p50_us, p99_us, .. } = latency;
    let Done { errors, error, .. } = all;
    Ok(Window { round, cell, steady, rate, own, p50_us, p99_us, errors, error, sync_us, cores })
}

/// Records one window of the hot lock, which is not measured, and judges its history.
///
/// # Errors
/// The clients could not connect, or the history is not well-formed.
pub async fn judged(target: &Target, system: System, window: Duration) -> Result<Judgement, String> {
    let driver = Driver::connect(system, &target.endpoints, &target.leader, CLIENTS, None, true).await?;
    let (driver, record) = (Arc::new(driver), Arc::new(Record::new(system.backend())));
    let (over, pairs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let keys = std::iter::repeat_n("judged-hot".to_owned(), CLIENTS).collect();
    let tasks = start(&driver, keys, (&over, &pairs), Some(record.clone()));
    tokio::time::sleep(window).await;
    over.store(true, Ordering::Relaxed);
    drain(tasks).await;
    if let Some(driver) = Arc::into_inner(driver) {
        driver.close().await;
    }
    record.judge()
}

/// Starts a client for each key.
fn start(
    driver: &Arc<Driver>,
    keys: Arc<[String]>,
    (over, pairs): (&Arc<AtomicBool>, &Arc<AtomicU64>),
    record: Option<Arc<Record>>,
) -> JoinSet<Done> {
    let mut tasks = JoinSet::new();
    if let Driver::Raw(raw) = &**driver {
        for connection in 0..raw.connections {
            let (raw, keys, over, pairs) = (raw.clone(), keys.clone(), over.clone(), pairs.clone());
            let record = record.clone();
            tasks.spawn(async move { raw.repeat(connection, &keys, &over, &pairs, record).await });
        }
    } else {
        for (client, key) in keys.iter().enumerate() {
            let counted = (over.clone(), pairs.clone());
            tasks.spawn(repeat(driver.clone(), client, key.clone(), counted, record.clone()));
        }
    }
    tasks
}

/// Waits until the clients have ended, and adds up what they did.
async fn drain(mut tasks: JoinSet<Done>) -> Done {
    let mut all = Done::default();
    let drained = tokio::time::timeout(DRAIN, async {
        while let Some(done) = tasks.join_next().await {
            let done = done.unwrap_or_else(|error| Done {
                errors: 1,
                error: Some(format!("a bug of the lab: {error}")),
                ..Done::default()
            });
            all.pairs.extend(done.pairs);
            all.errors += done.errors;
            all.error = all.error.take().or(done.error);
        }
    });
    if drained.await.is_err() {
        all.errors += 1;
        all.error = all.error.or_else(|| Some(format!("{} clients did not end within {DRAIN:?}", tasks.len())));
        tasks.shutdown().await;
        tokio::time::sleep(CLEAN_UP).await;
    }
    all
}

/// The latencies of the pairs that count in a window. Of one hot lock these are its hand-overs to another client than that
/// of the pair before; beside them, the share of the window's pairs that were none.
fn counted(mut pairs: Vec<Pair>, window: Range<Instant>, hot: bool) -> (Vec<Duration>, Option<f64>) {
    pairs.sort_unstable_by_key(|pair| pair.end);
    let (mut before, mut all, mut counted) = (None, 0_u64, Vec::new());
    for pair in pairs {
        if window.contains(&pair.end) {
            all += 1;
            if !hot || before != Some(pair.client) {
                counted.push(pair.latency);
            }
        }
        before = Some(pair.client);
    }
    let own = (all - counted.len() as u64) as f64 / all.max(1) as f64;
    (counted, (hot && all > 0).then(|| (own * 1000.0).round() / 1000.0))
}

/// Makes one pair after the other. After an error the client pauses, so that a server that refuses is not flooded.
async fn repeat(
    driver: Arc<Driver>,
    client: usize,
    key: String,
    (over, pairs): (Arc<AtomicBool>, Arc<AtomicU64>),
    record: Option<Arc<Record>>,
) -> Done {
    let mut done = Done::default();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match driver.pair(client, &key, record.as_deref()).await {
            Ok(()) => {
                let end = Instant::now();
                done.pairs.push(Pair { client, end, latency: end - begun });
                pairs.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                done.fail(error);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_that_its_last_holder_takes_again_is_not_handed_over() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let pair = |client, ms| Pair { client, end: at(ms), latency: Duration::from_millis(ms) };
        // Out of order, as the clients' lists are joined; the first pair ends before the window, the last after it.
        let pairs = vec![pair(1, 1), pair(1, 2), pair(1, 3), pair(1, 5), pair(2, 4), pair(3, 9)];
        let ms = |list: &[u64]| list.iter().map(|&ms| Duration::from_millis(ms)).collect::<Vec<_>>();
        assert_eq!(counted(pairs.clone(), at(2)..at(9), true), (ms(&[4, 5]), Some(0.5)));
        assert_eq!(counted(pairs.clone(), at(2)..at(9), false), (ms(&[2, 3, 4, 5]), None));
        assert_eq!(counted(pairs, at(20)..at(30), true), (vec![], None));
    }
}
