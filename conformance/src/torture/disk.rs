//! Disks that can be full: each founder's data is on a small file system of its own, in memory.
//!
//! Mounting needs root. The whole run is then in a mount namespace of its own ([`enter`]), so that what is mounted vanishes with
//! its last process, however that ends. Without root nothing is mounted, and no disk is filled.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Says that this process is in its own namespace already.
const ENTERED: &str = "PALISADE_TORTURE_NAMESPACE";
/// How large a disk is. A full one has no room for one more segment of the log.
const SIZE: &str = "size=24m";
/// How much is written at once to fill it.
const PIECE: usize = 64 * 1024;

/// Runs this program again in a mount namespace of its own, if that is allowed. Returns if it is not, or is done already.
pub(super) fn enter() {
    let root = rustix::process::geteuid().is_root();
    if !root || std::env::var_os(ENTERED).is_some() {
        return;
    }
    let allowed = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    let (true, Ok(program)) = (allowed.is_ok_and(|status| status.success()), std::env::current_exe()) else { return };
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]).arg(program).args(std::env::args_os().skip(1));
    // Returns only if it fails, and then it goes on without.
    let _ = command.env(ENTERED, "1").exec();
}

/// A disk of a node.
#[derive(Debug)]
pub(super) struct Disk {
    mounted: PathBuf,
    ballast: PathBuf,
}

/// Puts a small disk where a node's data will be. `None` without the right to.
pub(super) fn mount(data: &Path) -> io::Result<Option<Disk>> {
    if std::env::var_os(ENTERED).is_none() {
        return Ok(None);
    }
    fs::create_dir_all(data)?;
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(data).stderr(Stdio::null()).status()?;
    Ok(mounted.success().then(|| Disk { mounted: data.to_owned(), ballast: data.join("ballast") }))
}

impl Disk {
    /// Writes until there is no room.
    pub(super) fn fill(&self) -> io::Result<()> {
        let mut ballast = File::create(&self.ballast)?;
        loop {
            match ballast.write_all(&[0xA5; PIECE]) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes room again.
    pub(super) fn clear(&self) -> io::Result<()> {
        match fs::remove_file(&self.ballast) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Also if somebody still has a file open there.
        let _ = Command::new("umount").arg("-l").arg(&self.mounted).stderr(Stdio::null()).status();
    }
}
