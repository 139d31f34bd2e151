//! A mutant of the server, and the interface of the part that finds it.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use palisade_model::mutants as switched;
use serde::Deserialize;

use super::error::Error;
use super::programs::MutantBuild;

/// A mutant of the server and the part that finds it.
#[derive(Debug)]
pub struct Mutant {
    pub(super) entry: Entry,
    pub(super) finder: Box<dyn Finder>,
}

/// The fields that every list has for a mutant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Why the code that the mutant breaks is there.
    pub(super) why: String,
    /// The folder of the changed package.
    #[serde(default = "server")]
    pub(super) package: String,
    /// The changed file, within the package's `src`.
    file: PathBuf,
    /// The replaced text.
    replace: String,
    /// The replacement.
    with: String,
}

fn server() -> String {
    "runtime".to_owned()
}

impl Mutant {
    /// The mutant's name.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// The changed file, relative to the workspace.
    pub(super) fn path(&self) -> PathBuf {
        Path::new(&self.entry.package).join("src").join(&self.entry.file)
    }

    /// The mutant in the form that the switches need.
    pub(super) fn switched(&self) -> switched::Mutant {
        let Entry { name, why, package: _, file: _, replace, with } = self.entry.clone();
        let file = self.path();
        switched::Mutant { name, why, file, replace, with, model: String::new(), property: String::new() }
    }
}

/// A part of this crate that finds mutants, with the fields of its own list.
pub trait Finder: Debug {
    /// The part's name, as a command.
    fn part(&self) -> &'static str;

    /// The arguments of `cargo test` if the part runs a test. It is built beforehand, so that the
    /// build does not count towards the test's time limit.
    fn test(&self) -> Option<&str> {
        None
    }

    /// Looks for the mutant.
    ///
    /// # Errors
    /// If the part cannot run.
    fn run(&self, build: &MutantBuild<'_>) -> Result<Verdict, Error>;
}

/// The result for one mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The mutant was found: by what, and what it broke. The same run finds nothing without the
    /// mutant.
    Caught(String),
    /// Something was found, but not what the list says, or it was found without the mutant too.
    Otherwise(String),
    /// Nothing was found, in a run of this size.
    Survived(String),
}

impl Verdict {
    /// Judges a finding: `control` is the same run without the mutant, or what it finds too, and
    /// `is_meant` says whether the list expects this finding.
    pub(crate) fn of_finding(how: String, control: Result<(), String>, is_meant: bool) -> Verdict {
        match control {
            Err(also) => Verdict::Otherwise(format!("{how}, and without the mutant: {also}")),
            Ok(()) if is_meant => Verdict::Caught(how),
            Ok(()) => Verdict::Otherwise(how),
        }
    }
}
