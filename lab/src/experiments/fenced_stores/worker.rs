//! `palisade-lab store-worker`: a worker that writes to a store instead of the lab's resource.
//!
//! It does one job as `palisade-lab worker` does: acquire, read, pause, write with the token, release.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use palisade_history::Client;

use crate::dlock::{self, Backend, Request};
use crate::event::Printer;
use crate::history;
use crate::resource::log::Op;
use crate::resource::rule::Fence;
use crate::stores::objects::Objects;
use crate::stores::postgres::Postgres;
use crate::stores::{Kind, Store};
use crate::worker::job::{Plan, Records, Worker};
use crate::worker::pause::How;
use crate::worker::target::Target;

const WAIT: Duration = Duration::from_secs(60);

/// A worker that takes a lock, may be paused, and writes to a store that checks the token
#[derive(Debug, clap::Args)]
pub struct Command {
    /// The lock service
    #[arg(long, value_enum)]
    backend: Backend,
    /// Its servers
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',', required = true)]
    endpoints: Vec<String>,
    /// The owner's name, unique to the worker
    #[arg(long)]
    owner: String,
    /// The store
    #[arg(long, value_enum)]
    store: Kind,
    /// The store's server
    #[arg(long, value_name = "HOST:PORT")]
    store_address: String,
    /// The key, of the lock and of the row or object
    #[arg(long)]
    key: String,
    /// Whether the write has the condition on the token
    #[arg(long, value_enum)]
    fence: Fence,
    /// How long the lock lasts
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// A pause between the read and the write
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pause: Option<Duration>,
    /// How the pause is made
    #[arg(long, value_enum, default_value = "sleep")]
    pause_how: How,
    /// Record the operations in a new file
    #[arg(long, value_name = "FILE")]
    history: PathBuf,
}

impl Command {
    /// Does the job.
    ///
    /// # Errors
    /// A server could not be reached, or has answered with an error.
    pub async fn run(self) -> Result<ExitCode, String> {
        let store: Arc<dyn Store> = match self.store {
            Kind::Postgres => Arc::new(Postgres::connect(&self.store_address).await?),
            Kind::Objects => Arc::new(Objects::new(&self.store_address)?),
        };
        let recorder = history::record_to(&self.history)?;
        let client = Client::from(self.owner.as_str());
        let locks = dlock::connect(self.backend, &self.endpoints, &dlock::Options::default());
        let worker = Worker {
            locks: locks.map_err(|error| error.to_string())?,
            target: Some(Target::Store(store, self.fence)),
            printer: Printer::new(),
            metrics: Arc::default(),
            recorder: Records { recorder: recorder.clone(), client },
        };
        let plan = Plan {
            key: self.key,
            request: Request { owner: self.owner, ttl: self.ttl, wait: WAIT },
            work: Duration::ZERO,
            pause: self.pause.map(|length| (self.pause_how, length)),
            pause_after_check: false,
            renew: None,
            write_when_lost: false,
            fenced_read: false,
            op: Op::Put,
        };
        worker.job(1, &plan).await?;
        recorder.finish().map_err(|error| format!("cannot write the history: {error}"))?;
        Ok(ExitCode::SUCCESS)
    }
}
