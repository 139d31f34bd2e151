//! Random walks, far past the bounds of exhaustive exploration.
//!
//! A walk ends in a state without possible actions, in a state that it visited before, or after
//! [`LONGEST`] steps. Each step is drawn by weight ([`Presentation::weight`]): drawn evenly,
//! elections and faults would use up their budgets before anything was committed. A walk proves
//! nothing about states that it does not visit.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::presentation::{Presentation, by_weight};
use crate::property_set::PropertySet;
use crate::trace::{hash_of, trace_of_choices};

/// Maximum steps of a walk.
pub const LONGEST: usize = 400;

/// Result of random walks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Walks {
    /// The seed that repeats them.
    pub seed: u64,
    /// Number of visited states, with repetitions.
    pub states: usize,
    /// Length of the longest walk, in steps.
    pub longest: usize,
    /// Duration, in seconds.
    pub seconds: f64,
    /// Violated properties, each with its path as text.
    pub violated: Vec<(String, String)>,
    /// Properties that must be possible and were met.
    pub met: Vec<String>,
}

/// Number of actions that are drawn one after the other before all of them are tried.
const DRAWN: usize = 32;

/// Walks at random until about this many states were visited, or a property is violated. The same
/// seed repeats the same walks. A model interns the parts of its states as long as its process
/// lives, so the caller starts a new process with another seed for further walks.
pub fn walk<M: Presentation>(model: M, seed: u64, states: usize) -> Walks {
    let begun = Instant::now();
    let watched = PropertySet::new(model);
    let mut walks = Walks { seed, ..Walks::default() };
    // The first walk has this seed, the others have seeds that it determines.
    let mut seeds = StdRng::seed_from_u64(seed);
    let mut next = seed;
    let violation = loop {
        let violation = walk_once(&watched, next, &mut walks);
        if violation.is_some() || walks.states >= states {
            break violation;
        }
        next = seeds.random();
    };
    walks.seconds = begun.elapsed().as_secs_f64();
    let violated = watched.shown(true).zip(violation).map(|(property, (initial, choices))| {
        let trace = trace_of_choices(Arc::clone(&watched.model), property.name, false, initial, &choices);
        (property.name.to_string(), trace.expect("the way leads there again").to_string())
    });
    walks.violated = violated.collect();
    walks.met = watched.shown(false).map(|property| property.name.to_string()).collect();
    walks
}

/// One walk. Returns the index of the initial state and the choices that lead to a violation.
fn walk_once<M: Presentation>(watched: &PropertySet<M>, seed: u64, walks: &mut Walks) -> Option<(usize, Vec<usize>)> {
    let model = &*watched.model;
    let mut random = StdRng::seed_from_u64(seed);
    let mut initial = model.init_states();
    let first = random.random_range(0..initial.len());
    let mut state = initial.swap_remove(first);
    let (mut choices, mut visited, mut actions) = (Vec::new(), HashSet::new(), Vec::new());
    loop {
        walks.longest = walks.longest.max(choices.len());
        if !visited.insert(hash_of(&state)) {
            return None;
        }
        walks.states += 1;
        if !watched.look(&state) {
            return Some((first, choices));
        }
        if choices.len() >= LONGEST {
            return None;
        }
        actions.clear();
        model.actions(&state, &mut actions);
        let (choice, next) = step(model, &state, &actions, &mut random)?;
        choices.push(choice);
        state = next;
    }
}

/// Draws a step by weight, of the actions that have a successor.
fn step<M: Presentation>(
    model: &M,
    state: &M::State,
    actions: &[M::Action],
    random: &mut StdRng,
) -> Option<(usize, M::State)> {
    if actions.is_empty() {
        return None;
    }
    let taken = |choice: usize| Some((choice, model.next_state(state, actions[choice].clone())?));
    for _ in 0..DRAWN {
        let step = taken(by_weight(random, actions.iter(), M::weight));
        if step.is_some() {
            return step;
        }
    }
    let possible: Vec<usize> = (0..actions.len()).filter(|&choice| taken(choice).is_some()).collect();
    if possible.is_empty() {
        return None;
    }
    taken(possible[by_weight(random, possible.iter().map(|choice| &actions[*choice]), M::weight)])
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use stateright::{Model, Property};

    use super::*;

    /// Steps of 1 and 2 without end: a state is the number of steps and their sum.
    struct Steps {
        /// Number of steps that violates the property.
        flaw: usize,
        /// Number of judged states.
        judged: Arc<AtomicUsize>,
    }

    impl Model for Steps {
        type State = (usize, usize);
        type Action = usize;

        fn init_states(&self) -> Vec<(usize, usize)> {
            vec![(0, 0)]
        }

        fn actions(&self, _: &(usize, usize), actions: &mut Vec<usize>) {
            actions.extend([1, 2]);
        }

        fn next_state(&self, (steps, sum): &(usize, usize), action: usize) -> Option<(usize, usize)> {
            Some((steps + 1, sum + action))
        }

        fn properties(&self) -> Vec<Property<Steps>> {
            vec![Property::always("no flaw", |model, (steps, _)| {
                model.judged.fetch_add(1, Ordering::Relaxed);
                *steps != model.flaw
            })]
        }
    }

    impl Presentation for Steps {}

    #[test]
    fn violation_after_the_last_step_is_found_and_repeated_by_its_seed() {
        let violated = |seed| walk(Steps { flaw: LONGEST, judged: Arc::default() }, seed, 1).violated;
        let first = violated(1);
        assert!(
            first.len() == 1 && first[0].0 == "no flaw" && first[0].1.contains(&format!("\n{LONGEST}. ")),
            "{first:?}"
        );
        assert_eq!(violated(1), first);
        assert_ne!(violated(2), first);
    }

    #[test]
    fn every_state_of_a_sound_model_is_judged() {
        let judged = Arc::default();
        let walks = walk(Steps { flaw: usize::MAX, judged: Arc::clone(&judged) }, 1, 1_000);
        assert_eq!((walks.states, walks.longest, walks.violated), (3 * (LONGEST + 1), LONGEST, vec![]));
        assert_eq!(judged.load(Ordering::Relaxed), walks.states);
    }
}
