//! `palisade status`, `locks` and `show`: what is there, for people and for machines.

use std::process::ExitCode;

use clap::Args;
use palisade_client::wire::{Consistency, DiskView, ListLocks, LockView, StatusView};
use palisade_client::{Client, Error, Options};
use serde::Serialize;

use super::connect::{self, Endpoints};
use super::{block_on, complain};

/// Show every node's own view of the cluster
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    endpoints: Endpoints,
    /// For machines: a list of what every endpoint answered
    #[arg(long)]
    json: bool,
}

/// List the held locks
#[derive(Debug, Args)]
pub(super) struct Locks {
    /// Only keys that begin so
    #[arg(long, value_name = "PREFIX", default_value = "")]
    prefix: String,
    #[command(flatten)]
    endpoints: Endpoints,
    /// For machines: one lock a line
    #[arg(long)]
    json: bool,
}

/// Show one lock: its holder and who waits for it
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The lock's key
    key: String,
    #[command(flatten)]
    endpoints: Endpoints,
    /// For machines
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Asked {
    endpoint: String,
    status: Option<StatusView>,
    error: Option<String>,
}

impl Status {
    pub(super) fn run(self) -> ExitCode {
        let endpoints = match self.endpoints.parse() {
            Ok(endpoints) => endpoints,
            Err(error) => return fail(&error),
        };
        let asked = block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for (place, endpoint) in endpoints.into_iter().enumerate() {
                tasks.spawn(async move {
                    let answer = palisade_client::status(&endpoint, connect::NODE_TIMEOUT).await;
                    let error = answer.as_ref().err().map(|error| match error {
                        // Nobody looked for a leader here.
                        Error::Unreachable { trouble, .. } => trouble.clone(),
                        other => other.to_string(),
                    });
                    (place, Asked { endpoint, status: answer.ok(), error })
                });
            }
            let mut asked = tasks.join_all().await;
            asked.sort_by_key(|(place, _)| *place);
            asked.into_iter().map(|(_, asked)| asked).collect::<Vec<_>>()
        });
        if self.json {
            print_json(&asked);
        } else {
            say!(
                "{:<22} {:>4}  {:<13} {:>6} {:>10} {:>9} {:>9}",
                "ENDPOINT",
                "NODE",
                "ROLE",
                "TERM",
                "COMMIT",
                "SESSIONS",
                "LOCKS"
            );
            for Asked { endpoint, status, error } in &asked {
                match status {
                    Some(s) => say!(
                        "{:<22} {:>4}  {:<13} {:>6} {:>10} {:>9} {:>9}",
                        endpoint,
                        s.node,
                        s.role,
                        s.term,
                        s.commit,
                        s.sessions,
                        s.locks
                    ),
                    None => say!("{endpoint:<22}    -  unreachable: {}", error.as_deref().unwrap_or("no answer")),
                }
            }
            for Asked { endpoint, status, .. } in &asked {
                status.iter().filter(|status| status.disk.low).for_each(|status| say_low(endpoint, &status.disk));
            }
        }
        if asked.iter().all(|asked| asked.status.is_none()) {
            return ExitCode::from(69);
        }
        ExitCode::SUCCESS
    }
}

/// One line below the table for each node whose disk is nearly full.
fn say_low(endpoint: &str, disk: &DiskView) {
    let free = disk.free_bytes.map_or_else(|| "an unknown number of".into(), |free| free.to_string());
    let mark = disk.low_water_bytes;
    let obstacle = disk.obstacle.as_ref().map(|obstacle| format!("; {obstacle}")).unwrap_or_default();
    say!(
        "{endpoint}: disk nearly full: {free} bytes are free, {mark} are needed; as a leader the node takes no new acquires{obstacle}"
    );
}

impl Locks {
    pub(super) fn run(self) -> ExitCode {
        let result = block_on(async {
            let client = Client::connect(&self.endpoints.parse()?, Options::default()).await?;
            let mut after = None;
            let mut first = true;
            loop {
                let query = ListLocks { prefix: self.prefix.clone(), limit: Some(1000), after, ..ListLocks::default() };
                let page = client.list_locks(query).await?;
                for lock in &page.locks {
                    if self.json {
                        print_json(lock);
                        continue;
                    }
                    if std::mem::take(&mut first) {
                        say!("{:<32} {:>10} {:>9} {:>7}  HOLDER", "KEY", "TOKEN", "EXPIRES", "WAITING");
                    }
                    print_line(lock);
                }
                after = page.next_after;
                if after.is_none() {
                    break;
                }
            }
            if first && !self.json {
                say!("no lock is held");
            }
            Ok(())
        });
        result.map_or_else(|error| fail(&error), |()| ExitCode::SUCCESS)
    }
}

impl Show {
    pub(super) fn run(self) -> ExitCode {
        let result = block_on(async {
            let client = Client::connect(&self.endpoints.parse()?, Options::default()).await?;
            client.show_lock(self.key.as_str(), Consistency::Linearizable).await
        });
        let lock = match result {
            Ok(lock) => lock,
            Err(error) => return fail(&error),
        };
        if self.json {
            print_json(&lock);
            return ExitCode::SUCCESS;
        }
        match &lock.holder {
            None => say!("{} is free", lock.key),
            Some(holder) => {
                say!("{} is held by {}", lock.key, name(&holder.owner));
                say!("  token    {}", holder.token);
                say!("  session  {}", holder.session);
                say!("  expires  in {}, unless it is renewed", milliseconds(holder.expires_in_ms));
                say!("  waiting  {}", lock.queue.len());
                for (place, waiter) in lock.queue.iter().enumerate() {
                    say!("    {:>3}. {}  {}", place + 1, name(&waiter.owner), waiter.session);
                }
            }
        }
        ExitCode::SUCCESS
    }
}

fn print_line(lock: &LockView) {
    let Some(holder) = &lock.holder else { return };
    let (expires, waiting) = (milliseconds(holder.expires_in_ms), lock.queue.len());
    say!("{:<32} {:>10} {expires:>9} {waiting:>7}  {}", lock.key, holder.token, name(&holder.owner));
}

pub(super) fn print_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => say!("{text}"),
        Err(error) => complain(error),
    }
}

fn name(owner: &str) -> &str {
    if owner.is_empty() { "(no name)" } else { owner }
}

fn milliseconds(ms: u64) -> String {
    if ms < 10_000 { format!("{ms}ms") } else { format!("{}s", ms / 1000) }
}

fn fail(error: &Error) -> ExitCode {
    complain(error);
    ExitCode::from(connect::exit_code(error))
}
