//! What a waiting `palisade lock` shows on a terminal.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{Stage, until};
use crate::support::eventually;
use crate::support::process::Running;

/// A new terminal: the side of the person, and the side of the program.
fn terminal() -> (File, File) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let name = ptsname(&person, Vec::new()).unwrap().into_string().unwrap();
    (person.into(), File::options().read(true).write(true).open(name).unwrap())
}

/// On a terminal, one line shows the holder, the position and the time, and is updated in place. It
/// is cleared at the grant. Without a terminal nothing is shown.
#[test]
fn a_wait_is_shown_on_a_terminal_only() {
    let stage = Arc::new(Stage::set());
    let mut holder = stage.start_lock("k", &["--owner", "the holder"], &until(&stage.path("go")));
    let mut silent = stage.lock("k", &["--wait", "5m"], "true");
    let mut silent = Running::start(silent.stderr(Stdio::piped()));
    eventually("one session waits", || (stage.show("k")["queue"].as_array()?.len() == 1).then_some(()));
    let (mut person, program) = terminal();
    let mut waiter = stage.lock("k", &["--wait", "5m"], "true");
    let mut waiter = Running::start(waiter.env("TERM", "xterm").stderr(program));
    let (sender, shown) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // The read fails when no program has the terminal open any more.
        while let Ok(length @ 1..) = person.read(&mut bytes) {
            let _ = sender.send(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
    });
    let mut all = String::new();
    let mut read = |enough: &dyn Fn(&str) -> bool| {
        while !enough(&all) {
            match shown.recv_timeout(Duration::from_secs(30)) {
                Ok(more) => all += &more,
                Err(error) => panic!("{error}: {all:?}"),
            }
        }
        all.clone()
    };
    let line = "position 2 of 2; the lock is held by \"the holder\" with token ";
    let twice = read(&|all| all.matches(line).count() == 2);
    let updates: Vec<&str> = twice.split("\r\x1b[K").skip(1).collect();
    assert!(updates.len() >= 2 && updates.iter().all(|update| !update.contains('\n')), "{twice:?}");
    assert_ne!(updates[0], updates[1], "the time passes");
    std::fs::write(stage.path("go"), "").unwrap();
    assert_eq!((holder.exit_code(), silent.exit_code(), waiter.exit_code()), (0, 0, 0));
    read(&|all| all.ends_with("\r\x1b[K"));
    assert_eq!(std::io::read_to_string(silent.0.stderr.take().unwrap()).unwrap(), "");
}
