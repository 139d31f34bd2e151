//! Mutants of the server: what looks for bugs here would find them.
//!
//! What the models' [mutants](palisade_model::mutants) are for the protocol, these are for the code around it: the driver,
//! the desk, the write-ahead log, recovery, the peers, the client. The lists are in `conformance/mutants/`; each bug is a
//! replacement of a text that stands exactly once in a file of a package. All of them are put into one copy of the
//! workspace, each behind a [switch](palisade_model::mutants::with_switches), its programs are built once, and the part of
//! this crate whose list a bug is on looks for it with what it demands of the sound server. A bug that it does not find
//! *survives*, and fails the command; so does one that shows otherwise than the list says, and one that is seen where none
//! is on.
//!
//! [`Finder`] is what such a part must know. [`mutants`] has the build.

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

/// A bug of the server, and who finds it.
#[derive(Debug)]
pub struct Mutant {
    entry: Entry,
    finder: Box<dyn Finder>,
}

/// What every list says of a bug.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Why what it breaks is there.
    why: String,
    /// The folder of the package that it changes.
    #[serde(default = "server")]
    package: String,
    /// The file that it changes, within the package's `src`.
    file: PathBuf,
    /// The text that it replaces.
    replace: String,
    /// What stands there instead.
    with: String,
}

fn server() -> String {
    "runtime".to_owned()
}

/// A part of this crate that finds a bug, and what its list says of how.
pub trait Finder: Debug {
    /// The part's name, as a command.
    fn part(&self) -> &'static str;

    /// The test that it runs, if it runs one, as `cargo test` is told which: built beforehand, so that the build is not part
    /// of the time that it has.
    fn test(&self) -> Option<&str> {
        None
    }

    /// Looks for the bug.
    ///
    /// # Errors
    /// If it cannot look.
    fn run(&self, build: &MutantBuild<'_>) -> Result<Verdict, Error>;
}

/// What came of a hunt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bug was found: by what, and what it broke. The same finds nothing in the server without it.
    Caught(String),
    /// Something was found, but not what the list says.
    Otherwise(String),
    /// Nothing was found, in so much.
    Survived(String),
}

/// Why the bugs could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program cannot be started, or what is found not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file cannot be read or written, or a bug does not fit the source.
    #[error(transparent)]
    Switches(#[from] switched::Error),
    /// A list is not one.
    #[error("{}: {source}", .path.display())]
    List {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<toml::de::Error>,
    },
    /// There is no such bug.
    #[error("no list has a mutant called {0}")]
    Unknown(String),
    /// The copy does not build.
    #[error("the copy with the mutants does not build:\n{0}")]
    Build(String),
    /// A part of this crate broke off.
    #[error("{0}")]
    Hunt(String),
}

impl Mutant {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// The file that it changes, below the workspace.
    fn path(&self) -> PathBuf {
        Path::new(&self.entry.package).join("src").join(&self.entry.file)
    }

    /// As the switches take it.
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

/// The parts of this crate that find bugs: the folders of their lists.
pub const PARTS: [&str; 4] = ["replay", "sim", "torture", "test"];

/// Every bug of every list.
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

/// The bugs that one part is to find: all lists in the folder of its name, file by file.
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
    let mutant = |mut told: toml::Table| {
        let is_common = |key: &str| ["name", "why", "package", "file", "replace", "with"].contains(&key);
        let keys: Vec<String> = told.keys().filter(|key| is_common(key)).cloned().collect();
        let entry: toml::Table =
            keys.into_iter().filter_map(|key| told.remove(&key).map(|value| (key, value))).collect();
        Ok((entry.try_into()?, told.try_into()?))
    };
    list.mutant.into_iter().map(mutant).collect()
}

/// Those of the bugs that are named; without names, all.
///
/// # Errors
/// If there is no such bug.
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

    /// The lists cannot rot unnoticed.
    #[test]
    fn every_bug_fits_the_source_and_has_a_name_of_its_own() {
        let mutants = mutants().unwrap();
        assert!(mutants.len() >= 45, "there are only {}", mutants.len());
        let names: BTreeSet<&str> = mutants.iter().map(Mutant::name).collect();
        assert_eq!(names.len(), mutants.len());
        for mutant in &mutants {
            let package = &mutant.entry.package;
            let is_switched = build::ROOTS.iter().any(|root| root.starts_with(&format!("{package}/")));
            assert!(is_switched, "{}: {package} has no switches", mutant.name());
            let source = fs::read_to_string(workspace().join(mutant.path())).unwrap();
            with_switches(&source, &[(0, &mutant.switched())]).unwrap();
            assert!(mutant.entry.why.ends_with('.'), "{}: why is a sentence", mutant.name());
        }
    }

    #[test]
    fn a_list_says_nothing_that_nobody_knows() {
        let told = |more: &str| {
            let text = format!(
                "[[mutant]]\nname = 'n'\nwhy = 'w.'\nfile = 'f'\nreplace = 'r'\nwith = 'v'\nbreaks = ['p']\nseeds = 1\n{more}"
            );
            parse::<sim::mutants::Finder>(&text).map(|mutants| mutants.len()).map_err(|error| error.to_string())
        };
        assert_eq!(told(""), Ok(1));
        assert!(told("weather = 'fair'").unwrap_err().contains("weather"));
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        assert!(matches!(chosen(mutants().unwrap(), &["no-such-mutant".to_owned()]), Err(Error::Unknown(_))));
    }
}
