//! Pauses: what a garbage collection, a page fault on a slow disk or a suspended machine do.
//!
//! `sleep` delays the job; the rest of the process, with its renewals, runs on. `stop` halts the
//! whole process by SIGSTOP. A process cannot wake itself, so it starts a child (`stop-parent`) that
//! stops its parent, waits, and sends SIGCONT. The child signals only its parent: if the
//! worker is killed meanwhile, the child has another parent and ends.

use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{Pid, Signal, getppid, kill_process};
use serde::{Deserialize, Serialize};

/// How a worker is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The job sleeps; the process and its renewals run on
    Sleep,
    /// SIGSTOP halts the whole process, SIGCONT wakes it
    Stop,
}

impl How {
    /// The value of `--pause-how`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            How::Sleep => "sleep",
            How::Stop => "stop",
        }
    }
}

/// Pauses; returns how long it took.
///
/// # Errors
/// The process could not be stopped.
pub async fn pause(how: How, length: Duration) -> Result<Duration, String> {
    let begun = Instant::now();
    match how {
        How::Sleep => tokio::time::sleep(length).await,
        How::Stop => stop(length).await?,
    }
    Ok(begun.elapsed())
}

async fn stop(length: Duration) -> Result<(), String> {
    let failed = |what: &str| format!("the worker cannot be stopped: {what}");
    let program = std::env::current_exe().map_err(|error| failed(&error.to_string()))?;
    let mut child = tokio::process::Command::new(program);
    child.arg("stop-parent").arg("--for").arg(format!("{}us", length.as_micros()));
    child.stdin(Stdio::null()).stdout(Stdio::null());
    let status = child.status().await.map_err(|error| failed(&error.to_string()))?;
    status.success().then_some(()).ok_or_else(|| failed(&format!("its helper process ended with {status}")))
}

/// Stop the parent process for a while; a worker starts this for `--pause-how stop`
#[derive(Debug, clap::Args)]
pub struct StopParent {
    /// How long
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Duration,
}

impl StopParent {
    /// Stops the parent, waits, wakes it.
    ///
    /// # Errors
    /// There is no parent, or it cannot be signalled.
    pub async fn run(self) -> Result<ExitCode, String> {
        let parent = parent().ok_or("there is no parent process to stop")?;
        kill_process(parent, Signal::STOP).map_err(|error| format!("cannot stop process {parent:?}: {error}"))?;
        tokio::time::sleep(self.length).await;
        if self::parent() == Some(parent) {
            kill_process(parent, Signal::CONT).map_err(|error| format!("cannot wake process {parent:?}: {error}"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The parent, unless that is the first process, to which orphans go.
fn parent() -> Option<Pid> {
    getppid().filter(|parent| *parent != Pid::INIT)
}
