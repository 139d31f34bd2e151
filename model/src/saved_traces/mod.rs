//! Saved paths: each names its model and the choices made on the path.
//!
//! Conformance runs replay these paths on live servers (docs/conformance/replay.md). The model takes the
//! same choices again and produces the events. If a change of the protocol or of the model removes
//! the path, or the path does not show its property any more, loading the path fails, and [`make`]
//! finds another one.

pub mod make;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::models::models;
use crate::trace::{Trace, WALK};

/// A saved path. The first line of a trace as JSON has these fields, and more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTrace {
    /// The model's name.
    pub model: String,
    /// The property shown at the path's end; [`WALK`] for a random walk. For a mutant's trace, the
    /// property that fails with the mutant.
    pub property: String,
    /// The mutant whose trace this is: the part of a shortest path to its violation that the
    /// protocol allows without the mutant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutant: Option<String>,
    /// The index of the action taken, for each state.
    pub choices: Vec<usize>,
}

/// Why a saved path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SavedTraceError {
    /// A file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line is invalid.
    #[error("{}, line {line}: {what}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The defect.
        what: String,
    },
    /// The model does not have this path any more.
    #[error("{title} is no path of the model any more: find it again with `{again}`")]
    Gone {
        /// The path's title.
        title: String,
        /// The command that finds it again, or another one in its place.
        again: String,
    },
    /// A property that must always hold is violated on the path.
    #[error("{title}: \"{property}\" is violated on the way")]
    Violated {
        /// The path's title.
        title: String,
        /// The violated property.
        property: &'static str,
    },
}

impl SavedTrace {
    /// A title of one line.
    pub fn title(&self) -> String {
        let SavedTrace { model, property, mutant, choices } = self;
        let steps = choices.len();
        match mutant {
            Some(mutant) => format!("{model}, the trace of {mutant}, {steps} steps"),
            None => format!("{model}, \"{property}\", {steps} steps"),
        }
    }

    /// The command that finds the path again, or another one in its place.
    pub fn again(&self) -> String {
        match &self.mutant {
            Some(mutant) => format!("palisade-model mutants --traces FILE {mutant}"),
            None => format!("palisade-model keep {}", self.model),
        }
    }

    /// The path as the model produces it.
    ///
    /// # Errors
    /// If the model does not have the path, or the path does not show its property.
    pub fn trace(&self) -> Result<Trace, SavedTraceError> {
        let gone = || SavedTraceError::Gone { title: self.title(), again: self.again() };
        let models = models();
        let named = models.iter().find(|named| named.name == self.model).ok_or_else(gone)?;
        if self.mutant.is_some() || self.property == WALK {
            return named.model.retrace(WALK, &self.choices).ok_or_else(gone);
        }
        let is_known = named.model.properties().iter().any(|(known, _)| *known == self.property);
        let trace = is_known.then(|| named.model.retrace(&self.property, &self.choices)).flatten();
        trace.ok_or_else(gone)
    }

    /// Checks that the path violates no property that must always hold: a mutant's trace must be
    /// sound without the mutant.
    ///
    /// # Errors
    /// If a property is violated, or the model does not have the path.
    pub fn holds(&self) -> Result<(), SavedTraceError> {
        let models = models();
        let named = models.iter().find(|named| named.name == self.model);
        match named.and_then(|named| named.model.violated(&self.choices)) {
            Some(violated) => match violated.first() {
                Some(property) => Err(SavedTraceError::Violated { title: self.title(), property }),
                None => Ok(()),
            },
            None => Err(SavedTraceError::Gone { title: self.title(), again: self.again() }),
        }
    }
}

/// All saved paths of a file, one a line.
///
/// # Errors
/// If the file cannot be read.
pub fn read(path: &Path) -> Result<Vec<SavedTrace>, SavedTraceError> {
    let text = fs::read_to_string(path).map_err(|source| SavedTraceError::File { path: path.to_owned(), source })?;
    let line = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| SavedTraceError::Line {
            path: path.to_owned(),
            line: at + 1,
            what: error.to_string(),
        })
    };
    text.lines().enumerate().map(line).collect()
}

/// All saved paths of a folder, file by file in the order of the file names.
///
/// # Errors
/// If a file cannot be read.
pub fn read_all(folder: &Path) -> Result<Vec<SavedTrace>, SavedTraceError> {
    let failed = |source| SavedTraceError::File { path: folder.to_owned(), source };
    let entries: Vec<_> = fs::read_dir(folder).and_then(Iterator::collect).map_err(failed)?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort_unstable();
    let mut all = Vec::new();
    for file in files {
        all.extend(read(&file)?);
    }
    Ok(all)
}

/// Adds paths to a file, in place of those that `superseded` selects.
///
/// # Errors
/// If the file cannot be read or written.
pub fn replace(
    path: &Path,
    superseded: impl Fn(&SavedTrace) -> bool,
    by: Vec<SavedTrace>,
) -> Result<(), SavedTraceError> {
    let mut all = if path.exists() { read(path)? } else { Vec::new() };
    all.retain(|kept| !superseded(kept));
    all.extend(by);
    let order: Vec<&str> = models().iter().map(|model| model.name).collect();
    let index = |kept: &SavedTrace| order.iter().position(|name| *name == kept.model);
    all.sort_by(|one, other| (index(one), &one.mutant).cmp(&(index(other), &other.mutant)));
    let lines = all.iter().map(|kept| serde_json::to_string(kept).expect("paths are plain values") + "\n");
    fs::write(path, lines.collect::<String>()).map_err(|source| SavedTraceError::File { path: path.to_owned(), source })
}
