//! Paths that are kept, to be taken again: each as the model that it is a path of, and the choices made on it.
//!
//! They are what live servers are made to go through (docs/conformance.md). The model does the rest: it takes the same
//! choices again, and tells what happens. If the protocol or the model has changed so that a path does not exist any more, or
//! does not show what it is there to show, that is noticed then, and [`make`] finds another one.

pub mod make;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::models::models;
use crate::trace::{Trace, WALK};

/// A path that is kept. The first line of a trace as JSON has these, and more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedTrace {
    /// The model.
    pub model: String,
    /// What it shows at its end; [`WALK`] if it shows nothing. Of a scene, what does not hold with the bug.
    pub property: String,
    /// The mutant whose scene it is: on a shortest path the bug would show, and this is as much of that path as there is
    /// without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutant: Option<String>,
    /// Which of the possible actions is taken, in each state.
    pub choices: Vec<usize>,
}

/// Why there is no such path.
#[derive(Debug, thiserror::Error)]
pub enum SavedTraceError {
    /// A file cannot be read or written.
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
    #[error("{title} is no path of the model any more: find it again with `{again}`")]
    Gone {
        /// What it was.
        title: String,
        /// The command that finds it, or another one in its place.
        again: String,
    },
    /// What must hold does not.
    #[error("{title}: \"{property}\" is violated on the way")]
    Violated {
        /// What it is.
        title: String,
        /// What does not hold.
        property: &'static str,
    },
}

impl SavedTrace {
    /// What it is, in a line.
    pub fn title(&self) -> String {
        let SavedTrace { model, property, mutant, choices } = self;
        let steps = choices.len();
        match mutant {
            Some(mutant) => format!("{model}, the scene of {mutant}, {steps} steps"),
            None => format!("{model}, \"{property}\", {steps} steps"),
        }
    }

    /// The command that finds it, or another one in its place.
    pub fn again(&self) -> String {
        match &self.mutant {
            Some(mutant) => format!("palisade-model mutants --traces FILE {mutant}"),
            None => format!("palisade-model keep {}", self.model),
        }
    }

    /// The path, told by the model.
    ///
    /// # Errors
    /// If the model has no such path, or it does not show what it is kept for.
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

    /// Makes sure that on the way nothing is violated that must hold: of a scene, that it was the bug's doing.
    ///
    /// # Errors
    /// If something is, or the model has no such path.
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

/// All that a file has, a line for each.
///
/// # Errors
/// If it cannot be read.
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

/// All that a folder has, file by file in the order of their names.
///
/// # Errors
/// If one cannot be read.
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

/// Puts paths into a file, in the place of those that `superseded` names.
///
/// # Errors
/// If it cannot be read or written.
pub fn replace(
    path: &Path,
    superseded: impl Fn(&SavedTrace) -> bool,
    by: Vec<SavedTrace>,
) -> Result<(), SavedTraceError> {
    let mut all = if path.exists() { read(path)? } else { Vec::new() };
    all.retain(|kept| !superseded(kept));
    all.extend(by);
    let order: Vec<&str> = models().iter().map(|model| model.name).collect();
    let place = |kept: &SavedTrace| order.iter().position(|name| *name == kept.model);
    all.sort_by(|one, other| (place(one), &one.mutant).cmp(&(place(other), &other.mutant)));
    let lines = all.iter().map(|kept| serde_json::to_string(kept).expect("paths are plain values") + "\n");
    fs::write(path, lines.collect::<String>()).map_err(|source| SavedTraceError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(model: &str, mutant: Option<&str>, choices: &[usize]) -> SavedTrace {
        let mutant = mutant.map(str::to_owned);
        SavedTrace { model: model.into(), property: WALK.into(), mutant, choices: choices.into() }
    }

    #[test]
    fn what_is_found_again_takes_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("paths.jsonl");
        let (raft, locks) = (kept("raft", None, &[1, 2]), kept("locks", Some("a mutant"), &[3]));
        replace(&file, |_| false, vec![locks.clone(), raft.clone()]).unwrap();
        assert_eq!(read(&file).unwrap(), [raft.clone(), locks.clone()], "as `palisade-model list` has the models");
        let other = kept("raft", None, &[4]);
        replace(&file, |kept| kept.model == "raft", vec![other.clone()]).unwrap();
        assert_eq!(read_all(directory.path()).unwrap(), [other, locks]);
    }

    #[test]
    fn a_path_that_is_gone_says_how_another_one_is_found() {
        let far = kept("raft-votes", None, &[usize::MAX]);
        let told = far.trace().unwrap_err().to_string();
        assert!(told.contains("find it again with `palisade-model keep raft-votes`"), "{told}");
        let scene =
            SavedTrace { property: "one vote a term".into(), ..kept("raft-votes", Some("vote-twice"), &[usize::MAX]) };
        let told = scene.trace().unwrap_err().to_string();
        assert!(told.contains("`palisade-model mutants --traces FILE vote-twice`"), "{told}");
        assert!(scene.holds().is_err(), "what cannot be taken shows nothing");
        let models = models();
        let named = models.iter().find(|named| named.name == "raft-votes").unwrap();
        let walk = kept("raft-votes", None, &named.model.wander(1, 3).unwrap().choices);
        assert_eq!((walk.trace().unwrap().steps.len(), walk.holds().is_ok()), (3, true));
    }
}
