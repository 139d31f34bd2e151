//! The disk of a stepped node, which records writes and halts in them.

use std::io;
use std::path::Path;
use std::sync::Arc;

use palisade::storage::{Access, Disk, DiskFile, DiskLayer, FRAMES_AT, FileLayer, LayeredFile};

use super::effect_log::EffectLog;
use super::protocol::{Effect, WritePoint};

/// Records frames that are written to the log and snapshots that are renamed to
/// their final names, and halts at the requested point.
#[derive(Debug)]
pub(super) struct ObservedDisk(pub(super) Arc<EffectLog>);

impl DiskLayer for ObservedDisk {
    fn open(&self, below: &dyn Disk, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let file = below.open(path, access)?;
        if !begins_with(path, "wal-") || access == Access::Read {
            return Ok(file);
        }
        Ok(LayeredFile::boxed(Segment(Arc::clone(&self.0)), file))
    }

    fn rename(&self, below: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
        let is_snapshot = begins_with(to, "snapshot-");
        if is_snapshot {
            self.0.before_rename();
        }
        below.rename(from, to)?;
        if is_snapshot {
            self.0.record(Effect::Name);
        }
        Ok(())
    }
}

fn begins_with(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// A segment of the log.
#[derive(Debug)]
struct Segment(Arc<EffectLog>);

impl Segment {
    /// Whether this write is a frame of the stepping thread. The header and the evidence lie before
    /// the frames. A write that begins with a zero byte only zeroes the segment: no frame begins
    /// with one.
    fn is_frame(&self, bytes: &[u8], offset: u64) -> bool {
        self.0.is_recorded() && offset >= FRAMES_AT && bytes.first().is_some_and(|first| *first != 0)
    }
}

impl FileLayer for Segment {
    fn write_all_at(&self, below: &dyn DiskFile, bytes: &[u8], offset: u64) -> io::Result<()> {
        if !self.is_frame(bytes, offset) {
            return below.write_all_at(bytes, offset);
        }
        match self.0.point_in_next_write() {
            Some(WritePoint::Before) => self.0.halt(),
            Some(WritePoint::Within(count)) => {
                below.write_all_at(&bytes[..count.min(bytes.len() - 1)], offset)?;
                self.0.halt()
            }
            Some(WritePoint::Unsynced | WritePoint::Synced) | None => {}
        }
        below.write_all_at(bytes, offset)?;
        self.0.record(Effect::Write);
        Ok(())
    }

    fn sync_data(&self, below: &dyn DiskFile) -> io::Result<()> {
        let is_frames = self.0.is_recorded() && self.0.has_unsynced();
        if is_frames && self.0.point_in_last_write() == Some(WritePoint::Unsynced) {
            self.0.halt();
        }
        below.sync_data()?;
        if is_frames {
            self.0.record(Effect::Sync);
            if self.0.point_in_last_write() == Some(WritePoint::Synced) {
                self.0.halt();
            }
        }
        Ok(())
    }
}
