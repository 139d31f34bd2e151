//! The disk of a stepped node, which records writes and halts in them, and a read-only disk to
//! recover from beside it.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

use palisade::storage::{Access, Beside, Disk, DiskFile, FRAMES_AT, Lock, Locking, SystemDisk};

use super::effect_log::EffectLog;
use super::protocol::{Effect, WritePoint};

/// The system's disk. Records frames that are written to the log and snapshots that are renamed to
/// their final names, and halts at the requested point.
#[derive(Debug)]
pub(super) struct ObservedDisk(pub(super) Arc<EffectLog>);

impl Disk for ObservedDisk {
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
        let file = SystemDisk.open(path, access)?;
        if !begins_with(path, "wal-") || access == Access::Read {
            return Ok(file);
        }
        Ok(Box::new(Segment { file, effects: Arc::clone(&self.0) }))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        SystemDisk.read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let is_snapshot = begins_with(to, "snapshot-");
        if is_snapshot {
            self.0.before_rename();
        }
        SystemDisk.rename(from, to)?;
        if is_snapshot {
            self.0.record(Effect::Name);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        SystemDisk.lock(path)
    }

    fn available(&self, directory: &Path) -> io::Result<u64> {
        SystemDisk.available(directory)
    }

    fn beside(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        SystemDisk.beside(name, work)
    }
}

fn begins_with(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// A segment of the log.
#[derive(Debug)]
struct Segment {
    file: Box<dyn DiskFile>,
    effects: Arc<EffectLog>,
}

impl Segment {
    /// Whether this write is a frame of the stepping thread. The header and the evidence lie before
    /// the frames. A write that begins with a zero byte only zeroes the segment: no frame begins
    /// with one.
    fn is_frame(&self, bytes: &[u8], offset: u64) -> bool {
        self.effects.is_recorded() && offset >= FRAMES_AT && bytes.first().is_some_and(|first| *first != 0)
    }
}

impl DiskFile for Segment {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !self.is_frame(bytes, offset) {
            return self.file.write_all_at(bytes, offset);
        }
        match self.effects.point_in_next_write() {
            Some(WritePoint::Before) => self.effects.halt(),
            Some(WritePoint::Within(count)) => {
                self.file.write_all_at(&bytes[..count.min(bytes.len() - 1)], offset)?;
                self.effects.halt()
            }
            Some(WritePoint::Unsynced | WritePoint::Synced) | None => {}
        }
        self.file.write_all_at(bytes, offset)?;
        self.effects.record(Effect::Write);
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.file.set_length(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        let is_frames = self.effects.is_recorded() && self.effects.has_unsynced();
        if is_frames && self.effects.point_in_last_write() == Some(WritePoint::Unsynced) {
            self.effects.halt();
        }
        self.file.sync_data()?;
        if is_frames {
            self.effects.record(Effect::Sync);
            if self.effects.point_in_last_write() == Some(WritePoint::Synced) {
                self.effects.halt();
            }
        }
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

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
