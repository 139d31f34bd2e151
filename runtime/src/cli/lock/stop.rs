//! Stops a command whose lock cannot be held any longer.
//!
//! Three deadlines stand between the last answered renewal and the end of the lease, each earlier
//! than what it protects. A lease lasts one TTL from the moment at which `palisade lock` sent the
//! last renewal that was answered. The client trusts it until a [`margin`] before its end. SIGTERM
//! comes a [grace](grace) before that moment, so that the command can clean up; SIGKILL when a
//! quarter of the grace is left, so that a busy machine has time to carry it out; and when the
//! whole time is over, the watchdog kills what still runs. docs/lock-command.md has the same numbers
//! as a table.
//!
//! [`margin`]: palisade_client::margin

use std::future::pending;
use std::time::Duration;

use palisade_client::{BootInstant, Guard, sleep_until};
use rustix::process::Signal;

use super::super::child::LockedCommand;
use super::super::print_error;

/// The longest time that a command gets to clean up and to die.
const GRACE: Duration = Duration::from_secs(5);
/// The time between SIGTERM and SIGKILL if the session has ended: another session may hold the lock
/// already.
const GRACE_WHEN_LOST: Duration = Duration::from_millis(200);

/// How much of the trusted time is reserved for stopping the command: a fifth of the TTL, at most
/// 5 s.
fn grace(ttl: Duration) -> Duration {
    (ttl / 5).min(GRACE)
}

/// The part of the reserved time after which SIGKILL follows SIGTERM.
fn sigterm_to_sigkill(reserved: Duration) -> Duration {
    reserved * 3 / 4
}

/// Resolves when the command must be asked to stop: when only the [grace](grace) is left of the
/// time for which the lock can be trusted, or when the lock is lost.
pub(super) async fn time_to_stop(guard: &Guard, ttl: Duration) {
    let lost = guard.lost();
    tokio::pin!(lost);
    while let Some(until) = guard.trusted_until() {
        let latest = until.saturating_sub(grace(ttl));
        if BootInstant::now() >= latest {
            return;
        }
        tokio::select! {
            () = &mut lost => return,
            () = sleep_until(latest) => {}
        }
    }
}

/// Stops the command: SIGTERM now, SIGKILL while the lock can still be trusted. Returns when the
/// command is dead.
pub(super) async fn stop(child: &mut LockedCommand, guard: &Guard) {
    let (why, rest) = if guard.is_valid() {
        ("its lease could not be renewed", sigterm_to_sigkill(guard.remaining()))
    } else {
        ("its session has ended", GRACE_WHEN_LOST)
    };
    let deadline = BootInstant::now() + rest;
    child.signal(Signal::TERM);
    let stopped = async {
        let _ = child.wait().await;
    };
    let report = async {
        let (key, rest) = (guard.key(), rest.as_millis());
        print_error(format!(
            "{key}: the lock cannot be held any longer, because {why}; sent SIGTERM to the command, SIGKILL follows in {rest} ms"
        ));
        pending().await
    };
    tokio::select! { biased; () = stopped => {}, () = report => {}, () = sleep_until(deadline) => {} }
    // Processes that the command has started must not run on without the lock either.
    child.signal(Signal::KILL);
    let _ = child.wait().await;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use palisade_client::margin;

    use super::{grace, sigterm_to_sigkill};

    /// Goal: the table of docs/lock-command.md has the deadlines that this file computes, counted
    /// from the sending of the last answered renewal.
    #[test]
    fn documented_deadlines_are_computed_ones() {
        let manual = include_str!("../../../../docs/lock-command.md");
        let rows = manual.lines().skip_while(|line| !line.starts_with("| TTL ends | SIGTERM |"));
        let rows: Vec<Vec<Duration>> = rows.skip(2).map_while(|row| row.strip_prefix("| ")).map(durations).collect();
        assert!(rows.len() >= 3, "{rows:?}");
        for row in rows {
            let [ttl, sigterm, sigkill, watchdog] = row[..] else { panic!("a row has four times: {row:?}") };
            let trusted = ttl - margin(ttl);
            let asked = trusted - grace(ttl);
            assert_eq!([sigterm, sigkill, watchdog], [asked, asked + sigterm_to_sigkill(grace(ttl)), trusted]);
        }
    }

    fn durations(row: &str) -> Vec<Duration> {
        row.trim_end_matches(" |").split(" | ").map(|cell| humantime::parse_duration(cell).unwrap()).collect()
    }
}
