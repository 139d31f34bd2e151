//! Reading a file of a directory, and durable changes: publishing a file, replacing a file.
//!
//! A file's content and its name become durable separately: the content once the file is synced,
//! the name once its directory is. So a file that must be whole whenever it has its name is written
//! under a temporary name first (`….tmp`), synced, renamed, and then its directory is synced. A
//! start never reads a `.tmp` that a crash left behind; it removes those of segments and snapshots.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::StorageError;
use super::disk::{Access, Disk};

/// The temporary name under which a file is written before it is published.
pub(super) fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// The content of a file; `None` if there is none.
pub(crate) fn read_if_any(disk: &dyn Disk, path: &Path) -> Result<Option<Vec<u8>>, StorageError> {
    match disk.read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io("read", path)(error)),
    }
}

/// The record in a small JSON file, which says its format in the field `format`; `None` if there is no file.
pub(crate) fn read_record<T: DeserializeOwned>(
    disk: &dyn Disk,
    path: &Path,
    format: u32,
) -> Result<Option<T>, StorageError> {
    /// All other fields are ignored: those of another format may be others.
    #[derive(Deserialize)]
    struct Versioned {
        format: u32,
    }
    let Some(bytes) = read_if_any(disk, path)? else { return Ok(None) };
    let unreadable = |error: serde_json::Error| StorageError::IdentityUnreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let found: Versioned = serde_json::from_slice(&bytes).map_err(unreadable)?;
    if found.format != format {
        return Err(StorageError::UnknownFormat { path: path.to_owned(), found: found.format, known: format });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(unreadable)
}

/// Makes the directory's names durable.
pub(super) fn sync_directory(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    disk.sync_directory(path).map_err(StorageError::write("sync", path))
}

/// Renames the temporary file to `path`, durably. Its content must be synced.
pub(super) fn publish(disk: &dyn Disk, path: &Path, directory: &Path) -> Result<(), StorageError> {
    disk.rename(&temporary_path(path), path).map_err(StorageError::write("rename a file to", path))?;
    sync_directory(disk, directory)
}

/// Replaces a small file as a whole: after a crash it has either the old content or the new. It
/// takes no new space on the disk if space was [allocated](preallocate) for it.
pub(crate) fn replace(disk: &dyn Disk, path: &Path, directory: &Path, content: &[u8]) -> Result<(), StorageError> {
    let temporary = temporary_path(path);
    // Not truncated first, so that its allocated blocks are reused.
    let file = disk.open(&temporary, Access::Continue).map_err(StorageError::write("create", &temporary))?;
    file.write_all_at(content, 0).map_err(StorageError::write("write to", &temporary))?;
    file.set_length(content.len() as u64).map_err(StorageError::write("cut", &temporary))?;
    file.sync_all().map_err(StorageError::write("sync", &temporary))?;
    publish(disk, path, directory)
}

/// Allocates this many bytes for the next [`replace`] of a file, so that a full disk does not make
/// it fail.
pub(crate) fn preallocate(disk: &dyn Disk, path: &Path, bytes: usize) -> Result<(), StorageError> {
    let temporary = temporary_path(path);
    let file = disk.open(&temporary, Access::Continue).map_err(StorageError::write("create", &temporary))?;
    file.write_all_at(&vec![0; bytes], 0).map_err(StorageError::write("write zeros to", &temporary))?;
    file.sync_all().map_err(StorageError::write("sync", &temporary))
}

/// Space allocated for a small file, in bytes: two blocks, more than an identity with a hundred
/// founders takes.
pub(crate) const RESERVE: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SystemDisk;

    #[test]
    fn record_that_cannot_be_understood_is_refused() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Record {
            format: u32,
            number: u32,
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record.json");
        let read = || read_record::<Record>(&SystemDisk, &path, 2);
        assert_eq!(read().unwrap(), None);
        for (content, complaint) in [
            ("{", "cannot be understood"),
            (r#"{"format":9,"other":{}}"#, "is in format 9"),
            (r#"{"format":2}"#, "cannot be understood"),
            (r#"{"format":2,"number":7,"more":1}"#, "cannot be understood"),
        ] {
            std::fs::write(&path, content).unwrap();
            let refusal = read().unwrap_err().to_string();
            assert!(refusal.contains(complaint), "{content}: {refusal}");
        }
        std::fs::write(&path, r#"{"format":2,"number":7}"#).unwrap();
        assert_eq!(read().unwrap(), Some(Record { format: 2, number: 7 }));
    }
}
