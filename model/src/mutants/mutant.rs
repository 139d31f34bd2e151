//! One mutant: what it changes, and what must find it.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Error;

/// A mutant.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// Its name.
    pub name: String,
    /// Why the rule that it breaks exists.
    pub why: String,
    /// The file that it changes, relative to `spec/src`.
    pub file: PathBuf,
    /// The text that it replaces. It occurs exactly once in the file.
    pub replace: String,
    /// The replacement.
    pub with: String,
    /// The model, or the check of liveness, that finds it.
    pub model: String,
    /// The property that fails.
    pub property: String,
}

impl Mutant {
    /// The source with the mutant in it.
    ///
    /// # Errors
    /// If the text to be replaced does not occur exactly once.
    pub fn mutate(&self, source: &str) -> Result<String, Error> {
        match source.matches(&self.replace).count() {
            1 if self.replace != self.with => Ok(source.replacen(&self.replace, &self.with, 1)),
            1 => Err(self.unfit("it changes nothing".to_string())),
            count => {
                let file = self.file.display();
                Err(self.unfit(format!("its text stands {count} times in {file}, and must stand there exactly once")))
            }
        }
    }

    /// The file that it changes.
    pub(super) fn path(&self, workspace: &Path) -> PathBuf {
        workspace.join("spec/src").join(&self.file)
    }

    pub(super) fn unfit(&self, detail: String) -> Error {
        Error::Unfit { mutant: self.name.clone(), detail }
    }
}
