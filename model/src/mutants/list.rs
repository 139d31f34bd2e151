//! The lists of mutants: what each changes, and which model must find it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::mutant::Mutant;
use super::switches::with_switches;
use super::{Error, at_path, read};
use crate::check::verdict::Expected;
use crate::liveness::checks;
use crate::models::models;
use crate::named::{Named, Tier};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

/// Every mutant of the lists in a folder, file by file in the order of the file names.
///
/// # Errors
/// If the folder or one of its lists cannot be read.
pub fn mutants(folder: &Path) -> Result<Vec<Mutant>, Error> {
    let entries = at_path(folder, fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>))?;
    let mut lists: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    lists.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    lists.sort_unstable();
    let mut all = Vec::new();
    for path in lists {
        let list: List =
            toml::from_str(&read(&path)?).map_err(|source| Error::Toml { path, source: Box::new(source) })?;
        all.extend(list.mutant);
    }
    Ok(all)
}

/// The properties that each model claims to hold, by the model's name.
pub struct Claims(BTreeMap<&'static str, Vec<&'static str>>);

impl Claims {
    /// The claims of the models that these mutants name. Reading a model's properties requires
    /// building the model, which takes a moment.
    pub fn of(mutants: &[Mutant]) -> Claims {
        let explored = |model: &Named| model.expected == Expected::Holds && model.tier != Tier::Random;
        let named = |model: &Named| explored(model) && mutants.iter().any(|mutant| mutant.model == model.name);
        let must_hold = |model: &Named| {
            let properties = model.model.properties().into_iter();
            properties.filter(|(_, possible)| !possible).map(|(property, _)| property).collect()
        };
        let safety: Vec<_> =
            models().iter().filter(|model| named(model)).map(|model| (model.name, must_hold(model))).collect();
        let checks = checks().into_iter().filter(|check| mutants.iter().any(|mutant| mutant.model == check.name));
        Claims(safety.into_iter().chain(checks.map(|check| (check.name, check.properties()))).collect())
    }
}

impl Mutant {
    /// Checks that the mutant fits the sources of a workspace, and that its model holds and has the
    /// property that must fail.
    ///
    /// # Errors
    /// If the mutant does not fit.
    pub fn fits(&self, workspace: &Path, claims: &Claims) -> Result<(), Error> {
        with_switches(&read(&self.path(workspace))?, &[(0, self)])?;
        let Some(properties) = claims.0.get(self.model.as_str()) else {
            return Err(self.unfit(format!("no model that is explored to its end is called {}", self.model)));
        };
        if properties.contains(&self.property.as_str()) {
            return Ok(());
        }
        Err(self.unfit(format!("the model {} claims no property {:?}", self.model, self.property)))
    }
}
