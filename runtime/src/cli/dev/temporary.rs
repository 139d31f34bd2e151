//! The temporary directory of a cluster, which is removed even if `palisade dev` is killed.
//!
//! A second process, the remover, does that. The remover's standard input is a pipe whose other end
//! is held by `palisade dev` and by every node that it has started: the pipe ends when all of them
//! have ended, however they did.

use std::io::PipeWriter;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use clap::Args;

use super::super::child::this_program;
use super::super::print_error;

/// A temporary directory, and the process that removes it.
pub(super) struct TemporaryDirectory {
    path: PathBuf,
    remover: Child,
    /// Until the directory is no longer used.
    in_use: Option<PipeWriter>,
}

impl TemporaryDirectory {
    pub(super) fn create() -> std::io::Result<TemporaryDirectory> {
        let directory = tempfile::Builder::new().prefix("palisade-dev-").tempdir()?;
        let (reader, writer) = std::io::pipe()?;
        let remover = Command::new(this_program()?)
            .arg("remove-after-use")
            .arg(directory.path())
            .stdin(reader)
            .stdout(Stdio::null())
            // Keep the terminal's Ctrl-C away from the remover.
            .process_group(0)
            .spawn()?;
        Ok(TemporaryDirectory { path: directory.keep(), remover, in_use: Some(writer) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// For a process that uses the directory: its standard output keeps the directory.
    pub(super) fn hold(&self) -> std::io::Result<Stdio> {
        self.in_use.as_ref().map_or_else(|| Ok(Stdio::null()), |writer| Ok(writer.try_clone()?.into()))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        self.in_use = None;
        let _ = self.remover.wait();
    }
}

/// Remove a directory when standard input ends
#[derive(Debug, Args)]
pub(in super::super) struct RemoveAfterUse {
    directory: PathBuf,
}

impl RemoveAfterUse {
    pub(in super::super) fn run(self) -> ExitCode {
        // Nodes write nothing to their standard output; whatever comes is ignored.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            print_error(format!("cannot remove the temporary directory {}: {error}", self.directory.display()));
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}
