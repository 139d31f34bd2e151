//! A model by its name, and the operations on it.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use crate::check::explore::explore;
use crate::check::verdict::{Effort, Expected, Verdict};
use crate::erased::Erased;
use crate::explore::serve;
use crate::guided::search;
use crate::presentation::Presentation;
use crate::simulate::{Walks, walk};
use crate::trace::{Trace, follow, retrace, shortest, violated, wander, witnesses};

/// A model with its bounds.
pub struct Named {
    /// The model's name.
    pub name: &'static str,
    /// What the model explores, in one line.
    pub about: &'static str,
    /// When the model is explored.
    pub tier: Tier,
    /// The expected verdict.
    pub expected: Expected,
    /// The model.
    pub model: Box<dyn Run>,
}

impl Named {
    /// Whether the model shows a design that Palisade replaces, or its repair.
    pub fn is_of_the_gallery(&self) -> bool {
        self.name.starts_with("gallery-")
    }

    /// Whether each step is an input of a single server, so that live nodes can replay it.
    pub fn can_be_replayed(&self) -> bool {
        !self.is_of_the_gallery() && !["leases", "induction"].iter().any(|layer| self.name.starts_with(layer))
    }
}

/// When a model is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// With `just check`: the main models. The tests run the liveness checks of this tier, too.
    Quick,
    /// With `just check`.
    Full,
    /// With `just check-deep`.
    Deep,
    /// Never exhaustively: by random walks.
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

/// Operations on a model, independent of the type of its states. Each call constructs a new model.
pub trait Run: Send + Sync {
    /// Explores the whole state space.
    fn check(&self, threads: usize) -> Verdict {
        self.attempt(&Effort { threads, ..Effort::default() })
    }
    /// Explores within limits.
    fn attempt(&self, effort: &Effort) -> Verdict;
    /// The names of the properties, and whether each must be possible (`true`) or must always hold
    /// (`false`).
    fn properties(&self) -> Vec<(&'static str, bool)>;
    /// A shortest path to a state that violates the property, or meets it if it must be possible.
    ///
    /// # Panics
    /// If the model has no such property.
    fn trace(&self, property: &str) -> Option<Trace>;
    /// The path of these choices among the possible actions: see [`retrace`].
    ///
    /// # Panics
    /// If the model has no such property.
    fn retrace(&self, property: &str, choices: &[usize]) -> Option<Trace>;
    /// Shortest paths to states that meet these properties, as choices: see [`witnesses`].
    fn witnesses(&self, sought: &[&str], most: usize) -> Vec<(&'static str, Vec<usize>)>;
    /// The properties violated on the path of these choices: see [`violated`].
    fn violated(&self, choices: &[usize]) -> Option<Vec<&'static str>>;
    /// A random walk as a trace: see [`wander`].
    fn wander(&self, seed: u64, steps: usize) -> Option<Trace>;
    /// The path of another build's events: see [`follow`].
    fn follow(&self, events: &[serde_json::Value]) -> Option<Trace>;
    /// Random walks, until about this many states were visited.
    fn walk(&self, seed: u64, states: usize) -> Walks;
    /// Guided search, until about this many states were visited: see [`search`].
    fn search(&self, seed: u64, states: usize) -> Walks;
    /// Serves the model in stateright's Explorer under this name until the process ends.
    ///
    /// # Errors
    /// If the listener fails.
    fn explore(&self, name: &str, listener: TcpListener) -> io::Result<()>;
}

/// Constructs a model. All constructors of one kind of model have one type, so the operations are
/// compiled once.
struct Make<M>(Box<dyn Fn() -> M + Send + Sync>);

impl<M: Presentation> Make<M> {
    /// The model, for what may take longer: it is not compiled once more for each model.
    fn erased(&self) -> Erased {
        Erased::new(Arc::new(self.0()))
    }
}

impl<M: Presentation> Run for Make<M> {
    fn attempt(&self, effort: &Effort) -> Verdict {
        explore(self.0(), M::REPRESENTATIVE, effort)
    }

    fn properties(&self) -> Vec<(&'static str, bool)> {
        let possible = |expectation| matches!(expectation, stateright::Expectation::Sometimes);
        self.erased().expectations().into_iter().map(|(expectation, name)| (name, possible(expectation))).collect()
    }

    fn trace(&self, property: &str) -> Option<Trace> {
        shortest(self.0(), property)
    }

    fn retrace(&self, property: &str, choices: &[usize]) -> Option<Trace> {
        retrace(&self.erased(), property, choices)
    }

    fn witnesses(&self, sought: &[&str], most: usize) -> Vec<(&'static str, Vec<usize>)> {
        witnesses(&self.0(), sought, most)
    }

    fn violated(&self, choices: &[usize]) -> Option<Vec<&'static str>> {
        violated(&self.erased(), choices)
    }

    fn wander(&self, seed: u64, steps: usize) -> Option<Trace> {
        wander(&self.erased(), seed, steps)
    }

    fn follow(&self, events: &[serde_json::Value]) -> Option<Trace> {
        follow(&self.erased(), events)
    }

    fn walk(&self, seed: u64, states: usize) -> Walks {
        walk(self.0(), seed, states)
    }

    fn search(&self, seed: u64, states: usize) -> Walks {
        search(self.0(), seed, states)
    }

    fn explore(&self, name: &str, listener: TcpListener) -> io::Result<()> {
        serve(self.erased(), name, listener)
    }
}

/// A model whose properties must hold.
pub(crate) fn holds<M: Presentation>(
    tier: Tier,
    name: &'static str,
    about: &'static str,
    make: impl Fn() -> M + Send + Sync + 'static,
) -> Named {
    Named { name, about, tier, expected: Expected::Holds, model: Box::new(Make(Box::new(make))) }
}

/// A model whose design must violate `property`, and no other.
pub(crate) fn violates<M: Presentation>(
    tier: Tier,
    name: &'static str,
    about: &'static str,
    property: &'static str,
    make: impl Fn() -> M + Send + Sync + 'static,
) -> Named {
    Named { name, about, tier, expected: Expected::Violates(property), model: Box::new(Make(Box::new(make))) }
}
