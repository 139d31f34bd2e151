//! The snapshots in a node's directory: which there are, which is the newest, and how one becomes it.
//!
//! A snapshot is written aside, synced, and only then gets its name: what has the name of a snapshot is one, whole and
//! durable, and one that cannot be read was damaged later. The newest two are kept. The log builds on the newest alone;
//! the one before it is for whoever has to find out what happened.
//!
//! Three threads meet here: one that writes snapshots of the node's own state; the core, whose write-ahead log makes a
//! leader's snapshot this node's own, in its place among the other writes; and whoever sends and receives them. They
//! share what the newest is, and take its place one after the other: a snapshot never goes back.

use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// The newest that is durable. Held for a moment only: the core looks here in every round.
    newest: Mutex<Option<SnapshotInfo>>,
    /// A leader's that is not this node's yet. Held while files get or lose their names.
    under_way: Mutex<Option<UnderWay>>,
}

/// A leader's snapshot that is not this node's yet. What its file is worth is known here alone: a file that this does
/// not speak of may have lost what a failed sync should have kept, so not a byte of it is believed.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    info: SnapshotInfo,
    /// Whether all of it is here, durable, and was read.
    is_whole: bool,
}

/// A leader's snapshot on its way into this directory.
#[derive(Debug)]
pub struct Incoming {
    file: Box<dyn DiskFile>,
    info: SnapshotInfo,
    /// How many bytes of it are here.
    have: u64,
    /// How many of them were not synced yet.
    unsynced: usize,
}

impl Snapshots {
    /// Reads the newest snapshot of a directory, if there is one, and checks every byte of it.
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
        Ok((Snapshots { disk, directory, cluster, newest: info, under_way }, newest))
    }

    /// Removes what a crash left behind: files in the making, and snapshots past those that are kept.
    pub(super) fn remove_leftovers(&self) -> Result<Vec<PathBuf>, StorageError> {
        let leftovers = Listing::of(&*self.disk, &self.directory)?.of_no_use(&self.directory);
        for path in &leftovers {
            self.disk.remove(path).map_err(StorageError::io("remove the left-over", path))?;
        }
        Ok(leftovers)
    }

    /// The newest durable snapshot.
    pub fn newest(&self) -> Option<SnapshotInfo> {
        *self.newest.lock()
    }

    /// The newest durable snapshot, open: it can be read to its end, whatever takes its place meanwhile.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_newest(&self) -> io::Result<Option<(SnapshotInfo, Box<dyn DiskFile>)>> {
        // Two later ones would have to get their names in between for its file to be gone.
        let Some(info) = self.newest() else { return Ok(None) };
        Ok(Some((info, self.disk.open(&names::own(&self.directory, info.last), Access::Read)?)))
    }

    /// Writes a snapshot. When this returns it is durable, and the newest, unless a later one came first.
    ///
    /// # Errors
    /// If it did not become durable. Nothing builds on it then, so it may be tried again: with a file of its own, not
    /// with what a failed sync has left.
    pub fn write<S: Serialize>(&self, snapshot: &Snapshot<S>) -> Result<SnapshotInfo, StorageError> {
        let aside = files::aside(&names::own(&self.directory, snapshot.last));
        let written = write(&*self.disk, &aside, self.cluster, snapshot);
        let published = written.and_then(|info| self.publish(&mut self.under_way.lock(), &aside, info).map(|()| info));
        if published.is_err() {
            // It is of no use to anybody, and the disk may be full.
            let _ = self.disk.remove(&aside);
        }
        published
    }

    /// Makes a leader's snapshot this node's newest. It was [received](Snapshots::accept) before, as a file; if it came
    /// in another way, it is written now.
    pub(super) fn install<S: Serialize>(&self, snapshot: &Snapshot<S>) -> Result<(), StorageError> {
        let mut under_way = self.under_way.lock();
        let received = |under_way: &mut UnderWay| under_way.is_whole && under_way.info.last == snapshot.last;
        if let Some(UnderWay { info, .. }) = under_way.take_if(received) {
            return self.publish(&mut under_way, &names::incoming(&self.directory, info.last), info);
        }
        drop(under_way);
        self.write(snapshot).map(drop)
    }

    /// Gives a durable file the name of a snapshot, and removes what it makes superfluous. One after the other: whoever
    /// calls this holds the lock on names.
    fn publish(&self, under_way: &mut Option<UnderWay>, from: &Path, info: SnapshotInfo) -> Result<(), StorageError> {
        if self.newest().is_some_and(|newest| newest.last.index >= info.last.index) {
            return self.disk.remove(from).map_err(StorageError::write("remove", from));
        }
        let to = names::own(&self.directory, info.last);
        self.disk.rename(from, &to).map_err(StorageError::write("rename a file to", &to))?;
        files::sync_directory(&*self.disk, &self.directory)?;
        *self.newest.lock() = Some(info);
        under_way.take_if(|under_way| under_way.info.last.index <= info.last.index);
        // Whatever stays behind, the next start removes.
        let surplus = Listing::of(&*self.disk, &self.directory)
            .map(|listing| {
                // Who still writes to one that this overtakes will see.
                let overtaken = listing.incoming(&self.directory, |last| last.index <= info.last.index);
                [listing.surplus(&self.directory), overtaken].concat()
            })
            .unwrap_or_default();
        surplus.iter().for_each(|path| drop(self.disk.remove(path)));
        Ok(())
    }

    /// Makes ready to receive a leader's snapshot, or to go on with one that was broken off: its bytes from
    /// [`Incoming::have`] on are still to come. `None` if this node has it already, or a later one.
    ///
    /// What there is of another is thrown away. At most one is received at a time: the caller sees to that.
    ///
    /// # Errors
    /// What the system says.
    pub fn receive(&self, info: SnapshotInfo) -> io::Result<Option<Incoming>> {
        let mut under_way = self.under_way.lock();
        if self.newest().is_some_and(|newest| newest.last.index >= info.last.index) {
            return Ok(None);
        }
        under_way.take_if(|under_way| under_way.info != info);
        let listing = Listing::of(&*self.disk, &self.directory).map_err(io::Error::other)?;
        for other in listing.incoming(&self.directory, |last| last != info.last) {
            // It takes room, and no more: no program reads it, and the next offer or start tries again.
            let _ = self.disk.remove(&other);
        }
        let file = self.disk.open(&names::incoming(&self.directory, info.last), Access::Continue)?;
        let length = file.length()?;
        let was_whole = under_way.is_some_and(|before| before.is_whole);
        let goes_on = if was_whole { length == info.bytes } else { under_way.is_some() && length <= info.bytes };
        let have = if goes_on { length } else { 0 };
        if !goes_on {
            *under_way = None;
            file.set_length(0)?;
        }
        *under_way = Some(UnderWay { info, is_whole: was_whole && goes_on });
        Ok(Some(Incoming { file, info, have, unsynced: 0 }))
    }

    /// Makes a snapshot that was received durable, checks every byte of it, and keeps it until it is made this node's
    /// own, a later one is, or another is received. One that cannot be made durable or read is thrown away.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn accept<S: DeserializeOwned>(&self, incoming: Incoming) -> Result<Snapshot<S>, SnapshotFlaw> {
        let Incoming { file, info, .. } = &incoming;
        // Not by its name: one that was whole before may be made this node's own at this moment.
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
                // Nothing is under way if it is this node's own by now, or a later one is.
                if let Some(under_way) = self.under_way.lock().as_mut().filter(|under_way| under_way.info == *info) {
                    under_way.is_whole = true;
                }
                Ok(snapshot)
            }
            Err(flaw) => {
                // What a failed sync has left must not be synced again: the system would say that all is well. And what
                // cannot be read must come again.
                self.discard(incoming);
                Err(flaw)
            }
        }
    }

    /// Throws away what is here of a snapshot.
    pub fn discard(&self, incoming: Incoming) {
        let info = incoming.info;
        let mut under_way = self.under_way.lock();
        if under_way.take_if(|under_way| under_way.info == info).is_some() {
            // If it cannot be removed now, the next offer or start sees to it, and no program reads it until then.
            let _ = self.disk.remove(&names::incoming(&self.directory, info.last));
        }
    }
}

impl Incoming {
    /// How many of its bytes are here.
    pub fn have(&self) -> u64 {
        self.have
    }

    /// How many are still to come.
    pub fn lacks(&self) -> u64 {
        self.info.bytes - self.have
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// What the system says. A part of them may have been written.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut steady = Steady { file: &*self.file, at: self.have, unsynced: self.unsynced };
        steady.write_all(bytes)?;
        self.unsynced = steady.unsynced;
        self.have += bytes.len() as u64;
        Ok(())
    }
}

/// Reads the snapshot that is to end at `last`.
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
        let what = format!("it ends at entry {index} of term {term}, and its name says otherwise");
        return Err(StorageError::Damaged { path, offset: 0, what });
    }
    Ok((snapshot, info))
}

/// Writes a file, and makes its content durable.
fn write<S: Serialize>(
    disk: &dyn Disk,
    path: &Path,
    cluster: u64,
    snapshot: &Snapshot<S>,
) -> Result<SnapshotInfo, StorageError> {
    let file = disk.open(path, Access::Create).map_err(StorageError::write("create", path))?;
    let mut writer = BufWriter::with_capacity(PIECE, Steady { file: &*file, at: 0, unsynced: 0 });
    let written = snapshot_file::write(&mut writer, cluster, snapshot);
    let info = written.and_then(|info| writer.flush().map(|()| info)).map_err(StorageError::write("write to", path))?;
    drop(writer);
    file.sync_all().map_err(StorageError::write("sync", path))?;
    Ok(info)
}

/// How much is written at once.
const PIECE: usize = 256 * 1024;
/// How much may be written to a file of a snapshot before it is synced: so little that the log's own syncs, which
/// clients wait for, need not stand behind much of it.
const UNSYNCED: usize = 4 << 20;

/// Writes to a file, and syncs it all the while.
struct Steady<'a> {
    file: &'a dyn DiskFile,
    /// Where the next bytes go.
    at: u64,
    unsynced: usize,
}

impl Write for Steady<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.unsynced += bytes.len();
        if self.unsynced >= UNSYNCED {
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
    fn the_newest_two_are_kept_and_the_newest_is_read() {
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
    fn a_snapshot_that_comes_late_does_not_take_the_newests_place() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        snapshots.write(&snapshot(70)).unwrap();
        let newest = snapshots.newest();
        snapshots.write(&snapshot(5)).unwrap();
        snapshots.install(&snapshot(6)).unwrap();
        assert_eq!((snapshots.newest(), names(directory.path())), (newest, vec![own(70)]));
    }

    #[test]
    fn one_that_cannot_be_written_leaves_nothing_and_can_be_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let obstacle = directory.path().join(own(5) + ".tmp");
        fs::create_dir(&obstacle).unwrap();
        assert!(snapshots.write(&snapshot(5)).unwrap_err().to_string().contains("could not create"));
        fs::remove_dir(&obstacle).unwrap();
        // No snapshot can take the name of a directory.
        fs::create_dir_all(directory.path().join(own(5)).join("full")).unwrap();
        assert!(snapshots.write(&snapshot(5)).is_err());
        assert_eq!((snapshots.newest(), names(directory.path())), (None, vec![own(5)]));
        fs::remove_dir_all(directory.path().join(own(5))).unwrap();
        snapshots.write(&snapshot(5)).unwrap();
        assert_eq!(names(directory.path()), [own(5)]);
    }

    #[test]
    fn a_damaged_newest_is_an_error_that_names_it_and_what_was_in_the_making_is_not() {
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

    /// A leader's snapshot of entries up to `index`, as bytes.
    fn sent(index: u64) -> (Vec<u8>, SnapshotInfo) {
        let mut bytes = Vec::new();
        let info = snapshot_file::write(&mut bytes, 1, &snapshot(index)).unwrap();
        (bytes, info)
    }

    /// It has arrived whole, and was not read yet.
    fn arrived(snapshots: &Snapshots, (bytes, info): &(Vec<u8>, SnapshotInfo)) -> Incoming {
        let mut incoming = snapshots.receive(*info).unwrap().unwrap();
        incoming.append(bytes).unwrap();
        incoming
    }

    #[test]
    fn receiving_goes_on_where_it_was_broken_off() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (bytes, info) = sent(70);
        for (from, to) in [(0, 10), (10, 10), (10, 150), (150, bytes.len())] {
            let mut incoming = snapshots.receive(info).unwrap().unwrap();
            assert_eq!((incoming.have(), incoming.lacks()), (from as u64, (bytes.len() - from) as u64));
            incoming.append(&bytes[from..to]).unwrap();
        }
        // Whole, but not installed: the next offer finds it whole.
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

    /// A leader that has not heard the end offers it again, and the core takes the first one at that very moment.
    #[test]
    fn one_that_is_installed_while_it_is_received_again_is_no_trouble() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (sent_70, sent_80) = (sent(70), sent(80));
        let (info, next) = (sent_70.1, sent_80.1);
        snapshots.accept::<Text>(arrived(&snapshots, &sent_70)).unwrap();
        let again = snapshots.receive(info).unwrap().unwrap();
        snapshots.install(&snapshot(70)).unwrap();
        assert_eq!(snapshots.accept::<Text>(again).unwrap(), snapshot(70));
        assert_eq!((snapshots.newest(), names(directory.path())), (Some(info), vec![own(70)]));
        // The next one finds nothing of it.
        snapshots.accept::<Text>(arrived(&snapshots, &sent_80)).unwrap();
        snapshots.install(&snapshot(80)).unwrap();
        assert_eq!((snapshots.newest(), names(directory.path())), (Some(next), vec![own(70), own(80)]));
    }

    #[test]
    fn nothing_stays_of_what_a_later_snapshot_has_overtaken() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (bytes, info) = sent(70);
        snapshots.accept::<Text>(arrived(&snapshots, &(bytes.clone(), info))).unwrap();
        snapshots.write(&snapshot(70)).unwrap();
        assert_eq!(names(directory.path()), [own(70)], "received, and never installed");

        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let mut incoming = snapshots.receive(info).unwrap().unwrap();
        incoming.append(&bytes[..20]).unwrap();
        snapshots.write(&snapshot(80)).unwrap();
        assert_eq!(names(directory.path()), [own(80)], "half of it is here");
        incoming.append(&bytes[20..]).unwrap();
        assert_eq!(snapshots.accept::<Text>(incoming).unwrap(), snapshot(70));
        assert_eq!(names(directory.path()), [own(80)]);
        snapshots.install(&snapshot(70)).unwrap();
        assert_eq!(names(directory.path()), [own(80)]);
    }

    #[test]
    fn another_snapshot_takes_the_place_of_one_that_was_broken_off() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (bytes, info) = sent(70);
        snapshots.receive(info).unwrap().unwrap().append(&bytes).unwrap();
        assert_eq!(snapshots.receive(sent(80).1).unwrap().unwrap().have(), 0);
        assert_eq!(snapshots.receive(info).unwrap().unwrap().have(), 0);
        assert_eq!(names(directory.path()).len(), 1);
        // What cannot be removed does no harm.
        fs::create_dir(directory.path().join(own(90).replace("snapshot-", "incoming-") + ".tmp")).unwrap();
        assert_eq!(snapshots.receive(sent(80).1).unwrap().unwrap().have(), 0);
    }

    #[test]
    fn one_that_arrives_damaged_is_thrown_away() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (mut bytes, info) = sent(70);
        bytes[80] ^= 4;
        let mut incoming = snapshots.receive(info).unwrap().unwrap();
        incoming.append(&bytes).unwrap();
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::Damaged { .. })));
        // Sound, but another one than was announced.
        let mut incoming = snapshots.receive(info).unwrap().unwrap();
        assert_eq!(incoming.have(), 0);
        incoming.append(&sent(71).0).unwrap();
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::Damaged { .. })));
        // Of another cluster: it would be no better the next time.
        let mut foreign = Vec::new();
        let info = snapshot_file::write(&mut foreign, 2, &snapshot(70)).unwrap();
        let mut incoming = snapshots.receive(info).unwrap().unwrap();
        incoming.append(&foreign).unwrap();
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::WrongCluster(2))));
        assert_eq!(names(directory.path()), Vec::<String>::new());
    }

    /// What a failed sync should have made durable, the system takes for clean from then on: the next sync succeeds, and
    /// says nothing of it.
    #[test]
    fn one_that_cannot_be_synced_is_received_again() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let (bytes, info) = sent(70);
        let mut incoming = arrived(&snapshots, &(bytes.clone(), info));
        incoming.file = FailsOnce::at(0, 0, incoming.file).0;
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::Io(_))));
        assert_eq!(names(directory.path()), Vec::<String>::new());
        // Not even if its file could not be removed.
        fs::write(directory.path().join(own(70).replace("snapshot-", "incoming-") + ".tmp"), &bytes).unwrap();
        assert_eq!(snapshots.receive(info).unwrap().unwrap().have(), 0);
    }

    #[test]
    fn one_whose_file_was_lost_is_not_taken_for_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (snapshots, _) = open(directory.path());
        let sent = sent(70);
        snapshots.accept::<Text>(arrived(&snapshots, &sent)).unwrap();
        fs::remove_file(directory.path().join(&names(directory.path())[0])).unwrap();
        assert_eq!(snapshots.receive(sent.1).unwrap().unwrap().have(), 0);
        snapshots.install(&snapshot(70)).unwrap();
        assert_eq!(open(directory.path()).1, Some(snapshot(70)));
    }
}
