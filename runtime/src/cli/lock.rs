//! `palisade lock`: run a command under a lock.
//!
//! The command runs only while the lock is certainly held. When the lease cannot be renewed, the command gets
//! SIGTERM with a fifth of the TTL left (at most 5 s) of the time for which the lock can be trusted, and SIGKILL before
//! that is over: nobody else can be granted the lock while it still runs. That time ends a margin before the lease does
//! ([`palisade_client::margin`]), and is counted on a clock that goes on while the machine sleeps.

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
use super::{block_on, complain};

/// The lock was lost while the command ran.
const EXIT_LOST: u8 = 76;
/// How long giving back may take before it is left to the TTL.
const FAREWELL: Duration = Duration::from_secs(2);
/// The most time that a command gets between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// The same when the lock is already lost, because its session was ended.
const GRACE_WHEN_LOST: Duration = Duration::from_millis(200);

/// Run a command under a lock
///
/// PALISADE_KEY and PALISADE_TOKEN, the fencing token, are in the command's environment, and its exit code is passed
/// on. 69: no node could be reached. 75: the lock was not granted in time. 76: the lock was lost; the command got
/// SIGTERM, then SIGKILL, before the TTL ran out.
#[derive(Debug, Args)]
pub(super) struct Lock {
    /// What to lock
    key: String,
    /// How long the lock outlives a holder that was not heard of
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// How long to wait for the lock: a time, 0s for not at all, or `forever`
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_wait)]
    wait: Wait,
    /// Who to show as the holder; by default this host and process
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
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

/// How often the watchdog is told of the lease, and to look whether a command that waits for the terminal can have it.
const GLANCE: Duration = Duration::from_millis(200);

/// How it ended.
enum End {
    /// By itself, or by a signal that was passed on; with this exit code.
    Ended(u8),
    /// The lock was lost, and the command was stopped.
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
                complain(format!("cannot listen for signals: {error}"));
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
                complain(format!("{}: {error}{holder}", self.key));
                connect::exit_code(&error)
            }
            Ok(Err(error)) => self.not_locked(&error),
            Err(signal) => interrupted(signal),
        };
        // Whatever is still claimed is given back.
        let _ = timeout(FAREWELL, client.close()).await;
        code
    }

    /// Finds the cluster, for as long as the lock may be waited for.
    async fn connect(&self) -> Result<Client, Error> {
        let endpoints = self.endpoints.parse()?;
        let mut told = false;
        loop {
            match Client::connect(&endpoints, Options::default()).await {
                Err(error @ Error::Unreachable { .. }) if matches!(self.wait, Wait::Forever) => {
                    if !std::mem::replace(&mut told, true) {
                        complain(format!("{error}; trying on"));
                    }
                }
                other => return other,
            }
        }
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
        complain(format!("{}: {error}", self.key));
        connect::exit_code(error)
    }

    /// Who stands in the way, if that can be learned.
    async fn holder(&self, client: &Client) -> String {
        let read = client.show_lock(self.key.as_str(), Consistency::Linearizable);
        let Ok(Ok(LockView { holder: Some(holder), queue, .. })) = timeout(FAREWELL, read).await else {
            return String::new();
        };
        format!("; it is held by {:?} with token {}, and {} wait for it", holder.owner, holder.token, queue.len())
    }

    async fn run_under(&self, guard: Guard, signals: &mut StopSignals) -> u8 {
        let environment = [("PALISADE_KEY", self.key.clone()), ("PALISADE_TOKEN", guard.token().to_string())];
        // It is there before the command is.
        let watchdog = match Watchdog::start(self.ttl) {
            Ok(watchdog) => Some(watchdog),
            Err(error) => {
                complain(format!("cannot start the watchdog: {error}; the command runs without one"));
                None
            }
        };
        let end = match LockedCommand::start(&self.command, &environment) {
            Ok(child) => self.watch(child, watchdog, &guard, signals).await,
            Err(error) => {
                complain(format!("cannot run {}: {error}", self.command[0].display()));
                End::Ended(126)
            }
        };
        match end {
            End::Ended(code) => {
                self.give_back(guard).await;
                code
            }
            End::Lost => {
                // Nobody works under it any more. If the session still lives, nobody needs to wait for its end.
                let _ = timeout(FAREWELL, guard.release()).await;
                EXIT_LOST
            }
        }
    }

    async fn give_back(&self, guard: Guard) {
        match timeout(FAREWELL, guard.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => complain(format!("{}: {error}", self.key)),
            Err(_) => complain(format!("{}: nobody answers; the lock is free when its TTL runs out", self.key)),
        }
    }

    /// Waits for the command's end, and sees to it that it comes before the lock's.
    async fn watch(
        &self,
        mut child: LockedCommand,
        mut watchdog: Option<Watchdog>,
        guard: &Guard,
        signals: &mut StopSignals,
    ) -> End {
        let mut children = signal(SignalKind::child()).ok();
        // Handled, so that it does nothing: who suspends this process would lose the lock.
        let _suspended = signal(SignalKind::from_raw(Signal::TSTP.as_raw())).ok();
        let (mut wants_terminal, mut was_suspended) = (false, false);
        let status = loop {
            if wants_terminal {
                // A shell says nothing when it brings a running job to the foreground.
                wants_terminal = !child.lend_terminal();
            }
            if let (Some(watchdog), Some(group), Some(until)) = (&mut watchdog, child.group(), guard.trusted_until()) {
                watchdog.allow(group, until).await;
            }
            tokio::select! {
                status = child.wait() => break Some(status),
                signal = signals.next() => child.signal(signal),
                Some(()) = next(&mut children) => {}
                () = endangered(guard, grace(self.ttl)) => break None,
                // The watchdog hears often enough that the lease was renewed, also when the machine was suspended. And a
                // stop that nobody tells of is noticed.
                () = sleep(GLANCE.min(self.ttl / 8)) => {
                    // Who stops a process group stops one process after the other: some may have been stopped since.
                    if std::mem::take(&mut was_suspended) {
                        child.signal(Signal::CONT);
                    }
                }
            }
            match child.look_after() {
                Some(Stopped::Suspended) => {
                    was_suspended = true;
                    complain("a command under a lock cannot be suspended: it goes on");
                }
                Some(Stopped::WantsTerminal) => {
                    wants_terminal = true;
                    complain("the command wants the terminal: bring it to the foreground");
                }
                None => {}
            }
        };
        let end = match status {
            // Killed, and the lease is over: by the watchdog, while this process did not move.
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

/// The next signal, if they can be listened for.
async fn next(signals: &mut Option<Signals>) -> Option<()> {
    match signals {
        Some(signals) => signals.recv().await,
        None => pending().await,
    }
}

/// The lock cannot be held any longer: the command has to stop while it still is.
async fn stop(child: &mut LockedCommand, guard: &Guard) -> End {
    let rest = if guard.is_valid() { guard.remaining() * 3 / 4 } else { GRACE_WHEN_LOST };
    let deadline = BootInstant::now() + rest;
    child.signal(Signal::TERM);
    let stopped = async {
        let _ = child.wait().await;
    };
    let told = async {
        complain(format!("the lock cannot be held any longer; the command has {} ms to stop", rest.as_millis()));
        pending().await
    };
    tokio::select! { biased; () = stopped => {}, () = told => {}, () = sleep_until(deadline) => {} }
    // Whatever the command started and left behind must not go on without the lock either.
    child.signal(Signal::KILL);
    let _ = child.wait().await;
    End::Lost
}

fn ended(status: std::io::Result<std::process::ExitStatus>) -> u8 {
    match status {
        Ok(status) => child::exit_code(status),
        Err(error) => {
            complain(format!("cannot learn how the command ended: {error}"));
            71
        }
    }
}

/// How much of the lease is kept for stopping the command.
fn grace(ttl: Duration) -> Duration {
    (ttl / 5).min(GRACE)
}

/// Resolves when no more than `grace` is left of the lease, or it is lost.
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
