//! A command that runs under a lock and must not outlive it.
//!
//! The child leads a process group of its own, so that a signal reaches everything it started.
//! `palisade lock` starts the command through `palisade run-with-parent`, which asks the kernel to
//! kill it if its parent dies and then replaces itself by the command (`exec`). The
//! [`watchdog`](super::watchdog) kills the processes that the command has started by then.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use clap::{Args, ValueEnum};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_current_process_group, kill_process, kill_process_group,
    waitid,
};
use tokio::process::{Child, Command};

use super::signals::signals_of;
use super::terminal::ForegroundGuard;
use super::{finish_errors, print_error};

/// Exit code: the command died of SIGINT, as in a shell.
pub(super) const EXIT_INTERRUPTED: u8 = 130;

/// A running command.
pub(super) struct LockedCommand {
    child: Child,
    group: Option<Pid>,
    terminal: Option<ForegroundGuard>,
    /// Whether it had the terminal when it ended.
    had_terminal: bool,
    ended: bool,
}

/// Why the kernel stopped a command.
pub(super) enum Stopped {
    /// The command was suspended, and has been resumed: its lock would expire otherwise.
    Suspended,
    /// The command uses the terminal, but this process is in the background and cannot hand the
    /// terminal over.
    WantsTerminal,
}

impl LockedCommand {
    /// Starts `command` with these changes of its environment: a variable without a value is
    /// removed.
    pub(super) fn start(
        command: &[OsString],
        environment: &[(&str, Option<String>)],
    ) -> std::io::Result<LockedCommand> {
        let mut program = Command::new(this_program()?);
        for (name, value) in environment {
            match value {
                Some(value) => program.env(name, value),
                None => program.env_remove(name),
            };
        }
        let child = program
            .arg("run-with-parent")
            .arg(std::process::id().to_string())
            .arg("--")
            .args(command)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let mut command = LockedCommand { child, group, terminal: None, had_terminal: false, ended: false };
        command.give_terminal();
        Ok(command)
    }

    /// Moves the command to the foreground of the terminal, if this process is there. Returns
    /// whether the command is in the foreground.
    pub(super) fn give_terminal(&mut self) -> bool {
        if self.terminal.is_none() && !self.ended {
            self.terminal = self.group.and_then(ForegroundGuard::give_to);
            // The kernel may have stopped the command for using the terminal before it was in the
            // foreground.
            if self.terminal.is_some() {
                self.signal(Signal::CONT);
            }
        }
        self.terminal.is_some()
    }

    /// The command's process group.
    pub(super) fn group(&self) -> Option<Pid> {
        self.group
    }

    /// Waits for the command's end, and then takes the terminal back.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.ended = true;
        self.had_terminal |= self.terminal.take().is_some();
        status
    }

    /// Whether it had the terminal when it ended: then the terminal's signals came to it, and not to this process.
    pub(super) fn had_terminal(&self) -> bool {
        self.had_terminal
    }

    /// Returns why the command is stopped, if it is. Resumes a command that was suspended (Ctrl-Z).
    pub(super) fn resume_if_suspended(&self) -> Option<Stopped> {
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
            // The call fails if the group has already ended, which needs no signal.
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

/// Whether a stop signal is pending for a process. A process that waits for the `exec` of its child
/// (`vfork`, which some shells use for every command) cannot stop yet; if its child was stopped
/// with it, neither can continue.
fn is_about_to_stop(process: Pid) -> bool {
    let pending = signals_of(&process.as_raw_nonzero().to_string(), "ShdPnd");
    [Signal::STOP, Signal::TSTP].iter().any(|signal| pending & (1 << (signal.as_raw() - 1)) != 0)
}

/// The path of the running program, valid even if its file was replaced while it waited for the
/// lock.
pub(super) fn this_program() -> std::io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

/// The command's exit code, or 128 plus the number of the signal that ended it, as in a shell.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Whom a SIGINT ends that has not come to all.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Interrupted {
    /// This process: the others of its process group have had the signal, or it was not meant for them.
    Process,
    /// This process, and the others of its process group.
    ProcessGroup,
}

impl Interrupted {
    /// Ends them by SIGINT, as Ctrl-C ends them if the command is not under a lock. A shell ends its script only if the
    /// command that it waits for has died of the signal. This process handles SIGINT, and only another program (`exec`)
    /// has the default action again. Returns the exit code if that cannot be run.
    pub(super) fn die(self) -> u8 {
        finish_errors();
        let whom = self.to_possible_value().expect("none is hidden");
        let error = match this_program() {
            Ok(program) => std::process::Command::new(program).args(["die-of-interrupt", whom.get_name()]).exec(),
            Err(error) => error,
        };
        print_error(format!("cannot end by SIGINT, so a script may continue: {error}"));
        EXIT_INTERRUPTED
    }
}

/// `palisade die-of-interrupt`: returns only if SIGINT is ignored.
pub(super) fn die_of_interrupt(whom: Interrupted) -> ExitCode {
    let _ = match whom {
        Interrupted::Process => kill_process(getpid(), Signal::INT),
        Interrupted::ProcessGroup => kill_current_process_group(Signal::INT),
    };
    ExitCode::from(EXIT_INTERRUPTED)
}

/// Replace this process by COMMAND, which the kernel kills when its parent dies
#[derive(Debug, Args)]
pub(super) struct RunWithParent {
    /// Process ID of the parent
    parent: i32,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl RunWithParent {
    pub(super) fn run(self) -> ExitCode {
        #[cfg(target_os = "linux")]
        if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
            print_error(format!(
                "cannot ask the kernel to kill the command when its parent dies: {error}; the command was not run"
            ));
            return ExitCode::from(71);
        }
        if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != self.parent) {
            // The parent died before the request above: the kernel would never send the signal.
            return ExitCode::from(76);
        }
        let mut arguments = self.command.into_iter();
        let Some(program) = arguments.next() else { return ExitCode::from(64) };
        let error = std::process::Command::new(&program).args(arguments).exec();
        print_error(format!("cannot run {}: {error}", program.display()));
        // As in a shell: 127 not found, 126 found but not executable.
        ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
    }
}
