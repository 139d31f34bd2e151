//! The programs of a copy of the workspace that contains the mutants.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_model::mutants::ON;

/// The built programs that contain the mutants.
#[derive(Debug)]
pub struct MutantBuilds {
    /// The copied source.
    pub(super) copy: PathBuf,
    /// The folder of the programs.
    pub(super) folder: PathBuf,
    /// A file lock held as long as the programs are in use: another run waits for it.
    pub(super) _only: File,
}

/// The programs with one mutant enabled, or with none.
#[derive(Clone, Copy, Debug)]
pub struct MutantBuild<'a> {
    copy: &'a Path,
    folder: &'a Path,
    number: Option<usize>,
}

impl MutantBuilds {
    /// The programs with the mutant of this number enabled.
    pub fn with(&self, number: usize) -> MutantBuild<'_> {
        MutantBuild { copy: &self.copy, folder: &self.folder, number: Some(number) }
    }
}

impl MutantBuild<'_> {
    /// The same programs without a mutant: a finding there is not the mutant's.
    pub fn sound(self) -> Self {
        MutantBuild { number: None, ..self }
    }

    /// A run of this crate's program, with the mutant enabled in the server's code that the program
    /// contains.
    pub fn conformance(&self) -> Command {
        let mut command = Command::new(self.conformance_program());
        command.env(ON, self.on());
        command
    }

    /// This crate's program. The mutant is enabled in a process that is started with [`ON`] set to
    /// [`MutantBuild::on`], and in that process's children.
    pub fn conformance_program(&self) -> PathBuf {
        self.folder.join("palisade-conformance")
    }

    /// A test of the workspace, given as the arguments of `cargo test`, with the mutant enabled in
    /// the test and its children.
    pub fn test(&self, which: &str) -> Command {
        let target = self.folder.parent().expect("programs are in the target folder");
        let mut command = cargo("test", self.copy, target);
        command.args(which.split_whitespace());
        // Recordings of a mutant are not for validation.
        command.env(ON, self.on()).env_remove("PALISADE_TEST_RECORDINGS");
        command
    }

    /// The value of [`ON`] that enables the mutant.
    pub fn on(&self) -> String {
        self.number.map(|number| number.to_string()).unwrap_or_default()
    }
}

/// A command of cargo for the copy.
pub(super) fn cargo(does: &str, copy: &Path, target: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(copy).args([does, "--locked", "--profile", "mutants", "--target-dir"]).arg(target);
    cargo
}
