//! `palisade keep-recording`, hidden: the process that writes a node's recording to its file
//! (`recording::keeper`).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use palisade::recording;

/// Copy a recording from standard input to standard output
#[derive(Debug, Args)]
pub(super) struct KeepRecording {
    /// The file to create if records had to be dropped
    cut: PathBuf,
    /// Maximum number of bytes to write
    length: u64,
}

impl KeepRecording {
    pub(super) fn run(self) -> ExitCode {
        // Bypass the standard library's line buffer, which would search all bytes for line ends.
        let file = std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
        match file.and_then(|file| recording::keep(std::io::stdin().lock(), file, recording::QUEUE, self.length)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) | Err(_) => {
                let _ = recording::mark_as_cut(&self.cut);
                ExitCode::FAILURE
            }
        }
    }
}
