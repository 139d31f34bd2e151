//! The environment of a run: the commit, the machine, the servers.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What a run ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The commit of the working tree.
    pub commit: String,
    /// Whether the working tree differed from the commit, apart from pages.
    pub dirty: bool,
    /// Whether a program is older than the commit's sources.
    #[serde(default, skip_serializing_if = "is_false")]
    pub outdated: bool,
    /// Whether clients connect to the leader alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leader_only: bool,
    /// The command line.
    pub command: String,
    /// The servers' product and version, and their number.
    pub servers: String,
    /// Processor, cores, memory and the kernel's version.
    pub machine: String,
    /// The file system under the servers' data.
    pub disk: String,
}

impl Setup {
    /// Looks at this machine. `data` is the servers' directory.
    #[must_use]
    pub fn of(command: &str, servers: String, data: &Path) -> Setup {
        let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
        let changes = git(&["status", "--porcelain", "--", ":/", ":(top,exclude)docs/lab"]);
        Setup {
            commit,
            dirty: changes.is_none_or(|changes| !changes.is_empty()),
            outdated: outdated().unwrap_or(false),
            leader_only: false,
            command: command.to_owned(),
            servers,
            machine: machine(),
            disk: disk(data).unwrap_or_else(|| "unknown".to_owned()),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Whether this program, or the `palisade` beside it, was built before the last commit that changed what it is built from.
fn outdated() -> Option<bool> {
    let program = std::env::current_exe().ok()?;
    let server = program.with_file_name("palisade");
    let of_the_server = is_older(&server, &[":/", ":(top,exclude)docs", ":(top,exclude)lab"]);
    Some(is_older(&program, &[":/", ":(top,exclude)docs"])? || of_the_server.unwrap_or(false))
}

fn is_older(program: &Path, sources: &[&str]) -> Option<bool> {
    let committed = git(&[&["log", "-1", "--format=%ct", "--"], sources].concat())?.parse().ok()?;
    let built = program.metadata().ok()?.modified().ok()?;
    Some(built < UNIX_EPOCH + Duration::from_secs(committed))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let processor = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let memory = field(&read("/proc/meminfo"), "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let memory = memory.map_or_else(String::new, |kib| format!(", {} GiB", (kib + (1 << 19)) >> 20));
    let release = read("/proc/sys/kernel/osrelease");
    let version: Vec<&str> = release.trim().split('.').take(2).collect();
    format!("{processor}, {cores} cores{memory}, Linux {}", version.join("."))
}

/// The type of the file system that contains a directory.
fn disk(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let under = fields.filter(|fields| fields.len() > 2 && directory.starts_with(fields[1]));
    let mount = under.max_by_key(|fields| fields[1].len())?;
    Some(mount[2].to_owned())
}
