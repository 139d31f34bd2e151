//! The directory of a cluster's servers: made by the lab, on a disk, and removed by it.
//!
//! A process that is killed removes nothing. Its temporary directories name it as their owner, and the
//! next one that starts servers removes those whose owner does not run any more: their servers do not
//! either, because the system kills them with their owner.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::{Error, file};
use super::process::Identity;

/// How the names of temporary directories begin.
const PREFIX: &str = "palisade-lab-";
/// The file that names the owner.
const OWNER: &str = "owner.json";

/// A directory that is removed with all that is in it when this value is dropped.
#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    keep: bool,
}

impl Home {
    /// Makes the directory `name` in `parent`, or a fresh one among the temporary files. One that is `owned`
    /// is of no use after this process's end.
    ///
    /// # Errors
    /// The directory exists already, or cannot be made, or is in memory although `durable`.
    pub(crate) fn make(parent: Option<&Path>, name: &str, durable: bool, owned: bool) -> Result<Self, Error> {
        let path = match parent {
            Some(parent) => {
                fs::create_dir_all(parent).map_err(file("cannot make", parent))?;
                let path = fs::canonicalize(parent).map_err(file("cannot find", parent))?.join(name);
                match fs::create_dir(&path) {
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                        let reason = "exists already; choose another directory, or end its servers with \
                                      `palisade-lab down --dir DIR`";
                        return Err(Error::Directory { path, reason: reason.to_owned() });
                    }
                    made => made.map_err(file("cannot make", &path))?,
                }
                path
            }
            None => {
                let parent = temporary(durable)?;
                sweep(&parent);
                let prefix = format!("{PREFIX}{name}-");
                let made = tempfile::Builder::new().prefix(&prefix).tempdir_in(&parent);
                made.map_err(file("cannot make a directory in", &parent))?.keep()
            }
        };
        let home = Self { path, keep: false };
        // A server that runs as another user must be able to enter; what it keeps there is its own.
        fs::set_permissions(&home.path, fs::Permissions::from_mode(0o755))
            .map_err(file("cannot open to others", &home.path))?;
        if durable {
            refuse_memory(&home.path)?;
        }
        if owned && parent.is_none() {
            write_owner(&home.path)?;
        }
        Ok(home)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the directory in place.
    pub(super) fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // A process that was killed a moment ago may still have made a file.
        let again = |_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            fs::remove_dir_all(&self.path)
        };
        if let Err(error) = fs::remove_dir_all(&self.path).or_else(again) {
            eprintln!("cannot remove {}: {error}; remove it by hand", self.path.display());
        }
    }
}

fn write_owner(home: &Path) -> Result<(), Error> {
    let path = home.join(OWNER);
    let owner = Identity::of(std::process::id()).and_then(|owner| serde_json::to_string(&owner).ok());
    // Without /proc the directory has no owner, and is never swept.
    owner.map_or(Ok(()), |owner| fs::write(&path, owner).map_err(file("cannot write", &path)))
}

/// Removes the directories of labs that were killed. Best effort: others may sweep at the same time, and
/// directories of other users stay.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let owner = || fs::read_to_string(entry.path().join(OWNER)).ok();
        let owner = || owner().and_then(|text| serde_json::from_str::<Identity>(&text).ok());
        if is_ours && owner().is_some_and(|owner| !owner.is_running()) {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// The directory of temporary files that is on a disk, if it must be.
fn temporary(durable: bool) -> Result<PathBuf, Error> {
    let system = std::env::temp_dir();
    if !durable || !is_memory(&system)? {
        return Ok(system);
    }
    let disk = PathBuf::from("/var/tmp");
    if disk.is_dir() && !is_memory(&disk)? {
        return Ok(disk);
    }
    refuse_memory(&system).map(|()| system)
}

fn refuse_memory(path: &Path) -> Result<(), Error> {
    if !is_memory(path)? {
        return Ok(());
    }
    let reason = "is in memory (tmpfs), where a write to the disk costs nothing and is lost with the machine; \
                  choose a directory on a disk with --dir, or accept this with --allow-tmpfs";
    Err(Error::Directory { path: path.to_owned(), reason: reason.to_owned() })
}

/// Whether the path is on a file system that is kept in memory.
pub(super) fn is_memory(path: &Path) -> Result<bool, Error> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let found = rustix::fs::statfs(path).map_err(|error| file("cannot examine", path)(error.into()))?;
    // The type of the field differs by architecture; file system types are 32-bit numbers.
    let kind = (found.f_type as u64) & 0xffff_ffff;
    Ok(matches!(kind, TMPFS | RAMFS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_is_removed_unless_kept() {
        let home = Home::make(None, "test", false, false).unwrap();
        let path = home.path().to_owned();
        fs::write(path.join("file"), "x").unwrap();
        drop(home);
        assert!(!path.exists());
        let mut kept = Home::make(None, "test", false, false).unwrap();
        kept.keep();
        let path = kept.path().to_owned();
        drop(kept);
        assert!(path.exists());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn directories_of_killed_owners_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let running = Identity::of(child.id()).unwrap();
        let ended = Identity { start_time: running.start_time - 1, ..running };
        let make = |name: &str, owner: Option<Identity>| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            if let Some(owner) = owner {
                fs::write(path.join(OWNER), serde_json::to_string(&owner).unwrap()).unwrap();
            }
        };
        make("palisade-lab-ended", Some(ended));
        make("palisade-lab-running", Some(running));
        make("palisade-lab-up", None);
        make("another", Some(ended));
        sweep(parent.path());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut left: Vec<_> = fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["another", "palisade-lab-running", "palisade-lab-up"]);
    }

    #[test]
    fn directory_of_another_run_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let first = Home::make(Some(parent.path()), "redis", false, false).unwrap();
        let error = Home::make(Some(parent.path()), "redis", false, false).unwrap_err().to_string();
        assert!(error.contains("exists already"), "{error}");
        assert!(first.path().exists(), "the refused run has removed the first run's directory");
    }

    #[test]
    fn memory_is_refused_for_durable_servers() {
        let memory = Path::new("/dev/shm");
        if !memory.is_dir() || !is_memory(memory).unwrap() {
            eprintln!("SKIPPED: /dev/shm is no tmpfs here");
            return;
        }
        let parent = tempfile::tempdir_in(memory).unwrap();
        let error = Home::make(Some(parent.path()), "redis", true, false).unwrap_err().to_string();
        assert!(error.contains("tmpfs") && error.contains("--allow-tmpfs"), "{error}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0, "the refused directory was left");
        Home::make(Some(parent.path()), "redis", false, false).unwrap();
    }
}
