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
pub mod error;
pub(crate) mod list;
pub mod mutant;
pub mod programs;
pub mod replay;
pub mod sim;
pub mod test;
pub mod torture;

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use self::error::Error;
use self::mutant::{Finder, Mutant};

/// The parts of this crate that find mutants; also the folders of their lists.
pub const PARTS: [&str; 4] = ["replay", "sim", "torture", "test"];

/// All mutants of all lists.
///
/// # Errors
/// If a list cannot be read.
pub fn mutants() -> Result<Vec<Mutant>, Error> {
    let mut mutants = boxed::<replay::Finder>("replay")?;
    mutants.extend(boxed::<sim::Finder>("sim")?);
    mutants.extend(boxed::<torture::Finder>("torture")?);
    mutants.extend(boxed::<test::Finder>("test")?);
    Ok(mutants)
}

fn boxed<F: Finder + DeserializeOwned + 'static>(part: &str) -> Result<Vec<Mutant>, Error> {
    let mutants = list::entries::<F>(part)?.into_iter();
    Ok(mutants.map(|(entry, finder)| Mutant { entry, finder: Box::new(finder) }).collect())
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
    use std::fs;

    use palisade_model::mutants::with_switches;

    use super::build::workspace;
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
    fn unknown_mutant_name_is_an_error() {
        assert!(matches!(chosen(mutants().unwrap(), &["no-such-mutant".to_owned()]), Err(Error::Unknown(_))));
    }
}
