//! One window: clients that make pairs in a closed loop, and what they achieved.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::drivers::{Driver, System};
use super::machine::{Cores, Usage, sync_us};
use crate::contend::summary::Latency;
use crate::servers::Identity;
use crate::worker::event::micros;

/// Connections that clients share in a cell of that kind.
pub const SHARED: usize = 4;
/// Load before the window, which is not counted: so long, and so much longer for each client, until all of them have asked.
const WARM_UP: Duration = Duration::from_millis(300);
const WARM_UP_EACH: Duration = Duration::from_millis(1);
/// And until so many pairs are complete, but not longer than this: while a long queue forms, some systems grant nothing.
const WARM_PAIRS: u64 = 20;
const WARM_UP_MOST: Duration = Duration::from_secs(15);
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
    /// Pairs a second; with one hot key, each is a hand-over.
    pub rate: f64,
    /// The median latency of a pair.
    pub p50_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
    /// Pairs that failed, warm-up and drain included.
    pub errors: u64,
    /// The first error.
    pub error: Option<String>,
    /// The median of an append with `fdatasync` just before the window.
    pub sync_us: u64,
    /// Who used the processors in the window.
    pub cores: Cores,
}

/// What a client did.
#[derive(Default)]
struct Done {
    pairs: Vec<(Instant, Duration)>,
    errors: u64,
    error: Option<String>,
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
    let mut tasks = JoinSet::new();
    for client in 0..cell.clients {
        let key = if hot { format!("hot-{}", cell.clients) } else { format!("own-{client}") };
        tasks.spawn(repeat(driver.clone(), client, key, over.clone(), pairs.clone()));
    }
    let started = Instant::now();
    tokio::time::sleep(WARM_UP + WARM_UP_EACH * u32::try_from(cell.clients).unwrap_or(u32::MAX)).await;
    while pairs.load(Ordering::Relaxed) < WARM_PAIRS && started.elapsed() < WARM_UP_MOST {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let begin = Usage::now(&target.processes);
    let from = Instant::now();
    tokio::time::sleep(window).await;
    let to = Instant::now();
    let cores = Usage::now(&target.processes).since(&begin);
    over.store(true, Ordering::Relaxed);
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
    }
    drop(tasks);
    if let Some(driver) = Arc::into_inner(driver) {
        driver.close().await;
    }
    let counted = all.pairs.iter().filter(|(end, _)| (from..to).contains(end)).map(|(_, latency)| *latency);
    let latency = Latency::of(counted.map(micros));
    let rate = (latency.count as f64 / (to - from).as_secs_f64() * 10.0).round() / 10.0;
    let Latency { p50_us, p99_us, .. } = latency;
    Ok(Window { round, cell, rate, p50_us, p99_us, errors: all.errors, error: all.error, sync_us, cores })
}

/// Makes one pair after the other. After an error the client pauses, so that a server that refuses is not flooded.
async fn repeat(driver: Arc<Driver>, client: usize, key: String, over: Arc<AtomicBool>, pairs: Arc<AtomicU64>) -> Done {
    let mut done = Done::default();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match driver.pair(client, &key).await {
            Ok(()) => {
                let end = Instant::now();
                done.pairs.push((end, end - begun));
                pairs.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                done.errors += 1;
                done.error = done.error.or(Some(error));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    done
}
