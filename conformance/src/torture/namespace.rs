//! A run is by itself: in namespaces of its own, which no name leads to.
//!
//! With root, the program runs itself again in a new mount namespace and a new network namespace. What is mounted there, and
//! every link, address and rule, is seen by nobody else and vanishes with the last process in it, however that ends: after a
//! Ctrl-C, a panic, or `kill -9`. Two runs at a time know nothing of one another.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Says which namespaces of its own this process is in already.
const ENTERED: &str = "PALISADE_TORTURE_NAMESPACES";
/// What `unshare` takes for each of them, most first.
const KINDS: [(&str, &[&str]); 2] = [("mount,network", &["--mount", "--net"]), ("mount", &["--mount"])];
/// What has to work inside of them.
const NETWORK: &str = "ip link set lo up && nft list ruleset && mount -t tmpfs tmpfs /mnt";
const MOUNT: &str = "mount -t tmpfs tmpfs /mnt";
/// Places that this run is to have for itself: the names of its network namespaces, and memory that is shared by name.
const OWN: [&str; 2] = ["/run/netns", "/dev/shm"];

/// Runs this program again in namespaces of its own, if that is allowed. Returns if it is not, or is done already.
pub(super) fn enter() -> io::Result<()> {
    if std::env::var_os(ENTERED).is_some() {
        return furnish();
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
            // Returns only if it fails.
            return Err(command.env(ENTERED, name).exec());
        }
    }
    Ok(())
}

/// Whether what is mounted here is seen here only.
pub(super) fn has_mounts() -> bool {
    std::env::var_os(ENTERED).is_some()
}

/// Whether this process has a network for itself.
pub(super) fn has_network() -> bool {
    std::env::var_os(ENTERED).is_some_and(|entered| entered == "mount,network")
}

fn furnish() -> io::Result<()> {
    for place in OWN {
        // The first is made by whoever uses `ip netns` for the first time.
        std::fs::create_dir_all(place)?;
        run("mount", &["-t", "tmpfs", "tmpfs", place])?;
    }
    if has_network() { run("ip", &["link", "set", "lo", "up"]) } else { Ok(()) }
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{program} {arguments:?} failed: {status}"))) }
}
