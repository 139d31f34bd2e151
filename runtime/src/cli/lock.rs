//! `palisade lock`: run a command under a lock.
//!
//! The command runs only while the lock is certainly held. The lock can be trusted until a margin
//! before the lease ends ([`palisade_client::margin`]), measured on a clock that advances while the
//! machine sleeps. If the lease cannot be renewed, the command gets SIGTERM, and SIGKILL before that
//! time is over ([`stop`]): no other session can be granted the lock while the command still runs.

mod enclosing;
mod stop;
mod wait_line;

use std::ffi::OsString;
use std::future::pending;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use palisade_client::wire::{Consistency, HolderView};
use palisade_client::{Client, Error, Guard, LockOptions, Options};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::{sleep, timeout};

use self::enclosing::Enclosing;
use self::wait_line::WaitLine;
use super::child::{self, LockedCommand, Stopped};
use super::connect::{self, Endpoints};
use super::show::held_by;
use super::signals::StopSignals;
use super::watchdog::{HeldLock, Watchdog};
use super::{block_on, print_error};

/// Exit code: the lock was lost while the command ran.
const EXIT_LOST: u8 = 76;
/// Exit code: the command runs under the lock that it asks for.
const EXIT_WAITS_FOR_ITSELF: u8 = 64;
/// How long the last requests may take (release, close, who holds the lock). A lock whose release
/// times out expires with its TTL.
const FINAL_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Run a command under a lock, or under several
///
/// The command's environment has PALISADE_KEY, PALISADE_TOKEN (the fencing token),
/// PALISADE_SIGNED_TOKEN (the token with the cluster's signature, if the cluster signs) and
/// PALISADE_SESSIONS (the session that holds the lock, after those of enclosing `palisade lock`s).
/// With several keys, PALISADE_KEY has each in a line, and PALISADE_SIGNED_TOKEN the token of each.
/// The exit code is that of the command, or 64: the command already runs under this lock; 65: the
/// cluster refused the request; 69: no leader could be reached; 75: the lock was not granted in
/// time; 76: the lock was lost, and the command got SIGTERM, then SIGKILL, before the TTL ran out;
/// 77: no node accepts this client's certificate or token, or the client accepts no node's.
#[derive(Debug, Args)]
pub(super) struct Lock {
    /// Key of the lock; several locks are acquired together, under one token, or none
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// Share the lock with others that ask for it so, as readers do
    #[arg(long, conflicts_with = "permits")]
    shared: bool,
    /// Take N of the M permits that the lock has: a semaphore
    #[arg(long, value_name = "N/M", value_parser = parse_permits)]
    permits: Option<Permits>,
    /// Wait only if fewer sessions wait for the lock already
    #[arg(long, value_name = "N")]
    max_queue: Option<u32>,
    /// A value for other clients, which `palisade show` prints; at most 4,096 bytes
    #[arg(long, value_name = "VALUE")]
    value: Option<String>,
    /// How long to wait for the lock: a time, `0s` to try once, or `forever`
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_wait)]
    wait: Wait,
    #[command(flatten)]
    run: Run,
}

/// Run a command as long as this process leads: an election
///
/// The candidates of one NAME come first, first served: one leads, and the others wait. The leader's
/// command runs until it ends, which resigns, or until the leadership is lost. `palisade show NAME`
/// prints the leader's value, for instance the address at which it serves. An election is the lock of
/// that name: environment, exit codes and signals are those of `palisade lock`, and PALISADE_TOKEN is
/// greater for every later leader.
#[derive(Debug, Args)]
pub(super) struct Elect {
    /// Name of the election: the key of its lock
    name: String,
    /// The leader's value, for other clients; at most 4,096 bytes
    #[arg(long, value_name = "VALUE")]
    value: Option<String>,
    /// How long to wait for the leadership: a time, `0s` to try once, or `forever`
    #[arg(long, value_name = "TIME", default_value = "forever", value_parser = parse_wait)]
    wait: Wait,
    #[command(flatten)]
    run: Run,
}

/// The command to run under the lock, and what its lease and its client are like.
#[derive(Debug, Args)]
struct Run {
    /// Time to live: the lock is freed when the cluster has received no keepalive from the holder
    /// for this long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// Name of the holder, shown to other clients; by default HOSTNAME:PID
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// How long to look for the cluster's leader before the command fails, more than 0s; by default as long as
    /// --wait, at least 1s and at most 10s. By default `--wait forever` looks for ever
    #[arg(long, value_name = "TIME", value_parser = parse_connect_timeout)]
    connect_timeout: Option<Duration>,
    #[command(flatten)]
    endpoints: Endpoints,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    AtMost(Duration),
    Forever,
}

/// Permits of a semaphore, and all that it has.
#[derive(Clone, Copy, Debug)]
struct Permits {
    permits: u32,
    of: u32,
}

/// How often the watchdog gets the end of the lease, and how often the command's state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The least and the most time to look for a leader, unless the command line says otherwise.
const CONNECT_TIMEOUTS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How the command ended.
enum End {
    /// By itself, or by a signal that was forwarded; with this exit code.
    Ended(u8),
    /// The lock was lost, and the command was stopped for it.
    Lost,
}

impl Elect {
    pub(super) fn run(self) -> ExitCode {
        let Elect { name, value, wait, run } = self;
        Lock { keys: vec![name], shared: false, permits: None, max_queue: None, value, wait, run }.run()
    }
}

impl Lock {
    pub(super) fn run(self) -> ExitCode {
        ExitCode::from(block_on(self.hold()))
    }

    async fn hold(self) -> u8 {
        let mut signals = match StopSignals::listen() {
            Ok(signals) => signals,
            Err(error) => {
                print_error(format!("cannot listen for signals: {error}"));
                return 71;
            }
        };
        let client = tokio::select! {
            connected = self.connect() => match connected {
                Ok(client) => client,
                Err(error) => return self.not_locked(&error),
            },
            signal = signals.next() => return interrupted(signal),
        };
        let look = async {
            let enclosing = Enclosing::read(&client).await;
            let holder = enclosing.holder(&client, &self.keys).await;
            (enclosing, holder)
        };
        let (enclosing, holder) = tokio::select! {
            found = look => found,
            signal = signals.next() => return interrupted(signal),
        };
        if let Some((key, holder)) = holder {
            return waits_for_itself(&key, &holder);
        }
        let mut line = WaitLine::new();
        let locked = tokio::select! {
            locked = client.lock(self.keys.clone(), self.options()) => Ok(locked),
            signal = signals.next() => Err(signal),
            never = line.follow(&client, &self.keys) => match never {},
        };
        drop(line);
        let code = match locked {
            Ok(Ok(guard)) => match self.run_under(guard, &enclosing, &mut signals).await {
                End::Ended(code) => code,
                // The watchdog gives the lock back. Nothing is left to wait for: the command is
                // dead, and its caller has to learn of the loss.
                End::Lost => return EXIT_LOST,
            },
            Ok(Err(error @ Error::TimedOut { .. })) => {
                let holder = self.holder(&client).await;
                print_error(format!("{}: {error} (--wait){holder}", self.name()));
                connect::exit_code(&error)
            }
            Ok(Err(error)) => self.not_locked(&error),
            Err(signal) => interrupted(signal),
        };
        // Closing the session releases every claim that is left.
        let _ = timeout(FINAL_REQUEST_TIMEOUT, client.close()).await;
        code
    }

    /// Connects to the cluster; with `--wait forever` and without `--connect-timeout`, retries until
    /// a leader answers.
    async fn connect(&self) -> Result<Client, Error> {
        let endpoints = self.run.endpoints.parse()?;
        let options = Options { connect_timeout: self.connect_timeout(), ..self.run.endpoints.options() };
        let mut reported = false;
        loop {
            match Client::connect(&endpoints, options.clone()).await {
                Err(error @ Error::Unreachable { .. })
                    if matches!(self.wait, Wait::Forever) && self.run.connect_timeout.is_none() =>
                {
                    if !std::mem::replace(&mut reported, true) {
                        print_error(format!("{error}; retrying until a leader answers, because the wait has no end"));
                    }
                }
                other => return other,
            }
        }
    }

    fn connect_timeout(&self) -> Duration {
        let by_default = match self.wait {
            Wait::AtMost(time) => time.clamp(CONNECT_TIMEOUTS.0, CONNECT_TIMEOUTS.1),
            Wait::Forever => CONNECT_TIMEOUTS.1,
        };
        self.run.connect_timeout.unwrap_or(by_default)
    }

    /// The keys, for messages.
    fn name(&self) -> String {
        self.keys.join(", ")
    }

    fn options(&self) -> LockOptions {
        let options =
            LockOptions::default().ttl(self.run.ttl).owner(self.run.owner.clone().unwrap_or_else(default_owner));
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
        match self.wait {
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
    async fn holder(&self, client: &Client) -> String {
        let read = async {
            for key in &self.keys {
                let lock = client.show_lock(key.as_str(), Consistency::Linearizable).await.ok()?;
                if lock.held {
                    return Some(lock);
                }
            }
            None
        };
        let Ok(Some(lock)) = timeout(FINAL_REQUEST_TIMEOUT, read).await else { return String::new() };
        let of = if self.keys.len() > 1 { format!("{}: ", lock.key) } else { String::new() };
        format!("; {of}{}; sessions waiting for it: {}", held_by(&lock), lock.queue.len())
    }

    async fn run_under(&self, guard: Guard, enclosing: &Enclosing, signals: &mut StopSignals) -> End {
        let environment = [
            ("PALISADE_KEY", Some(guard.keys().join("\n"))),
            ("PALISADE_TOKEN", Some(guard.token().to_string())),
            // Without a signature the variable is removed: an enclosing `palisade lock` may have set it.
            ("PALISADE_SIGNED_TOKEN", guard.signed_token().map(|_| guard.signed_tokens().join("\n"))),
            (enclosing::VARIABLE, Some(enclosing.with(guard.session().number()))),
        ];
        // Start the watchdog first, so that it watches the command from the beginning.
        let watchdog = self.start_watchdog(&guard).await;
        let end = match LockedCommand::start(&self.run.command, &environment) {
            Ok(child) => self.watch(child, watchdog, &guard, signals).await,
            Err(error) => {
                print_error(format!("cannot run {}: {error}", self.run.command[0].display()));
                End::Ended(126)
            }
        };
        if let End::Ended(_) = end {
            self.release(guard).await;
        }
        end
    }

    async fn start_watchdog(&self, guard: &Guard) -> Option<Watchdog> {
        let endpoints = self.run.endpoints.parse().unwrap_or_default();
        let security = self.run.endpoints.security();
        let lock = HeldLock { endpoints, security, key: self.name(), session: guard.session() };
        match Watchdog::start(self.run.ttl, &lock).await {
            Ok(watchdog) => Some(watchdog),
            Err(error) => {
                print_error(format!(
                    "cannot start the watchdog: {error}; the command runs without one: if palisade lock is killed or stopped, \
                     processes of the command can outlive the lock"
                ));
                None
            }
        }
    }

    async fn release(&self, guard: Guard) {
        match timeout(FINAL_REQUEST_TIMEOUT, guard.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => print_error(format!("{}: cannot release the lock: {error}", self.name())),
            Err(_) => print_error(format!(
                "{}: no node confirmed the release within {FINAL_REQUEST_TIMEOUT:?}; if it did not arrive, the lock expires \
                 within its TTL of {:?}",
                self.name(),
                self.run.ttl
            )),
        }
    }

    /// Waits for the command's end, and stops the command before the lease ends.
    async fn watch(
        &self,
        mut child: LockedCommand,
        mut watchdog: Option<Watchdog>,
        guard: &Guard,
        signals: &mut StopSignals,
    ) -> End {
        let mut children = signal(SignalKind::child()).ok();
        // A handler that does nothing keeps SIGTSTP from suspending this process, which would lose
        // the lock.
        let _suspended = signal(SignalKind::from_raw(Signal::TSTP.as_raw())).ok();
        let (mut wants_terminal, mut was_suspended) = (false, false);
        let status = loop {
            if wants_terminal {
                // A shell sends no signal when it brings a running job to the foreground: try
                // again.
                wants_terminal = !child.give_terminal();
            }
            if let (Some(watchdog), Some(group), Some(until)) = (&mut watchdog, child.group(), guard.trusted_until()) {
                watchdog.allow(group, until).await;
            }
            tokio::select! {
                status = child.wait() => break Some(status),
                signal = signals.next() => child.signal(signal),
                Some(()) = next(&mut children) => {}
                () = stop::time_to_stop(guard, self.run.ttl) => break None,
                // Pass each renewal on to the watchdog in time, also after the machine was
                // suspended, and notice a stop of the command for which no SIGCHLD arrived.
                () = sleep(POLL_INTERVAL.min(self.run.ttl / 8)) => {
                    // A stop signal reaches the processes of a group one after the other: some may
                    // have stopped since.
                    if std::mem::take(&mut was_suspended) {
                        child.signal(Signal::CONT);
                    }
                }
            }
            match child.resume_if_suspended() {
                Some(Stopped::Suspended) => {
                    was_suspended = true;
                    print_error(
                        "a command under a lock cannot be suspended, because its lease would run out: resumed it",
                    );
                }
                Some(Stopped::WantsTerminal) => {
                    wants_terminal = true;
                    print_error(
                        "the command is stopped because it uses the terminal: bring this job to the foreground (fg)",
                    );
                }
                None => {}
            }
        };
        let end = match status {
            // SIGKILL after the end of the lease: the watchdog killed the command while this
            // process was stopped.
            Some(Ok(status)) if status.signal() == Some(Signal::KILL.as_raw()) && !guard.is_valid() => End::Lost,
            Some(status) => End::Ended(ended(status)),
            None => {
                stop::stop(&mut child, guard).await;
                End::Lost
            }
        };
        match (watchdog, &end) {
            (Some(watchdog), End::Ended(_)) => watchdog.dismiss().await,
            (Some(watchdog), End::Lost) => watchdog.hand_over().await,
            (None, _) => {}
        }
        end
    }
}

/// The next signal; never, if the handler could not be installed.
async fn next(signals: &mut Option<Signals>) -> Option<()> {
    match signals {
        Some(signals) => signals.recv().await,
        None => pending().await,
    }
}

fn ended(status: std::io::Result<std::process::ExitStatus>) -> u8 {
    match status {
        Ok(status) => child::exit_code(status),
        Err(error) => {
            print_error(format!("cannot read the command's exit status: {error}"));
            71
        }
    }
}

fn interrupted(signal: Signal) -> u8 {
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

/// Adds a hint to the error of a command line whose command does not come after `--`.
pub(super) fn hint_at_separator(mut error: clap::Error) -> clap::Error {
    let mut words = std::env::args_os().skip(1);
    let command = words.next().filter(|word| word == "lock" || word == "elect");
    let is_about_the_command = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    if let Some(command) = command
        && is_about_the_command
        && !words.any(|word| word == "--")
    {
        let key = if command == "elect" { "NAME" } else { "KEY" };
        let command = command.to_string_lossy();
        let hint = format!("write `--` before the command and its arguments: palisade {command} {key} -- COMMAND");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

fn parse_permits(text: &str) -> Result<Permits, String> {
    let numbers = text.split_once('/').and_then(|(permits, of)| Some((permits.parse().ok()?, of.parse().ok()?)));
    let (permits, of) = numbers.ok_or("write N/M: N of the lock's M permits, for example 2/5")?;
    Ok(Permits { permits, of })
}

fn parse_wait(text: &str) -> Result<Wait, String> {
    if text == "forever" {
        return Ok(Wait::Forever);
    }
    humantime::parse_duration(text).map(Wait::AtMost).map_err(|error| error.to_string())
}
