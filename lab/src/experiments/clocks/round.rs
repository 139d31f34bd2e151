//! One round of experiment `clocks`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::task::JoinHandle;

use super::super::clients::{Clients, Holder, Job};
use super::super::processes::Resource;
use super::super::{Context, scratch};
use super::{Case, Clock, LATE_MS, Party, Round, TTL_MS};
use crate::dlock;
use crate::resource::rule::Fence;
use crate::servers::Cluster;
use crate::worker::event::micros;

/// From the holder's grant to the setting of the clocks.
const BEFORE: Duration = Duration::from_millis(300);
/// From then to the holder's write: within its TTL.
const HOLD: Duration = Duration::from_millis(2_500);
/// Redlock's instances may be slow beside other work; a vote that is lost for that would blur the picture.
const INSTANCE_TIMEOUT: Duration = Duration::from_millis(500);

/// A party while its round runs.
struct Running {
    fence: Fence,
    resource: Resource,
    clients: Arc<Clients>,
    holder: Holder,
    other: Option<JoinHandle<Result<Job, String>>>,
}

/// Runs a round, and sets the clocks right after it.
pub(super) async fn one(context: &Context, case: Case, round: u64) -> Result<Round, String> {
    let cluster = &context.cluster;
    let directory = scratch()?;
    let origin = Instant::now();
    // Servers without a leader are all alike.
    let leader = if cluster.endpoints().len() == 3 { cluster.leader().await.map_err(text)? } else { 0 };
    let nodes: Vec<_> = (0..cluster.len()).map(|place| (leader + place) % cluster.len()).collect();
    let options = dlock::Options { instance_timeout: INSTANCE_TIMEOUT, ..dlock::Options::default() };
    let locks = dlock::connect(context.backend, &context.endpoints, &options).map_err(text)?;
    let mut set_us = micros(origin.elapsed());
    if case == Case::Skew {
        set(cluster, &nodes, case)?;
    }
    // The other client waits for the end of the lease, and a little longer.
    let times = (Duration::from_millis(TTL_MS), Duration::from_millis(TTL_MS + LATE_MS));
    let mut parties = Vec::new();
    for &fence in &context.fences {
        let key = format!("clocks-{case:?}-{fence:?}-{round}").to_lowercase().replace(['(', ')'], "-");
        let directory = directory.path().join(fence.name());
        std::fs::create_dir(&directory).map_err(text)?;
        let resource = Resource::start(&directory, fence).await?;
        let clients = Clients::new(&locks, &resource.url, &key, times, origin);
        parties.push((fence, resource, clients));
    }
    let holders = parties.into_iter().map(|(fence, resource, clients)| async move {
        let holder = clients.acquire("holder").await?;
        let holder = holder.map_err(|job| format!("the holder was not granted the lock: {:?}", job.error))?;
        Ok::<_, String>(Running { fence, resource, clients, holder, other: None })
    });
    let mut parties = try_join_all(holders).await?;
    tokio::time::sleep(BEFORE).await;
    if case != Case::Skew {
        set_us = micros(origin.elapsed());
        set(cluster, &nodes, case)?;
    }
    let begun = Instant::now();
    for party in &mut parties {
        let clients = party.clients.clone();
        party.other = Some(tokio::spawn(async move { clients.job("other", Duration::ZERO).await }));
    }
    let mut clocks = Vec::new();
    for (place, &node) in nodes.iter().enumerate() {
        let seen_ms = cluster.clock_offset(node).await.map_err(text)?;
        clocks.push(Clock { server: cluster.name(node).to_owned(), set_ms: case.offset_s(place) * 1000, seen_ms });
    }
    tokio::time::sleep(HOLD.saturating_sub(begun.elapsed())).await;
    let parties = try_join_all(parties.into_iter().map(|party| party.end(case))).await?;
    for &node in &nodes {
        cluster.set_clock(node, "+0").map_err(text)?;
    }
    Ok(Round { case, round, set_us, clocks, parties })
}

fn set(cluster: &Cluster, nodes: &[usize], case: Case) -> Result<(), String> {
    for (place, &node) in nodes.iter().enumerate() {
        cluster.set_clock(node, &format!("{:+}s", case.offset_s(place))).map_err(text)?;
    }
    Ok(())
}

impl Running {
    /// The holder writes and releases, or is silent if the clocks have jumped back; then waits for the other client.
    async fn end(mut self, case: Case) -> Result<Party, String> {
        let holder = match case {
            Case::Back => self.holder.leave(),
            Case::Skew | Case::Ahead(_) => {
                self.clients.write(&mut self.holder).await?;
                self.clients.release(self.holder).await
            }
        };
        let other = self.other.ok_or("the round has no second client")?.await.map_err(text)??;
        let (counts, value, judged) =
            (self.resource.counts().await?, self.clients.value().await?, self.clients.judge()?);
        Ok(Party { fence: self.fence, holder, other, value, counts, judged })
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
