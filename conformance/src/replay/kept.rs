//! The traces that are kept: paths that take long to find, each as the model it is a path of and the choices made on it.
//!
//! The model does the rest: it takes the same choices again and tells the trace as `palisade-model trace --json` does. If the
//! protocol or the model has changed so that the path does not exist any more, or does not show any more what it is there to
//! show, that is noticed here.

use std::fs;
use std::path::{Path, PathBuf};

use palisade_model::models::models;
use serde::{Deserialize, Serialize};

use super::trace::{Trace, TraceError};

/// A kept trace. The first line of a trace as JSON has these, and more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The model.
    pub model: String,
    /// What it shows at its end; `random walk` if it shows nothing.
    pub property: String,
    /// The seeded bug that would show at its end, if it is there for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bug: Option<String>,
    /// Which of the possible actions is taken, in each state.
    pub choices: Vec<usize>,
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// A file cannot be read.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A line says what makes no sense.
    #[error("{}, line {line}: {what}", .path.display())]
    Line {
        /// Of which file.
        path: PathBuf,
        /// Which, counted from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The model has no such path any more.
    #[error("{0} is no trace of the model any more: find it again with {1}")]
    Gone(String, String),
    /// The model tells what is no trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl Kept {
    /// What it is, in a line.
    pub fn title(&self) -> String {
        let Kept { model, property, bug, choices } = self;
        let steps = choices.len();
        match bug {
            Some(bug) => format!("{model}, the scene of the bug {bug}, {steps} steps"),
            None => format!("{model}, \"{property}\", {steps} steps"),
        }
    }

    /// The trace, told by the model.
    ///
    /// # Errors
    /// If the model has no such path.
    pub fn trace(&self) -> Result<Trace, KeptError> {
        let Kept { model, property, choices, .. } = self;
        let again = || format!("palisade-model trace {model} --property \"{property}\" --json");
        let gone = || KeptError::Gone(self.title(), again());
        let models = models();
        let named = models.iter().find(|named| named.name == model).ok_or_else(gone)?;
        let is_known = |property: &str| named.model.properties().iter().any(|(known, _)| *known == property);
        if property != palisade_model::trace::WALK && !is_known(property) {
            return Err(gone());
        }
        let trace = named.model.retrace(property, choices).ok_or_else(gone)?;
        Ok(Trace::read(trace.lines(model))?)
    }
}

/// Where the project's own are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces")
}

/// All that a folder has, file by file in the order of their names.
///
/// # Errors
/// If one cannot be read.
pub fn all(folder: &Path) -> Result<Vec<Kept>, KeptError> {
    let failed = |source| KeptError::File { path: folder.to_owned(), source };
    let entries: Vec<_> = fs::read_dir(folder).and_then(Iterator::collect).map_err(failed)?;
    let mut files: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort_unstable();
    let mut all = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).map_err(|source| KeptError::File { path: path.clone(), source })?;
        for (at, line) in text.lines().enumerate() {
            let kept = serde_json::from_str(line);
            let wrong = |error: serde_json::Error| KeptError::Line {
                path: path.clone(),
                line: at + 1,
                what: error.to_string(),
            };
            all.push(kept.map_err(wrong)?);
        }
    }
    Ok(all)
}
