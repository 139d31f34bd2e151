//! Random walks, far past the bounds of exhaustive exploration.
//!
//! A walk ends in a state without possible actions, in a state that it visited before, or after
//! [`LONGEST`] steps. Each step is drawn by weight ([`Presentation::weight`]): drawn evenly,
//! elections and faults would use up their budgets before anything was committed. A walk proves
//! nothing about states that it does not visit.

use std::sync::Arc;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use stateright::{Checker, Chooser, Model};

use crate::presentation::{Presentation, by_weight};
use crate::property_set::{GOES_ON, PropertySet, Way};
use crate::trace::trace_of_path;

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

/// Draws the next step by weight, of the actions that have a successor: stateright cannot replay a path
/// on which it chose others.
struct ByWeight<M>(Arc<M>);

/// Where a walk is.
struct Walk {
    random: StdRng,
    /// Whether no action has a successor.
    is_over: bool,
}

/// Number of actions that are drawn one after the other before all of them are tried.
const DRAWN: usize = 32;

impl<M: Presentation> Chooser<PropertySet<M>> for ByWeight<M> {
    type State = Walk;

    fn new_state(&self, seed: u64) -> Walk {
        Walk { random: StdRng::seed_from_u64(seed), is_over: false }
    }

    fn choose_initial_state(&self, walk: &mut Walk, initial: &[M::State]) -> usize {
        walk.random.random_range(0..initial.len())
    }

    fn choose_action(&self, walk: &mut Walk, state: &M::State, actions: &[M::Action]) -> usize {
        // stateright asks once more for each action of a last state.
        if walk.is_over {
            return 0;
        }
        let has_successor = |choice: &usize| self.0.next_state(state, actions[*choice].clone()).is_some();
        let mut drawn = (0..DRAWN).map(|_| by_weight(&mut walk.random, actions.iter(), M::weight));
        if let Some(choice) = drawn.find(has_successor) {
            return choice;
        }
        let possible: Vec<usize> = (0..actions.len()).filter(has_successor).collect();
        walk.is_over = possible.is_empty();
        if walk.is_over {
            return 0;
        }
        possible[by_weight(&mut walk.random, possible.iter().map(|choice| &actions[*choice]), M::weight)]
    }
}

impl<M> Clone for ByWeight<M> {
    fn clone(&self) -> ByWeight<M> {
        ByWeight(Arc::clone(&self.0))
    }
}

/// Walks at random until about this many states were visited, or a property is violated. The same
/// seed repeats the same walks. A model interns the parts of its states as long as its process
/// lives, so the caller starts a new process with another seed for further walks.
pub fn walk<M: Presentation>(model: M, seed: u64, states: usize) -> Walks {
    let begun = Instant::now();
    let watched = PropertySet::new(model, Way::AtRandom);
    let by_weight = ByWeight(Arc::clone(&watched.model));
    let checker = watched
        .checker()
        .threads(1)
        .target_state_count(states)
        .target_max_depth(LONGEST)
        .spawn_simulation(seed, by_weight)
        .join();
    let seconds = begun.elapsed().as_secs_f64();
    let watched = checker.model();
    let path = checker.discoveries().remove(GOES_ON);
    let violated = watched.shown(true).zip(path).map(|(property, path)| {
        let trace = trace_of_path(&*watched.model, property, path);
        (property.name.to_string(), trace.to_string())
    });
    Walks {
        seed,
        states: checker.state_count(),
        longest: checker.max_depth(),
        seconds,
        violated: violated.collect(),
        met: watched.shown(false).map(|property| property.name.to_string()).collect(),
    }
}
