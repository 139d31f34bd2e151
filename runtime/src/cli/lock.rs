//! `palisade lock`: run a command under a lock.
//!
//! The command runs only while the lock is certainly held. The lock can be trusted until a margin
//! before the lease ends ([`palisade_client::margin`]), measured on a clock that advances while the
//! machine sleeps. If the lease cannot be renewed, the command gets SIGTERM when a fifth of the TTL
//! (at most 5 s) is left of that time, and SIGKILL before the time is over: no other session can be
//! granted the lock while the command still runs.

use std::ffi::OsString;
use std::future::pending;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use palisade_client::wire::{Consistency, LockView};
use palisade_client::{BootInstant, Client, Error, Guard, LockOptions, Options, sleep_until};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::child::{self, LockedCommand, Stopped};
use super::connect::{self, Endpoints};
use super::signals::StopSignals;
use super::watchdog::Watchdog;
use super::{block_on, print_error};

/// Exit code: the lock was lost while the command ran.
const EXIT_LOST: u8 = 76;
/// How long the last requests may take (release, close, who holds the lock). A lock whose release
/// times out expires with its TTL.
const FINAL_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time between SIGTERM and SIGKILL for the command.
const GRACE: Duration = Duration::from_secs(5);
/// The same time if the lock is already lost because its session was ended.
const GRACE_WHEN_LOST: Duration = Duration::from_millis(200);

/// Run a command under a lock
///
/// The command's environment has PALISADE_KEY and PALISADE_TOKEN, the fencing token. The exit code
/// is that of the command, or 69: no node could be reached; 75: the lock was not granted in time;
/// 76: the lock was lost, and the command got SIGTERM, then SIGKILL, before the TTL ran out.
#[derive(Debug, Args)]
pub(super) struct Lock {
    /// Key of the lock
    key: String,
    /// Time to live: the lock is freed when the cluster has received no keepalive from the holder
    /// for this long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// How long to wait for the lock: a time, `0s` to try once, or `forever`
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_wait)]
    wait: Wait,
    /// Name of the holder, shown to other clients; by default HOSTNAME:PID
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// How long to look for a leader before the command fails; by default as long as --wait, at least 1s and at most
    /// 10s. By default `--wait forever` looks for ever
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
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
        let locked = tokio::select! {
            locked = client.lock(self.key.as_str(), self.options()) => Ok(locked),
            signal = signals.next() => Err(signal),
        };
        let code = match locked {
            Ok(Ok(guard)) => self.run_under(guard, &mut signals).await,
            Ok(Err(error @ Error::TimedOut { .. })) => {
                let holder = self.holder(&client).await;
                print_error(format!("{}: {error}{holder}", self.key));
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
        let endpoints = self.endpoints.parse()?;
        let options = Options { connect_timeout: self.connect_timeout(), ..Options::default() };
        let mut reported = false;
        loop {
            match Client::connect(&endpoints, options.clone()).await {
                Err(error @ Error::Unreachable { .. })
                    if matches!(self.wait, Wait::Forever) && self.connect_timeout.is_none() =>
                {
                    if !std::mem::replace(&mut reported, true) {
                        print_error(format!("{error}; retrying until a leader answers, because of --wait forever"));
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
        self.connect_timeout.unwrap_or(by_default)
    }

    fn options(&self) -> LockOptions {
        let options = LockOptions::default().ttl(self.ttl).owner(self.owner.clone().unwrap_or_else(default_owner));
        match self.wait {
            Wait::AtMost(Duration::ZERO) => options,
            Wait::AtMost(time) => options.wait(time),
            Wait::Forever => options.wait_forever(),
        }
    }

    fn not_locked(&self, error: &Error) -> u8 {
        print_error(format!("{}: {error}", self.key));
        connect::exit_code(error)
    }

    /// The end of an error message: the lock's holder, if a node answers with it.
    async fn holder(&self, client: &Client) -> String {
        let read = client.show_lock(self.key.as_str(), Consistency::Linearizable);
        let Ok(Ok(LockView { holder: Some(holder), queue, .. })) = timeout(FINAL_REQUEST_TIMEOUT, read).await else {
            return String::new();
        };
        let (owner, token, waiters) = (&holder.owner, holder.token, queue.len());
        format!("; the lock is held by {owner:?} with token {token}; sessions waiting for it: {waiters}")
    }

    async fn run_under(&self, guard: Guard, signals: &mut StopSignals) -> u8 {
        let environment = [("PALISADE_KEY", self.key.clone()), ("PALISADE_TOKEN", guard.token().to_string())];
        // Start the watchdog first, so that it watches the command from the beginning.
        let watchdog = match Watchdog::start(self.ttl) {
            Ok(watchdog) => Some(watchdog),
            Err(error) => {
                print_error(format!(
                    "cannot start the watchdog: {error}; the command runs without one: if palisade lock is killed or stopped, \
                     processes of the command can outlive the lock"
                ));
                None
            }
        };
        let end = match LockedCommand::start(&self.command, &environment) {
            Ok(child) => self.watch(child, watchdog, &guard, signals).await,
            Err(error) => {
                print_error(format!("cannot run {}: {error}", self.command[0].display()));
                End::Ended(126)
            }
        };
        match end {
            End::Ended(code) => {
                self.release(guard).await;
                code
            }
            End::Lost => {
                // The command has ended. If the session still exists, releasing the lock spares the
                // waiters the TTL.
                let _ = timeout(FINAL_REQUEST_TIMEOUT, guard.release()).await;
                EXIT_LOST
            }
        }
    }

    async fn release(&self, guard: Guard) {
        match timeout(FINAL_REQUEST_TIMEOUT, guard.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => print_error(format!("{}: cannot release the lock: {error}", self.key)),
            Err(_) => print_error(format!(
                "{}: no node confirmed the release within {FINAL_REQUEST_TIMEOUT:?}; if it did not arrive, the lock expires \
                 within its TTL of {:?}",
                self.key, self.ttl
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
                () = endangered(guard, grace(self.ttl)) => break None,
                // Pass each renewal on to the watchdog in time, also after the machine was
                // suspended, and notice a stop of the command for which no SIGCHLD arrived.
                () = sleep(POLL_INTERVAL.min(self.ttl / 8)) => {
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
            None => stop(&mut child, guard).await,
        };
        if let Some(watchdog) = watchdog {
            watchdog.dismiss().await;
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

/// Stops the command because the lease cannot be renewed: SIGTERM now, SIGKILL while the lock can
/// still be trusted.
async fn stop(child: &mut LockedCommand, guard: &Guard) -> End {
    let rest = if guard.is_valid() { guard.remaining() * 3 / 4 } else { GRACE_WHEN_LOST };
    let deadline = BootInstant::now() + rest;
    child.signal(Signal::TERM);
    let stopped = async {
        let _ = child.wait().await;
    };
    let report = async {
        let rest = rest.as_millis();
        print_error(format!(
            "the lock cannot be held any longer; sent SIGTERM to the command, SIGKILL follows in {rest} ms"
        ));
        pending().await
    };
    tokio::select! { biased; () = stopped => {}, () = report => {}, () = sleep_until(deadline) => {} }
    // Processes that the command has started must not run on without the lock either.
    child.signal(Signal::KILL);
    let _ = child.wait().await;
    End::Lost
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

/// How much of the lease is reserved for stopping the command.
fn grace(ttl: Duration) -> Duration {
    (ttl / 5).min(GRACE)
}

/// Resolves when at most `grace` is left of the time for which the lock can be trusted, or when the
/// lock is lost.
async fn endangered(guard: &Guard, grace: Duration) {
    let lost = guard.lost();
    tokio::pin!(lost);
    while let Some(until) = guard.trusted_until() {
        let latest = until.saturating_sub(grace);
        if BootInstant::now() >= latest {
            return;
        }
        tokio::select! {
            () = &mut lost => return,
            () = sleep_until(latest) => {}
        }
    }
}

fn interrupted(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

fn default_owner() -> String {
    format!("{}:{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id())
}

fn parse_wait(text: &str) -> Result<Wait, String> {
    if text == "forever" {
        return Ok(Wait::Forever);
    }
    humantime::parse_duration(text).map(Wait::AtMost).map_err(|error| error.to_string())
}
