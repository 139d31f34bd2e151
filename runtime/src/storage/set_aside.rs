//! A data directory that has lost what its node promised gets a new identity: its files are set aside, and the node begins again
//! with nothing, as another member of its cluster.
//!
//! It takes three steps, each durable before the next, so that a crash between any two is no harm:
//!
//! 1. `return.json` says which incarnation the directory will have. It is drawn before the cluster is asked, so that the node
//!    asks for the same if the answer is lost, and is not taken for a third server.
//! 2. When the cluster has agreed, the files are renamed: `damaged-0-wal-00000000000000000008.log`, the generation in front.
//! 3. `identity.json` is replaced. Only now the directory is the new member's.
//!
//! Until then it is the old one's, and a start judges it as any other: by which segments and snapshots `identity.json` and the
//! log say there must be. So a directory of which some files were renamed is as damaged as before; and one that is whole again,
//! because somebody has repaired the disk, is whole.
//!
//! The files that were set aside are for whoever wants to find out what happened. They are never read. The next return removes
//! them.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;

use palisade_spec::raft::NodeId;
use serde::{Deserialize, Serialize};

use super::directory::LockedDir;
use super::identity::{self, Segments, Versioned};
use super::{Identity, Incarnation, StorageError, files};

/// Says that the directory's node is on its way to a new identity.
const RETURN_FILE: &str = "return.json";
/// The only format this program writes and reads.
const FORMAT: u32 = 1;
/// What the names of files begin with that were set aside.
const ASIDE: &str = "damaged-";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    /// The incarnation of the new identity.
    incarnation: Incarnation,
}

impl LockedDir {
    /// The incarnation that the directory will have when it comes back: the one that was drawn when that was begun, otherwise
    /// `drawn`, which is remembered.
    ///
    /// # Errors
    /// If the file cannot be read or understood, or may not be durable.
    pub fn begin_return(&self, drawn: Incarnation) -> Result<Incarnation, StorageError> {
        let path = self.path().join(RETURN_FILE);
        let begun = match self.disk().read(&path) {
            Ok(bytes) => Some(read(&bytes, &path)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(StorageError::io("read", path)(error)),
        };
        // One that the directory has already was left behind by a crash, when all else was done.
        if let Some(begun) = begun.filter(|begun| self.identity().is_none_or(|identity| identity.incarnation != *begun))
        {
            return Ok(begun);
        }
        let record = Record { format: FORMAT, incarnation: drawn };
        let content = serde_json::to_vec(&record).expect("numbers can be written");
        files::replace(&**self.disk(), &path, self.path(), &content)?;
        Ok(drawn)
    }

    /// Sets the directory's files aside, and gives it the identity with which the cluster has taken its node back.
    ///
    /// # Errors
    /// If it may not be durable. The return can be gone on with then.
    pub fn set_aside(self, node: NodeId, incarnation: Incarnation) -> Result<(), StorageError> {
        let (disk, directory) = (&**self.disk(), self.path());
        let old = self.identity().expect("only who was somebody can come back").clone();
        let prefix = format!("{ASIDE}{}-", old.node.generation());
        let names = |wanted: &dyn Fn(&str) -> bool| -> Result<Vec<String>, StorageError> {
            let listed = disk.list(directory).map_err(StorageError::io("list", directory))?;
            Ok(listed
                .into_iter()
                .filter_map(|name: OsString| name.into_string().ok())
                .filter(|name| wanted(name))
                .collect())
        };
        for name in names(&|name| name.starts_with(ASIDE) && !name.starts_with(&prefix))? {
            let path = directory.join(name);
            disk.remove(&path).map_err(StorageError::write("remove", path))?;
        }
        for name in names(&|name| name.starts_with("wal-") || name.starts_with("snapshot-"))? {
            let (from, to) = (directory.join(&name), directory.join(format!("{prefix}{name}")));
            disk.rename(&from, &to).map_err(StorageError::write("rename", from))?;
        }
        files::sync_directory(disk, directory)?;
        // A joined node's: who founded the cluster is no business of its.
        let new = Identity { node, incarnation, founders: [].into(), restored: None, ..old };
        identity::write(disk, directory, &new, Segments::NONE)?;
        let path = directory.join(RETURN_FILE);
        disk.remove(&path).map_err(StorageError::write("remove", path))?;
        files::sync_directory(disk, directory)
    }
}

fn read(bytes: &[u8], path: &Path) -> Result<Incarnation, StorageError> {
    let unreadable = |error: serde_json::Error| StorageError::IdentityUnreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let found: Versioned = serde_json::from_slice(bytes).map_err(unreadable)?;
    if found.format != FORMAT {
        return Err(StorageError::UnknownFormat { path: path.to_owned(), found: found.format, known: FORMAT });
    }
    let record: Record = serde_json::from_slice(bytes).map_err(unreadable)?;
    Ok(record.incarnation)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::storage::DataDir;

    const OLD: NodeId = NodeId(2);

    /// A directory that its node has lost, with a segment that is damaged.
    fn damaged() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity { incarnation: Incarnation(1), ..Identity::of(7, OLD) };
        drop(DataDir::open(directory.path(), &identity).unwrap());
        for name in ["wal-00000000000000000008.log", "snapshot-00000000000000000700-3.snap", "peers.json"] {
            fs::write(directory.path().join(name), name).unwrap();
        }
        directory
    }

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.ends_with(".tmp")).collect();
        names.sort();
        names
    }

    #[test]
    fn directory_comes_back_as_another_members_and_keeps_what_was_there() {
        let directory = damaged();
        let (path, new) = (directory.path(), OLD.next_generation().unwrap());
        assert_eq!(LockedDir::open(path).unwrap().begin_return(Incarnation(5)).unwrap(), Incarnation(5));
        let locked = LockedDir::open(path).unwrap();
        let begun = locked.begin_return(Incarnation(6)).unwrap();
        assert_eq!(begun, Incarnation(5), "the cluster may have been asked already");
        locked.set_aside(new, begun).unwrap();
        let aside = ["damaged-0-snapshot-00000000000000000700-3.snap", "damaged-0-wal-00000000000000000008.log"];
        let kept = ["identity.json", "lock", "peers.json"];
        assert_eq!(names(path), [&aside[..], &kept[..]].concat());
        let locked = LockedDir::open(path).unwrap();
        let identity = locked.identity().unwrap();
        assert_eq!((identity.node, identity.incarnation), (new, Incarnation(5)));
        assert!(identity.founders.is_empty() && identity.cluster == 7);
        // The next time it draws another one, and what was kept from the first time goes.
        let begun = locked.begin_return(Incarnation(8)).unwrap();
        assert_eq!(begun, Incarnation(8));
        locked.set_aside(new.next_generation().unwrap(), begun).unwrap();
        assert_eq!(names(path), kept);
    }

    #[test]
    fn crash_in_the_middle_leaves_a_return_that_can_be_gone_on_with() {
        let directory = damaged();
        let path = directory.path();
        let begun = LockedDir::open(path).unwrap().begin_return(Incarnation(5)).unwrap();
        // Some files have been renamed.
        fs::rename(path.join("wal-00000000000000000008.log"), path.join("damaged-0-wal-00000000000000000008.log"))
            .unwrap();
        let locked = LockedDir::open(path).unwrap();
        assert_eq!(locked.begin_return(Incarnation(6)).unwrap(), begun);
        locked.set_aside(OLD.next_generation().unwrap(), begun).unwrap();
        assert!(names(path).contains(&"damaged-0-wal-00000000000000000008.log".to_owned()));
        // All is done but the removal of the file.
        fs::write(path.join(RETURN_FILE), r#"{"format":1,"incarnation":5}"#).unwrap();
        let locked = LockedDir::open(path).unwrap();
        assert_eq!(locked.begin_return(Incarnation(9)).unwrap(), Incarnation(9), "it is of the return before");
    }

    #[test]
    fn return_that_cannot_be_understood_is_refused() {
        let directory = damaged();
        for (content, complaint) in [("{", "cannot be understood"), ("{\"format\":9}", "is in format 9")] {
            fs::write(directory.path().join(RETURN_FILE), content).unwrap();
            let refusal =
                LockedDir::open(directory.path()).unwrap().begin_return(Incarnation(5)).unwrap_err().to_string();
            assert!(refusal.contains(complaint), "{refusal}");
        }
    }
}
