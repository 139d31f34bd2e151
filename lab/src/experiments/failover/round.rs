//! One round of experiment `failover`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::clients::{Clients, Holder, Job};
use super::super::processes::Resource;
use super::super::{Context, scratch, text};
use super::{Contest, FailoverCase, PROMOTION_MS, Round, longest_gap};
use crate::dlock::{self, Backend, Locks, Request};
use crate::event::micros;
use crate::resource::rule::Fence;
use crate::servers::Cluster;

/// Locks outlast a round: only releases end them.
const TTL: Duration = Duration::from_secs(20);
const WAIT: Duration = Duration::from_secs(60);
/// Waiters of the queue, and how far apart they arrive: ZooKeeper's open a session first.
const WAITERS: usize = 5;
const APART: Duration = Duration::from_millis(300);
/// From the kill to the release of the queue's lock, and of the held one.
const QUEUE_RELEASE: Duration = Duration::from_millis(2_500);
const HELD_RELEASE: Duration = Duration::from_secs(6);
/// How long each of the others holds a lock.
const WORK: Duration = Duration::from_millis(50);
/// How long a request of these clients may take: longer than a failover, so that it is repeated and does not fail.
const PATIENCE: Duration = Duration::from_secs(20);
/// Clients that have no competitor.
const LOAD: usize = 4;
/// How long a request of theirs may take. A new leader may know nothing of a request that the old one had received: the
/// gap would be the client's timeout.
const LOAD_TIMEOUT: Duration = Duration::from_millis(500);
const LOAD_PAUSE: Duration = Duration::from_millis(5);

/// A contest while its round runs. The clients' tasks end with this value.
struct FailoverContest {
    fence: Fence,
    resource: Resource,
    held: Arc<Clients>,
    queue: Arc<Clients>,
    first: Option<Holder>,
    waiters: JoinSet<Result<Job, String>>,
    earlier: Job,
    holder: Option<Holder>,
    challenger: JoinSet<Result<Job, String>>,
}

/// Runs a round, and restarts the server that was killed.
pub(super) async fn one(context: &Context, case: FailoverCase, round: u64) -> Result<Round, String> {
    let cluster = &context.cluster;
    let directory = scratch()?;
    let origin = Instant::now();
    let leader = cluster.leader().await.map_err(text)?;
    // The next node is a follower; of Redis's two, the replica.
    let follower = (leader + 1) % cluster.len();
    let lags = case == FailoverCase::Lagging;
    let redis = context.backend == Backend::Redis;
    // A stopped server would hold up clients that are connected to it, which is another fault than the leader's.
    let nodes = std::iter::once(leader).chain((0..cluster.len()).filter(|&node| node != leader));
    let nodes = nodes.filter(|&node| redis || !lags || node != follower);
    let endpoints: Vec<_> = nodes.map(|node| cluster.address(node).to_owned()).collect();
    let connect = |request_timeout| {
        let options = dlock::Options { request_timeout, ..dlock::Options::default() };
        dlock::connect(context.backend, &endpoints, &options).map_err(text)
    };
    let (locks, others) = (connect(PATIENCE)?, connect(LOAD_TIMEOUT)?);
    let stop = Arc::new(AtomicBool::new(false));
    // Ends with this function, also if that fails.
    let mut clients = JoinSet::new();
    for client in 0..LOAD {
        let name = format!("load-{}-{round}-{client}", case.name());
        clients.spawn(load(others.clone(), name, origin, stop.clone()));
    }
    let mut contests = Vec::new();
    for &fence in &context.fences {
        let key = |what: &str| format!("failover-{what}-{case:?}-{fence:?}-{round}").to_lowercase();
        let directory = directory.path().join(fence.name());
        std::fs::create_dir(&directory).map_err(text)?;
        let resource = Resource::start(&directory, fence).await?;
        let clients = |what| Clients::new((&locks, &context.metrics), &resource.url, &key(what), (TTL, WAIT), origin);
        let (held, queue) = (clients("held"), clients("queue"));
        contests.push(FailoverContest {
            fence,
            resource,
            held,
            queue,
            first: None,
            waiters: JoinSet::new(),
            earlier: Job::default(),
            holder: None,
            challenger: JoinSet::new(),
        });
    }
    try_join_all(contests.iter_mut().map(FailoverContest::fill_queue)).await?;
    if lags {
        cluster.pause(follower).map_err(text)?;
        if redis {
            // What is on its way to a stopped process waits in its socket. With the connection closed, nothing is sent.
            cluster.redis(leader, &["CLIENT", "KILL", "TYPE", "replica"]).await.map_err(text)?;
        }
    }
    try_join_all(contests.iter_mut().map(FailoverContest::take)).await?;
    if redis && !lags {
        for contest in &contests {
            replicated(cluster, follower, contest.held.key()).await?;
        }
    }
    tokio::time::sleep(APART * 2).await;
    let kill_us = micros(origin.elapsed());
    let killed = Instant::now();
    cluster.kill(leader).await.map_err(text)?;
    if redis {
        tokio::time::sleep(Duration::from_millis(PROMOTION_MS)).await;
    }
    if lags {
        cluster.resume(follower).map_err(text)?;
    }
    if redis {
        cluster.redis(follower, &["REPLICAOF", "NO", "ONE"]).await.map_err(text)?;
    }
    let ended = try_join_all(contests.into_iter().map(|contest| contest.end(killed))).await?;
    stop.store(true, Ordering::Relaxed);
    let mut grants = Vec::new();
    while let Some(moments) = clients.join_next().await {
        grants.extend(moments.map_err(text)?);
    }
    let (gap_from_us, gap_us) = longest_gap(&mut grants);
    cluster.restart(leader).await.map_err(text)?;
    if redis {
        cluster.replicate(leader, cluster.address(follower)).await.map_err(text)?;
    }
    let killed = cluster.name(leader).to_owned();
    Ok(Round { case, round, killed, kill_us, grants: grants.len(), gap_from_us, gap_us, contests: ended })
}

/// Takes locks without a competitor, and returns the moments of the grants.
async fn load(locks: Arc<dyn Locks>, name: String, origin: Instant, stop: Arc<AtomicBool>) -> Vec<u64> {
    let mut grants = Vec::new();
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (key, request) =
            (format!("{name}-{number}"), Request { owner: name.clone(), ttl: TTL, wait: LOAD_TIMEOUT });
        // The backends' clients count the wait for a lock differently: this bound is the same for all. An acquire or a
        // release that fails is a grant that is missing: the gap shows it.
        if let Ok(Ok(handle)) = timeout(LOAD_TIMEOUT, locks.acquire(&key, &request)).await {
            grants.push(micros(origin.elapsed()));
            drop(timeout(LOAD_TIMEOUT, handle.release()).await);
        }
        tokio::time::sleep(LOAD_PAUSE).await;
    }
    grants
}

/// Waits until Redis's replica has the lock.
async fn replicated(cluster: &Cluster, replica: usize, key: &str) -> Result<(), String> {
    for _ in 0..1000 {
        if cluster.redis(replica, &["EXISTS", key]).await.map_err(text)? == "1" {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(format!("{} has not got {key} within 5 s", cluster.name(replica)))
}

impl FailoverContest {
    /// A client takes the queue's lock, and the waiters arrive.
    async fn fill_queue(&mut self) -> Result<(), String> {
        self.first = Some(granted(self.queue.acquire("first").await?)?);
        for number in 1..=WAITERS {
            let queue = self.queue.clone();
            self.waiters.spawn(async move { queue.job(&format!("waiter-{number}"), WORK).await });
            tokio::time::sleep(APART).await;
        }
        Ok(())
    }

    /// A client takes the other lock and releases it without a write, the holder takes it, and the challenger begins to wait.
    async fn take(&mut self) -> Result<(), String> {
        let earlier = granted(self.held.acquire("earlier").await?)?;
        self.earlier = self.held.release(earlier).await;
        self.holder = Some(granted(self.held.acquire("holder").await?)?);
        let held = self.held.clone();
        self.challenger.spawn(async move { held.job("challenger", WORK).await });
        Ok(())
    }

    /// Releases both locks in their time, and waits for the others.
    async fn end(mut self, killed: Instant) -> Result<Contest, String> {
        let missing = "the round has no holder";
        let (mut first, mut holder) = (self.first.ok_or(missing)?, self.holder.ok_or(missing)?);
        let queue = async {
            tokio::time::sleep(QUEUE_RELEASE.saturating_sub(killed.elapsed())).await;
            self.queue.write(&mut first).await?;
            let mut jobs = vec![self.queue.release(first).await];
            while let Some(waiter) = self.waiters.join_next().await {
                jobs.push(waiter.map_err(text)??);
            }
            // The order of their arrival: the holder's request was the first.
            jobs.sort_by_key(|job| job.asked_us);
            Ok::<_, String>(jobs)
        };
        let held = async {
            tokio::time::sleep(HELD_RELEASE.saturating_sub(killed.elapsed())).await;
            self.held.write(&mut holder).await?;
            Ok::<_, String>(self.held.release(holder).await)
        };
        let (queue, holder) = tokio::try_join!(queue, held)?;
        let challenger = self.challenger.join_next().await.ok_or(missing)?.map_err(text)??;
        let counts = self.resource.counts().await?;
        Ok(Contest {
            fence: self.fence,
            earlier: self.earlier,
            holder,
            challenger,
            value: self.held.value().await?,
            queue,
            queue_value: self.queue.value().await?,
            counts,
            judged: [self.held.judge()?, self.queue.judge()?],
        })
    }
}

fn granted(holder: Result<Holder, Job>) -> Result<Holder, String> {
    holder.map_err(|job| format!("{} was not granted the lock before the kill: {:?}", job.owner, job.error))
}
