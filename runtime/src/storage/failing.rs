//! Test doubles: a file that fails, and a disk that is full.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{Access, Beside, Disk, DiskFile, Locking, SystemDisk};

/// A file that fails once, at the write or sync with number `at`, and works again afterwards, as
/// disks do.
#[derive(Debug)]
pub(crate) struct FailsOnce {
    file: Box<dyn DiskFile>,
    calls: Arc<AtomicU32>,
    at: u32,
    /// Number of bytes of the failed write that are written nevertheless.
    through: usize,
}

impl FailsOnce {
    /// Wraps a file; also returns the counter of its writes and syncs.
    pub(crate) fn at(at: u32, through: usize, file: Box<dyn DiskFile>) -> (Box<dyn DiskFile>, Arc<AtomicU32>) {
        let calls = Arc::new(AtomicU32::new(0));
        (Box::new(FailsOnce { file, calls: Arc::clone(&calls), at, through }), calls)
    }

    fn is_now(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) == self.at
    }
}

impl DiskFile for FailsOnce {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.is_now() {
            self.file.write_all_at(&bytes[..self.through.min(bytes.len())], offset)?;
            return Err(io::Error::other("the disk is on fire"));
        }
        self.file.write_all_at(bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.file.set_length(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_now() { Err(io::Error::other("the disk is on fire")) } else { self.file.sync_data() }
    }

    fn sync_all(&self) -> io::Result<()> {
        if self.is_now() { Err(io::Error::other("the disk is on fire")) } else { self.file.sync_all() }
    }
}

/// The system's disk, with a switch that makes it full: then no file can grow, although `available`
/// still reports space.
#[derive(Debug, Default)]
pub(crate) struct FullDisk {
    pub(crate) is_full: Arc<AtomicBool>,
}

impl FullDisk {
    /// Free space that `available` reports, in bytes.
    pub(crate) const FREE: u64 = 1 << 40;
}

impl Disk for FullDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        SystemDisk.create_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        SystemDisk.list(directory)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        SystemDisk.sync_directory(path)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Bounded { file: SystemDisk.open(path, access)?, is_full: Arc::clone(&self.is_full) }))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        SystemDisk.read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        SystemDisk.lock(path)
    }

    fn available(&self, _: &Path) -> io::Result<u64> {
        Ok(FullDisk::FREE)
    }

    fn beside(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        SystemDisk.beside(name, work)
    }
}

/// A file that cannot grow while the disk is full.
#[derive(Debug)]
struct Bounded {
    file: Box<dyn DiskFile>,
    is_full: Arc<AtomicBool>,
}

impl DiskFile for Bounded {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.is_full.load(Ordering::Relaxed) && offset + bytes.len() as u64 > self.file.length()? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all_at(bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.file.set_length(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}
