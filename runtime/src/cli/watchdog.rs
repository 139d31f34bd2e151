//! The watchdog of a command that runs under a lock.
//!
//! While `palisade lock` runs, it stops its command in time by itself. But it may be killed, which
//! leaves the processes that the command has started; and it may be stopped (SIGSTOP, a debugger, a
//! frozen terminal), so that the lease ends while the command runs on. The watchdog is a second
//! process. `palisade lock` repeatedly sends it the deadline up to which the lock is certainly
//! held. The watchdog kills the command's process group at the deadline, or when `palisade lock`
//! dies. Then it gives the lock back, so that the waiters need not wait for the end of the TTL. It
//! does so only when every process of the group is dead, and by closing the session of this one
//! holder, which no other holder ever has.
//!
//! Standard input is a pipe from `palisade lock`: first the lock ([`HeldLock`], in JSON), then a line
//! for each [`Order`].
//!
//! The deadline is the end of the guard's lease as the client counts it, on the clock that all
//! processes of a machine share and that advances while the machine sleeps ([`BootInstant`]). It is
//! sent as a point in time, never as a remaining duration.
//!
//! Once the deadline has passed, the watchdog kills the group even if a renewal arrives: a renewal
//! that it reads too late, because the machine was suspended or the watchdog did not run, changes
//! nothing. The watchdog also ignores a renewal whose deadline is further ahead than the TTL, or
//! earlier than the known one.

mod group;

use std::fs::File;
use std::io::{BufRead, stdin};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use palisade_client::wire::SessionId;
use palisade_client::{BootInstant, Client, Options, Security};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::child::this_program;
use super::{block_on, print_error};

/// How often the watchdog reads the clock. A timeout alone would not notice that the machine slept
/// past the deadline.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long a write to the watchdog may take.
const SEND_TIMEOUT: Duration = Duration::from_millis(10);

/// How long the watchdog tries to give the lock back, at most: the lock expires with its TTL.
const GIVE_BACK_TIMEOUT: Duration = Duration::from_secs(10);

/// The line that ends [`Watchdog::hand_over`].
const GIVE_BACK: &str = "give back";

/// The lock under which the command runs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeldLock {
    pub(super) endpoints: Vec<String>,
    pub(super) security: Security,
    pub(super) key: String,
    /// The session that holds it, and nothing else.
    pub(super) session: SessionId,
}

/// A running watchdog. Unless [`dismiss`](Watchdog::dismiss)ed, it kills the process group when
/// this is dropped, and gives the lock back.
pub(super) struct Watchdog(Child);

impl Watchdog {
    /// Starts the watchdog for a lock with this TTL. It watches no process group before the first
    /// [`allow`](Watchdog::allow).
    pub(super) async fn start(ttl: Duration, lock: &HeldLock) -> std::io::Result<Watchdog> {
        let lock = serde_json::to_string(lock)?;
        let child = Command::new(this_program()?)
            .args(["watchdog", &ttl.as_nanos().div_ceil(1_000_000).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Keep the terminal's signals (Ctrl-C) away from the watchdog.
            .process_group(0)
            .spawn()?;
        let mut watchdog = Watchdog(child);
        watchdog.send(&lock).await;
        Ok(watchdog)
    }

    /// Allows `group` to run until this deadline; a later call extends it.
    pub(super) async fn allow(&mut self, group: Pid, until: BootInstant) {
        self.send(&format!("{} {}", group.as_raw_nonzero(), until.since_boot().as_nanos())).await;
    }

    /// Leaves the lock to the watchdog, which gives it back: `palisade lock` has killed the command
    /// and its process group.
    pub(super) async fn hand_over(mut self) {
        self.send(GIVE_BACK).await;
    }

    async fn send(&mut self, line: &str) {
        if let Some(stdin) = &mut self.0.stdin {
            // A watchdog that was killed or does not read must not block this process, which also
            // has to stop the command in time. A line is so short that the pipe takes all of it or
            // nothing.
            let _ = timeout(SEND_TIMEOUT, stdin.write_all(format!("{line}\n").as_bytes())).await;
        }
    }

    /// Ends the watchdog without killing the process group: the command has ended.
    pub(super) async fn dismiss(mut self) {
        let _ = self.0.kill().await;
    }
}

/// Kill a process group at its deadline, or when standard input ends
#[derive(Debug, Args)]
pub(super) struct WatchdogProcess {
    /// The lock's TTL in milliseconds: no deadline can be further ahead
    ttl_ms: u64,
}

/// The process group that is watched, and its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allowance {
    group: Pid,
    until: BootInstant,
}

/// A line from `palisade lock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Allow(Allowance),
    /// The command is dead, and its lock is to be given back.
    GiveBack,
}

impl WatchdogProcess {
    pub(super) fn run(self) -> ExitCode {
        let ttl = Duration::from_millis(self.ttl_ms);
        let mut line = String::new();
        let lock = stdin().read_line(&mut line).ok().and_then(|_| serde_json::from_str::<HeldLock>(&line).ok());
        let (sender, orders) = crossbeam_channel::bounded(1);
        std::thread::spawn(move || {
            let lines = stdin().lock().lines().map_while(Result::ok);
            // At the end of standard input the channel closes, which ends the watch: the group is
            // killed.
            lines.filter_map(|line| parse(&line)).take_while(|&order| sender.send(order).is_ok()).for_each(drop);
        });
        // Without an allowance the group is unknown, and may be alive: the lock must expire.
        if let Ok(Order::Allow(allowance)) = orders.recv() {
            let end = watch(&orders, allowance, ttl, BootInstant::now);
            // Kill before printing, which may block.
            kill(allowance.group);
            if let Some(why) = end.message() {
                let key = lock.as_ref().map_or(String::new(), |lock| format!("{}: ", lock.key));
                print_error(format!("{key}killed the command (SIGKILL): {why}"));
            }
            if let Some(lock) = lock {
                give_back(&lock, allowance.group, ttl);
            }
        }
        ExitCode::SUCCESS
    }
}

/// Why the watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The deadline has passed.
    LeaseOver,
    /// The first deadline was further ahead than the TTL.
    Implausible,
    /// `palisade lock` has ended without a word: it was killed.
    ParentKilled,
    /// `palisade lock` has stopped the command.
    HandedOver,
}

impl End {
    fn message(self) -> Option<&'static str> {
        match self {
            End::LeaseOver => Some("the lease of its lock ended, and `palisade lock` did not stop the command in time"),
            End::Implausible => Some("the watchdog got a deadline further ahead than the lock's TTL"),
            End::ParentKilled => Some(
                "`palisade lock` was killed; its lock is released when all processes of the command are dead, and expires \
                 with its TTL if no leader answers",
            ),
            End::HandedOver => None,
        }
    }
}

/// Watches until the group must be killed.
fn watch(orders: &Receiver<Order>, mut allowance: Allowance, ttl: Duration, clock: impl Fn() -> BootInstant) -> End {
    if allowance.until > clock() + ttl {
        return End::Implausible;
    }
    loop {
        let left = allowance.until.saturating_duration_since(clock());
        if left.is_zero() {
            return End::LeaseOver;
        }
        match orders.recv_timeout(left.min(CLOCK_POLL_INTERVAL)) {
            Ok(Order::Allow(renewed)) => allowance = renew(allowance, renewed, ttl, clock()),
            Ok(Order::GiveBack) => return End::HandedOver,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return End::ParentKilled,
        }
    }
}

/// Closes the lock's session when every process of the group is dead. Gives up when the lock must
/// have expired.
fn give_back(lock: &HeldLock, group: Pid, ttl: Duration) {
    // A program that reads the output of `palisade lock` to its end must not wait for this.
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(null);
    }
    if !group::is_dead_within(group, ttl) {
        return;
    }
    let patience = ttl.min(GIVE_BACK_TIMEOUT);
    let security = lock.security.clone();
    let options = Options { connect_timeout: patience, request_timeout: patience, security, ..Options::default() };
    block_on(async {
        // A failure has no reader any more: the lock expires.
        if let Ok(client) = Client::connect(&lock.endpoints, options).await {
            let _ = client.close_session(lock.session).await;
        }
    });
}

/// The allowance after a renewal was read: the renewal if it came in time and is plausible,
/// otherwise the known one.
fn renew(known: Allowance, renewed: Allowance, ttl: Duration, now: BootInstant) -> Allowance {
    let in_time = now < known.until;
    let possible = renewed.group == known.group && renewed.until > known.until && renewed.until <= now + ttl;
    if in_time && possible { renewed } else { known }
}

fn kill(group: Pid) {
    // The call fails if the group has already ended, which needs no signal.
    let _ = kill_process_group(group, Signal::KILL);
}

fn parse(line: &str) -> Option<Order> {
    if line == GIVE_BACK {
        return Some(Order::GiveBack);
    }
    let (group, until) = line.split_once(' ')?;
    let group = Pid::from_raw(group.parse().ok()?)?;
    let until = BootInstant::from_boot(Duration::from_nanos(until.parse().ok()?));
    Some(Order::Allow(Allowance { group, until }))
}

#[cfg(test)]
mod tests;
