//! Guided search: walks that begin where earlier walks came upon something new.
//!
//! A random walk from the beginning seldom gets far into what is rare: four elections in a row, each with a different
//! majority, take up its budget before anything else happens. So the states in which something new was seen are kept
//! and walks go on from them. What counts as new is decided by a state's [outline](Readable::outline): a coarse picture
//! of it, in which states that differ in details only look alike. The kept states that were chosen least often are
//! chosen first. Now and then the choice is followed by everything that can happen in the next few steps.
//!
//! Like any walk this shows what it comes upon, and nothing of what it does not. The same seed takes the same walks.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::readable::Readable;
use crate::simulate::{Walks, by_weight};
use crate::trace::retrace;
use crate::watched::{Watched, Way};

/// How many steps a walk goes on from a kept state.
const STEPS: usize = 16;
/// Of how many kept states, drawn at random, the one that was chosen least often is chosen.
const DRAWN: usize = 4;
/// One in so many choices is followed by everything that can happen next.
const EXHAUSTIVE: u64 = 32;
/// How many steps such a suffix has, and how many states it comes through at most.
const SUFFIX: (usize, usize) = (4, 2_000);

/// A state in which something new was seen.
struct Kept<S> {
    state: S,
    /// The kept state from which it was reached, and the choices made on the way.
    parent: usize,
    choices: Vec<usize>,
    depth: usize,
    chosen: u32,
}

/// A search under way.
struct Search<'m, M: Readable> {
    watched: &'m Watched<M>,
    random: StdRng,
    outlines: HashSet<u64>,
    kept: Vec<Kept<M::State>>,
    states: usize,
    longest: usize,
    /// The way to a state in which something is amiss.
    amiss: Option<Vec<usize>>,
}

/// Searches until about so many states were seen, or something is amiss.
pub fn search<M: Readable>(model: M, seed: u64, states: usize) -> Walks {
    let begun = Instant::now();
    let watched = Watched::new(model, Way::AtRandom);
    let mut search = Search {
        watched: &watched,
        random: StdRng::seed_from_u64(seed),
        outlines: HashSet::new(),
        kept: Vec::new(),
        states: 0,
        longest: 0,
        amiss: None,
    };
    let initial = watched.model.init_states().into_iter().next().expect("a model has a first state");
    search.visit(&initial, 0, &[]);
    let mut choice = 0;
    while search.amiss.is_none() && search.states < states {
        let from = search.choose();
        choice += 1;
        if choice % EXHAUSTIVE == 0 { search.everything(from) } else { search.walk(from) }
    }
    let way = search.amiss.take();
    let violated = watched.shown(true).zip(way).map(|(property, choices)| {
        let trace = retrace(&watched.model, property.name, &choices).expect("the way leads there again");
        (property.name.to_string(), trace.to_string())
    });
    Walks {
        seed,
        states: search.states,
        longest: search.longest,
        seconds: begun.elapsed().as_secs_f64(),
        violated: violated.collect(),
        met: watched.shown(false).map(|property| property.name.to_string()).collect(),
    }
}

impl<M: Readable> Search<'_, M> {
    /// A state was reached by `choices` from the kept state `parent`. Keeps it if it looks new.
    fn visit(&mut self, state: &M::State, parent: usize, choices: &[usize]) {
        self.states += 1;
        let depth = self.kept.get(parent).map_or(0, |kept| kept.depth) + choices.len();
        self.longest = self.longest.max(depth);
        if !self.watched.look(state) {
            self.amiss = Some(way(&self.kept, parent, choices));
        } else if self.outlines.insert(self.watched.model.outline(state)) {
            let kept = Kept { state: state.clone(), parent, choices: choices.to_vec(), depth, chosen: 0 };
            self.kept.push(kept);
        }
    }

    /// A kept state from which to go on.
    fn choose(&mut self) -> usize {
        let drawn = (0..DRAWN).map(|_| self.random.random_range(0..self.kept.len())).collect::<Vec<_>>();
        let chosen = drawn.into_iter().min_by_key(|&place| self.kept[place].chosen).expect("some are drawn");
        self.kept[chosen].chosen += 1;
        chosen
    }

    /// Goes on at random.
    fn walk(&mut self, from: usize) {
        let mut state = self.kept[from].state.clone();
        let mut choices = Vec::new();
        while choices.len() < STEPS && self.amiss.is_none() {
            let mut left: Vec<(usize, M::Action)> = self.actions(&state).into_iter().enumerate().collect();
            let next = loop {
                if left.is_empty() {
                    return;
                }
                let drawn = by_weight::<M>(&mut self.random, left.iter().map(|(_, action)| action));
                let (choice, action) = left.swap_remove(drawn);
                if let Some(next) = self.watched.model.next_state(&state, action) {
                    choices.push(choice);
                    break next;
                }
            };
            self.visit(&next, from, &choices);
            state = next;
        }
    }

    /// Goes on in every way there is, for a few steps.
    fn everything(&mut self, from: usize) {
        let mut next = VecDeque::from([(self.kept[from].state.clone(), Vec::new())]);
        let begun = self.states;
        while let Some((state, choices)) = next.pop_front() {
            for (choice, action) in self.actions(&state).into_iter().enumerate() {
                let Some(after) = self.watched.model.next_state(&state, action) else { continue };
                let choices: Vec<usize> = choices.iter().copied().chain([choice]).collect();
                self.visit(&after, from, &choices);
                if self.amiss.is_some() || self.states - begun >= SUFFIX.1 {
                    return;
                }
                if choices.len() < SUFFIX.0 {
                    next.push_back((after, choices));
                }
            }
        }
    }

    fn actions(&self, state: &M::State) -> Vec<M::Action> {
        let mut actions = Vec::new();
        self.watched.model.actions(state, &mut actions);
        actions
    }
}

/// All choices from the beginning.
fn way<S>(kept: &[Kept<S>], parent: usize, choices: &[usize]) -> Vec<usize> {
    let mut pieces = vec![choices];
    let mut place = parent;
    // The first kept state is the beginning, and its own parent.
    while place > 0 {
        pieces.push(&kept[place].choices);
        place = kept[place].parent;
    }
    pieces.into_iter().rev().flatten().copied().collect()
}
