//! Making a segment: zeros first, then a header, then a name.
//!
//! The zeros are written, not only allocated: a sync of bytes that replace written ones has nothing to do but write
//! them, while a first write to allocated space must record in the file system's journal that it is no longer empty.
//! That takes a while, so it is done ahead, on a thread of its own, and the log only waits for it if it fills a
//! segment faster than the disk can zero the next. Only the header has to wait: it names the first frame.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use super::disk::{Access, Beside, Disk, DiskFile};
use super::segment::{Header, SegmentNumber};
use super::{Identity, StorageError, files};

/// How much is zeroed before it is synced: small enough that the log's own syncs need not queue behind much.
const CHUNK: usize = 1 << 20;

/// A file of durable zeros, not yet a segment.
#[derive(Debug)]
pub(super) struct Blank {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    number: SegmentNumber,
    size: u64,
}

impl Blank {
    /// Creates the file aside, and zeros it.
    pub(super) fn create(
        disk: &dyn Disk,
        directory: &Path,
        number: SegmentNumber,
        size: u64,
    ) -> Result<Blank, StorageError> {
        let path = number.path(directory);
        let temporary = files::aside(&path);
        let file = disk.open(&temporary, Access::Create).map_err(StorageError::write("create", &temporary))?;
        zero(&*file, &temporary, 0, size)?;
        Ok(Blank { file, path, number, size })
    }

    /// Makes it the log's next segment, durably. It grows if the segment must be larger.
    pub(super) fn publish(
        self,
        disk: &dyn Disk,
        directory: &Path,
        identity: &Identity,
        header: &Header,
    ) -> Result<(Box<dyn DiskFile>, PathBuf), StorageError> {
        debug_assert!(self.number == header.number && self.size <= header.size, "prepared for this segment");
        let temporary = files::aside(&self.path);
        zero(&*self.file, &temporary, self.size, header.size)?;
        let written = self.file.write_all_at(&header.encode(identity), 0);
        written.map_err(StorageError::write("write to", &temporary))?;
        self.file.sync_all().map_err(StorageError::write("sync", &temporary))?;
        files::publish(disk, &self.path, directory)?;
        Ok((self.file, self.path))
    }
}

/// Writes durable zeros from `from` to `to`.
pub(super) fn zero(file: &dyn DiskFile, path: &Path, from: u64, to: u64) -> Result<(), StorageError> {
    let zeros = vec![0; CHUNK.min(usize::try_from(to.saturating_sub(from)).unwrap_or(CHUNK))];
    let mut at = from;
    while at < to {
        let length = zeros.len().min(usize::try_from(to - at).unwrap_or(CHUNK));
        file.write_all_at(&zeros[..length], at).map_err(StorageError::write("write zeros to", path))?;
        file.sync_data().map_err(StorageError::write("sync", path))?;
        at += length as u64;
    }
    Ok(())
}

/// A blank in the making. Dropping it waits for the end of the work; the next start removes what came of it.
#[derive(Debug)]
pub(super) struct Preparation {
    work: Beside,
    blank: mpsc::Receiver<Result<Blank, StorageError>>,
}

impl Preparation {
    /// Starts making a blank.
    pub(super) fn start(
        disk: &Arc<dyn Disk>,
        directory: &Path,
        number: SegmentNumber,
        size: u64,
    ) -> Result<Preparation, StorageError> {
        let (made, blank) = mpsc::sync_channel(1);
        let (on, owned) = (Arc::clone(disk), directory.to_owned());
        // If nobody waits for it any more, nobody needs it.
        let make = move || drop(made.send(Blank::create(&*on, &owned, number, size)));
        let work = disk.beside("wal-prepare", Box::new(make));
        let work = work.map_err(StorageError::write("start a thread to prepare a segment in", directory))?;
        Ok(Preparation { work, blank })
    }

    /// Waits for the blank. What went wrong in the making shows here.
    pub(super) fn finish(self) -> Result<Blank, StorageError> {
        self.work.join();
        self.blank.recv().expect("work that ended without a panic has sent what came of it")
    }
}
