//! Running the checker to its end, and saying honestly what came of it.
//!
//! stateright's own report says "done" also of a run that was cut short, and prints violations without failing. So the
//! verdict is made here: a run passes if the checker came to its end before any limit, no property that must hold was
//! violated, and every property that must be possible was met.

use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Model};

use crate::expected_counts;
use crate::models::{Expected, Named, Tier};
use crate::presentation::Representative;
use crate::progress::{Memory, Watch};
use crate::property_set::{PropertySet, Way};

/// How much is explored, and with how much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// With how many threads.
    pub threads: usize,
    /// At most about so many states are generated.
    pub states: Option<usize>,
    /// It takes at most about so long.
    pub time: Option<Duration>,
    /// Under this name it is said from time to time how far the run is; without a name, never.
    pub name: Option<&'static str>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// States that were generated, and how many of them were different.
    pub states: (usize, usize),
    /// The longest path that was followed.
    pub depth: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// Properties that must hold and do not.
    pub violated: Vec<&'static str>,
    /// Properties that must be possible and were not met.
    pub unmet: Vec<&'static str>,
    /// Why the run ended.
    pub end: End,
    /// How much memory it took, if that is known.
    pub memory: Option<Memory>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There was nothing left to explore.
    Exhausted,
    /// Every property had been violated or met: there was nothing left to find out.
    Decided,
    /// A limit was reached. What was not seen may still be there.
    Cut,
}

impl Verdict {
    /// Whether everything is as it must be.
    pub fn passes(&self) -> bool {
        self.is_as(Expected::Holds)
    }

    /// Whether the number of different states is the one that is pinned. A run that ended early does not know it.
    pub fn is_pinned(&self, unique: usize) -> bool {
        self.end != End::Exhausted || self.states.1 == unique
    }

    /// Whether everything is as expected: nothing but the expected property is violated, everything that must be possible
    /// was met, and the run was not cut short.
    pub fn is_as(&self, expected: Expected) -> bool {
        let as_told = match expected {
            Expected::Holds => self.violated.is_empty(),
            Expected::Violates(property) => self.violated == [property],
        };
        as_told && self.unmet.is_empty() && self.end != End::Cut
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (generated, unique) = self.states;
        #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
        let rate = generated as f64 / self.elapsed.as_secs_f64() / 1e6;
        let (depth, seconds) = (self.depth, self.elapsed.as_secs_f64());
        write!(f, "{generated} generated, {unique} unique, depth {depth}, {seconds:.1} s, {rate:.2} M/s")?;
        if let Some(memory) = self.memory {
            write!(f, ", peak {}", memory.peak)?;
            // Of fewer it would say what the process needs by itself.
            if unique >= 100_000 {
                write!(f, ", {} B per unique state", memory.growth.0 / unique as u64)?;
            }
        }
        for property in &self.violated {
            write!(f, "; VIOLATED: {property}")?;
        }
        for property in &self.unmet {
            write!(f, "; never met: {property}")?;
        }
        match self.end {
            End::Exhausted => write!(f, "; exhaustive"),
            End::Decided => write!(f, "; ended when all was decided"),
            End::Cut => write!(f, "; INCOMPLETE: a limit was reached, what was not seen may still be there"),
        }
    }
}

/// Explores everything, depth first. Without `representative`, all states are different that are not equal.
pub fn exhaust<M>(model: M, representative: Option<Representative<M::State>>, threads: usize) -> Verdict
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    explore(model, representative, &Effort { threads, ..Effort::default() })
}

/// Explores, depth first, until nothing is left or a limit is reached.
///
/// # Panics
/// If the model does.
pub fn explore<M>(model: M, representative: Option<Representative<M::State>>, effort: &Effort) -> Verdict
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let mut checker = PropertySet::new(model, Way::Everywhere).checker().threads(effort.threads);
    if let Some(representative) = representative {
        checker = checker.symmetry_fn(representative);
    }
    if let Some(states) = effort.states {
        checker = checker.target_state_count(states);
    }
    if let Some(time) = effort.time {
        // A single thread never looks at the clock: it would run to its end.
        checker = checker.timeout(time).threads(effort.threads.max(2));
    }
    let begun = Instant::now();
    let mut watch = Watch::new(effort.name, begun);
    // Unlike `report`, this panics if a thread did.
    let checker = checker.spawn_dfs().join_and_report(&mut watch);
    let elapsed = watch.ended().unwrap_or_else(Instant::now) - begun;
    let watched = checker.model();
    let states = (checker.state_count(), checker.unique_state_count());
    let cut = effort.states.is_some_and(|limit| states.0 >= limit) || effort.time.is_some_and(|limit| elapsed >= limit);
    let end = match cut {
        true => End::Cut,
        false if watched.is_decided() => End::Decided,
        false => End::Exhausted,
    };
    Verdict {
        states,
        depth: checker.max_depth(),
        elapsed,
        violated: watched.shown(true).map(|property| property.name).collect(),
        unmet: watched.unmet().map(|property| property.name).collect(),
        end,
        memory: watch.memory(),
    }
}

/// Explores models one after the other and says a line of each. Says whether all is as it must be: with each, and with
/// the number of its states.
pub fn check_all(models: &[&Named], effort: &Effort, mut say: impl FnMut(String)) -> bool {
    let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0);
    let mut passes = true;
    for model in models {
        let Named { name, expected, .. } = *model;
        let verdict = model.model.attempt(&Effort { name: Some(name), ..effort.clone() });
        let is_as_told = verdict.is_as(*expected);
        let mut told = format!("{name:<width$}  {verdict}");
        if let Expected::Violates(property) = expected {
            told.push_str(&if is_as_told { as_told(model, property) } else { not_as_told(property) });
        }
        let unpinned = as_pinned(model, &verdict).err();
        told.extend(unpinned);
        if !is_as_told {
            told.extend(verdict.violated.iter().map(|property| how_to_see(name, property)));
        }
        say(told);
        passes &= is_as_told && unpinned.is_none();
    }
    passes
}

/// Whether a model has as many different states as are pinned. Those of the gallery are pinned by tests of their own.
fn as_pinned(model: &Named, verdict: &Verdict) -> Result<(), &'static str> {
    let needs_pin = model.expected == Expected::Holds && model.tier <= Tier::Deep && !model.is_of_the_gallery();
    match expected_counts::unique(model.name) {
        Some(unique) if !verdict.is_pinned(unique) => {
            Err("; NOT AS PINNED: a change of the protocol or of the model changed its number of states")
        }
        None if needs_pin => Err("; NOT PINNED: model/src/expected_counts.rs does not have its number of states"),
        _ => Ok(()),
    }
}

fn as_told(model: &Named, property: &str) -> String {
    let steps = model.model.trace(property).map_or(0, |trace| trace.steps.len());
    format!("; as told: \"{property}\" is violated after {steps} steps")
}

fn not_as_told(property: &str) -> String {
    format!("; NOT AS TOLD: \"{property}\" should be violated, and nothing else be amiss")
}

fn how_to_see(name: &str, property: &str) -> String {
    format!("\n  a shortest path to it: palisade-model trace {name} --property \"{property}\"")
}

#[cfg(test)]
mod tests {
    use stateright::Property;

    use super::*;
    use crate::models::holds;
    use crate::presentation::Presentation;

    /// The numbers up to three, with these properties.
    struct Three(Vec<Property<Three>>);

    impl Model for Three {
        type State = u8;
        type Action = u8;

        fn init_states(&self) -> Vec<u8> {
            vec![0]
        }

        fn actions(&self, state: &u8, actions: &mut Vec<u8>) {
            actions.extend((*state < 3).then_some(1));
        }

        fn next_state(&self, last: &u8, action: u8) -> Option<u8> {
            Some(last + action)
        }

        fn properties(&self) -> Vec<Property<Three>> {
            self.0.clone()
        }
    }

    impl Presentation for Three {}

    fn small() -> Property<Three> {
        Property::always("small", |_, number| *number < 9)
    }

    /// What is said of a model of a tier whose numbers are not pinned, and whether it passes.
    fn run(properties: &'static [fn() -> Property<Three>], expected: Expected) -> (String, bool) {
        let make = || Three(properties.iter().map(|property| property()).collect());
        let model = Named { expected, ..holds(Tier::Random, "three", "", make) };
        let mut told = Vec::new();
        let passes = check_all(&[&model], &Effort { threads: 1, ..Effort::default() }, |line| told.push(line));
        assert_eq!(told.len(), 1);
        (told.remove(0), passes)
    }

    #[test]
    fn what_is_as_it_must_be_passes() {
        let (told, passes) = run(&[small, || Property::sometimes("two", |_, number| *number == 2)], Expected::Holds);
        assert!(passes && told.starts_with("three  4 generated, 4 unique") && told.ends_with("; exhaustive"), "{told}");
    }

    #[test]
    fn what_must_be_possible_and_is_not_fails() {
        let (told, passes) = run(&[small, || Property::sometimes("four", |_, number| *number == 4)], Expected::Holds);
        assert!(!passes && told.contains("; never met: four"), "{told}");
    }

    #[test]
    fn a_violation_fails_unless_it_is_told() {
        let properties: &[fn() -> Property<Three>] = &[small, || Property::always("not two", |_, number| *number != 2)];
        let (told, passes) = run(properties, Expected::Holds);
        assert!(!passes && told.contains("; VIOLATED: not two"), "{told}");
        assert!(
            told.ends_with("\n  a shortest path to it: palisade-model trace three --property \"not two\""),
            "{told}"
        );
        let (told, passes) = run(properties, Expected::Violates("not two"));
        assert!(passes && told.ends_with("; as told: \"not two\" is violated after 2 steps"), "{told}");
        let (told, passes) = run(properties, Expected::Violates("small"));
        assert!(!passes && told.contains("; NOT AS TOLD: \"small\" should be violated"), "{told}");
    }

    #[test]
    fn a_model_whose_states_are_not_pinned_fails() {
        let model = holds(Tier::Deep, "three", "", || Three(vec![small()]));
        let mut told = String::new();
        let passes = check_all(&[&model], &Effort { threads: 1, ..Effort::default() }, |line| told = line);
        assert!(!passes && told.contains("; NOT PINNED"), "{told}");
    }
}
