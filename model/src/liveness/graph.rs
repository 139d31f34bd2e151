//! The reachable states of a model as an explicit graph.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Live;

/// The reachable states, numbered in breadth-first order.
#[derive(Debug, Default)]
pub struct Graph {
    /// The index of each state's first edge, followed by the total number of edges.
    first: Vec<usize>,
    /// The edges, ordered by state.
    edges: Vec<Edge>,
    /// The labels of each state.
    pub(super) labels: Vec<u64>,
    /// The classes with a possible action, for each state.
    pub(super) enabled: Vec<u64>,
    /// The fingerprint of each state.
    fingerprints: Vec<u64>,
    /// Number of initial states: these have the smallest numbers.
    pub(super) initial: usize,
}

/// A step from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The state reached by the step.
    pub to: u32,
    /// The classes of the action, a bit each.
    pub classes: u64,
}

/// Why a graph could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// The model has more states than allowed.
    #[error("INCOMPLETE: there are more than {0} states; the model is not finite, or larger than that")]
    TooMany(usize),
    /// The model reports that a run ends early: by a bound, or by a violation of safety.
    #[error("runs are cut off: {0}")]
    CutOff(String),
}

/// The identity of a state: its hash, of 64 bits.
pub(super) fn fingerprint<S: Hash>(state: &S) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// The possible actions of a state: their classes, and their successors.
pub(super) fn steps<M: Live>(model: &M, state: &M::State) -> Vec<(M::Action, u64, M::State)> {
    let mut actions = Vec::new();
    model.actions(state, &mut actions);
    let step = |action: M::Action| {
        let next = model.next_state(state, action.clone())?;
        let classes = model.classes_of(state, &action);
        Some((action, classes, next))
    };
    actions.into_iter().filter_map(step).collect()
}

impl Graph {
    /// Every reachable state of a model.
    ///
    /// # Errors
    /// If there are more than `most` states, or the model reports that its bounds cut a run off.
    ///
    /// # Panics
    /// If there are 2^32 states.
    pub fn explore<M: Live>(model: &M, most: usize) -> Result<Graph, Unfinished> {
        let mut graph = Graph::default();
        let mut known = HashMap::new();
        let mut next = VecDeque::new();
        for state in model.init_states() {
            graph.find(model, &mut known, &mut next, state)?;
        }
        graph.initial = graph.labels.len();
        while let Some(state) = next.pop_front() {
            let (begin, mut enabled) = (graph.edges.len(), 0);
            for (_, classes, successor) in steps(model, &state) {
                enabled |= classes;
                let to = graph.find(model, &mut known, &mut next, successor)?;
                let edge = Edge { to, classes };
                if !graph.edges[begin..].contains(&edge) {
                    graph.edges.push(edge);
                }
            }
            graph.first.push(begin);
            graph.enabled.push(enabled);
            if graph.labels.len() > most {
                return Err(Unfinished::TooMany(most));
            }
        }
        graph.first.push(graph.edges.len());
        Ok(graph)
    }

    fn find<M: Live>(
        &mut self,
        model: &M,
        known: &mut HashMap<u64, u32>,
        next: &mut VecDeque<M::State>,
        state: M::State,
    ) -> Result<u32, Unfinished> {
        let fingerprint = fingerprint(&state);
        if let Some(number) = known.get(&fingerprint) {
            return Ok(*number);
        }
        if let Some(why) = model.out_of_room(&state) {
            return Err(Unfinished::CutOff(why));
        }
        let number = u32::try_from(self.labels.len()).expect("fewer than 2^32 states");
        known.insert(fingerprint, number);
        self.labels.push(model.labels(&state));
        self.fingerprints.push(fingerprint);
        next.push_back(state);
        Ok(number)
    }

    /// Number of states.
    pub fn states(&self) -> usize {
        self.labels.len()
    }

    /// Number of edges. Actions of the same classes between the same states are one edge.
    pub fn edge_count(&self) -> usize {
        self.edges.len()
    }

    /// The edges of a state.
    pub fn edges(&self, state: u32) -> &[Edge] {
        let state = state as usize;
        &self.edges[self.first[state]..self.first[state + 1]]
    }

    /// The fingerprint of a state.
    pub(super) fn fingerprint(&self, state: u32) -> u64 {
        self.fingerprints[state as usize]
    }

    /// The state of a fingerprint: for tests, which compare the successors of merged states.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> HashMap<u64, u32> {
        (0..).zip(&self.fingerprints).map(|(number, fingerprint)| (*fingerprint, number)).collect()
    }

    /// A graph built by hand, whose state 0 is initial.
    #[cfg(test)]
    pub(super) fn of(labels: &[u64], edges: &[(u32, u32, u64)]) -> Graph {
        let mut graph = Graph { labels: labels.to_vec(), initial: 1, ..Graph::default() };
        for state in 0..u32::try_from(labels.len()).unwrap() {
            graph.first.push(graph.edges.len());
            let own = edges.iter().filter(|(from, ..)| *from == state);
            let own: Vec<Edge> = own.map(|&(_, to, classes)| Edge { to, classes }).collect();
            graph.enabled.push(own.iter().fold(0, |enabled, edge| enabled | edge.classes));
            graph.edges.extend(own);
        }
        graph.first.push(graph.edges.len());
        graph
    }

    /// A path through states with these labels, by steps of these classes.
    #[cfg(test)]
    pub(super) fn chain(labels: Vec<u64>, classes: u64) -> Graph {
        let steps = u32::try_from(labels.len()).unwrap() - 1;
        let edges: Vec<Edge> = (1..=steps).map(|to| Edge { to, classes }).collect();
        let enabled = edges.iter().map(|edge| edge.classes).chain([0]).collect();
        let first = (0..=edges.len()).chain([edges.len()]).collect();
        Graph { first, edges, enabled, labels, initial: 1, fingerprints: Vec::new() }
    }
}
