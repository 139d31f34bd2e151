//! Mutants that a test of the workspace must notice: those of the stories in docs/bug-ledger.md,
//! each by its story's command (`conformance/tests/ledger.rs`), and those that no other part finds.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use std::{io, thread};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::error::Error;
use super::mutant::{self, Verdict};
use super::programs::MutantBuild;

/// Time limit for a test. The slowest takes half a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a test finds a mutant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finder {
    /// The arguments of `cargo test`: the package, the file, and the name of one test.
    test: String,
    /// A part of the failing test's panic message.
    says: String,
}

impl mutant::Finder for Finder {
    fn part(&self) -> &'static str {
        "test"
    }

    fn test(&self) -> Option<&str> {
        Some(&self.test)
    }

    fn run(&self, build: &MutantBuild<'_>) -> Result<Verdict, Error> {
        let test_result = |build: &MutantBuild<'_>| {
            let Some(output) = output_within(PATIENCE, &mut build.test(&self.test))? else {
                return Ok(Err(format!("the test does not end within {PATIENCE:?}")));
            };
            let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            match passes(&stdout, &self.test) {
                Some(true) => Ok(Ok(())),
                Some(false) => Ok(Err(panic_message(&stdout))),
                None => Err(Error::Run(format!("`cargo test {}` failed to run:\n{stdout}{stderr}", self.test))),
            }
        };
        let Err(panic_message) = test_result(build)? else {
            return Ok(Verdict::Survived(format!("`cargo test {}`", self.test)));
        };
        let is_meant = panic_message.contains(&self.says);
        let how = format!("its test: {}", panic_message.lines().next().unwrap_or_default());
        Ok(Verdict::of_finding(how, test_result(&build.sound())?, is_meant))
    }
}

/// A program's output; `None` if it does not end in time, and then its process group is killed.
/// Processes that have left the group, as the commands of `palisade lock` do, keep running.
fn output_within(patience: Duration, command: &mut Command) -> io::Result<Option<Output>> {
    let child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let group = Pid::from_child(&child);
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(child.wait_with_output()));
    match end.recv_timeout(patience) {
        Ok(output) => output.map(Some),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            // The process group may have ended by now.
            let _ = kill_process_group(group, Signal::KILL);
            Ok(None)
        }
    }
}

/// Whether the test passed; `None` if it did not complete.
fn passes(output: &str, test: &str) -> Option<bool> {
    let name = test.split_whitespace().last()?;
    output.lines().find_map(|line| {
        let (path, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let is_it = path == name || path.ends_with(&format!("::{name}"));
        is_it.then_some(result == "ok")
    })
}

/// The failing test's panic message, which may have several lines.
fn panic_message(output: &str) -> String {
    let lines = output.lines().skip_while(|line| !line.contains("panicked at")).skip(1);
    let message = lines.take_while(|line| !line.starts_with("stack backtrace:") && !line.starts_with("note: "));
    let message: Vec<&str> = message.map(str::trim).collect();
    if message.is_empty() { "the test failed without a panic message".to_owned() } else { message.join("\n") }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::*;

    #[test]
    fn program_past_its_time_limit_is_killed_with_its_children() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let ended = output_within(Duration::from_secs(60), &mut shell("echo done")).unwrap().unwrap();
        assert_eq!(ended.stdout, b"done\n");
        let directory = tempfile::tempdir().unwrap();
        let name = directory.path().join("grandchild");
        let script = format!("sleep 600 & echo $! >{name}.new; mv {name}.new {name}; wait", name = name.display());
        assert!(output_within(Duration::from_secs(2), &mut shell(&script)).unwrap().is_none());
        let grandchild = fs::read_to_string(&name).expect("two seconds are enough to start it");
        let stat = format!("/proc/{}/stat", grandchild.trim());
        // Gone, or a zombie that its parent has not reaped.
        let is_dead = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z"));
        let patience = Instant::now() + Duration::from_secs(60);
        while !is_dead() {
            assert!(Instant::now() < patience, "the grandchild still runs");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn test_output_is_parsed() {
        let output = "running 1 test\ntest some::story ... FAILED\n\nfailures:\n\n---- some::story stdout ----\n\n\
                    thread 'some::story' (7) panicked at a.rs:1:2:\nthe lock is gone\n  left: 7\nstack backtrace:\n   0: a\n";
        assert_eq!(passes(output, "-p x --test y some::story"), Some(false));
        assert_eq!(panic_message(output), "the lock is gone\nleft: 7");
        assert_eq!(passes("test some::story ... ok\n", "-p x --test y some::story"), Some(true));
        assert_eq!(
            passes("test some::story ... ok\n", "-p x --test y story"),
            Some(true),
            "the module may be left out"
        );
        assert_eq!(passes("test another_story ... ok\n", "-p x --test y story"), None);
        assert_eq!(
            passes("running 0 tests\n", "-p x --test y some::story"),
            None,
            "a run without the test is not a pass"
        );
    }
}
