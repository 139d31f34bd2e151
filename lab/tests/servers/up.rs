//! The commands: servers outlive `up`; `down` ends them, and no others, and leaves nothing.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use palisade_lab::servers::{Identity, Kind, State};
use rustix::process::Signal;

use crate::support::is_missing;

fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-lab"));
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    lab(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn directory(line: &str) -> Option<PathBuf> {
    line.strip_prefix("Directory: ").map(|path| PathBuf::from(path.trim()))
}

/// Servers of `up`, ended with this value if a test fails before `down`.
struct Running {
    dir: PathBuf,
    state: State,
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let output = run(&[&["up"], args].concat());
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        let dir = said.lines().find_map(directory).unwrap();
        assert!(said.contains(&format!("palisade-lab down --dir {}", dir.display())), "{said}");
        let state = State::read(&dir).unwrap().unwrap();
        for node in state.servers.iter().flat_map(|server| &server.nodes) {
            assert!(said.contains(&node.address) && said.contains(&format!("pid {}", node.process.pid)), "{said}");
            assert!(said.contains(&node.data.display().to_string()), "{said}");
            assert!(node.process.is_running(), "{} did not outlive `up`", node.name);
        }
        Self { dir, state }
    }

    fn processes(&self) -> Vec<Identity> {
        self.state.servers.iter().flat_map(|server| &server.nodes).map(|node| node.process).collect()
    }

    fn down(&self, args: &[&str]) -> String {
        let output = run(&[&["down", "--dir", self.dir.to_str().unwrap()], args].concat());
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in self.processes() {
            process.signal(Signal::KILL).unwrap();
        }
        // It is gone if the test has succeeded.
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// A process that `up` has not started.
struct Stranger(Child);

impl Stranger {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn servers_outlive_up_and_end_with_down() {
    if is_missing("up", &[Kind::Redis, Kind::Etcd]) {
        return;
    }
    let running = Running::start(&["redis", "etcd", "redlock", "--durability", "every-second"]);
    assert_eq!(running.processes().len(), 1 + 3 + 5);
    let etcd = running.state.servers.iter().find(|server| server.kind == Kind::Etcd).unwrap();
    assert!(etcd.version.starts_with("etcd 3.") && etcd.endpoints.len() == 3, "{etcd:?}");
    // A server that has ended by itself, and one that is paused, are no obstacle.
    etcd.nodes[0].process.signal(Signal::KILL).unwrap();
    etcd.nodes[1].process.signal(Signal::STOP).unwrap();
    let said = running.down(&[]);
    assert!(said.contains("has ended") && said.contains("is removed"), "{said}");
    assert!(running.processes().iter().all(|process| !process.is_running()), "{said}");
    assert!(!running.dir.exists(), "{} is left", running.dir.display());
    let again = running.down(&[]);
    assert!(again.contains("no servers to end"), "{again}");
}

#[test]
fn server_that_ignores_sigterm_is_killed() {
    if is_missing("up", &[Kind::Redis]) {
        return;
    }
    let running = Running::start(&["redis"]);
    // A process that ignores SIGTERM takes the server's place in the state.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]);
    let mut stubborn = Stranger(shell.stdout(Stdio::piped()).spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(stubborn.0.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    replace_process(&running, Identity::of(stubborn.0.id()).unwrap());
    let said = running.down(&["--timeout", "300ms"]);
    assert!(said.contains("did not end within 300ms, and was killed"), "{said}");
    assert!(!stubborn.is_running());
}

#[test]
fn stranger_that_has_the_pid_is_not_ended() {
    if is_missing("up", &[Kind::Redis]) {
        return;
    }
    let running = Running::start(&["redis"]);
    let mut stranger = Stranger::start();
    let real = Identity::of(stranger.0.id()).unwrap();
    replace_process(&running, Identity { start_time: real.start_time - 1, ..real });
    let said = running.down(&["--keep"]);
    assert!(said.contains("had ended before"), "{said}");
    assert!(stranger.is_running(), "a stranger with a reused process ID was ended: {said}");
}

#[test]
fn state_of_an_earlier_boot_ends_nothing() {
    if is_missing("up", &[Kind::Redis]) {
        return;
    }
    let running = Running::start(&["redis"]);
    let mut stranger = Stranger::start();
    replace_process(&running, Identity::of(stranger.0.id()).unwrap());
    edit_state(&running.dir, |state| state["boot"] = "another boot".into());
    let said = running.down(&["--keep"]);
    assert!(said.contains("had ended before"), "{said}");
    assert!(stranger.is_running(), "a process of this boot was ended by the state of another: {said}");
}

fn replace_process(running: &Running, process: Identity) {
    edit_state(&running.dir, |state| {
        state["servers"][0]["nodes"][0]["process"] = serde_json::to_value(process).unwrap();
    });
}

fn edit_state(dir: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = dir.join("lab.json");
    let mut state = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    edit(&mut state);
    std::fs::write(&path, state.to_string()).unwrap();
}

#[test]
fn given_directory_is_kept_without_the_servers() {
    if is_missing("up", &[Kind::Redis]) {
        return;
    }
    let parent = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::write(parent.path().join("notes"), "mine").unwrap();
    let path = parent.path().to_str().unwrap();
    let running = Running::start(&["redis", "--dir", path]);
    let second = run(&["up", "redis", "--dir", path]);
    assert!(!second.status.success() && text(&second).contains("end them first"), "{}", text(&second));
    assert!(running.processes()[0].is_running());
    running.down(&[]);
    let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes"]);
}

#[test]
fn failed_start_leaves_nothing() {
    if is_missing("up", &[Kind::Redis, Kind::Redlock]) {
        return;
    }
    // The fourth port is in use: Redis starts, and Redlock cannot.
    let parent = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = parent.path().join("lab");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let first = listener.local_addr().unwrap().port() - 3;
    let arguments = ["up", "redis", "redlock", "--first-port", &first.to_string(), "--dir", dir.to_str().unwrap()];
    let output = run(&arguments);
    let said = text(&output);
    assert!(!output.status.success() && said.contains("is in use"), "{said}");
    assert!(!dir.exists(), "{} is left", dir.display());
    let pid = said.split("pid ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    let pid = pid.unwrap_or_else(|| panic!("Redis has not started: {said}"));
    assert!(Identity::of(pid).is_none_or(|process| !process.is_running()), "a server is left: {said}");
}

#[test]
fn missing_programs_are_all_named_before_anything_starts() {
    let output = run(&["up", "etcd", "palisade", "--etcd", "/nonexistent/e", "--palisade", "/nonexistent/p"]);
    let said = text(&output);
    assert!(!output.status.success() && !said.contains("Directory:"), "{said}");
    assert!(said.contains("/nonexistent/e is missing") && said.contains("/nonexistent/p is missing"), "{said}");
}

/// Starts `up --foreground` and waits until the server serves.
fn foreground() -> (Child, PathBuf, Identity) {
    let mut child =
        lab(&["up", "redis", "--foreground"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut dir, mut server) = (None, None);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        dir = dir.or_else(|| directory(&line));
        let pid = line.split("pid ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        server = server.or_else(|| pid.and_then(Identity::of));
        if line.starts_with("The servers end with") {
            break;
        }
    }
    (child, dir.unwrap(), server.unwrap())
}

fn ends(process: Identity) -> bool {
    let start = Instant::now();
    while process.is_running() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    !process.is_running()
}

#[test]
fn servers_in_the_foreground_end_with_the_command() {
    if is_missing("up", &[Kind::Redis]) {
        return;
    }
    let (child, dir, server) = foreground();
    Identity::of(child.id()).unwrap().signal(Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "the end was not clean");
    assert!(!server.is_running() && !dir.exists());
    // Also with a command that cannot end anything any more: then the directory is left.
    let (mut child, dir, server) = foreground();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ends(server), "a server has survived the process that guards it");
    std::fs::remove_dir_all(&dir).unwrap();
}
