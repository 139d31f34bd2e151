//! `palisade-lab gen`: very many short-lived locks, from a seed.
//!
//! | module | contents |
//! |---|---|
//! | [`fill`] | the keys, and the locks on them |
//! | [`taken`] | what is counted meanwhile, and the history of a sample |
//! | `run` | the workers and the rate |
//! | `backends` | how many locks at once are acquired on each backend |

pub(crate) mod backends;
pub mod fill;
mod run;
pub mod taken;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::fill::{Fill, Lasts};
use self::taken::Taken;
use crate::dlock::Backend;

/// Fill a lock service with very many short-lived locks, whose keys come from a seed
#[derive(Debug, clap::Args)]
pub struct Command {
    /// The lock service
    #[arg(long, value_enum)]
    backend: Backend,
    /// Its servers
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', required = true)]
    endpoints: Vec<String>,
    /// Number of keys
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// What the keys' names begin with
    #[arg(long, default_value = "gen")]
    prefix: String,
    /// How long each lock lasts
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// Locks a second at most; by default, as fast as it goes
    #[arg(long, value_parser = crate::contend::rate)]
    rate: Option<f64>,
    /// Palisade, etcd: locks that one session or lease holds
    #[arg(long, value_name = "LOCKS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    share: u64,
    /// Seed of the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Serve the metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
}

impl Command {
    /// Fills the backend. The exit code is 1 if it ended before all keys were locked.
    ///
    /// # Errors
    /// The servers cannot be reached.
    pub async fn run(self) -> Result<ExitCode, String> {
        let metrics = crate::metrics::serve(self.metrics.as_deref()).await?;
        let fill = Fill {
            backend: self.backend,
            endpoints: self.endpoints,
            keys: self.keys,
            prefix: self.prefix,
            seed: self.seed,
            step: 1,
            lasts: Lasts::For(self.ttl),
            share: self.share,
            rate: self.rate,
            until: None,
        };
        let taken = Taken::new(&metrics, None);
        let progress = tokio::spawn(progress(taken.clone(), self.keys));
        let filled = fill.run(&taken).await;
        progress.abort();
        let filled = filled?;
        let seconds = filled.took.as_secs_f64();
        let rate = filled.keys as f64 / seconds.max(0.001);
        println!("{}: {} of {} locks in {seconds:.1} s, {rate:.0} a second", self.backend, filled.keys, self.keys);
        match filled.ended {
            Some(reason) => println!("{}: it ended: {reason}", self.backend),
            None if filled.keys < self.keys => println!("{}: the other keys were held already", self.backend),
            None => return Ok(ExitCode::SUCCESS),
        }
        Ok(ExitCode::FAILURE)
    }
}

/// Says every second how many locks were acquired.
async fn progress(taken: Arc<Taken>, keys: u64) {
    let begin = Instant::now();
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = taken.count();
        let seconds = begin.elapsed().as_secs();
        let percent = 100.0 * now as f64 / keys as f64;
        eprintln!("gen: {now} of {keys} locks ({percent:.1} %), {} in the last second, {seconds} s", now - before);
        before = now;
    }
}
