//! `palisade status`, `locks` and `show`: print the state of the nodes and of the locks, as text or
//! as JSON.

use std::process::ExitCode;

use clap::Args;
use palisade_client::escaped_json;
use palisade_client::wire::{Consistency, DiskView, ListLocks, LockView, Mode};
use serde::Serialize;

use super::connect::{self, Endpoints};
use super::nodes::{NodeAnswer, ask_cluster};
use super::table::{Cell, Side, Table, Tone};
use super::{block_on, print_error, print_line};

/// Show the status of every node of the cluster: those of --endpoints, and all members that these
/// know
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print JSON: a list with the answer of every node, or the reason why there is none
    #[arg(long)]
    json: bool,
    /// Ask only the nodes of --endpoints, print nothing, and exit with 0 if each of them knows a leader: for the
    /// health checks of containers. Otherwise report the node, and exit with 69 if it does not answer, or with 75
    /// if it knows no leader at the moment
    #[arg(long, conflicts_with = "json")]
    ready: bool,
}

/// List the held locks
#[derive(Debug, Args)]
pub(super) struct Locks {
    /// List only keys that begin with this prefix
    #[arg(long, value_name = "PREFIX", default_value = "")]
    prefix: String,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print JSON: one lock a line
    #[arg(long)]
    json: bool,
}

/// Show one lock: its holders and its waiters
#[derive(Debug, Args)]
pub(super) struct Show {
    /// The lock's key
    key: String,
    #[command(flatten)]
    endpoints: Endpoints,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(self) -> ExitCode {
        let endpoints = match self.endpoints.parse() {
            Ok(endpoints) => endpoints,
            Err(error) => return connect::fail(&error),
        };
        if self.ready {
            return super::health::report_unready(&block_on(super::nodes::ask(endpoints, &self.endpoints.security())));
        }
        let answers = block_on(ask_cluster(endpoints, &self.endpoints.security()));
        if self.json {
            print_json(&answers);
        } else {
            print_table(&answers);
            super::health::print_different_versions(&answers);
        }
        if answers.iter().all(|answer| answer.status.is_none()) {
            return ExitCode::from(69);
        }
        ExitCode::SUCCESS
    }
}

fn print_table(answers: &[NodeAnswer]) {
    let mut table = Table::new(&[
        ("ENDPOINT", Side::Left),
        ("NODE", Side::Right),
        ("ROLE", Side::Left),
        ("TERM", Side::Right),
        ("COMMIT", Side::Right),
        ("SESSIONS", Side::Right),
        ("LOCKS", Side::Right),
        ("VERSION", Side::Left),
    ]);
    for NodeAnswer { endpoint, node, status, error } in answers {
        let endpoint = endpoint.as_deref().unwrap_or("-");
        let node = node.map_or_else(|| "-".into(), |node| node.to_string());
        let named = [endpoint.into(), node.into()];
        match status {
            Some(s) => {
                let role = Cell::new(&s.role, role_tone(&s.role));
                let numbers = [s.term, s.commit, s.sessions, s.locks].map(Cell::from);
                let version = Cell::from(&s.version);
                table.row(named.into_iter().chain([role]).chain(numbers).chain([version]));
            }
            None => {
                let error = error.as_deref().unwrap_or("no answer");
                table.row(named.into_iter().chain([Cell::new(format!("unreachable: {error}"), Tone::Bad)]));
            }
        }
    }
    table.print();
    for NodeAnswer { endpoint, status, .. } in answers {
        let (Some(endpoint), Some(status)) = (endpoint, status) else { continue };
        if status.role == "founding" {
            outln!("{endpoint}: {}", waits_for(&status.waiting_for));
        }
        if status.disk.low {
            print_low_disk(endpoint, &status.disk);
        }
    }
}

/// How a node's role is shown.
pub(super) fn role_tone(role: &str) -> Tone {
    match role {
        "leader" => Tone::Good,
        "follower" | "learner" => Tone::Plain,
        _ => Tone::Warn,
    }
}

/// What a founder that takes no part waits for.
fn waits_for(founders: &[u16]) -> String {
    let nodes = founders.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    format!(
        "this founder takes no part until all founders have met; it has not met: {nodes}. Start them, and look at their logs"
    )
}

/// Prints a line below the table for a node whose disk is nearly full.
fn print_low_disk(endpoint: &str, disk: &DiskView) {
    let free = disk.free_bytes.map_or_else(|| "an unknown number of".into(), |free| free.to_string());
    let mark = disk.low_water_bytes;
    let obstacle = disk.obstacle.as_ref().map(|obstacle| format!("; {obstacle}")).unwrap_or_default();
    outln!(
        "{endpoint}: disk nearly full: {free} bytes are free, {mark} bytes are needed; as the leader the node refuses new sessions and acquires{obstacle}"
    );
}

impl Locks {
    pub(super) fn run(self) -> ExitCode {
        let result = block_on(async {
            let client = self.endpoints.connect().await?;
            let mut after = None;
            let mut is_empty = true;
            let mut table = lock_table();
            loop {
                let query = ListLocks { prefix: self.prefix.clone(), limit: Some(1000), after, ..ListLocks::default() };
                let page = client.list_locks(query).await?;
                is_empty &= page.locks.is_empty();
                for lock in &page.locks {
                    if self.json {
                        print_json(lock);
                    } else {
                        add_lock(&mut table, lock);
                    }
                }
                if !self.json && !page.locks.is_empty() {
                    table.print();
                }
                after = page.next_after;
                if after.is_none() {
                    break;
                }
            }
            if is_empty && !self.json {
                outln!("no lock is held");
            }
            Ok(())
        });
        result.map_or_else(|error| connect::fail(&error), |()| ExitCode::SUCCESS)
    }
}

impl Show {
    pub(super) fn run(self) -> ExitCode {
        let result = block_on(async {
            let client = self.endpoints.connect().await?;
            client.show_lock(self.key.as_str(), Consistency::Linearizable).await
        });
        let lock = match result {
            Ok(lock) => lock,
            Err(error) => return connect::fail(&error),
        };
        if self.json {
            print_json(&lock);
            return ExitCode::SUCCESS;
        }
        if lock.holders.is_empty() && lock.queue.is_empty() {
            outln!("{} is free", lock.key);
            return ExitCode::SUCCESS;
        }
        if lock.holders.is_empty() {
            outln!("{} has no holder: its first waiter waits for another of its keys", lock.key);
        }
        for holder in &lock.holders {
            outln!(
                "{} is held by {}{}",
                lock.key,
                name(&holder.owner),
                claim(holder.mode, holder.permits.zip(holder.of), &holder.keys)
            );
            outln!("  token    {}", holder.token);
            outln!("  session  {}", holder.session);
            outln!("  expires  in {}, unless its session is renewed", milliseconds(holder.expires_in_ms));
            if let Some(value) = &holder.value {
                outln!("  value    {value}");
            }
            if holder.holds > 1 {
                outln!("  holds    {}", holder.holds);
            }
        }
        outln!("  waiting  {}", lock.queue.len());
        for (position, waiter) in (1..).zip(&lock.queue) {
            let claim = claim(waiter.mode, waiter.permits.zip(waiter.of), &waiter.keys);
            outln!("    {position:>3}. {}  {}{claim}", name(&waiter.owner), waiter.session);
        }
        ExitCode::SUCCESS
    }
}

/// What is particular about a claim: nothing, if it is exclusive and on one key.
pub(super) fn claim(mode: Mode, permits: Option<(u32, u32)>, keys: &[String]) -> String {
    let mode = match (mode, permits) {
        (_, Some((permits, of))) => format!(", {permits} of {of} permits"),
        (Mode::Shared, None) => ", shared".to_owned(),
        (Mode::Exclusive | Mode::Semaphore, None) => String::new(),
    };
    let keys = if keys.is_empty() { String::new() } else { format!(", together with all of {}", keys.join(", ")) };
    mode + &keys
}

fn lock_table() -> Table {
    Table::new(&[
        ("KEY", Side::Left),
        ("TOKEN", Side::Right),
        ("EXPIRES", Side::Right),
        ("WAITING", Side::Right),
        ("HOLDER", Side::Left),
    ])
}

/// Adds a row for each holder. A lock that is only waited for has a row, too.
fn add_lock(table: &mut Table, lock: &LockView) {
    let waiting = || Cell::new(lock.queue.len(), if lock.queue.is_empty() { Tone::Plain } else { Tone::Warn });
    let key = || Cell::from(&lock.key);
    for holder in &lock.holders {
        let expires = match holder.expires_in_ms {
            0 => Cell::new(milliseconds(0), Tone::Bad),
            ms => milliseconds(ms).into(),
        };
        let owner =
            format!("{}{}", name(&holder.owner), claim(holder.mode, holder.permits.zip(holder.of), &holder.keys));
        table.row([key(), holder.token.into(), expires, waiting(), owner.into()]);
    }
    if lock.holders.is_empty() {
        table.row([key(), "-".into(), "-".into(), waiting(), "-".into()]);
    }
}

/// The holders of a lock, as the rest of a sentence.
pub(super) fn held_by(lock: &LockView) -> String {
    match &lock.holders[..] {
        [] if lock.queue.is_empty() => "the lock is free".to_owned(),
        [] => "no session holds the lock".to_owned(),
        [holder] => format!("the lock is held by {:?} with token {}", holder.owner, holder.token),
        [first, others @ ..] => {
            let (owner, token, others) = (&first.owner, first.token, others.len());
            format!("the lock is held by {owner:?} with token {token}, and by {others} others")
        }
    }
}

pub(super) fn print_json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => print_line(&escaped_json(&text)),
        Err(error) => print_error(error),
    }
}

pub(super) fn name(owner: &str) -> &str {
    if owner.is_empty() { "(no name)" } else { owner }
}

fn milliseconds(ms: u64) -> String {
    if ms < 10_000 { format!("{ms}ms") } else { format!("{}s", ms / 1000) }
}
