//! A verifier that remembers the highest tokens, durably.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::format::Grant;
use crate::refusal::{OpenError, Refusal};
use crate::rule::{Decision, decide};
use crate::state_file::{Seen, sync_name, with_suffix};
use crate::verify::Verifier;

/// Admits tokens of one cluster that rise, for each key, and keeps the highest in a file.
///
/// The file `PATH` is replaced as a whole for every token that is higher than the last, with two
/// syncs: for hundreds of keys, not for millions. A lock on `PATH.lock` refuses a second fence on
/// the same file, in this process or another one.
#[derive(Debug)]
pub struct Fence {
    path: PathBuf,
    verifier: Verifier,
    seen: Seen,
    /// Locked as long as the fence lives.
    _lock: File,
}

/// A token that may act on the resource now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a token that is admitted allows one write, before the next call of `admit`"]
pub struct Admitted {
    /// What the cluster granted.
    pub grant: Grant,
    /// Whether the token was the highest before, or is now.
    pub decision: Decision,
}

impl Fence {
    /// Opens the file of a resource that was used before.
    ///
    /// # Errors
    /// [`OpenError::Missing`] and [`OpenError::Damaged`]: the highest tokens are not known, and the
    /// resource must not be used. The others say what to do.
    pub fn open(path: impl AsRef<Path>, verifier: Verifier) -> Result<Fence, OpenError> {
        let path = path.as_ref();
        // One file has one lock, whatever links lead to it.
        let path = fs::canonicalize(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenError::Missing(path.to_owned()),
            _ => failed("look for", path)(error),
        })?;
        let lock = lock(&path)?;
        let bytes = fs::read(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenError::Missing(path.clone()),
            _ => failed("read", &path)(error),
        })?;
        // A process that ended between its rename and its sync may have left a mark that is not durable. It would be a
        // reason to admit the same token again.
        sync_name(&path).map_err(failed("sync", &path))?;
        let damaged = |reason: String| OpenError::Damaged { path: path.clone(), reason };
        let seen = Seen::decode(&bytes).map_err(|malformed| damaged(malformed.to_string()))?;
        if seen.cluster != verifier.cluster() {
            let (found, expected) = (seen.cluster, verifier.cluster().to_owned());
            return Err(OpenError::OtherCluster { path, found, expected });
        }
        Ok(Fence { path, verifier, seen, _lock: lock })
    }

    /// Begins with an empty memory: only for a resource that has never been used.
    ///
    /// # Errors
    /// [`OpenError::Exists`] if there is a file, whatever its content.
    pub fn create(path: impl AsRef<Path>, verifier: Verifier) -> Result<Fence, OpenError> {
        let path = path.as_ref().to_owned();
        let lock = lock(&path)?;
        if path.symlink_metadata().is_ok() {
            return Err(OpenError::Exists(path));
        }
        let seen = Seen::nothing(verifier.cluster());
        seen.write(&path).map_err(failed("create", &path))?;
        Ok(Fence { path, verifier, seen, _lock: lock })
    }

    /// Whether the holder of this signed token may act on the resource that the lock `key` protects.
    /// If the token is higher than all before it, it is durable when this returns.
    ///
    /// No other token may be admitted before the write that this one allows is done.
    ///
    /// # Errors
    /// See [`Refusal`]: the resource must not act.
    pub fn admit(&mut self, key: &str, signed: &str) -> Result<Admitted, Refusal> {
        let grant = self.verifier.verify(key, signed)?;
        let decision = decide(self.seen.epoch, self.seen.marks.get(key).copied(), &grant)?;
        if decision == Decision::Raise {
            let mut raised = self.seen.clone();
            raised.raise(&grant);
            // After a failure the file may have the new content already; the memory keeps the old
            // one, which only makes the next attempt write again.
            let failed = |source| Refusal::NotPersisted { path: self.path.clone(), source };
            raised.write(&self.path).map_err(failed)?;
            self.seen = raised;
        }
        Ok(Admitted { grant, decision })
    }

    /// The highest restore epoch that was admitted.
    pub fn epoch(&self) -> u64 {
        self.seen.epoch
    }

    /// The highest token that was admitted for a key in that epoch.
    pub fn highest(&self, key: &str) -> Option<u64> {
        self.seen.marks.get(key).map(|mark| mark.token)
    }

    /// The verifier, to change its clock.
    pub fn verifier_mut(&mut self) -> &mut Verifier {
        &mut self.verifier
    }
}

/// Takes the lock of a fence's file, which the kernel drops with the process.
fn lock(path: &Path) -> Result<File, OpenError> {
    let lock_path = with_suffix(path, ".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
    let file = file.map_err(failed("open", &lock_path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed("lock", &lock_path)(error)),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { action, path, source }
}
