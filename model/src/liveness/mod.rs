//! Liveness: every due response happens on every fair run.
//!
//! stateright's `eventually` examines paths that end, so it misses runs that cycle. This module
//! builds the whole graph of the reachable states ([`Graph`]) and searches for cycles on which a
//! response never happens ([`fair`]). A violation is shown as a lasso: the steps to the cycle, and
//! the cycle ([`Lasso`]).
//!
//! "Whenever a waiter waits, later it is granted" holds only under assumptions: time passes, a
//! holder releases. A model names these assumptions as fair classes of actions ([`Live::classes`]).
//!
//! Bounds that cut runs off are worse here than in a safety check: a run that is cut off looks like
//! a violation, and a cycle beyond the bounds is missed. So these models have finite graphs without
//! cutting: [`queue`] counts time and tokens relative to the present, [`healing`] bounds faults
//! only. A graph with more states than allowed is an error, never a success.

pub mod fair;
pub mod graph;
pub mod healing;
mod lasso;
pub mod queue;
mod registry;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant};

pub use self::fair::Fairness;
use self::fair::{Fair, Question, search};
pub use self::graph::{Graph, Unfinished};
pub use self::lasso::{Lasso, NEVER};
pub use self::registry::{Check, STATES, checks};
use crate::presentation::Presentation;

/// A model whose liveness is checked. Its graph is finite, and states of one hash have the same
/// future.
pub trait Live: Presentation {
    /// The assumptions: fair classes of actions, at most 64.
    fn classes(&self) -> Vec<Class>;

    /// The classes of an action in a state: a bit for each index of the list. Called only for
    /// actions that change the state.
    fn classes_of(&self, state: &Self::State, action: &Self::Action) -> u64;

    /// The labels of a state that [`Live::responses`] refers to, a bit each.
    fn labels(&self, state: &Self::State) -> u64;

    /// The responses to check.
    fn responses(&self) -> Vec<Response>;

    /// Why bounds cut a run off in this state, if they do.
    fn out_of_room(&self, _state: &Self::State) -> Option<String> {
        None
    }
}

/// A fair class of actions.
#[derive(Clone, Debug)]
pub struct Class {
    /// The action as a clause: "time passes".
    pub name: String,
    /// The fairness of the class.
    pub fairness: Fairness,
}

/// A response: "whenever `pending`, later `served`".
#[derive(Clone, Debug)]
pub struct Response {
    /// The property's name.
    pub property: &'static str,
    /// The subject: a client, a server.
    pub of: String,
    /// The label of pending states.
    pub pending: u32,
    /// The label of served states.
    pub served: u32,
}

/// Result of a check.
#[derive(Debug)]
pub struct Report {
    /// Number of states of the graph.
    pub states: usize,
    /// Number of edges of the graph.
    pub edges: usize,
    /// Number of strongly connected components among the pending, unserved states, over all
    /// responses.
    pub components: usize,
    /// Duration of the check.
    pub elapsed: Duration,
    /// The result for each response.
    pub answers: Vec<Answered>,
}

/// Result for one response.
#[derive(Debug)]
pub struct Answered {
    /// The response.
    pub response: Response,
    /// Number of states in which the response is due.
    pub due: usize,
    /// A fair run on which it never happens.
    pub lasso: Option<Lasso>,
}

impl Report {
    /// Whether every response is due in some state, and happens on every fair run.
    pub fn holds(&self) -> bool {
        self.answers.iter().all(|answer| answer.due > 0 && answer.lasso.is_none())
    }

    /// The violated responses, the shortest runs first.
    pub fn violations(&self) -> Vec<&Answered> {
        let mut found: Vec<&Answered> = self.answers.iter().filter(|answer| answer.lasso.is_some()).collect();
        found.sort_by_key(|answer| answer.lasso.as_ref().map(Lasso::steps));
        found
    }

    /// The properties with their results: violated, never due, or the number of states in which the
    /// response is due.
    fn verdicts(&self) -> Vec<(&'static str, String)> {
        let mut properties: Vec<&'static str> = self.answers.iter().map(|answer| answer.response.property).collect();
        properties.dedup();
        let verdict = |property: &'static str| {
            let own = || self.answers.iter().filter(move |answer| answer.response.property == property);
            let violated: Vec<&str> =
                own().filter(|answer| answer.lasso.is_some()).map(|answer| answer.response.of.as_str()).collect();
            let vacuous = own().any(|answer| answer.due == 0);
            let verdict = match (violated.is_empty(), vacuous) {
                (false, _) => format!("VIOLATED for {}", violated.join(", ")),
                (true, true) => "NEVER DUE: nothing was checked".to_string(),
                (true, false) => format!("holds; due in {} states", own().map(|answer| answer.due).sum::<usize>()),
            };
            (property, verdict)
        };
        properties.into_iter().map(verdict).collect()
    }
}

/// The numbers, and a line for each property.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { states, edges, components, elapsed, .. } = self;
        write!(f, "{states} states, {edges} edges, {components} components, {:.1} s", elapsed.as_secs_f64())?;
        for (property, verdict) in self.verdicts() {
            write!(f, "\n  \"{property}\" {verdict}")?;
        }
        Ok(())
    }
}

/// Checks every response of a model.
///
/// # Errors
/// If the graph has more than `most` states, or the model's bounds cut it.
///
/// # Panics
/// If the model has more than 64 classes or labels, or merges states with different futures.
pub fn check<M: Live>(model: &M, most: usize) -> Result<Report, Unfinished> {
    let begun = Instant::now();
    let graph = Graph::explore(model, most)?;
    let classes = model.classes();
    assert!(classes.len() <= 64, "a class is a bit");
    let bits = |fairness| {
        let own = classes.iter().enumerate().filter(|(_, class)| class.fairness == fairness);
        own.fold(0, |bits, (index, _)| bits | 1 << index)
    };
    let fair = Fair { weak: bits(Fairness::Weak), strong: bits(Fairness::Strong) };
    let mut components = 0;
    let answer = |response: Response| {
        let question = Question { pending: 1 << response.pending, served: 1 << response.served };
        let found = search(&graph, fair, question);
        components += found.components;
        let lasso = found.violation.map(|circle| Lasso::new(model, &graph, &response, &circle));
        Answered { response, due: found.pending, lasso }
    };
    let answers = model.responses().into_iter().map(answer).collect();
    Ok(Report { states: graph.states(), edges: graph.edge_count(), components, elapsed: begun.elapsed(), answers })
}
