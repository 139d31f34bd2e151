//! The line that a waiting `palisade lock` shows on a terminal: how long it has waited, its
//! position in the queue, and the holder. The line is updated in place and cleared at the end of
//! the wait, so that nothing of it stays above the command's output.

use std::convert::Infallible;
use std::io::IsTerminal;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use palisade_client::wire::{Consistency, LockView};
use palisade_client::{BootInstant, Client};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use tokio::time::{sleep, timeout};

use super::super::show::held_by;
use super::super::{PRINT_ERROR_TIMEOUT, write_error};

/// How often the line is updated. A lock that is granted sooner shows no line.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// Return to the first column and clear to the end of the line.
const CLEAR: &str = "\r\x1b[K";
/// Cut off a line that is longer than the terminal is wide, instead of wrapping it.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// The line of one wait. Clears the line when dropped.
pub(super) struct WaitLine {
    began: BootInstant,
    /// The last write to standard error, if the line is on the terminal: a terminal that is paused
    /// (Ctrl-S) completes no write.
    shown: Option<Receiver<()>>,
}

impl WaitLine {
    pub(super) fn new() -> WaitLine {
        WaitLine { began: BootInstant::now(), shown: None }
    }

    /// Shows the wait of `client` for the locks on these keys until this future is dropped: of several, that
    /// of the lock at which it has the most waiters before it.
    pub(super) async fn follow(&mut self, client: &Client, keys: &[String]) -> Infallible {
        loop {
            sleep(UPDATE_INTERVAL).await;
            if !has_terminal() || self.is_writing() {
                continue;
            }
            let sessions = client.waiting_sessions(keys[0].as_str()).await.unwrap_or_default();
            let read = async {
                let mut locks = Vec::new();
                for key in keys {
                    locks.push(client.show_lock(key.as_str(), Consistency::Linearizable).await.ok()?);
                }
                locks.into_iter().max_by_key(|lock| (position(lock, &sessions), lock.held))
            };
            let lock = timeout(UPDATE_INTERVAL, read).await.ok().flatten();
            let line = text(&keys[0], BootInstant::now() - self.began, lock.as_ref(), &sessions);
            self.shown = write_error(format!("{CLEAR}{NO_WRAP}{line}{WRAP}"));
        }
    }

    fn is_writing(&self) -> bool {
        self.shown.as_ref().is_some_and(|shown| shown.try_recv() == Err(TryRecvError::Empty))
    }
}

impl Drop for WaitLine {
    fn drop(&mut self) {
        if let Some(shown) = self.shown.take() {
            // Keep the order of the writes.
            let _ = shown.recv_timeout(PRINT_ERROR_TIMEOUT);
            let cleared = write_error(CLEAR.to_string());
            let _ = cleared.map(|cleared| cleared.recv_timeout(PRINT_ERROR_TIMEOUT));
        }
    }
}

/// Whether standard error is a terminal that understands control sequences, and this process is in
/// its foreground: a background job must not write over what its user types.
fn has_terminal() -> bool {
    let stderr = std::io::stderr();
    let is_plain = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    // The call fails on a terminal that does not control this process, and so has no jobs.
    stderr.is_terminal() && !is_plain && tcgetpgrp(&stderr).map_or(true, |foreground| foreground == getpgrp())
}

fn text(key: &str, waited: Duration, lock: Option<&LockView>, sessions: &[u64]) -> String {
    let waited = humantime::format_duration(Duration::from_secs(waited.as_secs()));
    let key = lock.map_or(key, |lock| &lock.key);
    let begin = format!("palisade: {key:?}: waiting for {waited}");
    let Some(lock) = lock else {
        return format!("{begin}; no leader answers at the moment");
    };
    let of = lock.queue.len();
    let position = position(lock, sessions)
        .map_or_else(|| format!("{of} in the queue"), |ahead| format!("position {} of {of}", ahead + 1));
    format!("{begin}, {position}; {}", held_by(lock))
}

/// The number of waiters before one of these sessions.
fn position(lock: &LockView, sessions: &[u64]) -> Option<usize> {
    lock.queue.iter().position(|waiter| sessions.contains(&waiter.session))
}

#[cfg(test)]
mod tests {
    use palisade_client::wire::{HolderView, WaiterView};

    use super::*;

    /// Goal: the line names the time, the waiter's own position and the holder, and no control
    /// character of a name reaches the terminal.
    #[test]
    fn line_has_time_position_and_holder() {
        let waiter = |session| WaiterView { owner: "w".into(), session, ..WaiterView::default() };
        let holder = HolderView { owner: "a\x1b[2J".into(), token: 17, ..HolderView::default() };
        let queue = vec![waiter(2), waiter(3), waiter(4)];
        let mut lock = LockView { key: "k".into(), holders: vec![holder.clone()], queue, ..LockView::default() };
        let waited = Duration::from_millis(75_900);
        let line = text("k", waited, Some(&lock), &[3]);
        let begin = r#"palisade: "k": waiting for 1m 15s"#;
        let held = r#"the lock is held by "a\u{1b}[2J" with token 17"#;
        assert_eq!(line, format!("{begin}, position 2 of 3; {held}"));
        lock.holders.push(holder);
        let line = text("j", waited, Some(&lock), &[]);
        assert_eq!(line, format!("{begin}, 3 in the queue; {held}, and by 1 others"));
        lock.holders.clear();
        assert_eq!(text("k", waited, Some(&lock), &[]), format!("{begin}, 3 in the queue; no session holds the lock"));
        assert_eq!(
            text("k", waited, None, &[]),
            r#"palisade: "k": waiting for 1m 15s; no leader answers at the moment"#
        );
    }
}
