//! The data directory: one process at a time, one node for ever.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use palisade_spec::raft::NodeId;

use super::identity::Segments;
use super::{Identity, StorageError, files, identity, segment};

/// The lock's name.
const LOCK_FILE: &str = "lock";

/// A node's data directory: locked against other processes while this value lives, and known to be this node's.
///
/// The log takes it over ([`Wal::open`](super::Wal::open)), so that there is never a second log in it.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    segments: Segments,
    _lock: File,
}

/// A data directory that this process has locked, before it is known to be this node's.
#[derive(Debug)]
pub struct LockedDir {
    path: PathBuf,
    found: Option<(Identity, Segments)>,
    lock: File,
}

impl LockedDir {
    /// Locks a directory; creates it at the first start.
    ///
    /// # Errors
    /// If another process uses it, if it cannot be understood, or if the operating system refuses something.
    pub fn open(path: impl AsRef<Path>) -> Result<LockedDir, StorageError> {
        let path = path.as_ref().to_owned();
        files::create_directory(&path)?;
        let lock = lock(&path)?;
        // What is seen here may have been renamed by a process that died before it had made that durable.
        files::sync_directory(&path)?;
        let found = identity::read(&path)?;
        if found.is_none() && !segment::list(&path)?.segments.is_empty() {
            return Err(StorageError::IdentityMissing { path });
        }
        Ok(LockedDir { path, found, lock })
    }

    /// Whose it is; `None` if it is new.
    pub fn identity(&self) -> Option<&Identity> {
        self.found.as_ref().map(|(identity, _)| identity)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes it over: a new one for the node of this `identity`, which is written down; any other only if it is that
    /// node's.
    ///
    /// # Errors
    /// If it is somebody else's, or if the operating system refuses something.
    pub fn claim(self, identity: &Identity) -> Result<DataDir, StorageError> {
        let LockedDir { path, found, lock } = self;
        let (identity, segments) = match found {
            Some((found, segments)) => {
                verify(&path, &found, identity)?;
                // What it said at the first start: where the founders are now is nothing that it remembers.
                (found, segments)
            }
            None => {
                identity::write(&path, identity, Segments::NONE)?;
                (identity.clone(), Segments::NONE)
            }
        };
        Ok(DataDir { path, identity, segments, _lock: lock })
    }
}

/// Refuses a directory that is not this node's in this cluster.
fn verify(directory: &Path, found: &Identity, expected: &Identity) -> Result<(), StorageError> {
    let path = identity::path(directory);
    if found.cluster != expected.cluster {
        return Err(StorageError::WrongCluster { path, found: found.cluster, expected: expected.cluster });
    }
    if found.node != expected.node {
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
    /// Locks a directory and takes it over.
    ///
    /// # Errors
    /// See [`LockedDir::open`] and [`LockedDir::claim`].
    pub fn open(path: impl AsRef<Path>, identity: &Identity) -> Result<DataDir, StorageError> {
        LockedDir::open(path)?.claim(identity)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The segments that the log needs.
    pub(super) fn segments(&self) -> Segments {
        self.segments
    }

    /// Remembers which segments the log needs: that a new one was created, before anything is written to it; that others
    /// are of no use, before they are removed.
    pub(super) fn record_segments(&mut self, segments: Segments) -> Result<(), StorageError> {
        if segments != self.segments {
            identity::write(&self.path, &self.identity, segments)?;
            self.segments = segments;
        }
        Ok(())
    }
}

/// Locks the directory, and leaves this process's number for whoever comes second.
fn lock(directory: &Path) -> Result<File, StorageError> {
    let path = directory.join(LOCK_FILE);
    let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open.map_err(StorageError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
            return Err(StorageError::Locked { path: directory.to_owned(), holder });
        }
        Err(TryLockError::Error(error)) => return Err(StorageError::io("lock", path)(error)),
    }
    // The number is a courtesy to the reader of an error message; the lock is what counts.
    let left = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    left.map_err(StorageError::io("write to", path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::NodeId;

    use super::super::SegmentNumber;
    use std::collections::BTreeMap;

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
        identity::write(&path, &identity(), Segments::NONE).unwrap();

        let file = path.join("identity.json");
        let content = fs::read_to_string(&file).unwrap();
        for (broken, complaint) in [
            (content.replace("\"format\": 2", "\"format\": 9"), "is in format 9; this program knows format 2"),
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
