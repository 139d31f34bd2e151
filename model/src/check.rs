//! Runs the checker and derives the verdict.
//!
//! stateright's own report says "done" even of a run that was cut short, and prints violations
//! without failing. So this module decides the verdict. A run passes if the checker finished before
//! any limit, no property that must always hold was violated, and every property that must be
//! possible was met.

use std::fmt::{self, Debug};
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Model};

use crate::expected_counts;
use crate::models::{Expected, Named, Tier};
use crate::presentation::Representative;
use crate::progress::{Memory, Watch};
use crate::property_set::{PropertySet, Way};

/// Limits and resources of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Number of threads.
    pub threads: usize,
    /// Approximate maximum number of generated states.
    pub states: Option<usize>,
    /// Approximate maximum duration.
    pub time: Option<Duration>,
    /// Name under which progress is reported from time to time; without a name, progress is not
    /// reported.
    pub name: Option<&'static str>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Number of generated states, and of unique states.
    pub states: (usize, usize),
    /// Length of the longest path that was followed.
    pub depth: usize,
    /// Duration of the run.
    pub elapsed: Duration,
    /// Properties that must always hold and were violated.
    pub violated: Vec<&'static str>,
    /// Properties that must be possible and were not met.
    pub unmet: Vec<&'static str>,
    /// Why the run ended.
    pub end: End,
    /// Memory use, if known.
    pub memory: Option<Memory>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The whole state space was explored.
    Exhausted,
    /// Every property had been violated or met: the remaining states could change no result.
    Decided,
    /// A limit was reached. Unexplored states may still contain a violation.
    Cut,
}

impl Verdict {
    /// Whether every property is as it must be and the run was not cut short.
    pub fn passes(&self) -> bool {
        self.is_as(Expected::Holds)
    }

    /// Whether the number of unique states is the expected one. A run that ended early does not
    /// know its number and passes.
    pub fn is_pinned(&self, unique: usize) -> bool {
        self.end != End::Exhausted || self.states.1 == unique
    }

    /// Whether the result is the expected one: no property but the expected one is violated, every
    /// property that must be possible was met, and the run was not cut short.
    pub fn is_as(&self, expected: Expected) -> bool {
        let as_expected = match expected {
            Expected::Holds => self.violated.is_empty(),
            Expected::Violates(property) => self.violated == [property],
        };
        as_expected && self.unmet.is_empty() && self.end != End::Cut
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
            // With fewer states the figure would mostly be the process's own memory.
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
            End::Decided => write!(f, "; ended early: every property was decided"),
            End::Cut => write!(f, "; INCOMPLETE: a limit was reached; unexplored states may contain a violation"),
        }
    }
}

/// Explores the whole state space, depth first. Without `representative`, only equal states count
/// as one.
pub fn exhaust<M>(model: M, representative: Option<Representative<M::State>>, threads: usize) -> Verdict
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    explore(model, representative, &Effort { threads, ..Effort::default() })
}

/// Explores, depth first, until no state is left or a limit is reached.
///
/// # Panics
/// If the model panics.
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
        // With a single thread stateright never checks the timeout and would run to the end.
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

/// Explores models one after the other and reports a line for each. Returns whether every verdict
/// and every number of states is the expected one.
pub fn check_all(models: &[&Named], effort: &Effort, mut say: impl FnMut(String)) -> bool {
    let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0);
    let mut passes = true;
    for model in models {
        let Named { name, expected, .. } = *model;
        let verdict = model.model.attempt(&Effort { name: Some(name), ..effort.clone() });
        let is_expected = verdict.is_as(*expected);
        let mut line = format!("{name:<width$}  {verdict}");
        if let Expected::Violates(property) = expected {
            line.push_str(&if is_expected { as_expected(model, property) } else { not_as_expected(property) });
        }
        let count_error = check_count(model, &verdict).err();
        line.extend(count_error);
        if !is_expected {
            line.extend(verdict.violated.iter().map(|property| how_to_see(name, property)));
        }
        say(line);
        passes &= is_expected && count_error.is_none();
    }
    passes
}

/// Checks a model's number of unique states against the expected one. Tests of the gallery check
/// its models.
fn check_count(model: &Named, verdict: &Verdict) -> Result<(), &'static str> {
    let needs_count = model.expected == Expected::Holds && model.tier <= Tier::Deep && !model.is_of_the_gallery();
    match expected_counts::unique(model.name) {
        Some(unique) if !verdict.is_pinned(unique) => Err(
            "; UNEXPECTED COUNT: the number of unique states differs from model/src/expected_counts.rs; explain the change there",
        ),
        None if needs_count => {
            Err("; NO EXPECTED COUNT: add the number of unique states to model/src/expected_counts.rs")
        }
        _ => Ok(()),
    }
}

fn as_expected(model: &Named, property: &str) -> String {
    let steps = model.model.trace(property).map_or(0, |trace| trace.steps.len());
    format!("; as expected: \"{property}\" is violated after {steps} steps")
}

fn not_as_expected(property: &str) -> String {
    format!("; NOT AS EXPECTED: \"{property}\" must be violated, and no other property")
}

fn how_to_see(name: &str, property: &str) -> String {
    format!("\n  show a shortest path: palisade-model trace {name} --property \"{property}\"")
}

#[cfg(test)]
mod tests {
    use stateright::Property;

    use super::*;
    use crate::models::holds;
    use crate::presentation::Presentation;

    /// A counter from 0 to 3, with these properties.
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

    /// The line reported for a model of a tier without expected numbers, and whether the model
    /// passes.
    fn run(properties: &'static [fn() -> Property<Three>], expected: Expected) -> (String, bool) {
        let make = || Three(properties.iter().map(|property| property()).collect());
        let model = Named { expected, ..holds(Tier::Random, "three", "", make) };
        let mut told = Vec::new();
        let passes = check_all(&[&model], &Effort { threads: 1, ..Effort::default() }, |line| told.push(line));
        assert_eq!(told.len(), 1);
        (told.remove(0), passes)
    }

    #[test]
    fn exhaustive_run_without_violation_passes() {
        let (told, passes) = run(&[small, || Property::sometimes("two", |_, number| *number == 2)], Expected::Holds);
        assert!(passes && told.starts_with("three  4 generated, 4 unique") && told.ends_with("; exhaustive"), "{told}");
    }

    #[test]
    fn unmet_sometimes_property_fails() {
        let (told, passes) = run(&[small, || Property::sometimes("four", |_, number| *number == 4)], Expected::Holds);
        assert!(!passes && told.contains("; never met: four"), "{told}");
    }

    #[test]
    fn violation_fails_unless_expected() {
        let properties: &[fn() -> Property<Three>] = &[small, || Property::always("not two", |_, number| *number != 2)];
        let (told, passes) = run(properties, Expected::Holds);
        assert!(!passes && told.contains("; VIOLATED: not two"), "{told}");
        assert!(
            told.ends_with("\n  show a shortest path: palisade-model trace three --property \"not two\""),
            "{told}"
        );
        let (told, passes) = run(properties, Expected::Violates("not two"));
        assert!(passes && told.ends_with("; as expected: \"not two\" is violated after 2 steps"), "{told}");
        let (told, passes) = run(properties, Expected::Violates("small"));
        assert!(!passes && told.contains("; NOT AS EXPECTED: \"small\" must be violated"), "{told}");
    }

    #[test]
    fn model_without_expected_count_fails() {
        let model = holds(Tier::Deep, "three", "", || Three(vec![small()]));
        let mut told = String::new();
        let passes = check_all(&[&model], &Effort { threads: 1, ..Effort::default() }, |line| told = line);
        assert!(!passes && told.contains("; NO EXPECTED COUNT"), "{told}");
    }
}
