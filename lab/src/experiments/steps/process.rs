//! The processes of step clients, as the experiment drives them.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::client::{Order, Report, now_us};
use crate::experiments::processes::{next, program, spawn};

/// A step client's process. It ends with this value.
#[derive(Debug)]
pub(in crate::experiments) struct Process {
    name: String,
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    stopped: bool,
    /// What it reported last.
    pub report: Report,
}

impl Process {
    /// Starts a step client with more flags.
    ///
    /// # Errors
    /// It does not start.
    pub(in crate::experiments) fn start(name: &str, flags: &[impl AsRef<OsStr>]) -> Result<Process, String> {
        let mut command = program()?;
        command.args(["step-client", "--name", name]).args(flags);
        let (mut child, lines) = spawn(command, Stdio::piped())?;
        let input = child.stdin.take().ok_or("the process has no standard input")?;
        Ok(Process { name: name.to_owned(), child, input, lines, stopped: false, report: Report::default() })
    }

    /// Gives an order, and waits until it is done. A stopped process finds the order when it is resumed for it.
    ///
    /// # Errors
    /// The process failed, or printed nothing for too long.
    pub(in crate::experiments) async fn order(&mut self, order: Order) -> Result<Report, String> {
        let name = self.name.clone();
        let failed = |reason: &str| format!("client {name}, {order:?}: {reason}");
        let line = serde_json::to_string(&order).map_err(|error| failed(&error.to_string()))? + "\n";
        self.input.write_all(line.as_bytes()).await.map_err(|error| failed(&error.to_string()))?;
        if self.stopped {
            self.signal(Signal::CONT)?;
            self.stopped = false;
        }
        let line =
            next(&mut self.lines, &self.name).await?.ok_or_else(|| failed("it has ended; see its error above"))?;
        self.report = serde_json::from_str(&line).map_err(|error| failed(&format!("it printed {line}: {error}")))?;
        Ok(self.report.clone())
    }

    /// Stops it by SIGSTOP, and waits until it does not run any more.
    ///
    /// # Errors
    /// It has ended, or still runs 5 s later.
    pub(in crate::experiments) async fn stop(&mut self) -> Result<(), String> {
        self.signal(Signal::STOP)?;
        self.stopped = true;
        let stat = format!("/proc/{}/stat", self.child.id().unwrap_or_default());
        for _ in 0..500 {
            let stat = std::fs::read_to_string(&stat).map_err(|error| format!("client {}: {error}", self.name))?;
            if stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T')) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(format!("client {} still runs 5 s after SIGSTOP", self.name))
    }

    /// Whether it is stopped.
    #[must_use]
    pub(in crate::experiments) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether its lease is over by a correct clock.
    #[must_use]
    pub(in crate::experiments) fn is_over(&self) -> bool {
        self.report.lease_until_us.is_some_and(|until| now_us() >= until)
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| format!("client {} has ended", self.name))?;
        kill_process(pid, signal).map_err(|error| format!("client {} cannot be signalled: {error}", self.name))
    }
}
