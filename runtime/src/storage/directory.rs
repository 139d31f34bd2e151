//! The data directory: one process at a time, one node for ever.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_spec::raft::NodeId;

use super::disk::{Disk, Lock, Locking, SystemDisk};
use super::identity::Segments;
use super::{Identity, StorageError, files, identity, segment};

/// The lock's name.
const LOCK_FILE: &str = "lock";

/// A node's data directory: locked against other processes while this value lives, and known to be this node's.
///
/// The log takes it over ([`Wal::open`](super::Wal::open)), so that there is never a second log in it.
#[derive(Debug)]
pub struct DataDir {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    identity: Identity,
    segments: Segments,
    _lock: Lock,
}

/// A data directory that this process has locked, before it is known to be this node's.
#[derive(Debug)]
pub struct LockedDir {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    found: Option<(Identity, Segments)>,
    lock: Lock,
}

impl LockedDir {
    /// Locks a directory of this machine; creates it at the first start.
    ///
    /// # Errors
    /// If another process uses it, if it cannot be understood, or if the operating system refuses something.
    pub fn open(path: impl AsRef<Path>) -> Result<LockedDir, StorageError> {
        LockedDir::open_on(SystemDisk::shared(), path)
    }

    /// Locks a directory of a disk; creates it at the first start. Finishes a return that the cluster has agreed to.
    ///
    /// # Errors
    /// See [`LockedDir::open`].
    pub fn open_on(disk: Arc<dyn Disk>, path: impl AsRef<Path>) -> Result<LockedDir, StorageError> {
        let path = path.as_ref().to_owned();
        disk.create_directory(&path).map_err(StorageError::io("create the data directory", &path))?;
        let lock = lock(&*disk, &path)?;
        // What is seen here may have been renamed by a process that died before it had made that durable.
        files::sync_directory(&*disk, &path)?;
        let found = identity::read(&*disk, &path)?;
        if found.is_none() && !segment::list(&*disk, &path)?.segments.is_empty() {
            return Err(StorageError::IdentityMissing { path });
        }
        let mut directory = LockedDir { disk, path, found, lock };
        directory.finish_return()?;
        Ok(directory)
    }

    /// Whose it is; `None` if it is new.
    pub fn identity(&self) -> Option<&Identity> {
        self.found.as_ref().map(|(identity, _)| identity)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It is this one's from now on, and has no log.
    pub(super) fn give_to(&mut self, identity: Identity) -> Result<(), StorageError> {
        identity::write(&*self.disk, &self.path, &identity, Segments::NONE)?;
        self.found = Some((identity, Segments::NONE));
        Ok(())
    }

    /// The disk that it is on.
    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Takes it over: a new one for the node of this `identity`, which is written down; any other only if it is that
    /// node's.
    ///
    /// # Errors
    /// If it is another node's, or if the operating system refuses something.
    pub fn claim(self, identity: &Identity) -> Result<DataDir, StorageError> {
        let LockedDir { disk, path, found, lock } = self;
        let (identity, segments) = match found {
            Some((found, segments)) => {
                verify(&path, &found, identity)?;
                // What it said at the first start: where the founders are now is nothing that it remembers.
                (found, segments)
            }
            None => {
                identity::write(&*disk, &path, identity, Segments::NONE)?;
                (identity.clone(), Segments::NONE)
            }
        };
        Ok(DataDir { disk, path, identity, segments, _lock: lock })
    }
}

/// Refuses a directory that is not this node's in this cluster.
fn verify(directory: &Path, found: &Identity, expected: &Identity) -> Result<(), StorageError> {
    let path = identity::path(directory);
    if found.cluster != expected.cluster {
        return Err(StorageError::WrongCluster { path, found: found.cluster, expected: expected.cluster });
    }
    if found.node.number() != expected.node.number() {
        return Err(StorageError::WrongNode { path, found: found.node, expected: expected.node });
    }
    let ids = |identity: &Identity| identity.founders.keys().copied().collect();
    let (found, expected): (Vec<NodeId>, Vec<NodeId>) = (ids(found), ids(expected));
    if found != expected {
        return Err(StorageError::WrongFounders { path, found, expected });
    }
    Ok(())
}

impl DataDir {
    /// Locks a directory of this machine and takes it over.
    ///
    /// # Errors
    /// See [`LockedDir::open`] and [`LockedDir::claim`].
    pub fn open(path: impl AsRef<Path>, identity: &Identity) -> Result<DataDir, StorageError> {
        LockedDir::open(path)?.claim(identity)
    }

    /// The disk that it is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether the log has ever been opened: there was a segment.
    pub fn has_begun(&self) -> bool {
        self.segments.last != Segments::NONE.last
    }

    /// The segments that the log needs.
    pub(super) fn segments(&self) -> Segments {
        self.segments
    }

    /// Remembers which segments the log needs: that a new one was created, before anything is written to it; that others
    /// are of no use, before they are removed.
    pub(super) fn record_segments(&mut self, segments: Segments) -> Result<(), StorageError> {
        if segments != self.segments {
            identity::write(&*self.disk, &self.path, &self.identity, segments)?;
            self.segments = segments;
        }
        Ok(())
    }
}

/// Locks the directory against other processes.
fn lock(disk: &dyn Disk, directory: &Path) -> Result<Lock, StorageError> {
    let path = directory.join(LOCK_FILE);
    match disk.lock(&path).map_err(StorageError::io("lock", path))? {
        Locking::Locked(lock) => Ok(lock),
        Locking::Taken(holder) => Err(StorageError::Locked { path: directory.to_owned(), holder }),
    }
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::NodeId;

    use std::collections::BTreeMap;
    use std::fs;

    use super::super::SegmentNumber;
    use super::*;

    fn identity() -> Identity {
        Identity::of(0xC1, NodeId(2))
    }

    #[test]
    fn a_directory_has_one_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path: PathBuf = directory.path().join("not/yet/there");
        drop(DataDir::open(&path, &identity()).unwrap());
        let refusal = |identity: Identity| DataDir::open(&path, &identity).unwrap_err().to_string();
        assert!(refusal(Identity { node: NodeId(3), ..identity() }).contains("belongs to node 2, but this is node 3"));
        assert!(refusal(Identity { cluster: 7, ..identity() }).contains("belongs to cluster 0x00000000000000c1"));
        let founders = BTreeMap::from([2, 3].map(|id| (NodeId(id), String::new())));
        let refused = refusal(Identity { founders, ..identity() });
        assert!(refused.contains("founded by [2], but --peers names [2, 3]"), "{refused}");
        let moved = BTreeMap::from([(NodeId(2), "elsewhere:1".to_owned())]);
        let mut directory = DataDir::open(&path, &Identity { founders: moved, ..identity() }).unwrap();
        let segments = Segments { last: SegmentNumber(1), ..Segments::NONE };
        directory.record_segments(segments).unwrap();
        drop(directory);
        assert_eq!(DataDir::open(&path, &identity()).unwrap().identity(), &identity(), "it is what it was at first");
        identity::write(&SystemDisk, &path, &identity(), Segments::NONE).unwrap();

        let file = path.join("identity.json");
        let content = fs::read_to_string(&file).unwrap();
        for (broken, complaint) in [
            (content.replace("\"format\": 3", "\"format\": 9"), "is in format 9; this program knows format 3"),
            (content.replace("\"node\"", "\"nod\""), "cannot be understood"),
            (content[..content.len() / 2].to_owned(), "cannot be understood"),
            (String::new(), "cannot be understood"),
        ] {
            fs::write(&file, broken).unwrap();
            let refusal = refusal(identity());
            assert!(refusal.contains(complaint), "{refusal}");
        }
        fs::remove_file(&file).unwrap();
        fs::write(SegmentNumber(1).path(&path), "a log of someone's").unwrap();
        assert!(refusal(identity()).contains("holds log segments, but no identity.json"));
    }
}
