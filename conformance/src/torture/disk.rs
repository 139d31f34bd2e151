//! Disks that can be full: the data of some nodes is on a small file system of their own, in memory.
//!
//! Mounting needs root, and a mount [namespace] of one's own. Without, no disk is filled.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::namespace;

/// How large a disk is. A full one has no room for one more segment of the log.
const SIZE: &str = "size=24m";
/// How much is written at once to fill it.
const PIECE: usize = 64 * 1024;

/// A disk of a node.
#[derive(Debug)]
pub(super) struct Disk {
    mounted: PathBuf,
    ballast: PathBuf,
}

/// Puts a small disk where a node's data will be. `None` without the right to.
pub(super) fn mount(data: &Path) -> io::Result<Option<Disk>> {
    if !namespace::has_mounts() {
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
