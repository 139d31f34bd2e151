//! `palisade bench`: acquire and release, as fast as they go.
//!
//! Closed-loop clients, each on its own connection and its own key, each taking and giving back its lock again and
//! again, against a cluster of real, durable nodes on this machine. `gap` is the longest time without a grant to anybody. The figures are this machine's; docs/performance.md
//! says what they are worth.

use std::future::pending;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use palisade_client::{Client, LockOptions, Options};
use tokio::time::sleep;

use super::connect::Endpoints;
use super::dev::Cluster;
use super::signals::StopSignals;
use super::{block_on, complain};

/// Measure acquire+release pairs on a cluster of this machine
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// How many clients, one run each
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,16,64,256")]
    clients: Vec<usize>,
    /// How long each run is measured
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// How many nodes to start
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// Where to start them; node i serves clients on PORT+i and other nodes on PORT+100+i
    #[arg(long, value_name = "PORT", default_value_t = 7800, value_parser = clap::value_parser!(u16).range(1..=65_000))]
    port: u16,
    /// Meanwhile the leader is ended every three seconds, and started again a second later
    #[arg(long, value_name = "HOW", conflicts_with = "running")]
    end_leader: Option<Ending>,
    /// Measure the cluster of --endpoints instead of starting one
    #[arg(long)]
    running: bool,
    #[command(flatten)]
    endpoints: Endpoints,
}

/// How a leader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Ending {
    /// It is asked to stop, and hands over first.
    Stop,
    /// It is killed (SIGKILL).
    Kill,
}

/// How long a leader is left alone, and how long the place of one that was ended stays empty.
const LEADS_FOR: Duration = Duration::from_secs(3);
const AWAY_FOR: Duration = Duration::from_secs(1);

impl Bench {
    pub(super) fn run(self) -> ExitCode {
        // The clients share one thread: the nodes need the machine.
        let result = block_on(async {
            if self.running {
                return self.measure(&self.endpoints.parse().map_err(|error| error.to_string())?).await;
            }
            let mut signals = StopSignals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
            let mut cluster = Cluster::start(self.nodes, self.port, None).await?;
            let endpoints = cluster.endpoints();
            let result = tokio::select! {
                result = self.measure(&endpoints) => result,
                Err(error) = end_leaders(&mut cluster, self.end_leader) => Err(error),
                _ = signals.next() => Err("stopped".to_string()),
            };
            cluster.stop().await;
            result
        });
        result.map_or_else(
            |error| {
                complain(error);
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        )
    }

    async fn measure(&self, endpoints: &[String]) -> Result<(), String> {
        say!("{:>7} {:>9} {:>9} {:>9} {:>9} {:>9}", "clients", "pairs/s", "p50 ms", "p99 ms", "max ms", "gap ms");
        for &clients in &self.clients {
            let mut pairs = closed_loop(endpoints, clients, self.time).await?;
            pairs.sort_unstable();
            let gap = pairs.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap_or_default();
            let mut latencies: Vec<Duration> = pairs.into_iter().map(|(_, latency)| latency).collect();
            latencies.sort_unstable();
            let at = |share: f64| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
                let place = (latencies.len().saturating_sub(1) as f64 * share) as usize;
                latencies.get(place).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
            };
            #[expect(clippy::cast_precision_loss)]
            let rate = latencies.len() as f64 / self.time.as_secs_f64();
            let gap = gap.as_secs_f64() * 1000.0;
            say!("{clients:>7} {rate:>9.0} {:>9.2} {:>9.2} {:>9.2} {gap:>9.2}", at(0.5), at(0.99), at(1.0));
        }
        Ok(())
    }
}

/// Ends one leader after the other, for as long as it is let.
async fn end_leaders(cluster: &mut Cluster, how: Option<Ending>) -> Result<(), String> {
    let Some(how) = how else { return pending().await };
    loop {
        sleep(LEADS_FOR).await;
        cluster.end_leader(how == Ending::Kill, AWAY_FOR).await?;
    }
}

/// Lets `clients` clients run for `time`, and returns when each acquire+release pair was done, and how long it took.
async fn closed_loop(endpoints: &[String], clients: usize, time: Duration) -> Result<Vec<(Instant, Duration)>, String> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(Client::connect(endpoints, Options::default()).await.map_err(|error| error.to_string())?);
    }
    // The first pair of each opens its session; it is not measured.
    let warm = Instant::now() + time / 10;
    let end = warm + time;
    let mut tasks = tokio::task::JoinSet::new();
    for (number, client) in connected.into_iter().enumerate() {
        tasks.spawn(async move {
            let key = format!("bench/{number}");
            let options = LockOptions::default().owner("bench");
            let mut pairs = Vec::new();
            while Instant::now() < end {
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
    let mut all = Vec::new();
    for result in tasks.join_all().await {
        all.extend(result.map_err(|error| error.to_string())?);
    }
    Ok(all)
}
