//! A model by its name, and what can be done with it.

use std::net::SocketAddr;

use crate::check::{Effort, Verdict, explore};
use crate::explore::serve;
use crate::guided::search;
use crate::presentation::Presentation;
use crate::simulate::{Walks, walk};
use crate::trace::{Trace, follow, retrace, shortest, violated, wander, witnesses};

/// A model with its bounds.
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// What it explores, in a line.
    pub about: &'static str,
    /// How long it takes.
    pub tier: Tier,
    /// What must come of it.
    pub expected: Expected,
    /// The model.
    pub model: Box<dyn Run>,
}

impl Named {
    /// Whether it shows a design that Palisade replaces, or what repairs it.
    pub fn is_of_the_gallery(&self) -> bool {
        self.name.starts_with("gallery-")
    }

    /// Whether each of its steps is an input of a single server, so that live nodes can take it.
    pub fn can_be_replayed(&self) -> bool {
        !self.is_of_the_gallery() && !["leases", "induction"].iter().any(|layer| self.name.starts_with(layer))
    }
}

/// When a model is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// With the tests: all of them together take less than 90 seconds.
    Quick,
    /// With `just check`.
    Full,
    /// With `just check-deep`.
    Deep,
    /// Never to its end: by random walks.
    Random,
}

impl Tier {
    /// The tier's name.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Quick => "quick",
            Tier::Full => "full",
            Tier::Deep => "deep",
            Tier::Random => "random",
        }
    }
}

/// What must come of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// All its properties hold, within its bounds.
    Holds,
    /// The design that it shows violates this property.
    Violates(&'static str),
}

/// What can be done with a model, whatever its states are. Each call begins with a new one.
pub trait Run: Send + Sync {
    /// Explores it to its end.
    fn check(&self, threads: usize) -> Verdict {
        self.attempt(&Effort { threads, ..Effort::default() })
    }
    /// Explores it, within limits.
    fn attempt(&self, effort: &Effort) -> Verdict;
    /// The names of its properties, and whether each is about what must be possible (and not about what must hold).
    fn properties(&self) -> Vec<(&'static str, bool)>;
    /// A shortest path to where a property is violated, or met if it is about what must be possible.
    ///
    /// # Panics
    /// If the model has no such property.
    fn trace(&self, property: &str) -> Option<Trace>;
    /// The path on which these of the possible actions are taken: see [`retrace`].
    ///
    /// # Panics
    /// If the model has no such property.
    fn retrace(&self, property: &str, choices: &[usize]) -> Option<Trace>;
    /// Shortest paths to where these properties are met, as choices: see [`witnesses`].
    fn witnesses(&self, sought: &[&str], most: usize) -> Vec<(&'static str, Vec<usize>)>;
    /// What must hold and does not on the path on which these of the possible actions are taken: see [`violated`].
    fn violated(&self, choices: &[usize]) -> Option<Vec<&'static str>>;
    /// A random walk, told: see [`wander`].
    fn wander(&self, seed: u64, steps: usize) -> Option<Trace>;
    /// The path of events that another program told: see [`follow`].
    fn follow(&self, events: &[serde_json::Value]) -> Option<Trace>;
    /// Walks through it at random, until about so many states were seen.
    fn walk(&self, seed: u64, states: usize) -> Walks;
    /// Walks on from where something new was seen, until about so many states were: see [`search`].
    fn search(&self, seed: u64, states: usize) -> Walks;
    /// Serves its Explorer, for as long as the process lives.
    ///
    /// # Panics
    /// If the address is in use.
    fn explore(&self, address: SocketAddr);
}

/// Makes a model. All makers of one kind of model are of one type: what is done with it is compiled once.
struct Make<M>(Box<dyn Fn() -> M + Send + Sync>);

impl<M: Presentation> Run for Make<M> {
    fn attempt(&self, effort: &Effort) -> Verdict {
        explore(self.0(), M::REPRESENTATIVE, effort)
    }

    fn properties(&self) -> Vec<(&'static str, bool)> {
        let possible = |expectation| matches!(expectation, stateright::Expectation::Sometimes);
        self.0().properties().iter().map(|property| (property.name, possible(property.expectation.clone()))).collect()
    }

    fn trace(&self, property: &str) -> Option<Trace> {
        shortest(self.0(), property)
    }

    fn retrace(&self, property: &str, choices: &[usize]) -> Option<Trace> {
        retrace(&self.0(), property, choices)
    }

    fn witnesses(&self, sought: &[&str], most: usize) -> Vec<(&'static str, Vec<usize>)> {
        witnesses(&self.0(), sought, most)
    }

    fn violated(&self, choices: &[usize]) -> Option<Vec<&'static str>> {
        violated(&self.0(), choices)
    }

    fn wander(&self, seed: u64, steps: usize) -> Option<Trace> {
        wander(&self.0(), seed, steps)
    }

    fn follow(&self, events: &[serde_json::Value]) -> Option<Trace> {
        follow(&self.0(), events)
    }

    fn walk(&self, seed: u64, states: usize) -> Walks {
        walk(self.0(), seed, states)
    }

    fn search(&self, seed: u64, states: usize) -> Walks {
        search(self.0(), seed, states)
    }

    fn explore(&self, address: SocketAddr) {
        serve(self.0(), address);
    }
}

/// A model that must hold.
pub(crate) fn holds<M: Presentation>(
    tier: Tier,
    name: &'static str,
    about: &'static str,
    make: impl Fn() -> M + Send + Sync + 'static,
) -> Named {
    Named { name, about, tier, expected: Expected::Holds, model: Box::new(Make(Box::new(make))) }
}

/// A model whose design must be found to violate `property`, and nothing else.
pub(crate) fn violates<M: Presentation>(
    tier: Tier,
    name: &'static str,
    about: &'static str,
    property: &'static str,
    make: impl Fn() -> M + Send + Sync + 'static,
) -> Named {
    Named { name, about, tier, expected: Expected::Violates(property), model: Box::new(Make(Box::new(make))) }
}
