//! Slow disks and failing syncs: `strace` attaches to a node's core thread and alters `fdatasync`.
//!
//! Only the thread that writes the log is traced; the rest of the process runs as usual. When
//! `strace` ends, it detaches from the thread, and the disk is normal again.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The thread's name (`palisade::core`).
const CORE: &str = "core";
/// How long `strace` may take to detach.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fault of the core's syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncFault {
    /// Each sync takes this much longer.
    Slow(Duration),
    /// The next sync fails: data written since the previous one may be durable or not. All other
    /// syncs succeed.
    FailOnce,
}

/// A tracer attached to a node's core thread.
#[derive(Debug)]
pub(super) struct Tracer {
    strace: Child,
    trace: PathBuf,
}

/// Whether `strace` can inject faults here.
pub(super) fn may_trace() -> bool {
    let mut strace = Command::new("strace");
    strace.args(["-q", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1", "true"]);
    let works = strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    rustix::process::geteuid().is_root() && works.is_ok_and(|status| status.success())
}

impl Tracer {
    /// Attaches to a node's process. `None` if the core thread does not exist: the process is just
    /// starting or ending.
    pub(super) fn attach(process: u32, fault: SyncFault, trace: PathBuf) -> io::Result<Option<Tracer>> {
        let Some(core) = thread_named(process, CORE) else { return Ok(None) };
        let inject = match fault {
            SyncFault::Slow(delay) => format!("inject=fdatasync:delay_exit={}", delay.as_micros()),
            SyncFault::FailOnce => "inject=fdatasync:error=EIO:when=1".to_owned(),
        };
        let mut strace = Command::new("strace");
        strace.args(["-q", "-y", "-e", "trace=fdatasync", "-e", &inject, "-p", &core.to_string(), "-o"]).arg(&trace);
        // A Ctrl-C must not reach `strace`.
        strace.process_group(0);
        let strace = strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Some(Tracer { strace, trace }))
    }

    /// Detaches from the node. Returns what happened to its syncs.
    pub(super) fn detach(mut self) -> io::Result<Syncs> {
        let deadline = Instant::now() + PATIENCE;
        while self.strace.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.strace.kill()?;
                self.strace.wait()?;
                return Err(io::Error::other(format!("strace does not detach from a node within {PATIENCE:?}")));
            }
            // `strace` may have ended with the node.
            let _ = kill_process(Pid::from_child(&self.strace), Signal::INT);
            sleep(Duration::from_millis(20));
        }
        Ok(Syncs::read(&fs::read_to_string(&self.trace).unwrap_or_default()))
    }

    /// Whether the injected failure has happened.
    pub(super) fn has_failed(&self) -> bool {
        Syncs::read(&fs::read_to_string(&self.trace).unwrap_or_default()).failed
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

fn thread_named(process: u32, name: &str) -> Option<u32> {
    let threads = fs::read_dir(Path::new("/proc").join(process.to_string()).join("task")).ok()?;
    let mut threads = threads.filter_map(|thread| Some(thread.ok()?.path()));
    let thread = threads.find(|thread| {
        let is_called = fs::read_to_string(thread.join("comm")).unwrap_or_default();
        is_called.trim_end() == name
    })?;
    thread.file_name()?.to_str()?.parse().ok()
}

/// What a trace shows of a node's syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Syncs {
    /// Number of delayed syncs.
    pub(super) delayed: u64,
    /// A sync failed as injected.
    pub(super) failed: bool,
    /// The core synced again after the failure, although a second result proves nothing.
    pub(super) again: bool,
}

impl Syncs {
    fn read(trace: &str) -> Syncs {
        let mut syncs = Syncs::default();
        for line in trace.lines().filter(|line| line.contains("fdatasync(")) {
            syncs.again |= syncs.failed;
            syncs.failed |= line.ends_with("(INJECTED)");
            syncs.delayed += u64::from(line.ends_with("(DELAYED)"));
        }
        syncs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_after_failure_is_detected() {
        let failed = "fdatasync(9</d/wal>) = 0\nfdatasync(9</d/wal>) = -1 EIO (Input/output error) (INJECTED)\n";
        let gone = format!("{failed}+++ exited with 74 +++\n");
        assert_eq!(Syncs::read(&gone), Syncs { delayed: 0, failed: true, again: false });
        let again = format!("{failed}fdatasync(9</d/wal>) = 0\n");
        assert_eq!(Syncs::read(&again), Syncs { delayed: 0, failed: true, again: true });
        let slow = "fdatasync(9</d/wal>) = 0 (DELAYED)\nfdatasync(9</d/wal>) = 0 (DELAYED)\n+++ exited with 0 +++\n";
        assert_eq!(Syncs::read(slow), Syncs { delayed: 2, failed: false, again: false });
    }
}
