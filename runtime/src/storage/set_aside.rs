//! New identity for a data directory that has lost state which its node had acknowledged: its files
//! are set aside, and the node starts again with an empty state, as another member of its cluster.
//!
//! A return takes these steps, each durable before the next:
//!
//! 1. `return.json` names the incarnation that the directory will have. The node draws it before it
//!    asks the cluster, so that it repeats the same request if the answer is lost, and is not taken
//!    for a third server.
//! 2. The cluster agrees, and `return.json` records it. From here on every opening of the directory
//!    finishes the return.
//! 3. The files get the prefix `damaged-` and the generation:
//!    `damaged-0-wal-00000000000000000008.log`.
//! 4. `identity.json` is replaced, and `return.json` is removed.
//!
//! Before step 2 the directory belongs to the old member, and a start treats it like any other: a
//! directory that an operator has repaired meanwhile is whole. After step 2 the old identity is
//! void: the cluster would refuse it.
//!
//! The files that were set aside are kept for an operator who investigates the failure. No program
//! reads them, and the next return removes them.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::directory::{LockedDir, RETURN_FILE};
use super::{Identity, Incarnation, StorageError, files};

/// The only format that this program writes and reads.
const FORMAT: u32 = 2;
/// Prefix of the names of files that were set aside.
const ASIDE: &str = "damaged-";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    /// The incarnation of the new identity.
    incarnation: Incarnation,
    /// Whether the cluster has replaced the old identity with the new one.
    agreed: bool,
}

impl LockedDir {
    /// Begins or resumes a return, and returns the incarnation that the directory will have: the
    /// one of a return that was begun before, otherwise `drawn`, which becomes durable.
    ///
    /// # Errors
    /// If the file cannot be read or parsed, or may not be durable.
    pub fn begin_return(&self, drawn: Incarnation) -> Result<Incarnation, StorageError> {
        if let Some(begun) = self.read_return()? {
            return Ok(begun.incarnation);
        }
        self.write_return(drawn, false)?;
        Ok(drawn)
    }

    /// Sets the files aside and takes over the new identity, after the cluster has replaced the
    /// directory's node with its next generation and this incarnation.
    ///
    /// # Errors
    /// If the return may not be durable. The next opening of the directory finishes it then, if the
    /// record of the cluster's agreement is durable; otherwise the node has to ask again.
    pub fn complete_return(&mut self, incarnation: Incarnation) -> Result<(), StorageError> {
        self.write_return(incarnation, true)?;
        self.finish_return()
    }

    /// Finishes a return that the cluster has agreed to, if there is one.
    pub(super) fn finish_return(&mut self) -> Result<(), StorageError> {
        let Some(Record { incarnation, agreed: true, .. }) = self.read_return()? else { return Ok(()) };
        let path = self.return_file();
        let old = self.identity().cloned().expect("a directory with a return and no identity is not opened");
        if old.incarnation != incarnation {
            self.set_aside(&old)?;
            let node = old.node.next_generation().expect("the cluster has agreed to the next generation");
            // The new node joins the cluster, so it has no founders and no founding snapshot.
            self.give_to(Identity { node, incarnation, founders: [].into(), restored: None, ..old })?;
        }
        self.disk().remove(&path).map_err(StorageError::write("remove", path))?;
        files::sync_directory(&**self.disk(), self.path())
    }

    /// Renames the files of the log, and removes the files that were set aside from an earlier
    /// generation.
    fn set_aside(&self, old: &Identity) -> Result<(), StorageError> {
        let (disk, directory) = (&**self.disk(), self.path());
        let prefix = format!("{ASIDE}{}-", old.node.generation());
        let listed = disk.list(directory).map_err(StorageError::io("list", directory))?;
        for name in listed.into_iter().filter_map(|name: OsString| name.into_string().ok()) {
            let path = directory.join(&name);
            if name.starts_with("wal-") || name.starts_with("snapshot-") {
                let aside = directory.join(format!("{prefix}{name}"));
                disk.rename(&path, &aside).map_err(StorageError::write("rename", path))?;
            } else if name.starts_with(ASIDE) && !name.starts_with(&prefix) {
                disk.remove(&path).map_err(StorageError::write("remove", path))?;
            }
        }
        files::sync_directory(disk, directory)
    }

    fn return_file(&self) -> PathBuf {
        self.path().join(RETURN_FILE)
    }

    fn read_return(&self) -> Result<Option<Record>, StorageError> {
        files::read_record(&**self.disk(), &self.return_file(), FORMAT)
    }

    fn write_return(&self, incarnation: Incarnation, agreed: bool) -> Result<(), StorageError> {
        let content =
            serde_json::to_vec(&Record { format: FORMAT, incarnation, agreed }).expect("numbers can be written");
        files::replace(&**self.disk(), &self.return_file(), self.path(), &content)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use palisade_spec::raft::NodeId;

    use super::*;
    use crate::storage::{DataDir, SystemDisk};

    const OLD: NodeId = NodeId(2);
    const NEW: Incarnation = Incarnation(5);

    fn next() -> NodeId {
        OLD.next_generation().unwrap()
    }

    /// A directory with the files of a log; their content does not matter here.
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

    const ASIDE_FILES: [&str; 2] =
        ["damaged-0-snapshot-00000000000000000700-3.snap", "damaged-0-wal-00000000000000000008.log"];
    const KEPT_FILES: [&str; 3] = ["identity.json", "lock", "peers.json"];

    #[test]
    fn directory_comes_back_as_the_next_generation_and_keeps_the_damaged_files() {
        let directory = damaged();
        let path = directory.path();
        assert_eq!(LockedDir::open(path).unwrap().begin_return(NEW).unwrap(), NEW);
        let mut locked = LockedDir::open(path).unwrap();
        let begun = locked.begin_return(Incarnation(6)).unwrap();
        assert_eq!(begun, NEW, "the cluster may have been asked already");
        assert_eq!(locked.identity().unwrap().node, OLD, "the cluster has not agreed yet");
        locked.complete_return(begun).unwrap();
        assert_eq!(names(path), [&ASIDE_FILES[..], &KEPT_FILES[..]].concat());
        drop(locked);
        let mut locked = LockedDir::open(path).unwrap();
        let identity = locked.identity().unwrap();
        assert_eq!((identity.node, identity.incarnation), (next(), NEW));
        assert!(identity.founders.is_empty() && identity.cluster == 7);
        // The second return draws an incarnation of its own, and removes the files that the first
        // one set aside.
        let begun = locked.begin_return(Incarnation(8)).unwrap();
        assert_eq!(begun, Incarnation(8));
        locked.complete_return(begun).unwrap();
        assert_eq!(names(path), KEPT_FILES);
    }

    /// A crash may follow each step of a return.
    #[test]
    fn opening_finishes_what_the_cluster_has_agreed_to() {
        let agreed = |path: &Path| LockedDir::open(path).unwrap().write_return(NEW, true).unwrap();
        let wal = |path: &Path| {
            fs::rename(path.join("wal-00000000000000000008.log"), path.join("damaged-0-wal-00000000000000000008.log"))
                .unwrap();
        };
        let snapshot = |path: &Path| {
            let name = "snapshot-00000000000000000700-3.snap";
            fs::rename(path.join(name), path.join(format!("damaged-0-{name}"))).unwrap();
        };
        let identity = |path: &Path| {
            let node = Identity { incarnation: NEW, founders: [].into(), ..Identity::of(7, next()) };
            super::super::identity::write(&SystemDisk, path, &node, super::super::segment_number::Segments::NONE)
                .unwrap();
        };
        let steps: [&dyn Fn(&Path); 4] = [&agreed, &wal, &snapshot, &identity];
        for done in 1..=steps.len() {
            let directory = damaged();
            let path = directory.path();
            steps[..done].iter().for_each(|step| step(path));
            let locked = LockedDir::open(path).unwrap();
            let found = locked.identity().unwrap();
            assert_eq!((found.node, found.incarnation), (next(), NEW), "after {done} steps");
            assert_eq!(names(path), [&ASIDE_FILES[..], &KEPT_FILES[..]].concat(), "after {done} steps");
        }
    }

    /// Goal: a directory that was restored without its identity is named as that of a node, also when it has no log.
    #[test]
    fn return_without_an_identity_is_refused() {
        for agreed in [false, true] {
            let directory = damaged();
            LockedDir::open(directory.path()).unwrap().write_return(NEW, agreed).unwrap();
            for name in ["identity.json", "wal-00000000000000000008.log"] {
                fs::remove_file(directory.path().join(name)).unwrap();
            }
            let refusal = LockedDir::open(directory.path()).unwrap_err().to_string();
            assert!(refusal.contains("but no identity.json"), "{refusal}");
        }
    }
}
