//! Finding the paths that are kept: witnesses of what must be possible, and random walks. Scenes are found where the bugs
//! are ([`seeded`](crate::seeded)).

use std::path::Path;
use std::time::Instant;

use super::{Kept, KeptError, replace};
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
///
/// # Errors
/// If the folder cannot be written.
pub fn make(model: &Named, effort: Effort, folder: &Path) -> Result<String, KeptError> {
    let begun = Instant::now();
    let kept = |property: &str, choices| Kept {
        model: model.name.to_owned(),
        property: property.to_owned(),
        bug: None,
        choices,
    };
    let is_of_it = |kept: &Kept| kept.model == model.name;
    let (found, unmet) = if model.tier == Tier::Random {
        let walks = (1..=effort.walks).filter_map(|seed| model.model.wander(seed, effort.steps));
        let walks: Vec<Kept> = walks.map(|walk| kept(WALK, walk.choices)).collect();
        let found = format!("{} walks", walks.len());
        replace(&folder.join(WALKS), is_of_it, walks)?;
        (found, Vec::new())
    } else {
        let sought: Vec<&str> =
            model.model.properties().iter().filter(|(_, possible)| *possible).map(|known| known.0).collect();
        let witnesses = model.model.witnesses(&sought, effort.states);
        let is_met = |property: &&&str| witnesses.iter().any(|(met, _)| met == *property);
        let unmet: Vec<String> = sought
            .iter()
            .filter(|property| !is_met(property))
            .map(|property| format!("; not met: {property}"))
            .collect();
        let found = format!("{} witnesses", witnesses.len());
        let witnesses = witnesses.into_iter().map(|(property, choices)| kept(property, choices));
        replace(&folder.join(WITNESSES), is_of_it, witnesses.collect())?;
        (found, unmet)
    };
    Ok(format!("{:<24} {found}, {:.1} s{}", model.name, begun.elapsed().as_secs_f64(), unmet.concat()))
}
