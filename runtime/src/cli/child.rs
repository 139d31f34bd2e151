//! A command that runs under a lock, and must not outlive it.
//!
//! The child leads a process group of its own, so that a signal reaches everything it started. Between this process
//! and the command stands one `exec`: `palisade run-with-parent`, which asks the kernel to kill it if its parent dies. What
//! the command has started by then is the [`watchdog`](super::watchdog)'s business.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use clap::Args;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getppid, kill_process_group, waitid};
use tokio::process::{Child, Command};

use super::complain;
use super::signals::signals_of;
use super::terminal::Lent;

/// A running command.
pub(super) struct LockedCommand {
    child: Child,
    group: Option<Pid>,
    terminal: Option<Lent>,
    ended: bool,
}

/// Why a command does not go on by itself.
pub(super) enum Stopped {
    /// It was suspended, and goes on now: its lock would run out otherwise.
    Suspended,
    /// It wants the terminal, which is not ours to give.
    WantsTerminal,
}

impl LockedCommand {
    /// Starts `command` with these additions to its environment.
    pub(super) fn start(command: &[OsString], environment: &[(&str, String)]) -> std::io::Result<LockedCommand> {
        let child = Command::new(this_program()?)
            .arg("run-with-parent")
            .arg(std::process::id().to_string())
            .arg("--")
            .args(command)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let mut command = LockedCommand { child, group, terminal: None, ended: false };
        command.lend_terminal();
        Ok(command)
    }

    /// Lets the command have the terminal, if it is ours; says whether it has it.
    pub(super) fn lend_terminal(&mut self) -> bool {
        if self.terminal.is_none() && !self.ended {
            self.terminal = self.group.and_then(Lent::to);
            // It may have talked to the terminal before it was its own, and been stopped for it.
            if self.terminal.is_some() {
                self.signal(Signal::CONT);
            }
        }
        self.terminal.is_some()
    }

    /// Its process group.
    pub(super) fn group(&self) -> Option<Pid> {
        self.group
    }

    /// Waits for the command's end. The terminal is ours again then.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await;
        (self.ended, self.terminal) = (true, None);
        status
    }

    /// If the command was stopped, why. Who was suspended (Ctrl-Z) goes on.
    pub(super) fn look_after(&self) -> Option<Stopped> {
        let group = self.group?;
        let stops = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let suspended = match waitid(WaitId::Pid(group), stops).ok()? {
            Some(status) => {
                let terminal = [Signal::TTIN, Signal::TTOU].map(|signal| Some(signal.as_raw()));
                if terminal.contains(&status.stopping_signal()) {
                    return Some(Stopped::WantsTerminal);
                }
                status.stopped()
            }
            None => is_about_to_stop(group),
        };
        suspended.then(|| {
            self.signal(Signal::CONT);
            Stopped::Suspended
        })
    }

    /// Sends a signal to the command and to everything it started.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // A group that is gone needs no signal.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for LockedCommand {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::KILL);
        }
    }
}

/// Whether a process was told to stop and could not yet. One that waits for its child to become another program
/// (`vfork`, as some shells start everything) cannot; if that child was stopped with it, neither moves again.
fn is_about_to_stop(process: Pid) -> bool {
    let pending = signals_of(&process.as_raw_nonzero().to_string(), "ShdPnd");
    [Signal::STOP, Signal::TSTP].iter().any(|signal| pending & (1 << (signal.as_raw() - 1)) != 0)
}

/// This very program, even if its file was replaced while it waited for the lock.
pub(super) fn this_program() -> std::io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

/// The exit code that passes on how a command ended: its own, or 128 plus the signal that ended it.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Become COMMAND, and die with the process that started this
#[derive(Debug, Args)]
pub(super) struct RunWithParent {
    /// The process to die with
    parent: i32,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl RunWithParent {
    pub(super) fn run(self) -> ExitCode {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
            complain(format!("cannot tie the command to its lock: {error}"));
            return ExitCode::from(71);
        }
        if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != self.parent) {
            // The parent died before it could be watched.
            return ExitCode::from(76);
        }
        let mut words = self.command.into_iter();
        let Some(program) = words.next() else { return ExitCode::from(64) };
        let error = std::process::Command::new(&program).args(words).exec();
        complain(format!("cannot run {}: {error}", program.display()));
        // As a shell has it: 127 not found, 126 found but not to be run.
        ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
    }
}
