//! `palisade bench`: measures the rate and latency of acquire+release pairs.
//!
//! Closed-loop clients acquire and release their locks in a loop, each on its own connection and
//! its own key, against a cluster of real, durable nodes on this machine. `gap` is the longest time
//! without a grant to any client; `memory` and `disk` are the memory and disk space of the node
//! that uses most at the end. docs/performance.md explains how far the figures can be trusted.

mod flood;
mod many_locks;
mod watchers;

use std::future::pending;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use palisade::{descriptors, limits};
use palisade_client::{Client, LockOptions, Options, Security};
use tokio::time::sleep;

use self::flood::{Flood, Rate};
use super::connect::{self, Endpoints};
use super::dev::{Cluster, Plan};
use super::signals::StopSignals;
use super::{block_on, print_error};

/// Measure the rate and latency of acquire+release pairs on a cluster on this machine
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Numbers of clients; each number is one run
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,16,64,256")]
    clients: Vec<usize>,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Number of nodes to start
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// Base port: node i serves clients on PORT+i and other nodes on PORT+100+i
    #[arg(long, value_name = "PORT", default_value_t = 7800, value_parser = clap::value_parser!(u16).range(1..=65_000))]
    port: u16,
    /// During the measurement, end the leader every three seconds, and start it again a second
    /// later
    #[arg(long, value_name = "HOW", conflicts_with = "running")]
    end_leader: Option<Ending>,
    /// Also acquire this many locks first, which all expire at the same time, and measure the
    /// clients while these locks are held, while a snapshot is written, while a follower restarts,
    /// and while they expire
    #[arg(long, value_name = "LOCKS", default_value_t = 0, conflicts_with = "end_leader")]
    locks: u64,
    /// With --locks: time from the first acquire to the expiry of all its locks
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    locks_last: Duration,
    /// With --locks: seed of its random keys
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Also measure the clients while another client (from 127.0.0.2, or with TLS of another name) sends
    /// as many requests as it can over so many connections, and compare
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 0, conflicts_with_all = ["end_leader", "locks"])]
    flood: usize,
    /// Also measure the clients beside so many watchers of one key, and how long an event takes to them
    #[arg(long, value_name = "WATCHERS", default_value_t = 0, conflicts_with_all = ["end_leader", "locks", "flood"])]
    watchers: usize,
    /// With --flood: this option of the nodes
    #[arg(long, value_name = "N", default_value_t = limits::UNANSWERED_REQUESTS, conflicts_with = "running")]
    max_unanswered_requests: usize,
    /// Measure the cluster of --endpoints instead of starting one
    #[arg(long)]
    running: bool,
    /// Start the nodes with TLS, and connect with a client certificate
    #[arg(long, conflicts_with = "running")]
    tls: bool,
    /// Start the nodes with an audit log each
    #[arg(long, conflicts_with = "running")]
    audit: bool,
    /// Start the nodes with this signing key, from `palisade fence issue --cluster dev`
    #[arg(long, conflicts_with = "running", value_name = "FILE")]
    sign_grants: Option<PathBuf>,
    /// Connect the clients to the followers, which forward their requests to the leader
    #[arg(long)]
    forwarded: bool,
    #[command(flatten)]
    endpoints: Endpoints,
}

/// The cluster that is measured.
pub(super) struct Target {
    endpoints: Vec<String>,
    security: Security,
    /// What the flood connects with: another name, with TLS.
    flood_security: Security,
    /// Whether the clients connect to followers.
    forwarded: bool,
}

/// How to end the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Ending {
    /// Request a stop: the leader transfers leadership first.
    Stop,
    /// Kill the leader (SIGKILL).
    Kill,
}

/// How long a leader runs before it is ended, and how long it is down before it is started again.
const LEADS_FOR: Duration = Duration::from_secs(3);
const AWAY_FOR: Duration = Duration::from_secs(1);

/// How long the search for a leader may take.
const ELECTED_WITHIN: Duration = Duration::from_secs(20);

impl Bench {
    pub(super) fn run(self) -> ExitCode {
        if self.watchers > 0 {
            descriptors::raise_limit();
        }
        // All clients run on one thread, to leave the other processors to the nodes.
        let result = block_on(async {
            if self.running {
                let endpoints = self.endpoints.parse().map_err(|error| error.to_string())?;
                let security = self.endpoints.security();
                if self.flood > 0 && security.is_tls() {
                    return Err(
                        "a flood on a running cluster with TLS would need a second certificate: start the cluster \
                                with `palisade bench --tls --flood`"
                            .to_owned(),
                    );
                }
                let target =
                    Target { endpoints, security, flood_security: Security::plain(), forwarded: self.forwarded };
                return self.measure(&target, None).await;
            }
            let mut signals = StopSignals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
            let sessions = usize::try_from(self.locks).unwrap_or(usize::MAX).saturating_add(limits::SESSIONS);
            let arguments = [
                ("--max-sessions", sessions),
                ("--max-sessions-per-client", 0),
                ("--max-unanswered-requests", self.max_unanswered_requests),
                ("--max-connections-per-client", 0),
                ("--max-watches-per-client", 0),
            ];
            let mut arguments: Vec<String> =
                arguments.into_iter().flat_map(|(option, number)| [option.to_owned(), number.to_string()]).collect();
            if let Some(key) = &self.sign_grants {
                arguments.extend(["--sign-grants".to_owned(), key.display().to_string()]);
            }
            let Bench { nodes, port, tls, audit, .. } = self;
            let mut cluster =
                Cluster::start(Plan { nodes, port, data: None, arguments: &arguments, tls, audit }).await?;
            let (endpoints, security) = (cluster.endpoints(), cluster.security());
            let target = Target {
                endpoints,
                security,
                flood_security: cluster.security_of("flood")?,
                forwarded: self.forwarded,
            };
            let result = if self.end_leader.is_some() {
                tokio::select! {
                    result = self.measure(&target, None) => result,
                    Err(error) = end_leaders(&mut cluster, self.end_leader) => Err(error),
                    _ = signals.next() => Err("the measurement was stopped by a signal".to_string()),
                }
            } else {
                tokio::select! {
                    result = self.measure(&target, Some(&mut cluster)) => result,
                    _ = signals.next() => Err("the measurement was stopped by a signal".to_string()),
                }
            };
            cluster.stop().await;
            result
        });
        result.map_or_else(
            |error| {
                print_error(error);
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        )
    }

    async fn measure(&self, target: &Target, mut cluster: Option<&mut Cluster>) -> Result<(), String> {
        let [clients, rate, p50, p99, max, gap] = ["clients", "pairs/s", "p50 ms", "p99 ms", "max ms", "gap ms"];
        let [memory, disk] = ["memory", "disk"];
        outln!("{:<8} {clients:>7} {rate:>9} {p50:>9} {p99:>9} {max:>9} {gap:>9} {memory:>9} {disk:>9}", "");
        for &clients in &self.clients {
            let alone = self.row("", target, clients, sleep(self.time), cluster.as_deref()).await?;
            if self.flood > 0 {
                self.measure_flood(target, clients, alone, cluster.as_deref()).await?;
            }
            if self.watchers > 0 {
                self.measure_watchers(target, clients, cluster.as_deref()).await?;
            }
            if self.locks > 0 {
                let (locks, lasts, seed) = (self.locks, self.locks_last, self.seed);
                let many_locks = many_locks::ManyLocks { bench: self, target, clients, locks, lasts, seed };
                many_locks.measure(cluster.as_deref_mut()).await?;
            }
        }
        Ok(())
    }

    /// Measures the clients during a flood, and compares their 99th percentile with that without it.
    async fn measure_flood(
        &self,
        target: &Target,
        clients: usize,
        alone: f64,
        cluster: Option<&Cluster>,
    ) -> Result<(), String> {
        let leader = leader(target).await?;
        let flood = Flood::start(leader, target.flood_security.clone(), self.flood);
        let rate = Rate::start(&flood);
        let flooded = self.row("flood", target, clients, sleep(self.time), cluster).await;
        let answered = rate.per_second(&flood);
        flood.stop()?;
        let (flooded, connections) = (flooded?, self.flood);
        if answered == 0.0 {
            return Err("the flood was not answered at all".to_owned());
        }
        outln!(
            "flood over {connections} connections, {answered:.0} of its requests/s answered: p99 {flooded:.2} ms, without it \
             {alone:.2} ms, ratio {:.2}",
            flooded / alone
        );
        Ok(())
    }

    /// Measures `clients` clients until `until` resolves, prints a row, and returns the 99th percentile
    /// of their latencies in milliseconds. The row includes the memory and disk space of the node that
    /// uses most, if this process has started the nodes.
    async fn row(
        &self,
        name: &str,
        target: &Target,
        clients: usize,
        until: impl Future<Output = ()>,
        cluster: Option<&Cluster>,
    ) -> Result<f64, String> {
        let (mut pairs, time) = closed_loop(target, clients, self.time / 10, until).await?;
        pairs.sort_unstable();
        let gap = pairs.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap_or_default();
        let mut latencies: Vec<Duration> = pairs.into_iter().map(|(_, latency)| latency).collect();
        latencies.sort_unstable();
        let at = |share: f64| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let rank = (latencies.len().saturating_sub(1) as f64 * share) as usize;
            latencies.get(rank).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
        };
        #[expect(clippy::cast_precision_loss)]
        let rate = latencies.len() as f64 / time.as_secs_f64();
        let gap = gap.as_secs_f64() * 1000.0;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(at);
        let most =
            |bytes: Vec<u64>| bytes.into_iter().max().map_or("-".to_string(), |bytes| format!("{} MB", bytes >> 20));
        let [memory, disk] =
            [cluster.map(Cluster::memory), cluster.map(Cluster::disk)].map(Option::unwrap_or_default).map(most);
        outln!("{name:<8} {clients:>7} {rate:>9.0} {p50:>9.2} {p99:>9.2} {max:>9.2} {gap:>9.2} {memory:>9} {disk:>9}");
        Ok(p99)
    }
}

/// Ends one leader after the other, until this future is dropped.
async fn end_leaders(cluster: &mut Cluster, how: Option<Ending>) -> Result<(), String> {
    let Some(how) = how else { return pending().await };
    loop {
        sleep(LEADS_FOR).await;
        cluster.end_leader(how == Ending::Kill, AWAY_FOR).await?;
    }
}

/// The leader's client address, as soon as a node knows a leader.
async fn leader(target: &Target) -> Result<String, String> {
    let deadline = Instant::now() + ELECTED_WITHIN;
    while Instant::now() < deadline {
        for endpoint in &target.endpoints {
            let status = target.security.status(endpoint, connect::NODE_TIMEOUT).await.ok();
            if let Some(address) = status.and_then(|status| status.leader).and_then(|leader| leader.client_addr) {
                return Ok(address);
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    Err(format!("no node knew a leader within {ELECTED_WITHIN:?}"))
}

/// Runs `clients` clients for the warm-up and then until `until` resolves. Returns the time of
/// completion and the latency of each acquire+release pair that began after the warm-up, and the
/// time from the end of the warm-up to the end of `until`.
async fn closed_loop(
    target: &Target,
    clients: usize,
    warm_up: Duration,
    until: impl Future<Output = ()>,
) -> Result<(Vec<(Instant, Duration)>, Duration), String> {
    let mut connected = Vec::new();
    let options = Options { security: target.security.clone(), forwarded: target.forwarded, ..Options::default() };
    let mut endpoints = target.endpoints.clone();
    if target.forwarded {
        let leader = leader(target).await?;
        endpoints.retain(|endpoint| *endpoint != leader);
    }
    for _ in 0..clients {
        let client = Client::connect(&endpoints, options.clone()).await;
        connected.push(client.map_err(|error| error.to_string())?);
    }
    // The first pair of each client also opens its session; the warm-up excludes it.
    let warm = Instant::now() + warm_up;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for (number, client) in connected.into_iter().enumerate() {
        let is_over = Arc::clone(&is_over);
        tasks.spawn(async move {
            let key = format!("bench/{number}");
            let options = LockOptions::default().owner("bench");
            let mut pairs = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let guard = client.lock(key.as_str(), options.clone()).await?;
                guard.release().await?;
                if begin >= warm {
                    pairs.push((Instant::now(), begin.elapsed()));
                }
            }
            client.close().await;
            Ok::<_, palisade_client::Error>(pairs)
        });
    }
    sleep(warm_up).await;
    until.await;
    let time = warm.elapsed();
    is_over.store(true, Ordering::Relaxed);
    let mut all = Vec::new();
    for result in tasks.join_all().await {
        all.extend(result.map_err(|error| error.to_string())?);
    }
    Ok((all, time))
}
