//! An experiment that is ended early leaves no process behind, and no directory that the next one does not remove.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use palisade_lab::servers::Kind;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use self::support::is_missing;

mod support;

/// Processes whose command line names the directory.
fn processes(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(directory)).map(|line| line.replace('\0', " ")).collect()
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An experiment. It ends with this value.
struct Experiment(Child);

impl Experiment {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn ended(mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Experiment {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory on a disk: the lab does not use one in memory.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Starts an experiment whose files are in this directory, and waits for its resource and its two workers.
fn experiment(directory: &Path) -> Experiment {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade-lab"));
    command.args(["run", "pause", "--backend", "redis", "--fence", "on"]);
    command.arg("--out").arg(directory.join("pages")).env("TMPDIR", directory);
    let child = Experiment(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    // `setpriv` has the program's name in its command line, and has not asked for the signal at its parent's end yet.
    let has = |name: &str| {
        processes(directory).iter().filter(|line| line.contains(name) && !line.contains("setpriv")).count()
    };
    eventually("a resource and two workers run", || {
        has("palisade-lab resource") >= 1 && has("palisade-lab worker") >= 2
    });
    child
}

/// What is left of an experiment that was ended by a signal.
fn directories(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).filter(|name| name != "pages").collect()
}

#[test]
fn interrupted_experiment_leaves_nothing() {
    if is_missing("an interrupted experiment", &[Kind::Redis]) {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let directory = directory();
        let child = experiment(directory.path());
        child.signal(signal);
        assert_eq!(child.ended().code(), Some(1), "{signal:?}");
        eventually("no process is left", || processes(directory.path()).is_empty());
        assert_eq!(directories(directory.path()), Vec::<String>::new(), "{signal:?}");
    }
}

#[test]
fn killed_experiment_leaves_no_process_and_its_directories_are_removed_by_the_next() {
    if is_missing("a killed experiment", &[Kind::Redis]) {
        return;
    }
    let directory = directory();
    drop(experiment(directory.path()));
    eventually("no process is left", || processes(directory.path()).is_empty());
    let left = directories(directory.path());
    assert!(!left.is_empty());
    let next = experiment(directory.path());
    let again = directories(directory.path());
    assert!(left.iter().all(|name| !again.contains(name)), "{left:?}, {again:?}");
    next.signal(Signal::TERM);
    next.ended();
}
