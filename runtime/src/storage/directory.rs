//! The data directory: used by one process at a time, and owned by one node for its lifetime.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use palisade_spec::raft::NodeId;
use tracing::warn;

use super::disk::{Disk, Lock, Locking, SystemDisk};
use super::segment_number::Segments;
use super::{Identity, StorageError, files, identity, segment};

/// The lock file's name.
const LOCK_FILE: &str = "lock";
/// Name of the file that records an unfinished return.
pub(super) const RETURN_FILE: &str = "return.json";
/// How the names of a node's files begin.
const OWN_FILES: [&str; 11] = [
    LOCK_FILE,
    identity::FILE_NAME,
    "join.json",
    RETURN_FILE,
    "start.json",
    "peers.json",
    "stepper",
    "wal-",
    "snapshot-",
    "incoming-",
    "damaged-",
];
/// What a file system may put into an empty directory.
const SYSTEM_DIRECTORY: &str = "lost+found";

/// A node's data directory: locked against other processes for the lifetime of this value, and
/// verified to be this node's.
///
/// The log takes ownership of it ([`Wal::open`](super::Wal::open)), so that there is never a second
/// log in it.
#[derive(Debug)]
pub struct DataDir {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    identity: Identity,
    segments: Segments,
    _lock: Lock,
}

/// A data directory that this process has locked, before it is verified to be this node's.
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
    /// If another process uses the directory, if its files cannot be parsed, or if an operation of
    /// the operating system fails.
    pub fn open(path: impl AsRef<Path>) -> Result<LockedDir, StorageError> {
        LockedDir::open_on(SystemDisk::shared(), path)
    }

    /// Locks a directory of a disk; creates it at the first start. Finishes a return that the
    /// cluster has agreed to.
    ///
    /// # Errors
    /// See [`LockedDir::open`].
    pub fn open_on(disk: Arc<dyn Disk>, path: impl AsRef<Path>) -> Result<LockedDir, StorageError> {
        let path = path.as_ref().to_owned();
        disk.create_directory(&path).map_err(StorageError::io("create the data directory", &path))?;
        refuse_foreign_files(&*disk, &path)?;
        let lock = lock(&*disk, &path)?;
        // A process may have renamed files here and died before it made the names durable.
        files::sync_directory(&*disk, &path)?;
        let found = identity::read(&*disk, &path)?;
        if found.is_none() {
            let has_log = !segment::list(&*disk, &path)?.segments.is_empty();
            if has_log || files::read_if_any(&*disk, &path.join(RETURN_FILE))?.is_some() {
                return Err(StorageError::IdentityMissing { path });
            }
        }
        // Only now it is known to be a node's, or new.
        make_private(&*disk, &path);
        let mut directory = LockedDir { disk, path, found, lock };
        directory.finish_return()?;
        Ok(directory)
    }

    /// The identity of the directory's owner; `None` if the directory is new.
    pub fn identity(&self) -> Option<&Identity> {
        self.found.as_ref().map(|(identity, _)| identity)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the file that names the directory's owner.
    pub fn identity_path(&self) -> PathBuf {
        identity::path(&self.path)
    }

    /// Writes a new identity for the directory, with an empty log.
    pub(super) fn give_to(&mut self, identity: Identity) -> Result<(), StorageError> {
        identity::write(&*self.disk, &self.path, &identity, Segments::NONE)?;
        self.found = Some((identity, Segments::NONE));
        Ok(())
    }

    /// The disk of the directory.
    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Claims the directory for the node of this `identity`: writes the identity to a new
    /// directory, and verifies that of an existing one.
    ///
    /// # Errors
    /// If the directory belongs to another node, or if an operation of the operating system fails.
    pub fn claim(self, identity: &Identity) -> Result<DataDir, StorageError> {
        let LockedDir { disk, path, found, lock } = self;
        let (identity, segments) = match found {
            Some((found, segments)) => {
                verify(&path, &found, identity)?;
                // Keeps the identity of the first start, including the addresses that the founders
                // had then.
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

/// Refuses a directory that belongs to another node or cluster, or whose founders differ.
fn verify(directory: &Path, found: &Identity, expected: &Identity) -> Result<(), StorageError> {
    let path = identity::path(directory);
    if found.cluster != expected.cluster {
        return Err(StorageError::WrongCluster { path });
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
    /// Locks a directory of this machine and claims it.
    ///
    /// # Errors
    /// See [`LockedDir::open`] and [`LockedDir::claim`].
    pub fn open(path: impl AsRef<Path>, identity: &Identity) -> Result<DataDir, StorageError> {
        LockedDir::open(path)?.claim(identity)
    }

    /// The disk of the directory.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the directory's owner.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether the log has ever been opened, that is, has ever had a segment.
    pub fn has_begun(&self) -> bool {
        self.segments.last != Segments::NONE.last
    }

    /// The segments that the log needs.
    pub(super) fn segments(&self) -> Segments {
        self.segments
    }

    /// Durably records which segments the log needs: a new one before anything is written to it,
    /// and superfluous ones before they are removed.
    pub(super) fn record_segments(&mut self, segments: Segments) -> Result<(), StorageError> {
        if segments != self.segments {
            identity::write(&*self.disk, &self.path, &self.identity, segments)?;
            self.segments = segments;
        }
        Ok(())
    }
}

/// Refuses a directory of another program, before anything in it is changed: a mistaken `--data` must
/// not take the permissions of all users on `/etc` away.
fn refuse_foreign_files(disk: &dyn Disk, directory: &Path) -> Result<(), StorageError> {
    let names = disk.list(directory).map_err(StorageError::io("list", directory))?;
    if names.iter().any(|name| name == identity::FILE_NAME) {
        return Ok(());
    }
    match first_foreign(&names, |name| OWN_FILES.iter().any(|own| name.starts_with(own))) {
        Some(foreign) => Err(StorageError::ForeignFiles { path: directory.to_owned(), foreign }),
        None => Ok(()),
    }
}

/// The first of the names in a directory that neither are its owner's nor the file system's.
pub(crate) fn first_foreign(names: &[OsString], is_own: impl Fn(&str) -> bool) -> Option<String> {
    let mut names = names.iter().map(|name| name.to_string_lossy().into_owned());
    names.find(|name| name != SYSTEM_DIRECTORY && !is_own(name))
}

/// Takes the permissions of other users on the directory and its files away. The log says so: the
/// operator has to judge whether another user has read the files before.
fn make_private(disk: &dyn Disk, directory: &Path) {
    let shown = directory.display();
    match disk.make_private(directory) {
        Ok(0) => {}
        Ok(tightened) => warn!(
            directory = %shown, tightened,
            "other users had permissions on the data directory or on files in it: they have none any more (directory \
             0700, files 0600)"
        ),
        Err(error) => warn!(
            directory = %shown, %error,
            "cannot take the permissions of other users on the data directory and its files away: set them to 0700 and \
             0600, with the node's user as the owner"
        ),
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
    use std::os::unix::fs::PermissionsExt;

    use super::super::segment_number::SegmentNumber;
    use super::*;

    fn identity() -> Identity {
        Identity::of(0xC1, NodeId(2))
    }

    /// Goal: `--data` with the directory of another program changes nothing there, whichever node is
    /// started.
    #[test]
    fn directory_of_another_program_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("passwd");
        fs::write(&file, "root").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for path in [directory.path(), &file] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let refusal = DataDir::open(directory.path(), &identity()).unwrap_err().to_string();
        assert!(refusal.contains("has files of other programs, such as passwd"), "{refusal}");
        assert_eq!((mode(directory.path()), mode(&file)), (0o755, 0o755));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);

        // Another program's file of the same name is no identity.
        let named = directory.path().join("identity.json");
        fs::write(&named, "{}").unwrap();
        assert!(DataDir::open(directory.path(), &identity()).unwrap_err().to_string().contains("cannot be understood"));
        assert_eq!((mode(directory.path()), mode(&file)), (0o755, 0o755));
        fs::remove_file(&named).unwrap();
        fs::remove_file(&file).unwrap();
        fs::create_dir(directory.path().join("lost+found")).unwrap();
        drop(DataDir::open(directory.path(), &identity()).unwrap());
        assert_eq!(mode(directory.path()), 0o700);
    }

    #[test]
    fn directory_has_one_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path: PathBuf = directory.path().join("not/yet/there");
        drop(DataDir::open(&path, &identity()).unwrap());
        let refusal = |identity: Identity| DataDir::open(&path, &identity).unwrap_err().to_string();
        assert!(refusal(Identity { node: NodeId(3), ..identity() }).contains("belongs to node 2, but this is node 3"));
        assert!(refusal(Identity { cluster: 7, ..identity() }).contains("by a node of another cluster"));
        let founders = BTreeMap::from([2, 3].map(|id| (NodeId(id), String::new())));
        let refused = refusal(Identity { founders, ..identity() });
        assert!(refused.contains("founded by [2], but --peers names [2, 3]"), "{refused}");
        let moved = BTreeMap::from([(NodeId(2), "elsewhere:1".to_owned())]);
        let mut directory = DataDir::open(&path, &Identity { founders: moved, ..identity() }).unwrap();
        let segments = Segments { last: SegmentNumber(1), ..Segments::NONE };
        directory.record_segments(segments).unwrap();
        drop(directory);
        assert_eq!(
            DataDir::open(&path, &identity()).unwrap().identity(),
            &identity(),
            "the identity of the first start"
        );
        identity::write(&SystemDisk, &path, &identity(), Segments::NONE).unwrap();

        let file = path.join("identity.json");
        let content = fs::read_to_string(&file).unwrap();
        for (broken, complaint) in [
            (content.replace("\"format\": 5", "\"format\": 9"), "is in format 9; this program (Palisade"),
            (content.replace("\"node\"", "\"nod\""), "cannot be understood"),
            (content[..content.len() / 2].to_owned(), "cannot be understood"),
            (String::new(), "cannot be understood"),
        ] {
            fs::write(&file, broken).unwrap();
            let refusal = refusal(identity());
            assert!(refusal.contains(complaint), "{refusal}");
        }
        fs::remove_file(&file).unwrap();
        fs::write(SegmentNumber(1).path(&path), "a log of another node").unwrap();
        assert!(refusal(identity()).contains("holds a node's files, but no identity.json"));
    }
}
