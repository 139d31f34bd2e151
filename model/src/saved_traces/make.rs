//! Finding the paths that are kept: witnesses of what must be possible, and random walks. Scenes are found where the bugs
//! are ([`mutants`](crate::mutants)).

use std::path::Path;
use std::time::Instant;

use super::{SavedTrace, SavedTraceError, read, replace};
use crate::models::{Named, Tier};
use crate::trace::WALK;

/// The file of the witnesses.
pub const WITNESSES: &str = "witnesses.jsonl";
/// The file of the walks.
pub const WALKS: &str = "walks.jsonl";

/// How much is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Through so many states of a model witnesses are sought.
    pub states: usize,
    /// So many random walks through a model that is made for them.
    pub walks: u64,
    /// How long a walk may be.
    pub steps: usize,
}

/// Finds the paths of a model again, puts them in the place of those that a folder has, and says in a line what was found.
/// A witness that the search does not meet, and that the folder has from another one, stays as long as the model has it.
///
/// # Errors
/// If the folder cannot be written.
pub fn make(model: &Named, effort: Effort, folder: &Path) -> Result<String, SavedTraceError> {
    let begun = Instant::now();
    let kept = |property: &str, choices| SavedTrace {
        model: model.name.to_owned(),
        property: property.to_owned(),
        mutant: None,
        choices,
    };
    let is_of_it = |kept: &SavedTrace| kept.model == model.name;
    let (found, unmet) = if model.tier == Tier::Random {
        let walks = (1..=effort.walks).filter_map(|seed| model.model.wander(seed, effort.steps));
        let walks: Vec<SavedTrace> = walks.map(|walk| kept(WALK, walk.choices)).collect();
        let found = format!("{} walks", walks.len());
        replace(&folder.join(WALKS), is_of_it, walks)?;
        (found, String::new())
    } else {
        let sought: Vec<&str> =
            model.model.properties().iter().filter(|(_, possible)| *possible).map(|known| known.0).collect();
        let witnesses = model.model.witnesses(&sought, effort.states);
        let is_met = |property: &str| witnesses.iter().any(|(met, _)| *met == property);
        let file = folder.join(WITNESSES);
        let mut earlier = if file.exists() { read(&file)? } else { Vec::new() };
        let is_sought = |kept: &SavedTrace| is_of_it(kept) && sought.contains(&kept.property.as_str());
        earlier.retain(|kept| is_sought(kept) && !is_met(&kept.property) && kept.trace().is_ok());
        let stays = |property: &str| earlier.iter().any(|kept| kept.property == property);
        let unmet = sought.iter().filter(|property| !is_met(property)).map(|property| {
            let what = if stays(property) { "not met again, its path stays" } else { "not met" };
            format!("; {what}: {property}")
        });
        let unmet: String = unmet.collect();
        let found = format!("{} witnesses", witnesses.len());
        let witnesses = witnesses.into_iter().map(|(property, choices)| kept(property, choices)).chain(earlier);
        replace(&file, is_of_it, witnesses.collect())?;
        (found, unmet)
    };
    Ok(format!("{:<24} {found}, {:.1} s{unmet}", model.name, begun.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::models;

    #[test]
    fn a_witness_that_is_not_met_again_stays() {
        let models = models();
        let model = models.iter().find(|named| named.name == "raft-votes").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let effort = |states| Effort { states, walks: 1, steps: 1 };
        let told = make(model, effort(1), directory.path()).unwrap();
        assert!(told.contains("0 witnesses") && told.contains("; not met: "), "{told}");
        make(model, effort(100_000), directory.path()).unwrap();
        let file = directory.path().join(WITNESSES);
        let kept = read(&file).unwrap();
        assert!(!kept.is_empty());

        let told = make(model, effort(1), directory.path()).unwrap();
        assert!(told.contains("; not met again, its path stays: "), "{told}");
        assert_eq!(read(&file).unwrap(), kept);

        let gone = SavedTrace { choices: vec![usize::MAX], ..kept[0].clone() };
        replace(&file, |_| true, vec![gone]).unwrap();
        make(model, effort(1), directory.path()).unwrap();
        assert_eq!(read(&file).unwrap(), [], "what the model does not have any more is not kept");
    }
}
