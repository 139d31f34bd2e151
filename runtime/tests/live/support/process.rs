//! Processes, as the system shows them.

use std::fs;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::eventually;

/// The `palisade` that this test was built with.
pub fn palisade() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    let names = ["PALISADE_ENDPOINTS", "PALISADE_CA", "PALISADE_CERT", "PALISADE_CERT_KEY", "PALISADE_TOKEN_FILE"];
    let names = names.into_iter().chain(["PALISADE_SESSION", "PALISADE_TOKEN", "PALISADE_PROCLAIM"]);
    names.for_each(|name| {
        command.env_remove(name);
    });
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Output {
    command.output().expect("the command can be run")
}

/// What a command said, on both streams.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Runs a command that succeeds; returns what it printed.
#[track_caller]
pub fn printed(command: &mut Command) -> String {
    let result = output(command);
    assert!(result.status.success(), "{command:?}: {}, {}", result.status, said(&result));
    String::from_utf8_lossy(&result.stdout).into_owned()
}

/// Runs a command that ends with this exit code; returns what it said about an error.
/// Its standard input is at its end: a node of a cluster that does start stops at once.
#[track_caller]
pub fn refusal(command: &mut Command, code: i32) -> String {
    let result = output(command);
    let said = String::from_utf8_lossy(&result.stderr).into_owned();
    assert_eq!(result.status.code(), Some(code), "{said}");
    said
}

/// A child that is killed when the test lets go of it.
pub struct Running(pub Child);

impl Running {
    /// Starts it.
    pub fn start(command: &mut Command) -> Running {
        Running(command.spawn().expect("the command can be started"))
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process takes signals");
    }

    /// Stops it where it stands (SIGSTOP).
    pub fn freeze(&self) {
        freeze(self.pid());
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        self.0.try_wait().expect("a child can be waited for").is_none()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().expect("a child can be waited for"))
    }

    /// Waits for its end, and expects it to be an exit.
    pub fn exit_code(&mut self) -> i32 {
        let status = self.wait();
        status.code().unwrap_or_else(|| panic!("it did not exit: {status}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Stops a process where it stands (SIGSTOP). When this returns, none of its threads runs: on a busy
/// machine they go on for a moment after the signal was sent.
pub fn freeze(pid: Pid) {
    kill_process(pid, Signal::STOP).expect("the process takes signals");
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    eventually("all its threads stand still", || {
        let threads = fs::read_dir(&tasks).expect("the process lives");
        let states = threads.map(|thread| fs::read_to_string(thread.ok()?.path().join("stat")).ok());
        states.into_iter().all(|stat| stat.is_none_or(|stat| stat.contains(") T "))).then_some(())
    });
}

/// Whether this process exists and does more than wait to be buried: a zombie does nothing any
/// more.
pub fn lives(pid: i32) -> bool {
    let Some(id) = Pid::from_raw(pid) else { return false };
    if test_kill_process(id).is_err() {
        return false;
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z') && !line.contains('X'))
}

/// All living processes whose command line or environment contains `mark`.
pub fn marked(mark: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").expect("there is a /proc");
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let contains = |pid: i32, file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains(mark)
    };
    ids.filter(|&pid| (contains(pid, "cmdline") || contains(pid, "environ")) && lives(pid)).collect()
}

/// Kills what [`marked`] finds.
pub fn end_all(mark: &str) {
    for pid in marked(mark).into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The most memory that a process has really used at any time (VmHWM), in bytes.
pub fn peak_memory(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a process has memory");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
    kilobytes * 1024
}
