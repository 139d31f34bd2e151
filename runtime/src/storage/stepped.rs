//! The mark of a stepped node's directory: a node whose inputs a test chooses.
//!
//! The messages of such a node are not those that a server would have sent, so a server must not
//! serve its directory. The server and the stepped node both look for this mark.

use super::directory::LockedDir;
use super::{StorageError, files};

/// The file that marks the directory.
const MARK: &str = "stepper";

impl LockedDir {
    /// Whether the directory is a stepped node's.
    ///
    /// # Errors
    /// If the mark can be neither read nor ruled out.
    pub fn is_stepped(&self) -> Result<bool, StorageError> {
        Ok(files::read_if_any(&**self.disk(), &self.path().join(MARK))?.is_some())
    }

    /// Marks the directory as a stepped node's, durably. Returns whether it did: the directory of a
    /// server is left as it is.
    ///
    /// # Errors
    /// If the mark cannot be written.
    pub fn mark_stepped(&self) -> Result<bool, StorageError> {
        if self.identity().is_some() && !self.is_stepped()? {
            return Ok(false);
        }
        let content = b"the directory of a stepped node: palisade serve refuses it\n";
        files::replace(&**self.disk(), &self.path().join(MARK), self.path(), content)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use palisade_spec::raft::NodeId;

    use super::super::Identity;
    use super::*;

    #[test]
    fn a_servers_directory_is_not_marked() {
        let identity = Identity::of(7, NodeId(1));
        let [served, stepped] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        drop(LockedDir::open(served.path()).unwrap().claim(&identity).unwrap());
        let locked = LockedDir::open(served.path()).unwrap();
        assert!(!locked.mark_stepped().unwrap());
        assert!(!locked.is_stepped().unwrap());

        let locked = LockedDir::open(stepped.path()).unwrap();
        assert!(locked.mark_stepped().unwrap());
        drop(locked.claim(&identity).unwrap());
        let locked = LockedDir::open(stepped.path()).unwrap();
        assert!(locked.is_stepped().unwrap());
        assert!(locked.mark_stepped().unwrap(), "the node's later starts");
    }
}
