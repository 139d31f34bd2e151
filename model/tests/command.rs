//! Tests of the command line: its output and exit codes.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-model"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(arguments).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn incomplete_run_fails() {
    let (code, output, _) = run(&["check", "locks", "--limit", "20000"]);
    assert_eq!(code, 1, "{output}");
    assert!(output.starts_with("locks  ") && output.contains("INCOMPLETE"), "{output}");
}

#[test]
fn list_has_a_line_for_each_model_in_columns() {
    let (code, output, _) = run(&["list"]);
    assert_eq!(code, 0);
    // A line is a name, a tier, and a sentence; the first two are single words.
    let columns_of = |line: &str| {
        let name = line.find(' ')?;
        let tier = name + line[name..].find(|letter| letter != ' ')?;
        let gap = tier + line[tier..].find(' ')?;
        Some((tier, gap + line[gap..].find(|letter| letter != ' ')?))
    };
    let columns: Vec<_> = output.lines().map(columns_of).collect();
    assert!(columns.len() > 3 && columns[0].is_some() && columns.iter().all(|other| *other == columns[0]), "{output}");
}

#[test]
fn trace_has_numbered_sentences_and_changes() {
    let (code, output, _) = run(&["trace", "raft", "--property", "a leader is elected"]);
    assert_eq!(code, 0);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], "raft: \"a leader is elected\" is met after 4 steps");
    assert!(lines.contains(&"  1. server 1 campaigns for term 1"), "{output}");
    assert!(lines.contains(&"       server 1: term 0 → 1, vote 1, pre-candidate → candidate"), "{output}");
    assert!(output.contains("candidate → LEADER, log empty → 1:noop"), "{output}");
}

/// Goal: a reader that closes the pipe causes no failure.
#[test]
fn closed_pipe_is_no_error() {
    let mut trace = command(&["trace", "raft", "--property", "a leader is elected", "--json"]);
    let mut child = trace.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

/// Goal: of a mutant's trace, a build without the mutant follows the events that are possible in
/// it.
#[test]
fn follow_skips_events_that_are_impossible_in_this_build() {
    let (_, output, _) = run(&["trace", "raft-votes", "--property", "a leader is elected", "--json"]);
    let mut lines: Vec<&str> = output.lines().collect();
    let choices = |output: &str| {
        let first: serde_json::Value = serde_json::from_str(output.lines().next().unwrap()).unwrap();
        first["choices"].clone()
    };
    let stray = lines[2].replace("\"term\":1", "\"term\":9");
    lines.insert(2, &stray);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{}", lines.join("\n")).unwrap();
    let path = file.path().to_str().unwrap();
    let (code, followed, complaint) = run(&["trace", "raft-votes", "--follow", path, "--json"]);
    assert_eq!((code, choices(&followed)), (0, choices(&output)), "{complaint}");
    let (code, _, complaint) = run(&["trace", "raft-votes", "--follow", "/nowhere", "--json"]);
    assert_eq!((code, complaint.starts_with("palisade-model: /nowhere: ")), (69, true), "{complaint}");
}

#[test]
fn json_trace_has_inputs_and_messages_of_each_node() {
    let (code, output, _) = run(&["trace", "raft", "--property", "a leader is elected", "--json"]);
    assert_eq!(code, 0);
    let lines: Vec<serde_json::Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["format"], &lines[0]["shows"]), (5, &1.into(), &"witness".into()));
    let turn = &lines[4]["event"]["turns"][0];
    assert_eq!(turn["inputs"][0]["input"]["Receive"]["body"]["RequestVoteReply"]["granted"], true);
    assert_eq!(turn["sends"][0]["message"]["body"]["AppendEntries"]["entries"][0]["payload"], "Noop");
}

#[test]
fn unknown_name_is_an_error_that_lists_known_ones() {
    let (code, _, complaint) = run(&["trace", "rft", "--property", "x"]);
    assert_eq!(code, 64);
    assert!(complaint.contains("no model rft") && complaint.contains("raft-late"), "{complaint}");
    let (code, _, complaint) = run(&["trace", "raft", "--property", "x"]);
    assert_eq!(code, 64);
    assert!(complaint.contains("no property \"x\"") && complaint.contains("\n  election safety\n"), "{complaint}");
    let (code, _, complaint) = run(&["check", "raft", "rft"]);
    assert_eq!(code, 64, "{complaint}");
}

#[test]
fn port_in_use_is_an_error_message() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, complaint) = run(&["explore", "locks", "--address", &address]);
    assert_eq!(code, 69);
    assert!(complaint.contains(&address) && !complaint.contains("panicked"), "{complaint}");
}

/// A process that is killed at the end of the test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Serving {
    /// Starts the Explorer at a free port; returns its address, and the fragment at which it opens.
    fn begin(arguments: &[&str]) -> (Serving, String, String) {
        let mut explore = command(&["explore", arguments[0], "--address", "127.0.0.1:0"]);
        let mut serving = Serving(explore.args(&arguments[1..]).stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(serving.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix(&format!("{}: http://", arguments[0])).unwrap();
        let (address, fragment) = url.split_once('/').unwrap();
        (serving, address.to_string(), fragment.to_string())
    }
}

/// The body of a page.
fn get(address: &str, path: &str) -> String {
    let mut page = TcpStream::connect(address).unwrap();
    write!(page, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    page.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.lines().next().unwrap().contains(" 200 "), "{path}: {head}");
    body.to_string()
}

/// The state at which a fragment opens, as the page loads it: it is one of those after the state
/// before.
fn state_at(address: &str, fragment: &str) -> serde_json::Value {
    let (before, choice) = fragment.strip_prefix("#/steps").unwrap().rsplit_once('/').unwrap();
    let states: Vec<serde_json::Value> = serde_json::from_str(&get(address, &format!("/.states{before}"))).unwrap();
    let index: u64 = choice.parse().unwrap();
    states.into_iter().find(|state| state["actionIndex"] == index).expect("the page finds the state")
}

#[test]
fn explorer_shows_sentences_changes_tables_and_diagrams() {
    let (_serving, address, _) = Serving::begin(&["raft"]);
    let steps: Vec<serde_json::Value> = serde_json::from_str(&get(&address, "/.states/0")).unwrap();
    let step = steps.iter().find(|step| step["action"] == "server 1 campaigns for term 1").unwrap();
    assert!(step["outcome"].as_str().unwrap().contains("server 1: term 0 → 1, vote 1"), "{step}");
    assert!(step["state"].as_str().unwrap().contains("server 2   term 0"), "{step}");
    assert!(step["svg"].as_str().unwrap().starts_with("<svg"), "{step}");
}

#[test]
fn explorer_opens_at_the_initial_state_under_the_models_name() {
    let (_serving, address, fragment) = Serving::begin(&["raft"]);
    assert_eq!(fragment, "#/steps/0");
    assert!(state_at(&address, &fragment)["state"].as_str().unwrap().contains("server 1   term 0"));
    let status: serde_json::Value = serde_json::from_str(&get(&address, "/.status")).unwrap();
    assert_eq!(status["model"], "raft");
    assert!(get(&address, "/").contains("<script src=\"app.js\">"));
    assert!(get(&address, "/app.js").contains("hash || '#/steps/0';"), "so does a page without a fragment");
}

/// Goal: the printed address leads to the wanted state, by a saved trace and by a search.
#[test]
fn explorer_opens_at_a_property() {
    for (model, property, change) in [
        ("raft", "a leader is elected", "candidate → LEADER"),
        ("gallery-fencing", "no stale write", "overwritten by an earlier holder"),
    ] {
        let (_serving, address, fragment) = Serving::begin(&[model, "--at", property]);
        let state = state_at(&address, &fragment);
        assert!(state["outcome"].as_str().unwrap().contains(change), "{state}");
    }
}

/// Goal: at a terminal, the system's program opens the address that is printed.
#[cfg(target_os = "linux")]
#[test]
fn explorer_opens_the_page_for_a_person() {
    let directory = tempfile::tempdir().unwrap();
    let (program, opened) = (directory.path().join("xdg-open"), directory.path().join("opened"));
    std::fs::write(&program, "#!/bin/sh\necho \"$1\" > \"$0.new\"\nmv \"$0.new\" \"${0%/*}/opened\"\n").unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let terminal = ptsname(&person, Vec::new()).unwrap().into_string().unwrap();
    let path = std::env::join_paths([directory.path(), "/usr/bin".as_ref(), "/bin".as_ref()]).unwrap();
    let _serving = {
        // The program alone keeps the terminal open: its end without a line ends the read, too.
        let terminal = File::options().read(true).write(true).open(terminal).unwrap();
        let mut explore = command(&["explore", "raft", "--address", "127.0.0.1:0", "--at", "a leader is elected"]);
        let explore = explore.env("PATH", path).env("DISPLAY", ":0").stdout(terminal);
        Serving(explore.spawn().unwrap())
    };
    let (mut screen, mut line) = (BufReader::new(File::from(person)), String::new());
    screen.read_line(&mut line).expect("the program prints an address before it ends");
    let printed = line.trim().strip_prefix("raft: ").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !opened.exists() {
        assert!(Instant::now() < end, "no program opened {printed}");
        sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::read_to_string(opened).unwrap().trim(), printed);
}

#[test]
fn explorer_refuses_an_unknown_property() {
    let (code, _, complaint) = run(&["explore", "raft", "--address", "127.0.0.1:0", "--at", "x"]);
    assert_eq!(code, 64);
    assert!(complaint.contains("no property \"x\"") && complaint.contains("\n  election safety\n"), "{complaint}");
}
