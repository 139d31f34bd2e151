//! Removing segments that nobody needs any more.
//!
//! A file system takes its time to give back the space of a large file, so that is done on a thread of its own. What
//! must be durable before it begins is, that the directory's identity no longer counts these segments. Then it does not
//! matter which of them a crash leaves behind: the next start removes them.

use std::fs;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use tracing::warn;

/// A removal under way. Dropping it waits for the end.
#[derive(Debug, Default)]
pub(super) struct Removal {
    thread: Option<JoinHandle<()>>,
}

impl Removal {
    /// Removes these files after those that are being removed already.
    pub(super) fn start(&mut self, files: Vec<PathBuf>) {
        if files.is_empty() {
            return;
        }
        self.wait();
        let remove = move || {
            for path in files {
                if let Err(error) = fs::remove_file(&path) {
                    warn!(file = %path.display(), %error, "a superfluous log segment could not be removed; the next start will try again");
                }
            }
        };
        match thread::Builder::new().name("wal-remove".into()).spawn(remove) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => warn!(%error, "superfluous log segments stay until the next start: no thread to remove them"),
        }
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that it has not logged.
            let _ = thread.join();
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.wait();
    }
}
