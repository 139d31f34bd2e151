//! The snapshots in a node's directory: writing, receiving and publishing them.
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

use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_spec::raft::{Position, Snapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// A leader's snapshot that is not installed yet. Only this value vouches for its file: any other
/// file of an incoming snapshot may lack content whose sync failed, so none of its bytes are used.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    info: SnapshotInfo,
    /// Whether the file is complete, durable and verified.
    is_whole: bool,
}

/// A leader's snapshot that is being received into this directory.
#[derive(Debug)]
pub struct Incoming {
    file: Box<dyn DiskFile>,
    info: SnapshotInfo,
    /// Number of bytes received.
    have: u64,
    /// Number of received bytes that are not synced yet.
    unsynced: usize,
}

impl Snapshots {
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
        self.write(snapshot).map(drop)
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

    /// Begins to receive a leader's snapshot, or resumes an interrupted transfer: the bytes from
    /// [`Incoming::have`] on are still to come. `None` if this node already has the snapshot or a
    /// later one.
    ///
    /// Discards the content of other incoming snapshots. The caller ensures that at most one is
    /// received at a time.
    ///
    /// # Errors
    /// The operating system's error; or that the disk has no room for the rest of the snapshot and
    /// for the log.
    pub fn receive(&self, info: SnapshotInfo) -> io::Result<Option<Incoming>> {
        let mut under_way = self.under_way.lock();
        if self.newest().is_some_and(|newest| newest.last.index >= info.last.index) {
            return Ok(None);
        }
        under_way.take_if(|under_way| under_way.info != info);
        let listing = Listing::of(&*self.disk, &self.directory).map_err(io::Error::other)?;
        for other in listing.incoming(&self.directory, |last| last != info.last) {
            // A file that cannot be removed only takes space: no program reads it, and the next
            // offer or start tries again.
            let _ = self.disk.remove(&other);
        }
        let file = self.disk.open(&names::incoming(&self.directory, info.last), Access::Continue)?;
        let length = file.length()?;
        let was_whole = under_way.is_some_and(|before| before.is_whole);
        let goes_on = if was_whole { length == info.bytes } else { under_way.is_some() && length <= info.bytes };
        let have = if goes_on { length } else { 0 };
        if let Err(error) = self.expect_room_for(info.bytes.saturating_sub(have)) {
            // The log needs the space of what has arrived more.
            *under_way = None;
            let _ = self.disk.remove(&names::incoming(&self.directory, info.last));
            return Err(error);
        }
        if !goes_on {
            *under_way = None;
            file.set_length(0)?;
        }
        *under_way = Some(UnderWay { info, is_whole: was_whole && goes_on });
        Ok(Some(Incoming { file, info, have, unsynced: 0 }))
    }

    /// Fails if so many bytes more leave less space than the log needs. If the free space is unknown,
    /// only the attempt can tell.
    fn expect_room_for(&self, bytes: u64) -> io::Result<()> {
        let reserve = self.reserve.load(Ordering::Relaxed);
        match self.disk.available(&self.directory) {
            Ok(free) if free.saturating_sub(reserve) < bytes => {
                let message = format!(
                    "the disk has no room for the offered snapshot: {bytes} bytes of it are missing, {free} bytes are free, \
                     and {reserve} of these are reserved for the log; free space on the receiver's disk"
                );
                Err(io::Error::new(io::ErrorKind::StorageFull, message))
            }
            _ => Ok(()),
        }
    }

    /// Makes a received snapshot durable, verifies all of it, and keeps it until it or a later one
    /// is published (installed, or written by this node), or another one is received. Discards a snapshot that cannot be made durable or
    /// verified.
    ///
    /// # Errors
    /// The snapshot's flaw.
    pub fn accept<S: DeserializeOwned>(&self, incoming: Incoming) -> Result<Snapshot<S>, SnapshotFlaw> {
        let Incoming { file, info, .. } = &incoming;
        // Through the open file, not by its name: the core may be installing (renaming) a snapshot
        // that was already whole.
        let read = file.sync_all().map_err(SnapshotFlaw::Io).and_then(|()| {
            let bytes = BufReader::new(FromStart::of(&**file));
            snapshot_file::read(bytes, Some(self.cluster))
        });
        let checked = read.and_then(|(snapshot, found)| {
            let what = || "it is not the snapshot that was announced".to_owned();
            if found == *info { Ok(snapshot) } else { Err(SnapshotFlaw::Damaged { offset: 0, what: what() }) }
        });
        match checked {
            Ok(snapshot) => {
                // `under_way` is empty if this snapshot or a later one has been published
                // meanwhile.
                if let Some(under_way) = self.under_way.lock().as_mut().filter(|under_way| under_way.info == *info) {
                    under_way.is_whole = true;
                }
                Ok(snapshot)
            }
            Err(flaw) => {
                // A second sync after a failed one would succeed without writing anything. And a
                // snapshot that cannot be read must be sent again.
                self.discard(incoming);
                Err(flaw)
            }
        }
    }

    /// Discards an incoming snapshot.
    pub fn discard(&self, incoming: Incoming) {
        let info = incoming.info;
        let mut under_way = self.under_way.lock();
        if under_way.take_if(|under_way| under_way.info == info).is_some() {
            // If the file cannot be removed now, the next offer or start removes it; no program
            // reads it until then.
            let _ = self.disk.remove(&names::incoming(&self.directory, info.last));
        }
    }
}

impl Incoming {
    /// Number of bytes received.
    pub fn have(&self) -> u64 {
        self.have
    }

    /// Number of bytes still to come.
    pub fn lacks(&self) -> u64 {
        self.info.bytes - self.have
    }

    /// Appends the next bytes.
    ///
    /// # Errors
    /// The operating system's error. A part of the bytes may have been written.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut writer = SyncingWriter { file: &*self.file, at: self.have, unsynced: self.unsynced };
        writer.write_all(bytes)?;
        self.unsynced = writer.unsynced;
        self.have += bytes.len() as u64;
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
        Err(SnapshotFlaw::WrongCluster(found)) => {
            return Err(StorageError::WrongCluster { path, found, expected: cluster });
        }
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
    use super::super::failing::FailsOnce;
    use super::*;

    type Text = String;

    fn snapshot(index: u64) -> Snapshot<Text> {
        let last = Position { term: Term(2), index: Index(index) };
        Snapshot { last, stamp: Stamp(index * 10), members: std::sync::Arc::default(), machine: "x".repeat(100) }
    }

    fn open(directory: &Path) -> (Snapshots, Option<Snapshot<Text>>) {
        Snapshots::open(&SystemDisk::shared(), directory, 1).unwrap()
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    fn own(index: u64) -> String {
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
        assert!(snapshots.write(&snapshot(5)).unwrap_err().to_string().contains("could not create"));
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

    /// The bytes of a leader's snapshot of the entries up to `index`.
    fn sent(index: u64) -> (Vec<u8>, SnapshotInfo) {
        let mut bytes = Vec::new();
        let info = snapshot_file::write(&mut bytes, 1, &snapshot(index)).unwrap();
        (bytes, info)
    }

    /// Receives all bytes of a snapshot, without accepting it.
    fn receive_all(snapshots: &Snapshots, (bytes, info): &(Vec<u8>, SnapshotInfo)) -> Incoming {
        let mut incoming = snapshots.receive(*info).unwrap().unwrap();
        incoming.append(bytes).unwrap();
        incoming
    }

    #[test]
    fn receiving_resumes_after_an_interruption() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (bytes, info) = sent(70);
        for (from, to) in [(0, 10), (10, 10), (10, 150), (150, bytes.len())] {
            let mut incoming = snapshots.receive(info).unwrap().unwrap();
            assert_eq!((incoming.have(), incoming.lacks()), (from as u64, (bytes.len() - from) as u64));
            incoming.append(&bytes[from..to]).unwrap();
        }
        // Complete, but not installed: the next offer finds it complete.
        for _ in 0..2 {
            let incoming = snapshots.receive(info).unwrap().unwrap();
            assert_eq!(incoming.lacks(), 0);
            assert_eq!(snapshots.accept::<Text>(incoming).unwrap(), snapshot(70));
            assert_eq!(snapshots.newest(), None);
        }
        snapshots.install(&snapshot(70)).unwrap();
        assert_eq!((snapshots.newest(), names(directory.path())), (Some(info), vec![own(70)]));
        assert!(snapshots.receive(info).unwrap().is_none());
        assert!(snapshots.receive(sent(5).1).unwrap().is_none());
    }

    /// A leader that missed the acknowledgement offers the snapshot again, and the core installs
    /// the first copy meanwhile.
    #[test]
    fn snapshot_can_be_installed_while_it_is_received_again() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (sent_70, sent_80) = (sent(70), sent(80));
        let (info, next) = (sent_70.1, sent_80.1);
        snapshots.accept::<Text>(receive_all(&snapshots, &sent_70)).unwrap();
        let again = snapshots.receive(info).unwrap().unwrap();
        snapshots.install(&snapshot(70)).unwrap();
        assert_eq!(snapshots.accept::<Text>(again).unwrap(), snapshot(70));
        assert_eq!((snapshots.newest(), names(directory.path())), (Some(info), vec![own(70)]));
        // The next snapshot is received from the beginning.
        snapshots.accept::<Text>(receive_all(&snapshots, &sent_80)).unwrap();
        snapshots.install(&snapshot(80)).unwrap();
        assert_eq!((snapshots.newest(), names(directory.path())), (Some(next), vec![own(70), own(80)]));
    }

    #[test]
    fn overtaken_incoming_snapshot_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (bytes, info) = sent(70);
        snapshots.accept::<Text>(receive_all(&snapshots, &(bytes.clone(), info))).unwrap();
        snapshots.write(&snapshot(70)).unwrap();
        assert_eq!(names(directory.path()), [own(70)], "received, and never installed");

        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let mut incoming = snapshots.receive(info).unwrap().unwrap();
        incoming.append(&bytes[..20]).unwrap();
        snapshots.write(&snapshot(80)).unwrap();
        assert_eq!(names(directory.path()), [own(80)], "a part of it was received");
        incoming.append(&bytes[20..]).unwrap();
        assert_eq!(snapshots.accept::<Text>(incoming).unwrap(), snapshot(70));
        assert_eq!(names(directory.path()), [own(80)]);
        snapshots.install(&snapshot(70)).unwrap();
        assert_eq!(names(directory.path()), [own(80)]);
    }

    #[test]
    fn offer_of_another_snapshot_discards_an_interrupted_one() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (bytes, info) = sent(70);
        snapshots.receive(info).unwrap().unwrap().append(&bytes).unwrap();
        assert_eq!(snapshots.receive(sent(80).1).unwrap().unwrap().have(), 0);
        assert_eq!(snapshots.receive(info).unwrap().unwrap().have(), 0);
        assert_eq!(names(directory.path()).len(), 1);
        // A leftover that cannot be removed does no harm.
        fs::create_dir(directory.path().join(own(90).replace("snapshot-", "incoming-") + ".tmp")).unwrap();
        assert_eq!(snapshots.receive(sent(80).1).unwrap().unwrap().have(), 0);
    }

    #[test]
    fn damaged_incoming_snapshot_is_discarded() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (mut bytes, info) = sent(70);
        bytes[80] ^= 4;
        let mut incoming = snapshots.receive(info).unwrap().unwrap();
        incoming.append(&bytes).unwrap();
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::Damaged { .. })));
        // Sound, but not the snapshot that was announced.
        let mut incoming = snapshots.receive(info).unwrap().unwrap();
        assert_eq!(incoming.have(), 0);
        incoming.append(&sent(71).0).unwrap();
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::Damaged { .. })));
        // A snapshot of another cluster.
        let mut foreign = Vec::new();
        let info = snapshot_file::write(&mut foreign, 2, &snapshot(70)).unwrap();
        let mut incoming = snapshots.receive(info).unwrap().unwrap();
        incoming.append(&foreign).unwrap();
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::WrongCluster(2))));
        assert_eq!(names(directory.path()), Vec::<String>::new());
    }

    /// After a failed sync the system takes the written pages for clean: the next sync succeeds
    /// without writing them.
    #[test]
    fn snapshot_whose_sync_failed_is_received_again() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (bytes, info) = sent(70);
        let mut incoming = receive_all(&snapshots, &(bytes.clone(), info));
        incoming.file = FailsOnce::at(0, 0, incoming.file).0;
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::Io(_))));
        assert_eq!(names(directory.path()), Vec::<String>::new());
        // Also if its file could not be removed.
        fs::write(directory.path().join(own(70).replace("snapshot-", "incoming-") + ".tmp"), &bytes).unwrap();
        assert_eq!(snapshots.receive(info).unwrap().unwrap().have(), 0);
    }

    #[test]
    fn snapshot_whose_file_was_lost_is_received_again() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let sent = sent(70);
        snapshots.accept::<Text>(receive_all(&snapshots, &sent)).unwrap();
        fs::remove_file(directory.path().join(&names(directory.path())[0])).unwrap();
        assert_eq!(snapshots.receive(sent.1).unwrap().unwrap().have(), 0);
        snapshots.install(&snapshot(70)).unwrap();
        assert_eq!(open(directory.path()).1, Some(snapshot(70)));
    }
}
