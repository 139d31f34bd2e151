//! The command line against a real cluster: `palisade lock`, `status`, `locks`, `show` and `dev`,
//! as a shell runs them.

mod dev;
mod electing;
mod heartbeat;
mod looking;
mod losing;
mod running;
mod scripts;
mod signals;
mod top;
mod waiting;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::process::{self, Running, palisade};
use crate::support::{eventually, http};

/// A cluster, and a directory for the files that the commands write.
struct Fixture {
    cluster: Cluster,
    directory: tempfile::TempDir,
}

impl Fixture {
    fn start() -> Fixture {
        Fixture { cluster: Cluster::start_calm(3), directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `palisade WORDS…` with this cluster's endpoints. Its environment, which the processes that it
    /// starts inherit, contains the directory's name: [`Fixture::processes`] finds them by it.
    fn palisade(&self, arguments: &[&str]) -> Command {
        let mut command = palisade();
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("PALISADE_ENDPOINTS", self.cluster.endpoints().join(","))
            .env("PALISADE_TEST", self.directory.path());
        command
    }

    /// `palisade lock KEY FLAGS… -- sh -c SCRIPT`.
    fn lock(&self, key: &str, flags: &[&str], script: &str) -> Command {
        let arguments = [&["lock", key], flags, &["--", "sh", "-c", script]].concat();
        self.palisade(&arguments)
    }

    /// Starts the same, and waits until the script runs.
    fn start_lock(&self, key: &str, flags: &[&str], script: &str) -> Running {
        let started = format!("{key}.started");
        let script = format!("echo $$ > {started}.new; mv {started}.new {started}; {script}");
        let running = Running::start(self.lock(key, flags, &script).stderr(Stdio::piped()));
        self.wait_for_file(&started);
        running
    }

    /// The process of the command that [`Fixture::start_lock`] started on `key`.
    fn command_pid(&self, key: &str) -> i32 {
        self.read(&format!("{key}.started")).trim().parse().expect("a process ID")
    }

    fn wait_for_file(&self, name: &str) {
        eventually(&format!("{name} exists"), || self.path(name).exists().then_some(()));
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The lock, read from the leader.
    fn show(&self, key: &str) -> Value {
        eventually("the leader answers", || {
            let leader = self.cluster.client_addr(self.cluster.agreed_leader()?);
            let response = http::get(&leader, &format!("/v1/locks/{key}")).ok()?;
            (response.status == 200).then(|| response.json())
        })
    }

    /// An operator takes the lock from its holder, at the leader.
    fn break_lock(&self, key: &str) {
        let order = json!({ "token": self.show(key)["holder"]["token"], "reason": "a test" }).to_string();
        let leader = self.cluster.client_addr(self.cluster.wait_ready());
        http::post(&leader, &format!("/v1/locks/{key}/break"), &order).unwrap().ok();
    }

    /// All living processes that this fixture has started, directly or indirectly.
    fn processes(&self) -> Vec<i32> {
        process::marked(&self.directory.path().display().to_string())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // Leave no process behind, also after a failure.
        process::end_all(&self.directory.path().display().to_string());
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Expects an exit code, and shows the output if it is another.
#[track_caller]
fn expect_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
}

/// Expects a failure with this exit code, nothing on standard output, and one sentence on standard
/// error.
#[track_caller]
fn expect_complaint(output: &Output, code: i32, reason: &str) {
    expect_code(output, code);
    let complaint = text(&output.stderr);
    assert!(complaint.starts_with("palisade: ") && complaint.contains(reason), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "one line: {complaint}");
}

/// A script that waits until a file exists, in short sleeps, so that no `sleep` outlives it for long.
fn until(path: &Path) -> String {
    format!("while ! [ -e '{}' ]; do sleep 0.02; done", path.display())
}
