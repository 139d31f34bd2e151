//! A client as a process of its own (`step-client`), which does one step at a time: the
//! experiment writes an order to its standard input, and it prints a report of what it did and what it believes now.
//! A client that is stopped by SIGSTOP does its next order when it is resumed.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinHandle;

use crate::dlock::{self, Backend, Handle, Locks, Request, redis_node, redlock};
use crate::history::monotonic;
use crate::resource::client::{Answer, Client as Resource, Token};
use crate::resource::log::Op;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// One step of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::experiments) enum Order {
    /// Take the time if this is the first request, wait, then send SET NX PX.
    Set {
        /// Index of the server.
        server: usize,
        /// The wait, in milliseconds.
        after_ms: u64,
    },
    /// Acquire the lock from the lock service.
    Acquire,
    /// Fetch a token, then look at the clock: is the lease valid?
    Look,
    /// Write to the resource, without a look at the clock.
    Write,
    /// Write with the greatest number there is as the token, which no client was granted.
    WriteGreatest,
    /// Release the lock that the lock service granted.
    Release,
    /// Read the key and compare its value with one's own.
    Get,
    /// Send the deletion, and do not wait for its answer.
    SendDelete {
        /// Whether it compares and deletes in one step, instead of DEL.
        compare: bool,
    },
    /// Wait for the answer to the deletion.
    AwaitDelete,
}

/// Where a client is in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::experiments) enum Stage {
    /// It has nothing.
    #[default]
    Idle,
    /// It collects keys, or has all that it needs.
    Asks,
    /// It has looked at its clock, and will write.
    AboutToWrite,
    /// Its write was accepted.
    Wrote,
    /// Its write was refused.
    Refused,
    /// Its write was refused because the resource trusts only signed tokens.
    Untrusted,
    /// It has sent the deletion.
    Deletes,
}

/// What a client did, and what it believes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::experiments) struct Report {
    /// What it sent, and what was answered.
    pub did: String,
    /// Where it is.
    pub stage: Stage,
    /// The number of servers that have set its key.
    pub keys: usize,
    /// The end of its lease on its clock, which is the machine's monotonic one, in microseconds.
    pub lease_until_us: Option<u64>,
    /// Its fencing token.
    pub token: Option<u64>,
    /// What the last order achieved: the key was set, the lease is valid, the write was accepted, the key was deleted.
    pub success: bool,
}

/// Do single steps of a client of a lock, for the experiments `prediction` and `redlock`
#[derive(Debug, clap::Args)]
pub struct StepClient {
    /// Its name
    #[arg(long)]
    name: String,
    /// The key
    #[arg(long)]
    key: String,
    /// Redis servers
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',')]
    servers: Vec<String>,
    /// How long the lock lasts
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// A lock service, instead of Redis servers
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    /// A Redis that counts fencing tokens
    #[arg(long, value_name = "HOST:PORT")]
    counter: Option<String>,
    /// The resource
    #[arg(long, value_name = "http://HOST:PORT")]
    resource: Option<String>,
}

impl StepClient {
    /// Does orders until its standard input ends.
    ///
    /// # Errors
    /// A line is no order, or a server fails.
    pub async fn run(self) -> Result<ExitCode, String> {
        let resource = self.resource.as_deref().map(|url| Resource::new(url, &self.name)).transpose()?;
        // Small beside the TTLs of the experiments, and long enough for a busy machine.
        let options = dlock::Options { instance_timeout: Duration::from_millis(200), ..dlock::Options::default() };
        let locks = self.backend.map(|backend| dlock::connect(backend, &self.servers, &options));
        let locks = locks.transpose().map_err(|error| error.to_string())?;
        let mut client = StepRunner {
            flags: self,
            resource,
            locks,
            links: BTreeMap::new(),
            report: Report::default(),
            held: None,
            delete: None,
        };
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = lines.next_line().await.map_err(|error| error.to_string())? {
            let order = serde_json::from_str(&line).map_err(|error| format!("{line} is no order: {error}"))?;
            let done = tokio::time::timeout(PATIENCE, client.obey(order)).await;
            let (did, success) = done.map_err(|_| format!("{order:?} was not answered within {PATIENCE:?}"))??;
            client.report = Report { did, success, ..client.report };
            println!("{}", serde_json::to_string(&client.report).map_err(|error| error.to_string())?);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What was done by an acquire that found the lock held.
pub(in crate::experiments) const HELD: &str = "acquire: the lock is held";

struct StepRunner {
    flags: StepClient,
    resource: Option<Resource>,
    locks: Option<Arc<dyn Locks>>,
    links: BTreeMap<String, MultiplexedConnection>,
    report: Report,
    held: Option<Handle>,
    delete: Option<JoinHandle<redis::RedisResult<bool>>>,
}

impl StepRunner {
    /// What was done, and what the report's `success` says.
    async fn obey(&mut self, order: Order) -> Result<(String, bool), String> {
        match order {
            Order::Set { server, after_ms } => self.set(server, after_ms).await,
            Order::Acquire => self.acquire().await,
            Order::Look => self.look().await,
            Order::Write => self.write().await,
            Order::WriteGreatest => self.write_with(Token::from(u64::MAX)).await,
            Order::Release => {
                let handle = self.held.take().ok_or("it holds no lock")?;
                let released = handle.release().await.map_err(|error| error.to_string())?;
                self.report.stage = Stage::Idle;
                Ok((format!("release: {released:?}"), released == dlock::Released::Done))
            }
            Order::Get => {
                let key = self.flags.key.clone();
                let found: Option<String> = self.ask(&self.server(0)?, redis::cmd("GET").arg(&key)).await?;
                let own = found == Some(self.value());
                Ok((format!("`GET {key}`: {}", if own { "its own value" } else { "not its own value" }), own))
            }
            Order::SendDelete { compare } => {
                let mut command = redis::cmd(if compare { "EVAL" } else { "DEL" });
                if compare {
                    command.arg(COMPARE_AND_DELETE).arg(1).arg(&self.flags.key).arg(self.value());
                } else {
                    command.arg(&self.flags.key);
                }
                let mut link = self.link(&self.server(0)?).await?;
                self.delete = Some(tokio::spawn(async move { command.query_async(&mut link).await }));
                self.report.stage = Stage::Deletes;
                let what = if compare {
                    "the script that compares and deletes".to_owned()
                } else {
                    format!("`DEL {}`", self.flags.key)
                };
                Ok((format!("sends {what}, without an answer yet"), true))
            }
            Order::AwaitDelete => {
                let answer =
                    self.delete.take().ok_or("no deletion was sent")?.await.map_err(|error| error.to_string())?;
                let deleted = answer.map_err(|error| error.to_string())?;
                (self.report.stage, self.report.lease_until_us) = (Stage::Idle, None);
                Ok((format!("the answer: {} deleted", u8::from(deleted)), deleted))
            }
        }
    }

    async fn set(&mut self, server: usize, after_ms: u64) -> Result<(String, bool), String> {
        let ttl = self.flags.ttl;
        if self.report.stage == Stage::Idle {
            // Redlock counts its lease from before the first request, and allows for clocks that differ.
            let drift = if self.flags.servers.len() > 1 { redlock::drift(ttl) } else { Duration::ZERO };
            let until = now_us() + micros(ttl.saturating_sub(drift));
            self.report = Report { stage: Stage::Asks, lease_until_us: Some(until), ..Report::default() };
        }
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        let key = self.flags.key.clone();
        let mut command = redis::cmd("SET");
        command.arg(&key).arg(self.value()).arg("NX").arg("PX").arg(micros(ttl) / 1000);
        let answer: Option<String> = self.ask(&self.server(server)?, &command).await?;
        let set = answer.is_some();
        self.report.keys += usize::from(set);
        if self.report.keys == 0 {
            (self.report.stage, self.report.lease_until_us) = (Stage::Idle, None);
        }
        let answer = answer.unwrap_or_else(|| "nil".to_owned());
        Ok((format!("`SET {key} {} NX PX {}`: {answer}", self.value(), micros(ttl) / 1000), set))
    }

    async fn acquire(&mut self) -> Result<(String, bool), String> {
        let locks = self.locks.clone().ok_or("no lock service was named")?;
        let request = Request { owner: self.flags.name.clone(), ttl: self.flags.ttl, wait: Duration::ZERO };
        let handle = match locks.acquire(&self.flags.key, &request).await {
            Ok(handle) => handle,
            Err(dlock::Error::Timeout { .. }) => return Ok((HELD.to_owned(), false)),
            Err(dlock::Error::Backend { reason, .. }) => return Ok((format!("acquire: {reason}"), false)),
            Err(error) => return Err(error.to_string()),
        };
        let until = now_us() + micros(handle.valid_until().saturating_duration_since(Instant::now()));
        let token = handle.fence();
        let report = Report { stage: Stage::Asks, keys: 1, lease_until_us: Some(until), ..Report::default() };
        self.report = Report { token: Some(token), ..report };
        self.held = Some(handle);
        Ok((format!("acquire with a TTL of {} ms: token {token}", micros(self.flags.ttl) / 1000), true))
    }

    async fn look(&mut self) -> Result<(String, bool), String> {
        let counter = self.flags.counter.clone().ok_or("no counter of tokens was named")?;
        let token: u64 = self.ask(&counter, redis::cmd("INCR").arg(format!("fence:{}", self.flags.key))).await?;
        self.report.token = Some(token);
        let left = self.report.lease_until_us.unwrap_or_default().saturating_sub(now_us());
        if left > 0 {
            self.report.stage = Stage::AboutToWrite;
        }
        Ok((format!("fetches token {token} from the counter; its lease lasts {} ms more", left / 1000), left > 0))
    }

    async fn write(&mut self) -> Result<(String, bool), String> {
        let number = self.report.token.ok_or("it has no token")?;
        let signed = self.held.as_ref().and_then(Handle::signed_token).map(str::to_owned);
        self.write_with(Token { number, signed: signed.as_deref() }).await
    }

    async fn write_with(&mut self, token: Token<'_>) -> Result<(String, bool), String> {
        let resource = self.resource.as_ref().ok_or("no resource was named")?;
        let number = token.number;
        let line = format!("client {} token {number}\n", self.flags.name);
        let answer = resource.write(&self.flags.key, Op::Append, token, &line).await?;
        let (stage, detail) = match answer {
            Answer::Accepted { max_fence } => (Stage::Wrote, format!("200, greatest token {max_fence}")),
            Answer::Stale { seen } => (Stage::Refused, format!("409, stale: the resource has seen {seen}")),
            Answer::Untrusted { error } => (Stage::Untrusted, format!("403, {error}")),
        };
        self.report.stage = stage;
        let signed = if token.signed.is_some() { " and its signature" } else { "" };
        Ok((format!("writes with token {number}{signed}: {detail}"), stage == Stage::Wrote))
    }

    fn value(&self) -> String {
        format!("{}:{}", self.flags.name, std::process::id())
    }

    fn server(&self, server: usize) -> Result<String, String> {
        self.flags.servers.get(server).cloned().ok_or_else(|| format!("there is no server {}", server + 1))
    }

    async fn link(&mut self, address: &str) -> Result<MultiplexedConnection, String> {
        if let Some(link) = self.links.get(address) {
            return Ok(link.clone());
        }
        let link = connect(address).await?;
        self.links.insert(address.to_owned(), link.clone());
        Ok(link)
    }

    async fn ask<T: redis::FromRedisValue>(&mut self, address: &str, command: &redis::Cmd) -> Result<T, String> {
        let mut link = self.link(address).await?;
        command.query_async(&mut link).await.map_err(|error| format!("{address}: {error}"))
    }
}

/// A connection to a Redis, without deadlines of its own.
pub(in crate::experiments) async fn connect(address: &str) -> Result<MultiplexedConnection, String> {
    redis_node::dial(address).await.map_err(|error| format!("{address}: {error}"))
}

pub(in crate::experiments) fn now_us() -> u64 {
    monotonic().0 / 1000
}

fn micros(duration: Duration) -> u64 {
    crate::event::micros(duration)
}
