//! The watchdog of a command that runs under a lock.
//!
//! `palisade lock` stops its command in time by itself, as long as it runs. But it may be killed, and then nobody
//! stops what the command has started; and it may be stopped (SIGSTOP, a debugger, a frozen terminal), and then the
//! lease ends while the command works on. So a second process watches: it is told again and again until when the lock
//! is certainly held, and kills the command's process group when that moment has come, or when `palisade lock` dies.
//!
//! Moments are of the clock that all processes of a machine share and that goes on while the machine sleeps.

use std::io::{BufRead, stdin};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::child::this_program;
use super::complain;

/// How often the watchdog looks at the clock: a machine that wakes up is not noticed otherwise.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long the watchdog may take to read.
const ALLOW_TIMEOUT: Duration = Duration::from_millis(10);

/// A running watchdog. When this is dropped without a word, it kills what it watches.
pub(super) struct Watchdog(Child);

impl Watchdog {
    /// Starts it. It does not know what to watch yet.
    pub(super) fn start() -> std::io::Result<Watchdog> {
        let child = Command::new(this_program()?)
            .arg("watch-over")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // What the terminal sends to the command, and to this process, is not for the watchdog.
            .process_group(0)
            .spawn()?;
        Ok(Watchdog(child))
    }

    /// Tells it that `group` may live for `remaining`, and no longer unless it is told again.
    pub(super) async fn allow(&mut self, group: Pid, remaining: Duration) {
        let until = now() + remaining;
        let line = format!("{} {}\n", group.as_raw_nonzero(), until.as_nanos());
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
pub(super) struct WatchOver {}

/// What is watched, and until when it may live.
#[derive(Clone, Copy)]
struct Charge {
    group: Pid,
    until: Duration,
}

impl WatchOver {
    pub(super) fn run(self) -> ExitCode {
        let (sender, charges) = crossbeam_channel::bounded(1);
        std::thread::spawn(move || {
            let lines = stdin().lock().lines().map_while(Result::ok);
            // The channel is closed, and that is the alarm, when standard input ends.
            lines.filter_map(|line| parse(&line)).take_while(|&charge| sender.send(charge).is_ok()).for_each(drop);
        });
        if let Ok(charge) = charges.recv() {
            let (charge, late) = watch(&charges, charge);
            // First of all.
            kill(charge.group);
            if late {
                complain("the time of the lock was over, and `palisade lock` did not move: the command was killed");
            }
        }
        ExitCode::SUCCESS
    }
}

/// Watches until there is reason to kill; says whether that is that the time is over.
fn watch(charges: &Receiver<Charge>, mut charge: Charge) -> (Charge, bool) {
    loop {
        let left = charge.until.saturating_sub(now());
        if left.is_zero() {
            return (charge, true);
        }
        match charges.recv_timeout(left.min(LOOK_EVERY)) {
            Ok(renewed) => charge = renewed,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return (charge, false),
        }
    }
}

fn kill(group: Pid) {
    // A group that is gone needs no signal.
    let _ = kill_process_group(group, Signal::KILL);
}

fn parse(line: &str) -> Option<Charge> {
    let (group, until) = line.split_once(' ')?;
    let group = Pid::from_raw(group.parse().ok()?)?;
    Some(Charge { group, until: Duration::from_nanos(until.parse().ok()?) })
}

/// Time since the machine was started, sleep included.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
