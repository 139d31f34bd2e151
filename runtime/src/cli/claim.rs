//! Options that `palisade lock`, `elect` and `acquire` share: the claim's keys and mode, how to
//! reach the cluster, and the wait for the grant.

pub(super) mod enclosing;
mod wait_line;

use std::time::Duration;

use clap::Args;
use palisade_client::wire::{Consistency, HolderView};
use palisade_client::{Client, Error, Guard, LockOptions, Options};
use rustix::process::Signal;
use tokio::time::timeout;

use self::enclosing::Enclosing;
use self::wait_line::WaitLine;
use super::child::Interrupted;
use super::connect::{self, Endpoints};
use super::print_error;
use super::show::held_by;
use super::signals::StopSignals;

/// Exit code: the caller runs under the lock that it asks for.
const EXIT_WAITS_FOR_ITSELF: u8 = 64;
/// How long the last requests may take (release, close, who holds the lock). A lock whose release
/// times out expires with its TTL.
pub(super) const FINAL_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The least and the most time to look for a leader, unless the command line says otherwise.
const CONNECT_TIMEOUTS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// What a claim is on, and how long it may wait.
#[derive(Debug, Args)]
pub(super) struct Claim {
    #[command(flatten)]
    pub(super) keys: LockKeys,
    /// Share the lock with others that ask for it so, as readers do
    #[arg(long, conflicts_with = "permits")]
    pub(super) shared: bool,
    /// Take N of the M permits that the lock has: a semaphore
    #[arg(long, value_name = "N/M", value_parser = parse_permits)]
    pub(super) permits: Option<Permits>,
    /// Wait only if fewer sessions wait for the lock already
    #[arg(long, value_name = "N")]
    pub(super) max_queue: Option<u32>,
    /// A value for other clients, which `palisade show` prints; at most 4,096 bytes
    #[arg(long, value_name = "VALUE")]
    pub(super) value: Option<String>,
    /// How long to wait for the lock: a time, `0s` to try once, or `forever`
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_wait)]
    pub(super) wait: Wait,
    /// Try once and do not wait, like `--wait 0s`
    #[arg(short, long, conflicts_with = "wait")]
    pub(super) no_wait: bool,
    #[command(flatten)]
    pub(super) holder: Holder,
}

/// The keys of a claim.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct LockKeys {
    /// Key of the lock; several keys are one claim, under one token: on all their locks, or on none
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Key of the lock, like KEY; may be repeated
    #[arg(long, value_name = "KEY")]
    key: Vec<String>,
}

impl LockKeys {
    pub(super) fn of(key: String) -> LockKeys {
        LockKeys { keys: Vec::new(), key: vec![key] }
    }

    /// All keys.
    pub(super) fn all(&self) -> Vec<String> {
        [self.keys.as_slice(), &self.key].concat()
    }

    /// Those without `--key` before them.
    pub(super) fn positional(&self) -> &[String] {
        &self.keys
    }

    /// Those with `--key` before them.
    pub(super) fn named(&self) -> &[String] {
        &self.key
    }
}

/// The session of a claim.
#[derive(Debug, Args)]
pub(super) struct Holder {
    /// Time to live: the lock is freed when the cluster has received no keepalive from the holder
    /// for this long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(super) ttl: Duration,
    /// Name of the holder, shown to other clients; by default HOSTNAME:PID
    #[arg(long, value_name = "NAME")]
    pub(super) owner: Option<String>,
}

/// How the cluster is reached.
#[derive(Debug, Args)]
pub(super) struct Reach {
    /// How long to look for the cluster's leader before the command fails, more than 0s; by default as long as
    /// --wait, at least 1s and at most 10s. By default `--wait forever` looks for ever
    #[arg(long, value_name = "TIME", value_parser = parse_connect_timeout)]
    connect_timeout: Option<Duration>,
    #[command(flatten)]
    pub(super) endpoints: Endpoints,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    AtMost(Duration),
    Forever,
}

/// Permits of a semaphore, and all that it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Permits {
    permits: u32,
    of: u32,
}

/// A claim that was granted.
pub(super) struct Granted {
    pub(super) client: Client,
    pub(super) guard: Guard,
    pub(super) enclosing: Enclosing,
}

impl Claim {
    /// Connects to the cluster, and waits for the grant. Reports a failure, and returns the exit code
    /// for it.
    pub(super) async fn acquire(&self, reach: &Reach, signals: &mut StopSignals) -> Result<Granted, u8> {
        let client = tokio::select! {
            connected = self.connect(reach) => connected.map_err(|error| self.not_locked(&error))?,
            signal = signals.next() => return Err(interrupted(signal)),
        };
        let keys = self.keys.all();
        let look = async {
            let enclosing = Enclosing::read(&client).await;
            let holder = enclosing.holder(&client, &keys).await;
            (enclosing, holder)
        };
        let (enclosing, holder) = tokio::select! {
            found = look => found,
            signal = signals.next() => return Err(interrupted(signal)),
        };
        if let Some((key, holder)) = holder {
            return Err(waits_for_itself(&key, &holder));
        }
        let mut line = WaitLine::new();
        let locked = tokio::select! {
            locked = client.lock(keys.clone(), self.options()) => Ok(locked),
            signal = signals.next() => Err(signal),
            never = line.follow(&client, &keys) => match never {},
        };
        drop(line);
        let code = match locked {
            Ok(Ok(guard)) => return Ok(Granted { client, guard, enclosing }),
            Ok(Err(error @ Error::TimedOut { .. })) => {
                let holder = self.holders(&client).await;
                print_error(format!("{}: {error} (--wait){holder}", self.name()));
                connect::exit_code(&error)
            }
            Ok(Err(error)) => self.not_locked(&error),
            Err(signal) => {
                close(&client).await;
                return Err(interrupted(signal));
            }
        };
        close(&client).await;
        Err(code)
    }

    /// Connects to the cluster; with `--wait forever` and without `--connect-timeout`, retries until
    /// a leader answers.
    async fn connect(&self, reach: &Reach) -> Result<Client, Error> {
        let endpoints = reach.endpoints.parse()?;
        let is_patient = matches!(self.wait(), Wait::Forever) && reach.connect_timeout.is_none();
        let connect_timeout = reach.connect_timeout.unwrap_or_else(|| self.connect_timeout());
        let options = Options { connect_timeout, ..reach.endpoints.options() };
        let mut reported = false;
        loop {
            match Client::connect(&endpoints, options.clone()).await {
                Err(error @ Error::Unreachable { .. }) if is_patient => {
                    if !std::mem::replace(&mut reported, true) {
                        print_error(format!("{error}; retrying until a leader answers, because the wait has no end"));
                    }
                }
                other => return other,
            }
        }
    }

    /// How long to look for a leader by default.
    fn connect_timeout(&self) -> Duration {
        match self.wait() {
            Wait::AtMost(time) => time.clamp(CONNECT_TIMEOUTS.0, CONNECT_TIMEOUTS.1),
            Wait::Forever => CONNECT_TIMEOUTS.1,
        }
    }

    fn wait(&self) -> Wait {
        if self.no_wait { Wait::AtMost(Duration::ZERO) } else { self.wait }
    }

    /// The keys, for messages.
    pub(super) fn name(&self) -> String {
        self.keys.all().join(", ")
    }

    fn options(&self) -> LockOptions {
        let options =
            LockOptions::default().ttl(self.holder.ttl).owner(self.holder.owner.clone().unwrap_or_else(default_owner));
        let options = match self.permits {
            Some(Permits { permits, of }) => options.permits(permits, of),
            None if self.shared => options.shared(),
            None => options,
        };
        let options = match &self.value {
            Some(value) => options.value(value),
            None => options,
        };
        let options = match self.max_queue {
            Some(sessions) => options.max_queue(sessions),
            None => options,
        };
        match self.wait() {
            Wait::AtMost(Duration::ZERO) => options,
            Wait::AtMost(time) => options.wait(time),
            Wait::Forever => options.wait_forever(),
        }
    }

    fn not_locked(&self, error: &Error) -> u8 {
        print_error(format!("{}: {error}", self.name()));
        connect::exit_code(error)
    }

    /// The end of an error message: who holds the lock, if a node answers with it. Of several locks, the
    /// first that is held.
    async fn holders(&self, client: &Client) -> String {
        let keys = self.keys.all();
        let read = async {
            for key in &keys {
                let lock = client.show_lock(key.as_str(), Consistency::Linearizable).await.ok()?;
                if lock.held {
                    return Some(lock);
                }
            }
            None
        };
        let Ok(Some(lock)) = timeout(FINAL_REQUEST_TIMEOUT, read).await else { return String::new() };
        let of = if keys.len() > 1 { format!("{}: ", lock.key) } else { String::new() };
        format!("; {of}{}; sessions waiting for it: {}", held_by(&lock), lock.queue.len())
    }
}

/// Closes the client: that ends every claim that is left.
pub(super) async fn close(client: &Client) {
    let _ = timeout(FINAL_REQUEST_TIMEOUT, client.close()).await;
}

/// Dies of SIGINT, as a command that a script waits for. After another signal, the exit code, as in a shell.
fn interrupted(signal: Signal) -> u8 {
    if signal == Signal::INT {
        return Interrupted::Process.die();
    }
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

fn waits_for_itself(key: &str, holder: &HolderView) -> u8 {
    let (owner, token) = (&holder.owner, holder.token);
    print_error(format!(
        "{key}: this command already runs under this lock, which is held by {owner:?} with token {token}, and would wait for \
         itself: take the lock once, or use another key"
    ));
    EXIT_WAITS_FOR_ITSELF
}

fn default_owner() -> String {
    format!("{}:{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id())
}

fn parse_connect_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("no node can answer within 0s: give it some time, for example 1s".into()),
        other => other.map_err(|error| error.to_string()),
    }
}

fn parse_permits(text: &str) -> Result<Permits, String> {
    let numbers = text.split_once('/').and_then(|(permits, of)| Some((permits.parse().ok()?, of.parse().ok()?)));
    let (permits, of) = numbers.ok_or("write N/M: N of the lock's M permits, for example 2/5")?;
    Ok(Permits { permits, of })
}

pub(super) fn parse_wait(text: &str) -> Result<Wait, String> {
    if text == "forever" {
        return Ok(Wait::Forever);
    }
    humantime::parse_duration(text).map(Wait::AtMost).map_err(|error| error.to_string())
}
