//! Removal of segments that the log does not need any more.
//!
//! A file system may take long to free the space of a large file, so a thread of its own removes
//! the segments. Before that, `identity.json` durably ceases to count them. Then it does not matter
//! which of them a crash leaves behind: the next start removes them.

use std::path::PathBuf;
use std::sync::Arc;

use tracing::warn;

use super::disk::{Beside, Disk};

/// The removal in progress, if any. Dropping it waits for the end.
#[derive(Debug, Default)]
pub(super) struct Removal {
    under_way: Beside,
}

impl Removal {
    /// Removes these files, after waiting for the removal in progress.
    pub(super) fn start(&mut self, disk: &Arc<dyn Disk>, files: Vec<PathBuf>) {
        if files.is_empty() {
            return;
        }
        std::mem::take(&mut self.under_way).join();
        let directory = Arc::clone(disk);
        let remove = move || {
            for path in files {
                if let Err(error) = directory.remove(&path) {
                    warn!(file = %path.display(), %error, "a superfluous log segment could not be removed; the next start tries again");
                }
            }
        };
        match disk.beside("wal-remove", Box::new(remove)) {
            Ok(under_way) => self.under_way = under_way,
            Err(error) => {
                warn!(%error, "no thread could be started to remove superfluous log segments; they stay until the next start")
            }
        }
    }
}
