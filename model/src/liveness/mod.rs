//! Liveness: whatever is due comes, on every fair run.
//!
//! stateright's `eventually` looks at paths that end, so it misses a run that goes in a circle. This module builds the whole
//! graph of the reachable states ([`Graph`]) and looks for cycles on which a response never comes ([`fair`]). What it finds is
//! shown as a lasso: the steps to the cycle, and the cycle ([`Lasso`]).
//!
//! "Whenever a waiter waits, later it is granted" holds of no protocol unless something is assumed: that time passes, that a
//! holder lets go. A model names these assumptions as classes of actions that are taken fairly ([`Live::classes`]).
//!
//! A bound that cuts runs off would be worse here than in a check of safety: where a run is cut off nothing more happens, which
//! looks like a violation, and a cycle that leaves the bounds is not found. So these models have finite graphs without cutting:
//! [`queue`] counts time and tokens relative to the present, [`healing`] bounds faults only. A graph that has more states than
//! are allowed is an error, never a success.

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

/// A model whose liveness is checked. Its graph is finite, and states of one hash have the same future.
pub trait Live: Presentation {
    /// The assumptions: classes of actions, and how fairly each is taken. At most 64.
    fn classes(&self) -> Vec<Class>;

    /// The classes that an action belongs to in a state: a bit for each place in the list. Only actions that change the
    /// state are asked about.
    fn classes_of(&self, state: &Self::State, action: &Self::Action) -> u64;

    /// What is true of a state, a bit for each label that [`Live::responses`] speaks of.
    fn labels(&self, state: &Self::State) -> u64;

    /// What must come.
    fn responses(&self) -> Vec<Response>;

    /// Why bounds keep a run from going on here, if they do.
    fn out_of_room(&self, _state: &Self::State) -> Option<String> {
        None
    }
}

/// A class of actions that are taken fairly.
#[derive(Clone, Debug)]
pub struct Class {
    /// What happens, as a clause: "time passes".
    pub name: String,
    /// How fairly.
    pub fairness: Fairness,
}

/// "Whenever this, then later that."
#[derive(Clone, Debug)]
pub struct Response {
    /// The property.
    pub property: &'static str,
    /// Of whom or what.
    pub of: String,
    /// The label of the states in which it is due.
    pub pending: u32,
    /// The label of the states in which it has come.
    pub served: u32,
}

/// What came of a check.
#[derive(Debug)]
pub struct Report {
    /// How many states the graph has.
    pub states: usize,
    /// How many edges.
    pub edges: usize,
    /// How many strongly connected components the states have that are due and not served, over all responses.
    pub components: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// Each response: what it asks, in how many states it is due, and a run on which it never comes, if there is one.
    pub answers: Vec<Answered>,
}

/// What came of one response.
#[derive(Debug)]
pub struct Answered {
    /// The response.
    pub response: Response,
    /// In how many states it is due.
    pub due: usize,
    /// A run on which it never comes.
    pub lasso: Option<Lasso>,
}

impl Report {
    /// Whether every response is due somewhere, and comes on every fair run.
    pub fn holds(&self) -> bool {
        self.answers.iter().all(|answer| answer.due > 0 && answer.lasso.is_none())
    }

    /// The runs on which a response never comes, the shortest first.
    pub fn violations(&self) -> Vec<&Answered> {
        let mut found: Vec<&Answered> = self.answers.iter().filter(|answer| answer.lasso.is_some()).collect();
        found.sort_by_key(|answer| answer.lasso.as_ref().map(Lasso::steps));
        found
    }

    /// The properties, each with what came of it: violated, never due, or in how many states it is due.
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

/// The numbers, a line for each property.
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
/// If the model names more than 64 classes or labels, or merges states that have different futures.
pub fn check<M: Live>(model: &M, most: usize) -> Result<Report, Unfinished> {
    let begun = Instant::now();
    let graph = Graph::explore(model, most)?;
    let classes = model.classes();
    assert!(classes.len() <= 64, "a class is a bit");
    let bits = |fairness| {
        let own = classes.iter().enumerate().filter(|(_, class)| class.fairness == fairness);
        own.fold(0, |bits, (place, _)| bits | 1 << place)
    };
    let fair = Fair { weak: bits(Fairness::Weak), strong: bits(Fairness::Strong) };
    let mut components = 0;
    let answer = |response: Response| {
        let question = Question { pending: 1 << response.pending, served: 1 << response.served };
        let found = search(&graph, fair, question);
        components += found.components;
        let lasso = found.violation.map(|circle| Lasso::tell(model, &graph, &response, &circle));
        Answered { response, due: found.pending, lasso }
    };
    let answers = model.responses().into_iter().map(answer).collect();
    Ok(Report { states: graph.states(), edges: graph.edge_count(), components, elapsed: begun.elapsed(), answers })
}
