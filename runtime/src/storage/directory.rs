//! The data directory: one process at a time, one node for ever.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

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

impl DataDir {
    /// Opens a node's directory; creates it, and what says whose it is, at the first start.
    ///
    /// # Errors
    /// If another process uses it, if it is not this node's, or if the operating system refuses something.
    pub fn open(path: impl AsRef<Path>, expected: &Identity) -> Result<DataDir, StorageError> {
        let path = path.as_ref().to_owned();
        files::create_directory(&path)?;
        let lock = lock(&path)?;
        // What is seen here may have been renamed by a process that died before it had made that durable.
        files::sync_directory(&path)?;
        let segments = match identity::read(&path)? {
            Some((found, segments)) => {
                identity::verify(&path, &found, expected)?;
                segments
            }
            None if segment::list(&path)?.segments.is_empty() => {
                identity::write(&path, expected, Segments::NONE)?;
                Segments::NONE
            }
            None => return Err(StorageError::IdentityMissing { path }),
        };
        Ok(DataDir { path, identity: expected.clone(), segments, _lock: lock })
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
    use super::*;

    fn identity() -> Identity {
        Identity { cluster: 0xC1, node: NodeId(2), voters: vec![NodeId(1), NodeId(2), NodeId(3)] }
    }

    #[test]
    fn a_directory_has_one_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path: PathBuf = directory.path().join("not/yet/there");
        drop(DataDir::open(&path, &identity()).unwrap());
        let refusal = |identity: Identity| DataDir::open(&path, &identity).unwrap_err().to_string();
        assert!(refusal(Identity { node: NodeId(3), ..identity() }).contains("belongs to node 2, but this is node 3"));
        assert!(refusal(Identity { cluster: 7, ..identity() }).contains("belongs to cluster 0x00000000000000c1"));
        let voters = vec![NodeId(2), NodeId(3)];
        assert!(
            refusal(Identity { voters, ..identity() })
                .contains("voters are [1, 2, 3], but this node was started with [2, 3]")
        );
        let in_any_order = Identity { voters: vec![NodeId(3), NodeId(1), NodeId(2)], ..identity() };
        DataDir::open(&path, &in_any_order).unwrap();

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
