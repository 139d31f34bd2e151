//! Guided search: walks that continue from states in which earlier walks found something new.
//!
//! A random walk from the initial state seldom reaches rare states: four elections in a row, each
//! with a different majority, use up its budget first. So the search keeps each state with a new
//! [outline](Presentation::outline) and continues walks from there. An outline is a coarse picture
//! of a state: states that differ in details only have the same outline. A state's class is a
//! coarser picture. The search chooses a class, then a kept state of that class, and prefers those
//! chosen less often: else the many variants of frequent states would take all the time. Every
//! [`EXHAUSTIVE`]th choice is followed by all possible actions for a few steps.
//!
//! A walk ends after [`DEEPEST`] steps from the initial state: a longer walk has used up its
//! model's budgets needlessly. Actions are drawn by the square roots of their weights, so unlikely
//! actions are more frequent than in a random walk.
//!
//! Like any walk, guided search proves nothing about states that it does not visit. The same seed
//! repeats the same walks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::presentation::{Presentation, by_weight};
use crate::property_set::PropertySet;
use crate::simulate::Walks;
use crate::trace::trace_of_choices;

/// Maximum distance of a walk's end from the initial state, in steps.
const DEEPEST: usize = 48;
/// Maximum steps of a walk from a kept state.
const STEPS: usize = 12;
/// Number of classes, and of kept states, drawn at random; the least often chosen of them is taken.
const DRAWN: usize = 8;
/// One in this many choices is followed by an exhaustive suffix.
const EXHAUSTIVE: u64 = 64;
/// Maximum steps of an exhaustive suffix, and maximum states that it visits.
const SUFFIX: (usize, usize) = (4, 2_000);

/// An entry of the corpus: a state whose outline was new.
struct CorpusEntry<S> {
    state: S,
    /// The entry from which it was reached, and the choices in between.
    parent: usize,
    choices: Vec<usize>,
    depth: usize,
    chosen: u32,
}

/// The kept states of a class.
#[derive(Default)]
struct Class {
    members: Vec<usize>,
    chosen: u32,
}

/// The state of a search.
struct Search<'m, M: Presentation> {
    watched: &'m PropertySet<M>,
    random: StdRng,
    outlines: HashSet<(u64, u64)>,
    corpus: Vec<CorpusEntry<M::State>>,
    /// Index of each class in `classes`, by its hash.
    class_indices: HashMap<u64, usize>,
    classes: Vec<Class>,
    states: usize,
    longest: usize,
    /// The choices that lead to a violation.
    violation: Option<Vec<usize>>,
}

/// Searches until about this many states were visited, or a property is violated.
pub fn search<M: Presentation>(model: M, seed: u64, states: usize) -> Walks {
    let begun = Instant::now();
    let watched = PropertySet::new(model);
    let mut search = Search {
        watched: &watched,
        random: StdRng::seed_from_u64(seed),
        outlines: HashSet::new(),
        corpus: Vec::new(),
        class_indices: HashMap::new(),
        classes: Vec::new(),
        states: 0,
        longest: 0,
        violation: None,
    };
    let initial = watched.model.init_states().into_iter().next().expect("a model has a first state");
    search.visit(&initial, 0, &[]);
    let mut choice = 0;
    while search.violation.is_none() && search.states < states {
        let from = search.choose();
        choice += 1;
        if choice % EXHAUSTIVE == 0 { search.exhaustive_suffix(from) } else { search.walk(from) }
    }
    let way = search.violation.take();
    let violated = watched.shown(true).zip(way).map(|(property, choices)| {
        let trace = trace_of_choices(Arc::clone(&watched.model), property.name, false, 0, &choices);
        (property.name.to_string(), trace.expect("the way leads there again").to_string())
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

impl<M: Presentation> Search<'_, M> {
    /// Visits the state reached by `choices` from the kept state `parent`; keeps it if its outline
    /// is new.
    fn visit(&mut self, state: &M::State, parent: usize, choices: &[usize]) {
        self.states += 1;
        let depth = self.corpus.get(parent).map_or(0, |entry| entry.depth) + choices.len();
        self.longest = self.longest.max(depth);
        if !self.watched.look(state) {
            self.violation = Some(way(&self.corpus, parent, choices));
            return;
        }
        let (class, outline) = self.watched.model.outline(state);
        if self.outlines.insert((class, outline)) {
            let index = *self.class_indices.entry(class).or_insert(self.classes.len());
            if index == self.classes.len() {
                self.classes.push(Class::default());
            }
            self.classes[index].members.push(self.corpus.len());
            let entry = CorpusEntry { state: state.clone(), parent, choices: choices.to_vec(), depth, chosen: 0 };
            self.corpus.push(entry);
        }
    }

    /// Chooses a kept state to continue from.
    fn choose(&mut self) -> usize {
        let Search { random, classes, corpus, .. } = self;
        let drawn = (0..DRAWN).map(|_| random.random_range(0..classes.len()));
        let class = drawn.min_by_key(|&index| classes[index].chosen).expect("some are drawn");
        classes[class].chosen += 1;
        let members = &classes[class].members;
        let drawn = (0..DRAWN).map(|_| members[random.random_range(0..members.len())]);
        let chosen = drawn.min_by_key(|&index| corpus[index].chosen).expect("some are drawn");
        corpus[chosen].chosen += 1;
        chosen
    }

    /// Continues at random.
    fn walk(&mut self, from: usize) {
        let mut state = self.corpus[from].state.clone();
        let mut choices = Vec::new();
        let most = STEPS.min(DEEPEST.saturating_sub(self.corpus[from].depth));
        while choices.len() < most && self.violation.is_none() {
            let mut left: Vec<(usize, M::Action)> = self.actions(&state).into_iter().enumerate().collect();
            let next = loop {
                if left.is_empty() {
                    return;
                }
                let drawn = by_weight(&mut self.random, left.iter().map(|(_, action)| action), |action| {
                    M::weight(action).isqrt()
                });
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

    /// Takes all possible actions, for a few steps.
    fn exhaustive_suffix(&mut self, from: usize) {
        let mut next = VecDeque::from([(self.corpus[from].state.clone(), Vec::new())]);
        let begun = self.states;
        while let Some((state, choices)) = next.pop_front() {
            for (choice, action) in self.actions(&state).into_iter().enumerate() {
                let Some(after) = self.watched.model.next_state(&state, action) else { continue };
                let choices: Vec<usize> = choices.iter().copied().chain([choice]).collect();
                self.visit(&after, from, &choices);
                if self.violation.is_some() || self.states - begun >= SUFFIX.1 {
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

/// All choices from the initial state.
fn way<S>(corpus: &[CorpusEntry<S>], parent: usize, choices: &[usize]) -> Vec<usize> {
    let mut pieces = vec![choices];
    let mut index = parent;
    // The first kept state is the initial one, and its own parent.
    while index > 0 {
        pieces.push(&corpus[index].choices);
        index = corpus[index].parent;
    }
    pieces.into_iter().rev().flatten().copied().collect()
}
