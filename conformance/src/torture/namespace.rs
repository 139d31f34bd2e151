//! Isolation of a run by unnamed namespaces.
//!
//! With root, the program runs itself again in a new mount namespace and a new network namespace.
//! Its mounts, links, addresses and rules are invisible to other processes and vanish with the last
//! process in the namespaces, however that process ends: after a Ctrl-C, a panic, or `kill -9`.
//! Concurrent runs do not affect each other.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Environment variable that names the namespaces that this process has entered.
const ENTERED: &str = "PALISADE_TORTURE_NAMESPACES";
/// The namespaces with their `unshare` options, largest set first.
const KINDS: [(&str, &[&str]); 2] = [("mount,network", &["--mount", "--net"]), ("mount", &["--mount"])];
/// Commands that must work inside the namespaces.
const NETWORK: &str = "ip link set lo up && nft list ruleset && mount -t tmpfs tmpfs /mnt";
const MOUNT: &str = "mount -t tmpfs tmpfs /mnt";
/// Directories that are private to the run: the names of its network namespaces, and named shared
/// memory.
const OWN: [&str; 2] = ["/run/netns", "/dev/shm"];

/// Runs this program again in new namespaces. Returns if that is not allowed, or if this process is
/// in them already.
pub(super) fn enter() -> io::Result<()> {
    if std::env::var_os(ENTERED).is_some() {
        return prepare();
    }
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let program = std::env::current_exe()?;
    for (name, kinds) in KINDS {
        let trial = if name == "mount" { MOUNT } else { NETWORK };
        let mut command = Command::new("unshare");
        command.args(kinds).args(["--propagation", "private", "--", "sh", "-c", trial]);
        let allowed = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if allowed.is_ok_and(|status| status.success()) {
            let mut command = Command::new("unshare");
            command
                .args(kinds)
                .args(["--propagation", "private", "--"])
                .arg(&program)
                .args(std::env::args_os().skip(1));
            // `exec` returns only if it fails.
            return Err(command.env(ENTERED, name).exec());
        }
    }
    Ok(())
}

/// Whether this process has a private mount namespace.
pub(super) fn has_mounts() -> bool {
    std::env::var_os(ENTERED).is_some()
}

/// Whether this process has a private network namespace.
pub(super) fn has_network() -> bool {
    std::env::var_os(ENTERED).is_some_and(|entered| entered == "mount,network")
}

fn prepare() -> io::Result<()> {
    for directory in OWN {
        // `ip netns` creates the first directory on its first use.
        std::fs::create_dir_all(directory)?;
        run("mount", &["-t", "tmpfs", "tmpfs", directory])?;
    }
    if has_network() { run("ip", &["link", "set", "lo", "up"]) } else { Ok(()) }
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{program} {arguments:?} failed: {status}"))) }
}
