//! `palisade lock`: run a command under a lock.
//!
//! The command runs only while the lock is certainly held. When the lease cannot be renewed, the command gets
//! SIGTERM with a fifth of the TTL left (at most 5 s), and SIGKILL before the lease ends by this machine's own clock:
//! nobody else can be granted the lock while it still runs.

use std::ffi::OsString;
use std::future::{pending, poll_fn};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;

use clap::Args;
use palisade_client::{Client, Error, Guard, LockOptions, Options};
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::child::{self, Tied};
use super::connect::{self, Endpoints};
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

/// The signals that ask this process to stop: they are for the command, and end a wait.
struct StopSignals([(Signal, Option<Signals>); 4]);

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
        let (client, guard) = tokio::select! {
            locked = self.lock() => match locked {
                Ok(locked) => locked,
                Err(error) => {
                    complain(format!("{}: {error}", self.key));
                    return connect::exit_code(&error);
                }
            },
            signal = signals.next() => {
                // The place in the queue is given up when its connection goes.
                return interrupted(signal);
            }
        };
        let environment = [("PALISADE_KEY", self.key.clone()), ("PALISADE_TOKEN", guard.token().to_string())];
        let code = match Tied::start(&self.command, &environment) {
            Ok(child) => self.watch(child, &guard, &mut signals).await,
            Err(error) => {
                complain(format!("cannot run {}: {error}", self.command[0].display()));
                126
            }
        };
        if code != EXIT_LOST {
            self.give_back(guard).await;
        }
        let _ = timeout(FAREWELL, client.close()).await;
        code
    }

    async fn lock(&self) -> Result<(Client, Guard), Error> {
        let client = Client::connect(&self.endpoints.parse()?, Options::default()).await?;
        let options = LockOptions::default().ttl(self.ttl).owner(self.owner.clone().unwrap_or_else(default_owner));
        let options = match self.wait {
            Wait::AtMost(Duration::ZERO) => options,
            Wait::AtMost(time) => options.wait(time),
            Wait::Forever => options.wait_forever(),
        };
        let guard = client.lock(self.key.as_str(), options).await?;
        Ok((client, guard))
    }

    async fn give_back(&self, guard: Guard) {
        match timeout(FAREWELL, guard.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => complain(format!("{}: {error}", self.key)),
            Err(_) => complain(format!("{}: nobody answers; the lock is free when its TTL runs out", self.key)),
        }
    }

    /// Waits for the command's end, and sees to it that it comes before the lock's.
    async fn watch(&self, mut child: Tied, guard: &Guard, signals: &mut StopSignals) -> u8 {
        let mut watchdog = match (Watchdog::start(), child.group()) {
            (Ok(watchdog), Some(group)) => Some((watchdog, group)),
            (Err(error), _) => {
                complain(format!("cannot start the watchdog: {error}; the command runs without one"));
                None
            }
            (Ok(_), None) => None,
        };
        let mut children = signal(SignalKind::child()).ok();
        let status = loop {
            if let Some((watchdog, group)) = &mut watchdog {
                watchdog.allow(*group, guard.remaining()).await;
            }
            tokio::select! {
                status = child.wait() => break Some(status),
                signal = signals.next() => child.signal(signal),
                Some(()) = next(&mut children) => {
                    if child.keep_running() {
                        complain("a command under a lock cannot be suspended: it goes on");
                    }
                }
                () = endangered(guard, grace(self.ttl)) => break None,
                // The watchdog hears often enough that the lease was renewed.
                () = sleep(self.ttl / 8) => {}
            }
        };
        let code = match status {
            // Killed, and the lease is over: by the watchdog, while this process did not move.
            Some(Ok(status)) if status.signal() == Some(Signal::KILL.as_raw()) && !guard.is_valid() => EXIT_LOST,
            Some(status) => ended(status),
            None => stop(&mut child, guard).await,
        };
        if let Some((watchdog, _)) = watchdog {
            watchdog.dismiss().await;
        }
        code
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
async fn stop(child: &mut Tied, guard: &Guard) -> u8 {
    let rest = if guard.is_valid() { guard.remaining() * 3 / 4 } else { GRACE_WHEN_LOST };
    complain(format!("the lock cannot be held any longer; the command has {} ms to stop", rest.as_millis()));
    child.signal(Signal::TERM);
    let stopped = timeout(rest, child.wait()).await;
    // Whatever the command started and left behind must not go on without the lock either.
    child.signal(Signal::KILL);
    if stopped.is_err() {
        let _ = child.wait().await;
    }
    EXIT_LOST
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
    loop {
        let spare = guard.remaining().saturating_sub(grace);
        if spare.is_zero() {
            return;
        }
        tokio::select! {
            () = &mut lost => return,
            () = sleep(spare) => {}
        }
    }
}

impl StopSignals {
    /// Listens for those that are not ignored: `nohup`, and a shell's background, mean what they say.
    fn listen() -> std::io::Result<StopSignals> {
        let ignored = ignored_signals();
        let listen = |name: Signal, kind: SignalKind| {
            let heard = ignored & (1 << (name.as_raw() - 1)) == 0;
            heard.then(|| signal(kind)).transpose().map(|signals| (name, signals))
        };
        Ok(StopSignals([
            listen(Signal::INT, SignalKind::interrupt())?,
            listen(Signal::TERM, SignalKind::terminate())?,
            listen(Signal::HUP, SignalKind::hangup())?,
            listen(Signal::QUIT, SignalKind::quit())?,
        ]))
    }

    async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (name, signals) in &mut self.0 {
                if let Some(signals) = signals
                    && signals.poll_recv(context).is_ready()
                {
                    return Poll::Ready(*name);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The signals that this process was started to ignore, one bit each.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
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
