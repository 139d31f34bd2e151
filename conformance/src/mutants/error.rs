//! Errors that keep mutants from being tried.

use std::io;
use std::path::PathBuf;

use palisade_model::mutants as switched;

/// Why the mutants could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program cannot be started, or the report cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file cannot be read or written, or a mutant does not fit the source.
    #[error(transparent)]
    Switches(#[from] switched::Error),
    /// A list does not parse.
    #[error("{}: {source}", .path.display())]
    List {
        /// The list's file.
        path: PathBuf,
        /// The parser's error.
        source: Box<toml::de::Error>,
    },
    /// No mutant has this name.
    #[error("no list has a mutant called {0}")]
    Unknown(String),
    /// The copy does not build.
    #[error("the copy with the mutants does not build:\n{0}")]
    Build(String),
    /// A part of this crate failed to run.
    #[error("{0}")]
    Run(String),
}
