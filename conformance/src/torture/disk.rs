//! Disks that can be filled: the data of some nodes is on small in-memory file systems.
//!
//! Mounting needs root and a private mount [namespace]. Without them, no disk is filled.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::namespace;

/// Size of a disk. A full disk has no room for another log segment.
const SIZE: &str = "size=24m";
/// Bytes written at once to fill a disk.
const PIECE: usize = 64 * 1024;

/// A node's disk.
#[derive(Debug)]
pub(super) struct Disk {
    mounted: PathBuf,
    ballast: PathBuf,
}

/// Mounts a small disk at a node's data directory. `None` without the permission.
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
    /// Writes until the disk is full.
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

    /// Removes the ballast.
    pub(super) fn clear(&self) -> io::Result<()> {
        match fs::remove_file(&self.ballast) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A lazy unmount works even if a process still has a file open there.
        let _ = Command::new("umount").arg("-l").arg(&self.mounted).stderr(Stdio::null()).status();
    }
}
