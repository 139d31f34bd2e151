//! `palisade keep-recording`, hidden: the other end of a node's recording (`recording::keeper`).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use palisade::recording;

/// Write down what standard input says.
#[derive(Debug, Args)]
pub(super) struct KeepRecording {
    /// The file to make if something had to be left out
    cut: PathBuf,
    /// How many bytes to write down at the most
    length: u64,
}

impl KeepRecording {
    pub(super) fn run(self) -> ExitCode {
        // Past the standard library's buffer, which would search all of it for line ends.
        let file = std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
        match file.and_then(|file| recording::keep(std::io::stdin().lock(), file, recording::QUEUE, self.length)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) | Err(_) => {
                let _ = File::create(self.cut);
                ExitCode::FAILURE
            }
        }
    }
}
