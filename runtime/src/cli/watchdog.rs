//! The watchdog of a command that runs under a lock.
//!
//! `palisade lock` stops its command in time by itself, as long as it runs. But it may be killed, and then nobody
//! stops what the command has started; and it may be stopped (SIGSTOP, a debugger, a frozen terminal), and then the
//! lease ends while the command works on. So a second process watches: it is told again and again until when the lock
//! is certainly held, and kills the command's process group when that moment has come, or when `palisade lock` dies.
//!
//! That moment is the end of the guard's lease as the client counts it, on the clock that all processes of a machine
//! share and that goes on while the machine sleeps ([`BootInstant`]). It is handed over as it is, never as what is left.
//!
//! Once that moment has come, the watchdog kills, whatever it is told then: a renewal that it reads too late, because
//! the machine was suspended or the watchdog did not run, changes nothing. Nor does one with an end that no lease of this
//! TTL can have by now, or with an earlier end than the one that is known.

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

/// How often the watchdog looks at the clock: a machine that wakes up is not noticed otherwise.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long the watchdog may take to read.
const ALLOW_TIMEOUT: Duration = Duration::from_millis(10);

/// A running watchdog. When this is dropped without a word, it kills what it watches.
pub(super) struct Watchdog(Child);

impl Watchdog {
    /// Starts it, for a lock with this TTL. It does not know what to watch yet.
    pub(super) fn start(ttl: Duration) -> std::io::Result<Watchdog> {
        let child = Command::new(this_program()?)
            .args(["watchdog", &ttl.as_nanos().div_ceil(1_000_000).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // What the terminal sends to the command, and to this process, is not for the watchdog.
            .process_group(0)
            .spawn()?;
        Ok(Watchdog(child))
    }

    /// Tells it that `group` may live until then, and no longer unless it is told again.
    pub(super) async fn allow(&mut self, group: Pid, until: BootInstant) {
        let line = format!("{} {}\n", group.as_raw_nonzero(), until.since_boot().as_nanos());
        if let Some(stdin) = &mut self.0.stdin {
            // A watchdog that was killed, or does not read, must not hold this process up: it has to stop the command in
            // time by itself. So short a line is written as a whole or not at all.
            let _ = timeout(ALLOW_TIMEOUT, stdin.write_all(line.as_bytes())).await;
        }
    }

    /// There is nothing to watch any more.
    pub(super) async fn dismiss(mut self) {
        let _ = self.0.kill().await;
    }
}

/// Kill a process group when its time is over, or when standard input ends
#[derive(Debug, Args)]
pub(super) struct WatchdogProcess {
    /// The lock's TTL in milliseconds: no lease may be said to last for longer
    ttl_ms: u64,
}

/// What is watched, and until when it may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Charge {
    group: Pid,
    until: BootInstant,
}

impl WatchdogProcess {
    pub(super) fn run(self) -> ExitCode {
        let (sender, charges) = crossbeam_channel::bounded(1);
        std::thread::spawn(move || {
            let lines = stdin().lock().lines().map_while(Result::ok);
            // The channel is closed, and that is the alarm, when standard input ends.
            lines.filter_map(|line| parse(&line)).take_while(|&charge| sender.send(charge).is_ok()).for_each(drop);
        });
        if let Ok(charge) = charges.recv() {
            let why = watch(&charges, charge, Duration::from_millis(self.ttl_ms), BootInstant::now);
            // First of all.
            kill(charge.group);
            if let Some(why) = why {
                print_error(format!("{why}: the command was killed"));
            }
        }
        ExitCode::SUCCESS
    }
}

/// Why the watchdog kills, if there is something to say about it.
const OVER: &str = "the time of the lock was over, and `palisade lock` did not move";
const UNTRUSTED: &str = "the watchdog was told of a lease that is longer than the lock's TTL";

/// Watches until there is reason to kill. Says why, unless `palisade lock` has just ended.
fn watch(
    charges: &Receiver<Charge>,
    mut charge: Charge,
    ttl: Duration,
    clock: impl Fn() -> BootInstant,
) -> Option<&'static str> {
    if charge.until > clock() + ttl {
        return Some(UNTRUSTED);
    }
    loop {
        let left = charge.until.saturating_duration_since(clock());
        if left.is_zero() {
            return Some(OVER);
        }
        match charges.recv_timeout(left.min(LOOK_EVERY)) {
            Ok(renewed) => charge = renew(charge, renewed, ttl, clock()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// What holds after a renewal was read: the renewal if it came in time and can be true, else what held before.
fn renew(known: Charge, renewed: Charge, ttl: Duration, now: BootInstant) -> Charge {
    let in_time = now < known.until;
    let possible = renewed.group == known.group && renewed.until > known.until && renewed.until <= now + ttl;
    if in_time && possible { renewed } else { known }
}

fn kill(group: Pid) {
    // A group that is gone needs no signal.
    let _ = kill_process_group(group, Signal::KILL);
}

fn parse(line: &str) -> Option<Charge> {
    let (group, until) = line.split_once(' ')?;
    let group = Pid::from_raw(group.parse().ok()?)?;
    Some(Charge { group, until: BootInstant::from_boot(Duration::from_nanos(until.parse().ok()?)) })
}

#[cfg(test)]
mod tests;
