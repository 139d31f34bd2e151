//! Making a segment: zeros first, then a header, then a name.
//!
//! The zeros are written, not only allocated: a sync of bytes that replace written ones has nothing to do but write
//! them, while a first write to allocated space must record in the file system's journal that it is no longer empty.
//! That takes a while, so it is done ahead, on a thread of its own, and the log only waits for it if it fills a
//! segment faster than the disk can zero the next. Only the header has to wait: it names the first frame.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use super::segment::{Header, SegmentNumber};
use super::{Identity, StorageError, files};

/// How much is zeroed before it is synced: small enough that the log's own syncs need not queue behind much.
const CHUNK: usize = 1 << 20;

/// A file of durable zeros, not yet a segment.
#[derive(Debug)]
pub(super) struct Blank {
    file: File,
    path: PathBuf,
    number: SegmentNumber,
    size: u64,
}

impl Blank {
    /// Creates the file aside, and zeros it.
    pub(super) fn create(directory: &Path, number: SegmentNumber, size: u64) -> Result<Blank, StorageError> {
        let path = number.path(directory);
        let temporary = files::aside(&path);
        let options = File::options().write(true).create(true).truncate(true).open(&temporary);
        let file = options.map_err(StorageError::write("create", &temporary))?;
        zero(&file, &temporary, 0, size)?;
        Ok(Blank { file, path, number, size })
    }

    /// Makes it the log's next segment, durably. It grows if the segment must be larger.
    pub(super) fn publish(
        self,
        directory: &Path,
        identity: &Identity,
        header: &Header,
    ) -> Result<(File, PathBuf), StorageError> {
        debug_assert!(self.number == header.number && self.size <= header.size, "prepared for this segment");
        let temporary = files::aside(&self.path);
        zero(&self.file, &temporary, self.size, header.size)?;
        let written = self.file.write_all_at(&header.encode(identity), 0);
        written.map_err(StorageError::write("write to", &temporary))?;
        self.file.sync_all().map_err(StorageError::write("sync", &temporary))?;
        files::publish(&self.path, directory)?;
        Ok((self.file, self.path))
    }
}

/// Writes durable zeros from `from` to `to`.
pub(super) fn zero(file: &File, path: &Path, from: u64, to: u64) -> Result<(), StorageError> {
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

/// A blank in the making. Dropping it waits for the thread.
#[derive(Debug)]
pub(super) struct Preparation {
    thread: Option<JoinHandle<Result<Blank, StorageError>>>,
}

impl Preparation {
    /// Starts making a blank.
    pub(super) fn start(directory: &Path, number: SegmentNumber, size: u64) -> Result<Preparation, StorageError> {
        let owned = directory.to_owned();
        let spawned =
            thread::Builder::new().name("wal-prepare".into()).spawn(move || Blank::create(&owned, number, size));
        let thread = spawned.map_err(StorageError::write("start a thread to prepare a segment in", directory))?;
        Ok(Preparation { thread: Some(thread) })
    }

    /// Waits for the blank. What went wrong in the making shows here.
    pub(super) fn finish(mut self) -> Result<Blank, StorageError> {
        let thread = self.thread.take().expect("only finishing takes the thread, and that ends the preparation");
        // A panic there is a bug of ours, not the disk's.
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // Nobody needs the blank any more; the next start removes it.
            let _ = thread.join();
        }
    }
}
