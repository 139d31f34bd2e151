//! The terminal that `palisade lock` was started at, lent to its command.
//!
//! The command leads a process group of its own, so that everything it starts can be stopped together. A terminal
//! listens to one group at a time; so while the command runs, that is the command's, and Ctrl-C and the keyboard are
//! for it.

use std::fs::File;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// A terminal that was lent. It is taken back when this is dropped.
pub(super) struct Lent {
    terminal: File,
    to: Pid,
}

impl Lent {
    /// Lends the terminal to `group`, if there is one and it is ours to lend: a job in the background has none.
    pub(super) fn to(group: Pid) -> Option<Lent> {
        let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
        if tcgetpgrp(&terminal).ok()? != getpgrp() {
            return None;
        }
        tcsetpgrp(&terminal, group).ok()?;
        Some(Lent { terminal, to: group })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Who is not in the foreground is stopped (SIGTTOU) for touching the terminal, unless it blocks that signal. To
        // handle it is not enough: the call would be repeated for ever.
        let background = SigSet::from(Signal::SIGTTOU);
        if tcgetpgrp(&self.terminal).is_ok_and(|group| group == self.to) && background.thread_block().is_ok() {
            let _ = tcsetpgrp(&self.terminal, getpgrp());
            let _ = background.thread_unblock();
        }
    }
}
