//! Removing segments that are not needed any more.
//!
//! A file system takes its time to give back the space of a large file, so that is done on a thread of its own. What
//! must be durable before it begins is, that the directory's identity no longer counts these segments. Then it does not
//! matter which of them a crash leaves behind: the next start removes them.

use std::path::PathBuf;
use std::sync::Arc;

use tracing::warn;

use super::disk::{Beside, Disk};

/// A removal, if one is under way. Dropping it waits for the end.
#[derive(Debug, Default)]
pub(super) struct Removal {
    under_way: Beside,
}

impl Removal {
    /// Removes these files after those that are being removed already.
    pub(super) fn start(&mut self, disk: &Arc<dyn Disk>, files: Vec<PathBuf>) {
        if files.is_empty() {
            return;
        }
        std::mem::take(&mut self.under_way).join();
        let directory = Arc::clone(disk);
        let remove = move || {
            for path in files {
                if let Err(error) = directory.remove(&path) {
                    warn!(file = %path.display(), %error, "a superfluous log segment could not be removed; the next start will try again");
                }
            }
        };
        match disk.beside("wal-remove", Box::new(remove)) {
            Ok(under_way) => self.under_way = under_way,
            Err(error) => warn!(%error, "superfluous log segments stay until the next start: no thread to remove them"),
        }
    }
}
