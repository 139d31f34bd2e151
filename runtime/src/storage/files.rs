//! The three things that make a change of a directory durable, each done one way.
//!
//! A file's content and its name are durable separately: the content once the file is synced, the name once its
//! directory is. So a file that must be whole whenever it has its name is written under another name first
//! (`….tmp`), synced, renamed, and then its directory is synced. A `.tmp` that a crash left behind means nothing.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::StorageError;

/// The name under which a file is prepared.
pub(super) fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// Makes the directory's names durable.
pub(super) fn sync_directory(path: &Path) -> Result<(), StorageError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(StorageError::write("sync", path))
}

/// Gives the file prepared aside its name, durably. Its content must be synced.
pub(super) fn publish(path: &Path, directory: &Path) -> Result<(), StorageError> {
    fs::rename(aside(path), path).map_err(StorageError::write("rename a file to", path))?;
    sync_directory(directory)
}

/// Replaces a small file as a whole: after a crash it is the old one or the new one.
pub(crate) fn replace(path: &Path, directory: &Path, content: &[u8]) -> Result<(), StorageError> {
    let temporary = aside(path);
    let mut file = File::create(&temporary).map_err(StorageError::write("create", &temporary))?;
    file.write_all(content).map_err(StorageError::write("write to", &temporary))?;
    file.sync_all().map_err(StorageError::write("sync", &temporary))?;
    publish(path, directory)
}

/// Creates a directory and whatever is missing above it, durably.
pub(super) fn create_directory(path: &Path) -> Result<(), StorageError> {
    let absolute = std::path::absolute(path).map_err(StorageError::io("find", path))?;
    let missing: Vec<&Path> = absolute.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    fs::create_dir_all(&absolute).map_err(StorageError::io("create the data directory", path))?;
    for parent in missing.into_iter().filter_map(Path::parent) {
        sync_directory(parent)?;
    }
    Ok(())
}
