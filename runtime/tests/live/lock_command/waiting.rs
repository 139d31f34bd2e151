//! The line that a waiting `palisade lock` shows on a terminal.

use std::process::Stdio;
use std::sync::Arc;

use super::{Fixture, until};
use crate::support::eventually;
use crate::support::process::Running;
use crate::support::terminal::Terminal;

/// On a terminal, one line shows the holder, the position and the time, and is updated in place. It
/// is cleared at the grant. Without a terminal nothing is shown.
#[test]
fn a_wait_is_shown_on_a_terminal_only() {
    let fixture = Arc::new(Fixture::start());
    let mut holder = fixture.start_lock("k", &["--owner", "the holder"], &until(&fixture.path("go")));
    let mut silent = fixture.lock("k", &["--wait", "5m"], "true");
    let mut silent = Running::start(silent.stderr(Stdio::piped()));
    eventually("one session waits", || (fixture.show("k")["queue"].as_array()?.len() == 1).then_some(()));
    let (mut person, program) = Terminal::open();
    let mut waiter = fixture.lock("k", &["--wait", "5m"], "true");
    let mut waiter = Running::start(waiter.env("TERM", "xterm").stderr(program));
    let line = "position 2 of 2; the lock is held by \"the holder\" with token ";
    let twice = person.read(|all| all.matches(line).count() == 2);
    let updates: Vec<&str> = twice.split("\r\x1b[K").skip(1).collect();
    assert!(updates.len() >= 2 && updates.iter().all(|update| !update.contains('\n')), "{twice:?}");
    assert_ne!(updates[0], updates[1], "the time passes");
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!((holder.exit_code(), silent.exit_code(), waiter.exit_code()), (0, 0, 0));
    person.read(|all| all.ends_with("\r\x1b[K"));
    assert_eq!(std::io::read_to_string(silent.0.stderr.take().unwrap()).unwrap(), "");
}
