//! Bugs that a test of the workspace must notice: what the stories of docs/bug-ledger.md tell of, each by its story's command
//! (`conformance/tests/ledger.rs`).

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{io, thread};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::build::MutantBuild;
use super::{Error, Verdict};

/// A test that takes longer will not end: the slowest takes half a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a bug is found.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// What `cargo test` is told: the package, the file, and at last the name of one test.
    test: String,
    /// What the test says when it fails, in part.
    says: String,
}

impl super::Finder for Finder {
    fn part(&self) -> &'static str {
        "test"
    }

    fn test(&self) -> Option<&str> {
        Some(&self.test)
    }

    fn run(&self, build: &MutantBuild<'_>) -> Result<Verdict, Error> {
        let said = |build: &MutantBuild<'_>| {
            let Some(output) = output_within(PATIENCE, &mut build.test(&self.test))? else {
                return Ok(Err(format!("it does not end within {PATIENCE:?}")));
            };
            let [told, trouble] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            match passes(&told, &self.test) {
                Some(true) => Ok(Ok(())),
                Some(false) => Ok(Err(complaint(&told).to_owned())),
                None => Err(Error::Hunt(format!("`cargo test {}` broke off:\n{told}{trouble}", self.test))),
            }
        };
        let Err(complaint) = said(build)? else {
            return Ok(Verdict::Survived(format!("`cargo test {}`", self.test)));
        };
        let how = format!("its test: {complaint}");
        Ok(match said(&build.sound())? {
            Ok(()) if how.contains(&self.says) => Verdict::Caught(how),
            Ok(()) => Verdict::Otherwise(how),
            Err(complaint) => Verdict::Otherwise(format!("{how}, and without the mutant: {complaint}")),
        })
    }
}

/// What a program says until it ends; `None` if it does not in time, and then its process group is killed. What has left the
/// group, as the commands of `palisade lock` do, stays.
fn output_within(patience: Duration, command: &mut Command) -> io::Result<Option<Output>> {
    let child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let group = Pid::from_child(&child);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(child.wait_with_output()));
    match end.recv_timeout(patience) {
        Ok(output) => output.map(Some),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            // If it has ended in this moment, there is nobody to kill.
            let _ = kill_process_group(group, Signal::KILL);
            Ok(None)
        }
    }
}

/// Whether the one test passed; `None` if it was not run to its end.
fn passes(told: &str, test: &str) -> Option<bool> {
    let name = test.split_whitespace().last()?;
    told.lines().find_map(|line| {
        let (path, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let is_it = path == name || path.ends_with(&format!("::{name}"));
        is_it.then_some(result == "ok")
    })
}

/// What a test that failed says, in a line.
fn complaint(told: &str) -> &str {
    let mut lines = told.lines().skip_while(|line| !line.contains("panicked at"));
    lines.nth(1).unwrap_or("it failed and did not say why").trim()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_does_not_end_is_killed_with_what_it_started() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let said = output_within(Duration::from_secs(60), &mut shell("echo done")).unwrap().unwrap();
        assert_eq!(said.stdout, b"done\n");
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("grandchild");
        let script = format!("sleep 600 & echo $! >{name}.new; mv {name}.new {name}; wait", name = name.display());
        assert!(output_within(Duration::from_secs(2), &mut shell(&script)).unwrap().is_none());
        let grandchild = fs::read_to_string(&name).expect("two seconds are enough to start it");
        let stat = format!("/proc/{}/stat", grandchild.trim());
        // Gone, or a zombie that nobody reaps.
        let is_dead = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z"));
        let patience = Instant::now() + Duration::from_secs(60);
        while !is_dead() {
            assert!(Instant::now() < patience, "it lives on");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn what_a_test_says_is_understood() {
        let told = "running 1 test\ntest some::story ... FAILED\n\nfailures:\n\n---- some::story stdout ----\n\n\
                    thread 'some::story' (7) panicked at a.rs:1:2:\nthe lock is gone\nstack backtrace:\n";
        assert_eq!(passes(told, "-p x --test y some::story"), Some(false));
        assert_eq!(complaint(told), "the lock is gone");
        assert_eq!(passes("test some::story ... ok\n", "-p x --test y some::story"), Some(true));
        assert_eq!(
            passes("test some::story ... ok\n", "-p x --test y story"),
            Some(true),
            "the module need not be told"
        );
        assert_eq!(passes("test another_story ... ok\n", "-p x --test y story"), None);
        assert_eq!(passes("running 0 tests\n", "-p x --test y some::story"), None, "no test is no test that passed");
    }
}
