//! `palisade-lab worker`: a process that takes a lock, may be paused, and writes to the resource.
//!
//! | module | contents |
//! |---|---|
//! | [`event`] | the lines that a worker prints |
//! | [`job`] | acquire, read, work, pause, write, release |
//! | [`pause`] | sleeping, and being stopped |
//! | [`renewal`] | renewing in the background |
//! | [`target`] | what a worker writes to |

pub mod event;
pub mod job;
pub mod pause;
pub mod renewal;
pub mod target;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use palisade_history::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use self::event::Printer;
use self::job::{Plan, Records, Worker};
use self::pause::How;
pub use self::pause::StopParent;
use self::target::Target;
use crate::dlock::{self, Backend, Request};
use crate::history;
use crate::metrics::Metrics;
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
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
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

impl Command {
    /// Does the jobs. The exit code is 1 if a server could not be reached or answered with an error.
    ///
    /// # Errors
    /// A flag does not fit, or an address or file is not usable.
    pub async fn run(self) -> Result<ExitCode, String> {
        let owner = self.owner.clone().unwrap_or_else(|| format!("worker-{}", std::process::id()));
        let metrics = serve_metrics(self.metrics.as_deref()).await?;
        let resource = self.resource.as_deref().map(|url| Resource::new(url, &owner)).transpose()?;
        let recorder = self.history.as_deref().map_or_else(|| Ok(history::discard()), history::record_to)?;
        let locks = dlock::connect(self.backend, &self.endpoints, &self.options).map_err(|error| error.to_string())?;
        let client = Client::from(owner.as_str());
        let worker = Worker {
            locks,
            target: resource.map(Target::Resource),
            printer: Printer::new(),
            metrics,
            recorder: Records { recorder: recorder.clone(), client },
        };
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut code = ExitCode::SUCCESS;
        for job in 1..=self.jobs {
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
            key: self.key.clone(),
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

/// A program's metrics; `GET /metrics` is served in the background, if there is an address for it.
pub(crate) async fn serve_metrics(addr: Option<&str>) -> Result<Arc<Metrics>, String> {
    use axum::http::header::CONTENT_TYPE;
    let metrics = Arc::new(Metrics::default());
    let Some(addr) = addr else { return Ok(metrics) };
    let listener = tokio::net::TcpListener::bind(addr)
        .await
        .map_err(|error| format!("cannot serve the metrics at {addr}: {error}; name another address"))?;
    let served = metrics.clone();
    let text = move || {
        let metrics = served.clone();
        async move { ([(CONTENT_TYPE, crate::resource::api::CONTENT_TYPE)], metrics.text()) }
    };
    let router = axum::Router::new().route("/metrics", axum::routing::get(text));
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(metrics)
}
