//! Receiving a leader's snapshot, piece by piece, into a file that becomes a snapshot of this node
//! when all of it is there, durable and verified.

use std::io::{self, BufReader, Write};
use std::sync::atomic::Ordering;

use palisade_spec::raft::Snapshot;
use serde::de::DeserializeOwned;

use super::super::disk::{Access, DiskFile, FromStart};
use super::super::snapshot_file::{self, SnapshotFlaw, SnapshotInfo};
use super::super::snapshot_names::{self as names, Listing};
use super::{Snapshots, SyncingWriter};

/// A leader's snapshot that is not installed yet. Only this value vouches for its file: any other
/// file of an incoming snapshot may lack content whose sync failed, so none of its bytes are used.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) info: SnapshotInfo,
    /// Whether the file is complete, durable and verified.
    pub(super) is_whole: bool,
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
    /// is published (installed, or written by this node), or another one is received. Discards a
    /// snapshot that cannot be made durable or verified.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::failing::FailsOnce;
    use super::super::tests::{Text, names, open, own, snapshot};
    use super::*;

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
        assert!(matches!(snapshots.accept::<Text>(incoming), Err(SnapshotFlaw::WrongCluster)));
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
