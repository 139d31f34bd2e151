//! A file that fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::DiskFile;

/// A file of a disk that fails once: at the write or the sync with number `at`. Works again afterwards, as disks do.
#[derive(Debug)]
pub(crate) struct FailsOnce {
    file: Box<dyn DiskFile>,
    calls: Arc<AtomicU32>,
    at: u32,
    /// How much of a failed write gets through nevertheless.
    through: usize,
}

impl FailsOnce {
    /// That file instead of this one; and how often it is written to or synced.
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
