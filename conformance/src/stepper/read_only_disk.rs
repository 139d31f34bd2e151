//! A read-only disk, to recover what a restart would find beside the running node.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use palisade::storage::{Access, Beside, Disk, DiskFile, Lock, Locking, SystemDisk};

/// Reads the system's files and changes none: the writes of a recovery on this disk are discarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOnlyDisk;

impl Disk for ReadOnlyDisk {
    fn create_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        SystemDisk.list(directory)
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        if access == Access::Read { SystemDisk.open(path, access) } else { Ok(Box::new(DiscardingFile)) }
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        SystemDisk.read(path)
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Locking> {
        Ok(Locking::Locked(Lock::new(())))
    }

    fn available(&self, directory: &Path) -> io::Result<u64> {
        SystemDisk.available(directory)
    }

    fn beside(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        SystemDisk.beside(name, work)
    }
}

/// A file that discards what is written to it.
#[derive(Debug)]
struct DiscardingFile;

impl DiskFile for DiscardingFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn write_all_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn set_length(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }
}
