//! The interface of the storage to a disk, and its implementation by the operating system.
//!
//! The storage accesses files only through a [`Disk`], so that all of it (writing, rotating,
//! cutting, refusing) also runs in a simulation, on a disk that loses unsynced content, tears
//! writes, hides what a failed sync has lost, and returns wrong content. The server uses [`SystemDisk`]. A disk decides nothing: its
//! callers determine what is written where, in which order, and what is synced when.
//!
//! The content of a file becomes durable once the file is synced; its name becomes durable once the
//! directory is synced.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Permissions of a new directory: its files have sessions and votes, which are their owner's
/// alone.
const PRIVATE_DIRECTORY: u32 = 0o700;
/// Permissions of a new file.
const PRIVATE_FILE: u32 = 0o600;

/// A disk: files, directories, locks, free space, and threads for background work.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a directory and its missing parents, durably. The name of an existing one becomes durable, too, if this
    /// process may make it so.
    ///
    /// # Errors
    /// The operating system's error.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// The operating system's error.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Makes a directory's names durable.
    ///
    /// # Errors
    /// If the names may not be durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Opens a file.
    ///
    /// # Errors
    /// The operating system's error; [`io::ErrorKind::NotFound`] if there is no such file, and
    /// there should be.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>>;

    /// Reads a whole file.
    ///
    /// # Errors
    /// The operating system's error; [`io::ErrorKind::NotFound`] if there is no such file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Renames a file within its directory. Replaces an existing file of that name.
    ///
    /// # Errors
    /// The operating system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name.
    ///
    /// # Errors
    /// The operating system's error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Locks a file against other processes until the lock is dropped; creates the file if
    /// necessary.
    ///
    /// # Errors
    /// The operating system's error.
    fn lock(&self, path: &Path) -> io::Result<Locking>;

    /// Number of bytes that this process may still allocate on the file system of a directory.
    ///
    /// # Errors
    /// The operating system's error.
    fn available(&self, directory: &Path) -> io::Result<u64>;

    /// Takes away what other users may do with a directory and the files in it; returns on how many
    /// of these they had a permission. A disk without users has nothing to take away.
    ///
    /// # Errors
    /// The operating system's error.
    fn make_private(&self, _directory: &Path) -> io::Result<usize> {
        Ok(0)
    }

    /// Runs work in the background. The work uses this disk only, and has ended when
    /// [`Beside::join`] returns.
    ///
    /// # Errors
    /// If no thread can be started.
    fn beside(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside>;
}

/// An open file.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Reads from `offset` on; returns the number of bytes read, which is 0 at the file's end.
    ///
    /// # Errors
    /// The operating system's error.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes` at `offset`. The file grows if necessary.
    ///
    /// # Errors
    /// The operating system's error. A part of the bytes may have been written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Length of the file, in bytes.
    ///
    /// # Errors
    /// The operating system's error.
    fn length(&self) -> io::Result<u64>;

    /// Truncates or extends the file to this length, in bytes.
    ///
    /// # Errors
    /// The operating system's error.
    fn set_length(&self, bytes: u64) -> io::Result<()>;

    /// Makes the content durable.
    ///
    /// # Errors
    /// If the content may not be durable. A retry would not reveal whether it is.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the content and the file's metadata durable.
    ///
    /// # Errors
    /// If they may not be durable. A retry would not reveal whether they are.
    fn sync_all(&self) -> io::Result<()>;

    /// Fills `bytes` with the content from `offset` on.
    ///
    /// # Errors
    /// The operating system's error; [`io::ErrorKind::UnexpectedEof`] if the file ends before.
    fn read_exact_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let read = self.read_at(bytes, offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes = &mut bytes[read..];
            offset += read as u64;
        }
        Ok(())
    }
}

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Writing to an existing file.
    Write,
    /// Writing to a new file; truncates an existing file of that name.
    Create,
    /// Reading and writing, without truncation; creates the file if necessary.
    Continue,
}

/// Result of an attempt to lock a file.
#[derive(Debug)]
pub enum Locking {
    /// The file is locked for the lifetime of this value.
    Locked(Lock),
    /// Another process holds the lock; its process ID, if the file holds it.
    Taken(Option<u32>),
}

/// A lock that is held until this value is dropped.
pub struct Lock {
    _guard: Box<dyn Send + Sync>,
}

impl Lock {
    /// Wraps a guard that unlocks when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Lock {
        Lock { _guard: Box::new(guard) }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// Background work. Dropping it waits for the end of the work.
#[derive(Debug, Default)]
pub struct Beside(Option<JoinHandle<()>>);

impl Beside {
    /// Work that has already ended.
    pub fn done() -> Beside {
        Beside(None)
    }

    /// Waits for the end of the work, and resumes its panic, if it panicked.
    pub fn join(mut self) {
        if let Some(thread) = self.0.take() {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic of the work is ignored: its result is no longer needed.
            let _ = thread.join();
        }
    }
}

/// The operating system's files, and threads of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl SystemDisk {
    /// The system's disk as a shared trait object, the form that the storage expects.
    pub fn shared() -> Arc<dyn Disk> {
        Arc::new(SystemDisk)
    }
}

impl Disk for SystemDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let absolute = std::path::absolute(path)?;
        let missing: Vec<&Path> = absolute.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
        DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(&absolute)?;
        if missing.is_empty() {
            // A process may have created it and died before it made the name durable. The parent may be one that this
            // process may not read, or that cannot be synced; then another one has created the directory.
            let _ = absolute.parent().map(|parent| self.sync_directory(parent));
        }
        missing.into_iter().filter_map(Path::parent).try_for_each(|parent| self.sync_directory(parent))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let mut options = File::options();
        match access {
            Access::Read => options.read(true),
            Access::Write => options.write(true),
            Access::Create => options.write(true).create(true).truncate(true),
            Access::Continue => options.read(true).write(true).create(true).truncate(false),
        };
        Ok(Box::new(options.mode(PRIVATE_FILE).open(path)?))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(PRIVATE_FILE);
        let mut file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
                return Ok(Locking::Taken(holder));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The process ID only helps the reader of an error message; a full disk must not keep a
        // node from starting.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Locking::Locked(Lock::new(LockedFile(file))))
    }

    fn available(&self, directory: &Path) -> io::Result<u64> {
        // `f_bavail` leaves out the blocks that the file system reserves for root.
        let space = rustix::fs::statvfs(directory)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn make_private(&self, directory: &Path) -> io::Result<usize> {
        let mut tightened = usize::from(tighten(directory, &fs::metadata(directory)?)?);
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // Not a link's target, which belongs to another directory.
            let metadata = entry.metadata()?;
            tightened += usize::from(metadata.is_file() && tighten(&entry.path(), &metadata)?);
        }
        Ok(tightened)
    }

    fn beside(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        thread::Builder::new().name(name.into()).spawn(work).map(|thread| Beside(Some(thread)))
    }
}

/// A locked file, which is unlocked when it is dropped. To close it is not enough: a process that another
/// thread has just begun has a copy of it until it executes its program, and the lock would last as long.
#[derive(Debug)]
struct LockedFile(File);

impl Drop for LockedFile {
    fn drop(&mut self) {
        // A drop tells its caller nothing. The lock ends with the last copy of the file at the latest.
        let _ = self.0.unlock();
    }
}

/// Takes the permissions of the group and of all others away, if they have any.
fn tighten(path: &Path, metadata: &fs::Metadata) -> io::Result<bool> {
    let mode = metadata.permissions().mode();
    let has_others = mode & 0o077 != 0;
    if has_others {
        fs::set_permissions(path, Permissions::from_mode(mode & 0o7700))?;
    }
    Ok(has_others)
}

impl DiskFile for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn sync_all(&self) -> io::Result<()> {
        File::sync_all(self)
    }
}

/// Reads a file from its beginning.
#[derive(Debug)]
pub(super) struct FromStart<'a> {
    file: &'a dyn DiskFile,
    at: u64,
}

impl<'a> FromStart<'a> {
    pub(super) fn of(file: &'a dyn DiskFile) -> FromStart<'a> {
        FromStart { file, at: 0 }
    }
}

impl Read for FromStart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ends_though_a_beginning_process_has_a_copy_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let is_locked = || matches!(SystemDisk.lock(&path).unwrap(), Locking::Taken(_));
        assert!(!is_locked());
        let file = File::open(&path).unwrap();
        file.try_lock().unwrap();
        let copy = file.try_clone().unwrap();
        assert!(is_locked());
        drop(LockedFile(file));
        assert!(!is_locked());
        drop(copy);
    }
}
