//! The snapshots in a node's directory: writing and publishing them, and receiving those of a leader
//! ([`receiving`]).
//!
//! A snapshot is written to a temporary file, synced, and only then gets its name. So a file with
//! the name of a snapshot is whole and durable, and an unreadable one was damaged later. The node
//! keeps the newest two. The log builds on the newest alone; the one before it is for an operator
//! who investigates a failure.
//!
//! Three kinds of threads use this module: one writes snapshots of the node's own state; the core,
//! whose write-ahead log installs a leader's snapshot in its order among the other writes; and
//! those that send and receive snapshots. They share the newest snapshot and publish one after the
//! other: an older snapshot never replaces a newer one.

mod receiving;

use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_spec::raft::{Position, Snapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::receiving::Incoming;

use self::receiving::UnderWay;
use super::disk::{Access, Disk, DiskFile, FromStart};
use super::snapshot_file::{self, FORMAT, SnapshotFlaw, SnapshotInfo};
use super::snapshot_names::{self as names, Listing};
use super::{StorageError, files};
use crate::sync::Mutex;

/// The snapshots of one node.
#[derive(Debug)]
pub struct Snapshots {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    cluster: u64,
    /// Free bytes that a received snapshot must leave to the log.
    reserve: AtomicU64,
    /// The newest durable snapshot. Locked only briefly: the core reads it in every iteration.
    newest: Mutex<Option<SnapshotInfo>>,
    /// A leader's snapshot that is not installed yet. Locked while files are renamed or removed.
    under_way: Mutex<Option<UnderWay>>,
}

impl Snapshots {
    /// Whether there is a snapshot in a directory. Reads none.
    pub(crate) fn exist(disk: &dyn Disk, directory: &Path) -> Result<bool, StorageError> {
        Ok(Listing::of(disk, directory)?.newest().is_some())
    }

    /// Reads the newest snapshot of a directory, if there is one, and verifies all of it.
    pub fn open<S: DeserializeOwned>(
        disk: &Arc<dyn Disk>,
        directory: &Path,
        cluster: u64,
    ) -> Result<(Snapshots, Option<Snapshot<S>>), StorageError> {
        let newest = Listing::of(&**disk, directory)?.newest();
        let newest = newest.map(|last| read(&**disk, &names::own(directory, last), last, cluster)).transpose()?;
        let (newest, info) = newest.unzip();
        let (info, under_way) = (Mutex::new(info), Mutex::new(None));
        let (disk, directory) = (Arc::clone(disk), directory.to_owned());
        let reserve = AtomicU64::new(0);
        Ok((Snapshots { disk, directory, cluster, reserve, newest: info, under_way }, newest))
    }

    /// Removes the files that a crash left behind: unfinished files, and snapshots older than the
    /// newest two.
    pub(super) fn remove_leftovers(&self) -> Result<Vec<PathBuf>, StorageError> {
        let leftovers = Listing::of(&*self.disk, &self.directory)?.leftovers(&self.directory);
        for path in &leftovers {
            self.disk.remove(path).map_err(StorageError::io("remove the left-over", path))?;
        }
        Ok(leftovers)
    }

    /// Sets the number of free bytes that a received snapshot must leave to the log.
    pub(super) fn reserve(&self, bytes: u64) {
        self.reserve.store(bytes, Ordering::Relaxed);
    }

    /// The newest durable snapshot.
    pub fn newest(&self) -> Option<SnapshotInfo> {
        *self.newest.lock()
    }

    /// The newest durable snapshot, opened: it can be read to its end even if a newer one replaces
    /// it meanwhile.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn open_newest(&self) -> io::Result<Option<(SnapshotInfo, Box<dyn DiskFile>)>> {
        // The file disappears before the open only if two newer snapshots are published in between.
        let Some(info) = self.newest() else { return Ok(None) };
        Ok(Some((info, self.disk.open(&names::own(&self.directory, info.last), Access::Read)?)))
    }

    /// Writes a snapshot. When this returns, the snapshot is durable and the newest, unless a later
    /// one came first.
    ///
    /// # Errors
    /// If the snapshot did not become durable. Nothing builds on it then, so the caller may retry:
    /// a retry writes a new file and uses no content of the failed one.
    pub fn write<S: Serialize>(&self, snapshot: &Snapshot<S>) -> Result<SnapshotInfo, StorageError> {
        self.write_once(snapshot).map_err(StorageError::of_attempt)
    }

    fn write_once<S: Serialize>(&self, snapshot: &Snapshot<S>) -> Result<SnapshotInfo, StorageError> {
        let temporary = files::temporary_path(&names::own(&self.directory, snapshot.last));
        let written = write(&*self.disk, &temporary, self.cluster, snapshot);
        let published =
            written.and_then(|info| self.publish(&mut self.under_way.lock(), &temporary, info).map(|()| info));
        if published.is_err() {
            // Frees the space: the disk may be full.
            let _ = self.disk.remove(&temporary);
        }
        published
    }

    /// Makes a leader's snapshot this node's newest. Publishes its file if it was
    /// [received](Snapshots::accept) as one; otherwise writes the snapshot now.
    pub(super) fn install<S: Serialize>(&self, snapshot: &Snapshot<S>) -> Result<(), StorageError> {
        let mut under_way = self.under_way.lock();
        let received = |under_way: &mut UnderWay| under_way.is_whole && under_way.info.last == snapshot.last;
        if let Some(UnderWay { info, .. }) = under_way.take_if(received) {
            return self.publish(&mut under_way, &names::incoming(&self.directory, info.last), info);
        }
        drop(under_way);
        self.write_once(snapshot).map(drop)
    }

    /// Gives a durable file the name of a snapshot, and removes the files that it makes
    /// superfluous. The caller holds the lock on `under_way`, so that snapshots are published one
    /// after the other.
    fn publish(&self, under_way: &mut Option<UnderWay>, from: &Path, info: SnapshotInfo) -> Result<(), StorageError> {
        if self.newest().is_some_and(|newest| newest.last.index >= info.last.index) {
            return self.disk.remove(from).map_err(StorageError::write("remove", from));
        }
        let to = names::own(&self.directory, info.last);
        self.disk.rename(from, &to).map_err(StorageError::write("rename a file to", &to))?;
        files::sync_directory(&*self.disk, &self.directory)?;
        *self.newest.lock() = Some(info);
        under_way.take_if(|under_way| under_way.info.last.index <= info.last.index);
        // The next start removes any file that cannot be removed here.
        let surplus = Listing::of(&*self.disk, &self.directory)
            .map(|listing| {
                // A receiver may still be writing to an overtaken file: its snapshot will not be
                // published.
                let overtaken = listing.incoming(&self.directory, |last| last.index <= info.last.index);
                [listing.surplus(&self.directory), overtaken].concat()
            })
            .unwrap_or_default();
        surplus.iter().for_each(|path| drop(self.disk.remove(path)));
        Ok(())
    }
}

/// Reads the snapshot whose name says that it ends at `last`.
fn read<S: DeserializeOwned>(
    disk: &dyn Disk,
    path: &Path,
    last: Position,
    cluster: u64,
) -> Result<(Snapshot<S>, SnapshotInfo), StorageError> {
    let file = disk.open(path, Access::Read).map_err(StorageError::io("open", path))?;
    let path = path.to_owned();
    let (snapshot, info) = match snapshot_file::read(BufReader::new(FromStart::of(&*file)), Some(cluster)) {
        Ok(read) => read,
        Err(SnapshotFlaw::Io(source)) => return Err(StorageError::Io { action: "read", path, source }),
        Err(SnapshotFlaw::UnknownFormat(found)) => {
            return Err(StorageError::UnknownFormat { path, found, known: FORMAT });
        }
        Err(SnapshotFlaw::WrongCluster) => return Err(StorageError::WrongCluster { path }),
        Err(SnapshotFlaw::NotUnderstood { offset, what }) => {
            return Err(StorageError::NotUnderstood { path, offset, what });
        }
        Err(SnapshotFlaw::Damaged { offset, what }) => return Err(StorageError::Damaged { path, offset, what }),
    };
    if info.last != last {
        let Position { index, term } = info.last;
        let what = format!("the snapshot ends at entry {index} of term {term}, and its name says otherwise");
        return Err(StorageError::Damaged { path, offset: 0, what });
    }
    Ok((snapshot, info))
}

/// Writes a snapshot to a file, and makes its content durable.
fn write<S: Serialize>(
    disk: &dyn Disk,
    path: &Path,
    cluster: u64,
    snapshot: &Snapshot<S>,
) -> Result<SnapshotInfo, StorageError> {
    let file = disk.open(path, Access::Create).map_err(StorageError::write("create", path))?;
    let mut writer = BufWriter::with_capacity(BUFFER, SyncingWriter { file: &*file, at: 0, unsynced: 0 });
    let written = snapshot_file::write(&mut writer, cluster, snapshot);
    let info = written.and_then(|info| writer.flush().map(|()| info)).map_err(StorageError::write("write to", path))?;
    drop(writer);
    file.sync_all().map_err(StorageError::write("sync", path))?;
    Ok(info)
}

/// Bytes written at once.
const BUFFER: usize = 256 * 1024;
/// Maximum number of unsynced bytes in a snapshot file: few enough that the log's own syncs, which
/// clients wait for, do not queue behind many.
const MAX_UNSYNCED: usize = 4 << 20;

/// Writes to a file, and syncs it every [`MAX_UNSYNCED`] bytes.
struct SyncingWriter<'a> {
    file: &'a dyn DiskFile,
    /// Offset of the next bytes.
    at: u64,
    unsynced: usize,
}

impl Write for SyncingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.unsynced += bytes.len();
        if self.unsynced >= MAX_UNSYNCED {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use palisade_spec::raft::{Index, Stamp, Term};

    use super::super::SystemDisk;
    use super::*;

    pub(super) type Text = String;

    pub(super) fn snapshot(index: u64) -> Snapshot<Text> {
        let last = Position { term: Term(2), index: Index(index) };
        Snapshot { last, stamp: Stamp(index * 10), members: std::sync::Arc::default(), machine: "x".repeat(100) }
    }

    pub(super) fn open(directory: &Path) -> (Snapshots, Option<Snapshot<Text>>) {
        Snapshots::open(&SystemDisk::shared(), directory, 1).unwrap()
    }

    pub(super) fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    pub(super) fn own(index: u64) -> String {
        format!("snapshot-{index:020}-2.snap")
    }

    #[test]
    fn newest_two_snapshots_are_kept_and_the_newest_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, none) = open(directory.path());
        assert_eq!((none, snapshots.newest()), (None, None));
        for index in [5, 70, 800] {
            assert_eq!(snapshots.write(&snapshot(index)).unwrap().last, snapshot(index).last);
        }
        assert_eq!(names(directory.path()), [own(70), own(800)]);
        let (again, newest) = open(directory.path());
        assert_eq!((newest, again.newest()), (Some(snapshot(800)), snapshots.newest()));
    }

    #[test]
    fn older_snapshot_does_not_replace_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        snapshots.write(&snapshot(70)).unwrap();
        let newest = snapshots.newest();
        snapshots.write(&snapshot(5)).unwrap();
        snapshots.install(&snapshot(6)).unwrap();
        assert_eq!((snapshots.newest(), names(directory.path())), (newest, vec![own(70)]));
    }

    #[test]
    fn failed_write_leaves_no_file_and_can_be_retried() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let obstacle = directory.path().join(own(5) + ".tmp");
        fs::create_dir(&obstacle).unwrap();
        let error = snapshots.write(&snapshot(5)).unwrap_err().to_string();
        assert!(error.contains("could not create") && !error.contains("must stop"), "{error}");
        // The log builds on a leader's snapshot.
        assert!(snapshots.install(&snapshot(5)).unwrap_err().to_string().contains("must stop"));
        fs::remove_dir(&obstacle).unwrap();
        // A file cannot be renamed to an existing directory.
        fs::create_dir_all(directory.path().join(own(5)).join("full")).unwrap();
        assert!(snapshots.write(&snapshot(5)).is_err());
        assert_eq!((snapshots.newest(), names(directory.path())), (None, vec![own(5)]));
        fs::remove_dir_all(directory.path().join(own(5))).unwrap();
        snapshots.write(&snapshot(5)).unwrap();
        assert_eq!(names(directory.path()), [own(5)]);
    }

    #[test]
    fn damaged_newest_snapshot_is_an_error_and_unfinished_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        snapshots.write(&snapshot(5)).unwrap();
        snapshots.write(&snapshot(70)).unwrap();
        let path = directory.path().join(own(70));
        let mut bytes = fs::read(&path).unwrap();
        let making = ["snapshot-", "incoming-"].map(|prefix| own(900).replace("snapshot-", prefix) + ".tmp");
        making.iter().for_each(|name| fs::write(directory.path().join(name), &bytes[..50]).unwrap());
        let (again, _) = open(directory.path());
        assert_eq!(again.remove_leftovers().unwrap().len(), making.len());
        assert_eq!(names(directory.path()), [own(5), own(70)]);

        bytes[60] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = Snapshots::open::<Text>(&SystemDisk::shared(), directory.path(), 1).unwrap_err();
        assert!(matches!(&error, StorageError::Damaged { path: named, .. } if *named == path), "{error}");
        bytes[60] ^= 1;
        fs::write(&path, &bytes).unwrap();
        fs::rename(&path, directory.path().join(own(71))).unwrap();
        let error = Snapshots::open::<Text>(&SystemDisk::shared(), directory.path(), 1).unwrap_err();
        assert!(error.to_string().contains("its name says otherwise"), "{error}");
        assert!(matches!(
            Snapshots::open::<Text>(&SystemDisk::shared(), directory.path(), 2),
            Err(StorageError::WrongCluster { .. })
        ));
    }
}
