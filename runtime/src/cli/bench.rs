//! `palisade bench`: acquire and release, as fast as they go.
//!
//! Closed-loop clients, each on its own connection and its own key, each taking and giving back its lock again and
//! again, against a cluster of real, durable nodes on this machine. The figures are this machine's; docs/performance.md
//! says what they are worth.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use palisade_client::{Client, LockOptions, Options};

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
    /// Measure the cluster of --endpoints instead of starting one
    #[arg(long)]
    running: bool,
    #[command(flatten)]
    endpoints: Endpoints,
}

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
        say!("{:>7} {:>9} {:>9} {:>9} {:>9}", "clients", "pairs/s", "p50 ms", "p99 ms", "max ms");
        for &clients in &self.clients {
            let mut latencies = closed_loop(endpoints, clients, self.time).await?;
            latencies.sort_unstable();
            let at = |share: f64| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
                let place = (latencies.len().saturating_sub(1) as f64 * share) as usize;
                latencies.get(place).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
            };
            #[expect(clippy::cast_precision_loss)]
            let rate = latencies.len() as f64 / self.time.as_secs_f64();
            say!("{clients:>7} {rate:>9.0} {:>9.2} {:>9.2} {:>9.2}", at(0.5), at(0.99), at(1.0));
        }
        Ok(())
    }
}

/// Lets `clients` clients run for `time`, and returns how long each acquire+release pair took.
async fn closed_loop(endpoints: &[String], clients: usize, time: Duration) -> Result<Vec<Duration>, String> {
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
            let mut latencies = Vec::new();
            while Instant::now() < end {
                let begin = Instant::now();
                let guard = client.lock(key.as_str(), options.clone()).await?;
                guard.release().await?;
                if begin >= warm {
                    latencies.push(begin.elapsed());
                }
            }
            client.close().await;
            Ok::<_, palisade_client::Error>(latencies)
        });
    }
    let mut all = Vec::new();
    for result in tasks.join_all().await {
        all.extend(result.map_err(|error| error.to_string())?);
    }
    Ok(all)
}
