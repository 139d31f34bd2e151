//! Test doubles: a file that fails, and a disk that is full.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::layer::{DiskLayer, FileLayer, LayeredFile};
use super::{Access, Disk, DiskFile};

/// A file that fails once, at the write or sync with number `at`, and works again afterwards, as
/// disks do.
#[derive(Debug)]
pub(crate) struct FailsOnce {
    calls: Arc<AtomicU32>,
    at: u32,
    /// Number of bytes of the failed write that are written nevertheless.
    through: usize,
}

impl FailsOnce {
    /// Wraps a file; also returns the counter of its writes and syncs.
    pub(crate) fn at(at: u32, through: usize, file: Box<dyn DiskFile>) -> (Box<dyn DiskFile>, Arc<AtomicU32>) {
        let calls = Arc::new(AtomicU32::new(0));
        (LayeredFile::boxed(FailsOnce { calls: Arc::clone(&calls), at, through }, file), calls)
    }

    fn check(&self) -> io::Result<()> {
        let is_now = self.calls.fetch_add(1, Ordering::Relaxed) == self.at;
        if is_now { Err(io::Error::other("the disk is on fire")) } else { Ok(()) }
    }
}

impl FileLayer for FailsOnce {
    fn write_all_at(&self, below: &dyn DiskFile, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(error) = self.check() {
            below.write_all_at(&bytes[..self.through.min(bytes.len())], offset)?;
            return Err(error);
        }
        below.write_all_at(bytes, offset)
    }

    fn sync_data(&self, below: &dyn DiskFile) -> io::Result<()> {
        self.check()?;
        below.sync_data()
    }

    fn sync_all(&self, below: &dyn DiskFile) -> io::Result<()> {
        self.check()?;
        below.sync_all()
    }
}

/// A disk with a switch that makes it full: then no file can grow, although `available` still
/// reports space. Clones share the switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct FullDisk {
    pub(crate) is_full: Arc<AtomicBool>,
}

impl FullDisk {
    /// Free space that `available` reports, in bytes.
    pub(crate) const FREE: u64 = 1 << 40;
}

impl DiskLayer for FullDisk {
    fn open(&self, below: &dyn Disk, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        Ok(LayeredFile::boxed(self.clone(), below.open(path, access)?))
    }

    fn available(&self, _: &dyn Disk, _: &Path) -> io::Result<u64> {
        Ok(FullDisk::FREE)
    }
}

impl FileLayer for FullDisk {
    fn write_all_at(&self, below: &dyn DiskFile, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.is_full.load(Ordering::Relaxed) && offset + bytes.len() as u64 > below.length()? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        below.write_all_at(bytes, offset)
    }
}
