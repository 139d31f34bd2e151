//! The watchdog of a command that runs under a lock.
//!
//! While `palisade lock` runs, it stops its command in time by itself. But it may be killed, which
//! leaves the processes that the command has started; and it may be stopped (SIGSTOP, a debugger, a
//! frozen terminal), so that the lease ends while the command runs on. The watchdog is a second
//! process. `palisade lock` repeatedly sends it the deadline up to which the lock is certainly
//! held. The watchdog kills the command's process group at the deadline, or when `palisade lock`
//! dies.
//!
//! The deadline is the end of the guard's lease as the client counts it, on the clock that all
//! processes of a machine share and that advances while the machine sleeps ([`BootInstant`]). It is
//! sent as a point in time, never as a remaining duration.
//!
//! Once the deadline has passed, the watchdog kills the group even if a renewal arrives: a renewal
//! that it reads too late, because the machine was suspended or the watchdog did not run, changes
//! nothing. The watchdog also ignores a renewal whose deadline is further ahead than the TTL, or
//! earlier than the known one.

use std::io::{BufRead, stdin};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use palisade_client::BootInstant;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::child::this_program;
use super::print_error;

/// How often the watchdog reads the clock. A timeout alone would not notice that the machine slept
/// past the deadline.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How long a write to the watchdog may take.
const ALLOW_TIMEOUT: Duration = Duration::from_millis(10);

/// A running watchdog. Unless [`dismiss`](Watchdog::dismiss)ed, it kills the process group when
/// this is dropped.
pub(super) struct Watchdog(Child);

impl Watchdog {
    /// Starts the watchdog for a lock with this TTL. It watches no process group before the first
    /// [`allow`](Watchdog::allow).
    pub(super) fn start(ttl: Duration) -> std::io::Result<Watchdog> {
        let child = Command::new(this_program()?)
            .args(["watchdog", &ttl.as_nanos().div_ceil(1_000_000).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Keep the terminal's signals (Ctrl-C) away from the watchdog.
            .process_group(0)
            .spawn()?;
        Ok(Watchdog(child))
    }

    /// Allows `group` to run until this deadline; a later call extends it.
    pub(super) async fn allow(&mut self, group: Pid, until: BootInstant) {
        let line = format!("{} {}\n", group.as_raw_nonzero(), until.since_boot().as_nanos());
        if let Some(stdin) = &mut self.0.stdin {
            // A watchdog that was killed or does not read must not block this process, which also
            // has to stop the command in time. The line is so short that the pipe takes all of it
            // or nothing.
            let _ = timeout(ALLOW_TIMEOUT, stdin.write_all(line.as_bytes())).await;
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

impl WatchdogProcess {
    pub(super) fn run(self) -> ExitCode {
        let (sender, allowances) = crossbeam_channel::bounded(1);
        std::thread::spawn(move || {
            let lines = stdin().lock().lines().map_while(Result::ok);
            // At the end of standard input the channel closes, which ends the watch: the group is
            // killed.
            lines
                .filter_map(|line| parse(&line))
                .take_while(|&allowance| sender.send(allowance).is_ok())
                .for_each(drop);
        });
        if let Ok(allowance) = allowances.recv() {
            let why = watch(&allowances, allowance, Duration::from_millis(self.ttl_ms), BootInstant::now);
            // Kill before printing, which may block.
            kill(allowance.group);
            if let Some(why) = why {
                print_error(format!("killed the command (SIGKILL): {why}"));
            }
        }
        ExitCode::SUCCESS
    }
}

/// Why the watchdog killed the command, for the error message.
const OVER: &str = "the lease of its lock ended, and `palisade lock` did not stop the command in time";
const UNTRUSTED: &str = "the watchdog got a deadline further ahead than the lock's TTL";

/// Watches until the group must be killed. Returns why, or `None` if `palisade lock` has ended.
fn watch(
    allowances: &Receiver<Allowance>,
    mut allowance: Allowance,
    ttl: Duration,
    clock: impl Fn() -> BootInstant,
) -> Option<&'static str> {
    if allowance.until > clock() + ttl {
        return Some(UNTRUSTED);
    }
    loop {
        let left = allowance.until.saturating_duration_since(clock());
        if left.is_zero() {
            return Some(OVER);
        }
        match allowances.recv_timeout(left.min(CLOCK_POLL_INTERVAL)) {
            Ok(renewed) => allowance = renew(allowance, renewed, ttl, clock()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
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

fn parse(line: &str) -> Option<Allowance> {
    let (group, until) = line.split_once(' ')?;
    let group = Pid::from_raw(group.parse().ok()?)?;
    Some(Allowance { group, until: BootInstant::from_boot(Duration::from_nanos(until.parse().ok()?)) })
}

#[cfg(test)]
mod tests;
