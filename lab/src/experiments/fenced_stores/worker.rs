//! `palisade-lab store-worker`: a worker that writes to a store instead of the lab's resource.
//!
//! It does one job: acquire, read, pause, write with the token, release. It prints the lines of
//! [`worker::event`](crate::worker::event) and records its operations as `palisade-lab worker` does.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_history::{Answer as Ended, Call, Client, Key, Recorder, Refusal, Session};

use crate::dlock::{self, Backend, Handle, Released, Request};
use crate::history;
use crate::resource::rule::Fence;
use crate::stores::objects::Objects;
use crate::stores::postgres::Postgres;
use crate::stores::{Answer, Kind, Store};
use crate::worker::event::{Event, Printer, micros, millis};
use crate::worker::job::line;
use crate::worker::pause::{How, pause};

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

/// What a job uses.
struct Job {
    command: Command,
    store: Arc<dyn Store>,
    printer: Printer,
    recorder: Recorder,
    client: Client,
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
        let job = Job { command: self, store, printer: Printer::new(), recorder, client };
        job.run().await.inspect_err(|error| job.print(Event::Failed { error: error.clone() }))?;
        job.recorder.finish().map_err(|error| format!("cannot write the history: {error}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Job {
    async fn run(&self) -> Result<(), String> {
        let handle = self.acquire().await?;
        let written = self.use_lock(handle.fence()).await;
        let released = self.release(handle).await;
        written.and(released)
    }

    async fn acquire(&self) -> Result<Handle, String> {
        let Command { backend, endpoints, key, ttl, owner, .. } = &self.command;
        let options = dlock::Options::default();
        let locks = dlock::connect(*backend, endpoints, &options).map_err(|error| error.to_string())?;
        let request = Request { owner: owner.clone(), ttl: *ttl, wait: WAIT };
        self.print(Event::Acquiring);
        let (wait_ms, ttl_ms) = (millis(WAIT), Some(millis(*ttl)));
        let pending = self.invoke(Call::acquire_one(self.key(), wait_ms, ttl_ms));
        let begun = Instant::now();
        match locks.acquire(key, &request).await {
            Ok(handle) => {
                let (token, ttl_ms) = (handle.fence(), millis(handle.ttl()));
                pending.ok(Ended::Granted { session: self.session(), token });
                self.print(Event::Acquired { token, waited_us: micros(begun.elapsed()), ttl_ms });
                Ok(handle)
            }
            Err(error) => {
                pending.info(error.to_string());
                Err(error.to_string())
            }
        }
    }

    async fn use_lock(&self, token: u64) -> Result<(), String> {
        let Command { key, owner, fence, .. } = &self.command;
        let mut value = self.store.read(key).await?.map(|value| value.value).unwrap_or_default();
        value.push_str(&line(owner, 1, token));
        if let Some(length) = self.command.pause {
            self.print(Event::Paused { for_ms: millis(length) });
            let paused = pause(self.command.pause_how, length).await?;
            self.print(Event::Resumed { paused_us: micros(paused) });
        }
        let pending = self.invoke(Call::write(self.key(), token));
        match self.store.write(key, &value, token, *fence).await {
            Ok(Answer::Accepted { .. }) => {
                pending.ok(Ended::Accepted);
                // The write has replaced the stored token, whatever it was.
                self.print(Event::Written { token, max_fence: token });
                Ok(())
            }
            Ok(Answer::Stale { seen, .. }) => {
                pending.fail(Refusal::Refused);
                self.print(Event::Refused { token, seen });
                Ok(())
            }
            Err(error) => {
                pending.info(&error);
                Err(error)
            }
        }
    }

    async fn release(&self, handle: Handle) -> Result<(), String> {
        let token = handle.fence();
        let pending =
            self.invoke(Call::Release { keys: self.key().into(), session: self.session(), token, number: None });
        match handle.release().await {
            Ok(Released::Done) => {
                pending.ok(Ended::Released);
                self.print(Event::Released { token, renewals: 0 });
                Ok(())
            }
            Ok(Released::NotOwner) => {
                pending.fail(Refusal::NotHolder);
                self.print(Event::NotOwner { token });
                Ok(())
            }
            Err(error) => {
                pending.info(error.to_string());
                Err(error.to_string())
            }
        }
    }

    fn invoke(&self, call: Call) -> palisade_history::Pending {
        self.recorder.invoke(&self.client, call)
    }

    fn key(&self) -> Key {
        Key::from(self.command.key.as_str())
    }

    fn session(&self) -> Session {
        Session::from(format!("{}/1", self.command.owner).as_str())
    }

    fn print(&self, event: Event) {
        self.printer.print(1, event);
    }
}
