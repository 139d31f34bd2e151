//! `palisade-lab worker`: a process that takes a lock, may be paused, and writes to the resource.
//!
//! | module | contents |
//! |---|---|
//! | [`job`] | acquire, read, work, pause, write, release |
//! | [`pause`] | sleeping, and being stopped |
//! | [`renewal`] | renewing in the background |
//! | [`target`] | what a worker writes to |

pub mod job;
pub mod pause;
pub mod renewal;
pub mod target;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use palisade_history::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use self::job::{Plan, Records, Worker};
use self::pause::How;
pub use self::pause::StopParent;
use self::target::Target;
use crate::dlock::{self, Backend, Request};
use crate::event::Printer;
use crate::history;
use crate::resource::client::Client as Resource;
use crate::resource::log::Op;

/// A worker that takes a lock, may be paused, writes to the resource with its token, and releases
#[derive(Debug, clap::Args)]
pub struct Command {
    /// The lock service
    #[arg(long, value_enum)]
    backend: Backend,
    /// Its servers
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', required = true)]
    endpoints: Vec<String>,
    #[command(flatten)]
    options: dlock::Options,
    /// The resource. Without it, the worker only holds the lock
    #[arg(long, value_name = "http://HOST:PORT")]
    resource: Option<String>,
    /// The key, of the lock and of the resource
    #[arg(long, default_value = "key")]
    key: String,
    /// Number of keys: with more than one, each job takes one of KEY-0, KEY-1, … at random
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// The owner's name, unique to the worker [default: worker-PID]
    #[arg(long)]
    owner: Option<String>,
    /// How long the lock lasts without a renewal
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// How long to wait for the lock
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// How long to work between the read and the write
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    work: Duration,
    /// Up to so much more work, at random for each job
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    work_jitter: Duration,
    /// A pause between the work and the write
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pause: Option<Duration>,
    /// How the pause is made
    #[arg(long, value_enum, default_value = "sleep")]
    pause_how: How,
    /// Pause after the look whether the lock is lost, instead of before it
    #[arg(long)]
    pause_after_check: bool,
    /// Renew the lock in the background, once in this time
    #[arg(long, value_name = "TIME", value_parser = period)]
    renew: Option<Duration>,
    /// Write although a renewal has found that the lock is lost
    #[arg(long)]
    write_when_lost: bool,
    /// Append nothing with the token before the read: from then on the resource refuses lower tokens. The
    /// resource needs --same-token allow
    #[arg(long)]
    fenced_read: bool,
    /// Append a line to the value, instead of reading the value and putting it back with the line
    #[arg(long)]
    append: bool,
    /// Number of jobs, one after the other
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Jobs a second at most [default: each begins when the last one has ended]
    #[arg(long, value_parser = crate::contend::rate)]
    rate: Option<f64>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Serve the metrics at this address
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Record the operations in a new file, in the format of docs/conformance/histories.md
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// The period of renewals of the command line.
fn period(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => {
            Err("a lock that is renewed all the time is not used; leave out --renew, or give a time".to_owned())
        }
        Ok(period) => Ok(period),
        Err(error) => Err(error.to_string()),
    }
}

impl Command {
    /// Does the jobs. The exit code is 1 if a server could not be reached or answered with an error.
    ///
    /// # Errors
    /// A flag does not fit, or an address or file is not usable.
    pub async fn run(self) -> Result<ExitCode, String> {
        let owner = self.owner.clone().unwrap_or_else(|| format!("worker-{}", std::process::id()));
        let metrics = crate::metrics::serve(self.metrics.as_deref()).await?;
        let resource = self.resource.as_deref().map(|url| Resource::new(url, &owner)).transpose()?;
        let recorder = self.history.as_deref().map_or_else(|| Ok(history::discard()), history::record_to)?;
        let locks = dlock::connect(self.backend, &self.endpoints, &self.options).map_err(|error| error.to_string())?;
        let client = Client::from(owner.as_str());
        let worker = Worker {
            locks,
            target: resource.map(Box::new).map(Target::Resource),
            printer: Printer::new(),
            metrics,
            recorder: Records { recorder: recorder.clone(), client },
        };
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut code = ExitCode::SUCCESS;
        let begun = Instant::now();
        for job in 1..=self.jobs {
            if let Some(rate) = self.rate {
                tokio::time::sleep_until((begun + Duration::from_secs_f64((job - 1) as f64 / rate)).into()).await;
            }
            let plan = self.plan(&owner, &mut rng);
            if worker.job(job, &plan).await.is_err() {
                code = ExitCode::FAILURE;
            }
        }
        recorder.finish().map_err(|error| format!("cannot write the history: {error}"))?;
        Ok(code)
    }

    fn plan(&self, owner: &str, rng: &mut StdRng) -> Plan {
        Plan {
            key: match self.keys {
                1 => self.key.clone(),
                keys => format!("{}-{}", self.key, rng.random_range(0..keys)),
            },
            request: Request { owner: owner.to_owned(), ttl: self.ttl, wait: self.wait },
            work: self.work + self.work_jitter.mul_f64(rng.random()),
            pause: self.pause.map(|length| (self.pause_how, length)),
            pause_after_check: self.pause_after_check,
            renew: self.renew,
            write_when_lost: self.write_when_lost,
            fenced_read: self.fenced_read,
            op: if self.append { Op::Append } else { Op::Put },
        }
    }
}
