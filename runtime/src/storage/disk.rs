//! What the storage asks of a disk, and the disk that an operating system gives.
//!
//! Everything in this module that touches a file does it through a [`Disk`], so that all of it (writing, rotating,
//! cutting, refusing) also runs on a disk that loses what was not synced, tears writes and lies, in a simulation. The
//! server has [`SystemDisk`]. A disk decides nothing: what is written where, in which order, and what is synced when, its
//! callers say.
//!
//! Two things are durable separately: the content of a file once the file is synced, its name once the directory is.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// A disk.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a directory and whatever is missing above it, durably.
    ///
    /// # Errors
    /// What the system says.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, in any order.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>>;

    /// Makes a directory's names durable.
    ///
    /// # Errors
    /// If they may not be.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Opens a file.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::NotFound`] if there is no such file, and there should be.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>>;

    /// Reads the whole of a file.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::NotFound`] if there is no such file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Gives a file another name, in the same directory. Whatever had that name is gone.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Locks a file against other processes until the lock is dropped, and creates it if need be.
    ///
    /// # Errors
    /// What the system says.
    fn lock(&self, path: &Path) -> io::Result<Locking>;

    /// How many bytes this process may still allocate on the file system of a directory.
    ///
    /// # Errors
    /// What the system says.
    fn available(&self, directory: &Path) -> io::Result<u64>;

    /// Has work done beside the caller. It concerns this disk only, and is over when [`Beside::join`] returns.
    ///
    /// # Errors
    /// If nobody can be found to do it.
    fn beside(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside>;
}

/// An open file.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Reads from `offset` on; says how much. 0 at the file's end.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of it. The file grows if need be.
    ///
    /// # Errors
    /// What the system says. Some of it may have been written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// How long the file is.
    ///
    /// # Errors
    /// What the system says.
    fn length(&self) -> io::Result<u64>;

    /// Makes it so long.
    ///
    /// # Errors
    /// What the system says.
    fn set_length(&self, bytes: u64) -> io::Result<()>;

    /// Makes the content durable.
    ///
    /// # Errors
    /// If it may not be. Asking again would not tell.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes the content durable, and all that the system knows of the file beside it.
    ///
    /// # Errors
    /// If it may not be. Asking again would not tell.
    fn sync_all(&self) -> io::Result<()>;

    /// Fills `bytes` with what stands from `offset` on.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::UnexpectedEof`] if the file ends before.
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

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read.
    Read,
    /// To be written to; it exists.
    Write,
    /// To be written from its beginning; nothing is left of what had its name.
    Create,
    /// To be read, and written on where it ends; created if need be.
    Continue,
}

/// What came of an attempt to lock a file.
#[derive(Debug)]
pub enum Locking {
    /// It is locked as long as this lives.
    Locked(Lock),
    /// Another process has it; its number, if it left that.
    Taken(Option<u32>),
}

/// Something that is locked until this is dropped.
pub struct Lock {
    _guard: Box<dyn Send + Sync>,
}

impl Lock {
    /// What unlocks when it is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Lock {
        Lock { _guard: Box::new(guard) }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// Work that is done beside the caller. Dropping it waits for the end.
#[derive(Debug, Default)]
pub struct Beside(Option<JoinHandle<()>>);

impl Beside {
    /// Work that is over.
    pub fn done() -> Beside {
        Beside(None)
    }

    /// Waits for the end of the work. A panic in it is a bug of ours, and goes on here.
    pub fn join(mut self) {
        if let Some(thread) = self.0.take() {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // Nobody wants to know any more what came of it.
            let _ = thread.join();
        }
    }
}

/// The operating system's files, and threads of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDisk;

impl SystemDisk {
    /// As the storage takes it.
    pub fn shared() -> Arc<dyn Disk> {
        Arc::new(SystemDisk)
    }
}

impl Disk for SystemDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let absolute = std::path::absolute(path)?;
        let missing: Vec<&Path> = absolute.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
        fs::create_dir_all(&absolute)?;
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
        Ok(Box::new(options.open(path)?))
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
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
                return Ok(Locking::Taken(holder));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The process ID only helps the reader of an error message; a full disk must not keep a node from starting.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Locking::Locked(Lock::new(file)))
    }

    fn available(&self, directory: &Path) -> io::Result<u64> {
        // `f_bavail` leaves out the blocks that the file system reserves for root.
        let space = rustix::fs::statvfs(directory)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn beside(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        thread::Builder::new().name(name.into()).spawn(work).map(|thread| Beside(Some(thread)))
    }
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
