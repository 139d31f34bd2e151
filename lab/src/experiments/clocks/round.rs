//! One round of experiment `clocks`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use super::super::clients::{Clients, Holder, Job};
use super::super::processes::Resource;
use super::super::{Context, scratch, text};
use super::{Clock, ClockCase, Contest, LATE_MS, Round, TTL_MS};
use crate::dlock;
use crate::event::micros;
use crate::resource::rule::Fence;
use crate::servers::{Cluster, Kind};

/// From the holder's grant to the setting of the clocks.
const BEFORE: Duration = Duration::from_millis(300);
/// From then to the holder's write: within its TTL.
const HOLD: Duration = Duration::from_millis(2_500);
/// Redlock's instances may be slow beside other work: a vote lost to a slow machine would be counted as an effect of the
/// clocks.
const INSTANCE_TIMEOUT: Duration = Duration::from_millis(500);

/// A contest while its round runs. A client's task ends with this value.
struct ClockContest {
    fence: Fence,
    resource: Resource,
    clients: Arc<Clients>,
    holder: Holder,
    other: JoinSet<Result<Job, String>>,
}

/// How often clocks that run fast are set.
const STEP: Duration = Duration::from_millis(20);

/// Runs a round, and sets the clocks right after it.
pub(super) async fn one(context: &Context, case: ClockCase, round: u64) -> Result<Round, String> {
    let cluster = &context.cluster;
    let directory = scratch()?;
    let origin = Instant::now();
    let leader = match cluster.kind() {
        Kind::Etcd | Kind::Zookeeper | Kind::Palisade => cluster.leader().await.map_err(text)?,
        // They have no leader: the order of the servers does not matter.
        Kind::Redis | Kind::Redlock | Kind::Postgres | Kind::Objects => 0,
    };
    let nodes: Vec<_> = (0..cluster.len()).map(|index| (leader + index) % cluster.len()).collect();
    let options = dlock::Options { instance_timeout: INSTANCE_TIMEOUT, ..dlock::Options::default() };
    let locks = dlock::connect(context.backend, &context.endpoints, &options).map_err(text)?;
    let mut set = Instant::now();
    if case == ClockCase::Skew {
        set_clocks(cluster, &nodes, case, Duration::ZERO)?;
    }
    // The other client waits for the end of the lease, and a little longer.
    let times = (Duration::from_millis(TTL_MS), Duration::from_millis(TTL_MS + LATE_MS));
    let mut contests = Vec::new();
    for &fence in &context.fences {
        let key = format!("clocks-{case:?}-{fence:?}-{round}").to_lowercase().replace(['(', ')'], "-");
        let directory = directory.path().join(fence.name());
        std::fs::create_dir(&directory).map_err(text)?;
        let resource = Resource::start(&directory, fence).await?;
        let clients = Clients::new((&locks, &context.metrics), &resource.url, &key, times, origin);
        contests.push((fence, resource, clients));
    }
    let holders = contests.into_iter().map(|(fence, resource, clients)| async move {
        let holder = clients.acquire("holder").await?;
        let holder = holder.map_err(|job| format!("the holder was not granted the lock: {:?}", job.error))?;
        Ok::<_, String>(ClockContest { fence, resource, clients, holder, other: JoinSet::new() })
    });
    let mut contests = try_join_all(holders).await?;
    tokio::time::sleep(BEFORE).await;
    if case != ClockCase::Skew {
        set = Instant::now();
        set_clocks(cluster, &nodes, case, Duration::ZERO)?;
    }
    let mut running = JoinSet::new();
    if case == ClockCase::Fast {
        let (cluster, nodes) = (cluster.clone(), nodes.clone());
        running.spawn(async move {
            loop {
                tokio::time::sleep(STEP).await;
                if let Err(error) = set_clocks(&cluster, &nodes, case, set.elapsed()) {
                    return error;
                }
            }
        });
    }
    let begun = Instant::now();
    for contest in &mut contests {
        let clients = contest.clients.clone();
        contest.other.spawn(async move { clients.job("other", Duration::ZERO).await });
    }
    // Clocks that run fast are asked at the end, when they are far ahead.
    let mut clocks = Vec::new();
    if case != ClockCase::Fast {
        clocks = seen(cluster, &nodes, case, set).await?;
    }
    tokio::time::sleep(HOLD.saturating_sub(begun.elapsed())).await;
    let contests = try_join_all(contests.into_iter().map(|contest| contest.end(case))).await?;
    if case == ClockCase::Fast {
        clocks = seen(cluster, &nodes, case, set).await?;
    }
    if let Some(ended) = running.try_join_next() {
        return Err(format!("the clocks ran fast no longer: {}", ended.unwrap_or_else(text)));
    }
    running.shutdown().await;
    for &node in &nodes {
        cluster.set_clock(node, "+0").map_err(text)?;
    }
    let set_us = micros(set.duration_since(origin));
    Ok(Round { case, round, set_us, clocks, contests })
}

/// Sets all clocks off, so long after they were first set.
fn set_clocks(cluster: &Cluster, nodes: &[usize], case: ClockCase, since: Duration) -> Result<(), String> {
    for (index, &node) in nodes.iter().enumerate() {
        let offset_ms = case.offset_ms(index, since);
        let sign = if offset_ms < 0 { '-' } else { '+' };
        let (seconds, rest) = (offset_ms.abs() / 1000, offset_ms.abs() % 1000);
        cluster.set_clock(node, &format!("{sign}{seconds}.{rest:03}s")).map_err(text)?;
    }
    Ok(())
}

/// Asks each server for its time.
async fn seen(cluster: &Cluster, nodes: &[usize], case: ClockCase, set: Instant) -> Result<Vec<Clock>, String> {
    let mut clocks = Vec::new();
    for (index, &node) in nodes.iter().enumerate() {
        let seen_ms = cluster.clock_offset(node).await.map_err(text)?;
        let set_ms = case.offset_ms(index, set.elapsed());
        clocks.push(Clock { server: cluster.name(node).to_owned(), set_ms, seen_ms });
    }
    Ok(clocks)
}

impl ClockContest {
    /// The holder writes and releases, or is silent if the clocks have jumped back; then waits for the other client.
    async fn end(mut self, case: ClockCase) -> Result<Contest, String> {
        let holder = match case {
            ClockCase::Back => self.holder.leave(),
            ClockCase::Skew | ClockCase::Ahead(_) | ClockCase::Fast => {
                self.clients.write(&mut self.holder).await?;
                self.clients.release(self.holder).await
            }
        };
        let other = self.other.join_next().await.ok_or("the round has no second client")?.map_err(text)??;
        let (counts, value, judged) =
            (self.resource.counts().await?, self.clients.value().await?, self.clients.judge()?);
        Ok(Contest { fence: self.fence, holder, other, value, counts, judged })
    }
}
