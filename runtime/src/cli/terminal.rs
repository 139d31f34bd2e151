//! Makes the command of `palisade lock` the foreground process group of the terminal.
//!
//! The command leads a process group of its own, so that one signal stops everything it starts. A
//! terminal has one foreground process group at a time. While the command runs it is the command's
//! group, which therefore gets Ctrl-C and the keyboard input.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Keeps another process group in the foreground of the terminal. When this is dropped, this
/// process's group is in the foreground again.
pub(super) struct ForegroundGuard {
    terminal: File,
    group: Pid,
}

impl ForegroundGuard {
    /// Moves `group` to the foreground; `None` without a terminal, or if this process is itself in
    /// the background.
    pub(super) fn give_to(group: Pid) -> Option<ForegroundGuard> {
        let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
        if tcgetpgrp(&terminal).ok()? != getpgrp() {
            return None;
        }
        tcsetpgrp(&terminal, group).ok()?;
        Some(ForegroundGuard { terminal, group })
    }
}

impl Drop for ForegroundGuard {
    fn drop(&mut self) {
        // The kernel stops a background process (SIGTTOU) that calls tcsetpgrp, unless the process
        // blocks that signal. A handler is not enough: the kernel would restart the call for ever.
        let ttou = SigSet::from(Signal::SIGTTOU);
        if tcgetpgrp(&self.terminal).is_ok_and(|group| group == self.group) && ttou.thread_block().is_ok() {
            let _ = tcsetpgrp(&self.terminal, getpgrp());
            let _ = ttou.thread_unblock();
        }
    }
}
