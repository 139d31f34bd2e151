//! `palisade top`: one picture in a pipe, and a live one on a terminal, which it leaves as it was.

use std::process::Stdio;

use rustix::process::Signal;
use rustix::termios::{LocalModes, tcgetattr};

use super::{Fixture, expect_code, text, until};
use crate::support::process::{Running, output, palisade};
use crate::support::terminal::Terminal;
use crate::support::{eventually, ports};

/// The other screen of the terminal, and back.
const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";

/// Goal: without a terminal one picture is printed: all nodes with their versions, and the locks with their holders.
#[test]
fn one_picture_is_printed_in_a_pipe() {
    let fixture = Fixture::start();
    let mut holder = fixture.start_lock("k", &["--owner", "the holder"], &until(&fixture.path("go")));
    let shows_version = |said: &str, endpoint: &String| {
        let is_node = |line: &&str| line.split_whitespace().nth(1) == Some(endpoint.as_str());
        let node = said.lines().find(is_node).expect("a line for each node");
        node.split_whitespace().last() == Some(env!("CARGO_PKG_VERSION"))
    };
    // The read is stale: the grant reaches the asked node a moment later. A node that is slow to answer is shown as
    // unreachable.
    let said = eventually("the lock and the version of each node are shown", || {
        let output = output(&mut fixture.palisade(&["top"]));
        expect_code(&output, 0);
        let said = text(&output.stdout);
        let nodes = fixture.cluster.endpoints().iter().all(|endpoint| shows_version(&said, endpoint));
        (nodes && said.contains("the holder") && said.contains("  leader node ")).then_some(said)
    });
    assert!(!said.contains('\x1b') && said.starts_with("cluster palisade  leader node "), "{said}");
    let hidden = text(&output(&mut fixture.palisade(&["top", "--prefix", "other"])).stdout);
    assert!(hidden.contains("no lock is held") && !hidden.contains("the holder"), "{hidden}");
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(holder.exit_code(), 0);
    let unreachable = format!("127.0.0.1:{}", ports::free(1)[0]);
    let silent = output(palisade().args(["top", "--endpoints", &unreachable]));
    expect_code(&silent, 69);
    assert!(text(&silent.stdout).contains("no node answers"), "{silent:?}");
}

/// Goal: on a terminal it shows the locks as they come and go, takes keys, and leaves the terminal as it
/// was: after `q`, and after SIGTERM.
#[test]
fn live_picture_leaves_the_terminal_as_it_was() {
    let fixture = Fixture::start();
    let mut holder = fixture.start_lock("k", &["--owner", "the holder"], &until(&fixture.path("go")));
    for by_signal in [false, true] {
        let (mut person, program) = Terminal::open();
        let echoes = || tcgetattr(&program).unwrap().local_modes.contains(LocalModes::ECHO | LocalModes::ICANON);
        let mut top = fixture.palisade(&["top", "--interval", "100ms"]);
        let side = || Stdio::from(program.try_clone().unwrap());
        let mut top = Running::start(top.env("TERM", "xterm").stdin(side()).stdout(side()));
        let seen = person.read(|seen| seen.contains("the holder"));
        assert!(seen.starts_with(ENTERED) && !echoes(), "{seen:?}");
        person.press("/nothing like it");
        person.read(|seen| seen.contains("/nothing like it_"));
        person.press("\x1b");
        person.read(|seen| seen.rfind("the holder") > seen.rfind("/nothing like it_"));
        if by_signal {
            top.signal(Signal::TERM);
        } else {
            person.press("q");
        }
        assert_eq!(top.exit_code(), 0);
        assert!(echoes());
        let seen = person.read(|seen| seen.contains(LEFT));
        assert!(seen.ends_with(LEFT), "{seen:?}");
    }
    std::fs::write(fixture.path("go"), "").unwrap();
    assert_eq!(holder.exit_code(), 0);
}
