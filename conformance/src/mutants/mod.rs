//! Mutants of the server: they show that this crate's checks find bugs.
//!
//! The models' [mutants](palisade_model::mutants) test the protocol's checks; these test the checks
//! of the code around it: the driver, the pending requests, the write-ahead log, recovery, the
//! peers and the client. The lists are in `conformance/mutants/`; a mutant replaces a text that
//! occurs exactly once in a file of a package. All mutants are put into one copy of the workspace,
//! each behind a [switch](palisade_model::mutants::with_switches), and the programs are built once.
//! The part of this crate whose list a mutant is on then looks for it with the same checks that it
//! applies to the unchanged server. The command fails if a mutant *survives* (no check finds it),
//! if it shows in another way than the list says, or if the finding shows without the mutant too.
//!
//! [`Finder`] is the interface of such a part. [`build`] builds the programs.

pub mod build;
pub mod command;
pub mod test;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::{fs, io};

use palisade_model::mutants as switched;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::build::MutantBuild;
use crate::{replay, sim, torture};

/// A mutant of the server and the part that finds it.
#[derive(Debug)]
pub struct Mutant {
    entry: Entry,
    finder: Box<dyn Finder>,
}

/// The fields that every list has for a mutant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Why the code that the mutant breaks is there.
    why: String,
    /// The folder of the changed package.
    #[serde(default = "server")]
    package: String,
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
    Hunt(String),
}

impl Mutant {
    /// The mutant's name.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// The changed file, relative to the workspace.
    fn path(&self) -> PathBuf {
        Path::new(&self.entry.package).join("src").join(&self.entry.file)
    }

    /// The mutant in the form that the switches need.
    fn switched(&self) -> switched::Mutant {
        let Entry { name, why, package: _, file: _, replace, with } = self.entry.clone();
        let file = self.path();
        switched::Mutant { name, why, file, replace, with, model: String::new(), property: String::new() }
    }
}

/// The workspace whose server is changed.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The parts of this crate that find mutants; also the folders of their lists.
pub const PARTS: [&str; 4] = ["replay", "sim", "torture", "test"];

/// All mutants of all lists.
///
/// # Errors
/// If a list cannot be read.
pub fn mutants() -> Result<Vec<Mutant>, Error> {
    let mut mutants = boxed::<replay::mutants::Finder>("replay")?;
    mutants.extend(boxed::<sim::mutants::Finder>("sim")?);
    mutants.extend(boxed::<torture::mutants::Finder>("torture")?);
    mutants.extend(boxed::<test::Finder>("test")?);
    Ok(mutants)
}

fn boxed<F: Finder + DeserializeOwned + 'static>(part: &str) -> Result<Vec<Mutant>, Error> {
    let mutants = bugs_of::<F>(part)?.into_iter();
    Ok(mutants.map(|(entry, finder)| Mutant { entry, finder: Box::new(finder) }).collect())
}

/// The mutants that one part must find: all lists in the folder of that name, file by file.
///
/// # Errors
/// If a list cannot be read.
pub(crate) fn bugs_of<F: DeserializeOwned>(part: &str) -> Result<Vec<(Entry, F)>, Error> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants").join(part))?;
    let mut lists = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    lists.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    lists.sort_unstable();
    let mut mutants = Vec::new();
    for path in lists {
        let list = parse(&fs::read_to_string(&path)?);
        mutants.extend(list.map_err(|source| Error::List { path, source: Box::new(source) })?);
    }
    Ok(mutants)
}

fn parse<F: DeserializeOwned>(text: &str) -> Result<Vec<(Entry, F)>, toml::de::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct List {
        mutant: Vec<toml::Table>,
    }
    let list: List = toml::from_str(text)?;
    let mutant = |mut fields: toml::Table| {
        let is_common = |key: &str| ["name", "why", "package", "file", "replace", "with"].contains(&key);
        let keys: Vec<String> = fields.keys().filter(|key| is_common(key)).cloned().collect();
        let entry: toml::Table =
            keys.into_iter().filter_map(|key| fields.remove(&key).map(|value| (key, value))).collect();
        Ok((entry.try_into()?, fields.try_into()?))
    };
    list.mutant.into_iter().map(mutant).collect()
}

/// The mutants with these names; without names, all.
///
/// # Errors
/// If no mutant has one of the names.
fn chosen(mut mutants: Vec<Mutant>, names: &[String]) -> Result<Vec<Mutant>, Error> {
    let known: BTreeSet<&str> = mutants.iter().map(Mutant::name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name.as_str())) {
        return Err(Error::Unknown(unknown.clone()));
    }
    mutants.retain(|mutant| names.is_empty() || names.contains(&mutant.entry.name));
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use palisade_model::mutants::with_switches;

    use super::*;

    /// Goal: every mutant fits the present source.
    #[test]
    fn every_mutant_fits_the_source_and_has_a_unique_name() {
        let mutants = mutants().unwrap();
        assert!(mutants.len() >= 45, "only {} mutants", mutants.len());
        let names: BTreeSet<&str> = mutants.iter().map(Mutant::name).collect();
        assert_eq!(names.len(), mutants.len());
        for mutant in &mutants {
            let package = &mutant.entry.package;
            let is_switched = build::ROOTS.iter().any(|root| root.starts_with(&format!("{package}/")));
            assert!(is_switched, "{}: {package} has no switches", mutant.name());
            let source = fs::read_to_string(workspace().join(mutant.path())).unwrap();
            with_switches(&source, &[(0, &mutant.switched())]).unwrap();
            assert!(mutant.entry.why.ends_with('.'), "{}: `why` must be a sentence", mutant.name());
        }
    }

    #[test]
    fn unknown_field_of_a_list_is_rejected() {
        let parsed = |more: &str| {
            let text = format!(
                "[[mutant]]\nname = 'n'\nwhy = 'w.'\nfile = 'f'\nreplace = 'r'\nwith = 'v'\nbreaks = ['p']\nseeds = 1\n{more}"
            );
            parse::<sim::mutants::Finder>(&text).map(|mutants| mutants.len()).map_err(|error| error.to_string())
        };
        assert_eq!(parsed(""), Ok(1));
        assert!(parsed("weather = 'fair'").unwrap_err().contains("weather"));
    }

    #[test]
    fn unknown_mutant_name_is_an_error() {
        assert!(matches!(chosen(mutants().unwrap(), &["no-such-mutant".to_owned()]), Err(Error::Unknown(_))));
    }
}
