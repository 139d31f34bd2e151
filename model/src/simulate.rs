//! Random walks, far past the bounds within which everything can be explored.
//!
//! A walk ends where nothing more can happen, at a state that it was in before, or after [`LONGEST`] steps. Which step
//! is next is drawn by weight ([`Readable::weight`]): drawn evenly, elections and faults would use up their budgets
//! before anything was committed. A walk shows what it comes upon, and nothing of what it does not.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use stateright::{Checker, Chooser, Model, Property};

use crate::readable::Readable;
use crate::trace::tell;
use crate::watched::Watched;

/// How many steps a walk has at most.
pub const LONGEST: usize = 400;

/// What random walks came upon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Walks {
    /// The seed that repeats them.
    pub seed: u64,
    /// How many states they came through, not all different.
    pub states: usize,
    /// The longest.
    pub longest: usize,
    /// How long they took, in seconds.
    pub seconds: f64,
    /// What must hold and was violated, with the path, told.
    pub violated: Vec<(String, String)>,
    /// What must be possible, and was met.
    pub met: Vec<String>,
}

/// A model to walk through.
struct Walked<M: Model>(Watched<M>);

impl<M: Readable> Model for Walked<M> {
    type State = M::State;
    type Action = M::Action;

    fn init_states(&self) -> Vec<M::State> {
        self.0.model.init_states()
    }

    fn actions(&self, state: &M::State, actions: &mut Vec<M::Action>) {
        let begin = actions.len();
        self.0.model.actions(state, actions);
        // Only those that do something: the checker could not find its way again along one that was tried in vain.
        let mut last = actions.split_off(begin);
        last.retain(|action| self.0.model.next_state(state, action.clone()).is_some());
        actions.append(&mut last);
    }

    fn next_state(&self, last: &M::State, action: M::Action) -> Option<M::State> {
        self.0.model.next_state(last, action)
    }

    fn properties(&self) -> Vec<Property<Walked<M>>> {
        vec![Property::always(NOTHING_AMISS, |walked: &Walked<M>, state| walked.0.look(state))]
    }
}

const NOTHING_AMISS: &str = "nothing is amiss";

/// Draws the next step by weight.
#[derive(Clone)]
struct ByWeight;

impl<M: Readable> Chooser<Walked<M>> for ByWeight {
    type State = StdRng;

    fn new_state(&self, seed: u64) -> StdRng {
        StdRng::seed_from_u64(seed)
    }

    fn choose_initial_state(&self, random: &mut StdRng, initial: &[M::State]) -> usize {
        random.random_range(0..initial.len())
    }

    fn choose_action(&self, random: &mut StdRng, _: &M::State, actions: &[M::Action]) -> usize {
        let mut left = random.random_range(0..actions.iter().map(M::weight).sum());
        let chosen = actions.iter().position(|action| {
            let weight = M::weight(action);
            let found = left < weight;
            left = left.saturating_sub(weight);
            found
        });
        chosen.expect("the weights add up")
    }
}

/// Walks at random until about so many states were seen, or something is amiss: the same walks each time. A model keeps the parts of its states
/// for as long as its process lives: whoever wants to walk on begins anew, in another process and with another seed.
pub fn walk<M: Readable>(model: M, seed: u64, states: usize) -> Walks {
    let begun = Instant::now();
    let checker = Walked(Watched::new(model))
        .checker()
        .threads(1)
        .target_state_count(states)
        .target_max_depth(LONGEST)
        .spawn_simulation(seed, ByWeight)
        .join();
    let seconds = begun.elapsed().as_secs_f64();
    let watched = &checker.model().0;
    let path = checker.discoveries().remove(NOTHING_AMISS);
    let violated = watched.shown(true).zip(path).map(|(property, path)| {
        let trace = tell(&watched.model, property, path);
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
