//! Searches for the paths to save: witnesses of the properties that must be possible, and random
//! walks. The traces of mutants are saved by [`mutants`](crate::mutants).

use std::path::Path;
use std::time::Instant;

use super::{SavedTrace, SavedTraceError, read, replace};
use crate::named::{Named, Tier};
use crate::trace::WALK;

/// File name of the witnesses.
pub const WITNESSES: &str = "witnesses.jsonl";
/// File name of the walks.
pub const WALKS: &str = "walks.jsonl";

/// Limits of the search.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Maximum number of states of a model that the search for witnesses visits.
    pub states: usize,
    /// Number of random walks through a model of the random tier.
    pub walks: u64,
    /// Maximum number of steps of a walk.
    pub steps: usize,
}

/// Searches a model for its paths, replaces the model's saved paths in a folder, and returns a
/// summary line. A saved witness that the search does not reach stays as long as the model still
/// has it.
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
