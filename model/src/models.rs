//! Every model there is, by name, with its bounds.

use crate::check::{Verdict, exhaust};
use crate::locks::{self, Deed, Locks};
use crate::raft::{Proposals, Tape};
use crate::readable::Readable;
use crate::trace::{Trace, shortest};
use crate::world::{Answers, Bounds, Delivery, World};

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

/// When a model is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// With the tests: all of them together take less than 90 seconds.
    Quick,
    /// With `just check`.
    Full,
    /// With `just check-deep`.
    Deep,
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
    fn check(&self, threads: usize) -> Verdict;
    /// The names of its properties, and whether each is about what must be possible (and not about what must hold).
    fn properties(&self) -> Vec<(&'static str, bool)>;
    /// A shortest path to where a property is violated, or met if it is about what must be possible.
    ///
    /// # Panics
    /// If the model has no such property.
    fn trace(&self, property: &str) -> Option<Trace>;
}

/// Makes a model.
struct Make<F>(F);

impl<M: Readable, F: Fn() -> M + Send + Sync> Run for Make<F> {
    fn check(&self, threads: usize) -> Verdict {
        let checker = self.0().checker();
        let checker = match M::REPRESENTATIVE {
            Some(representative) => checker.symmetry_fn(representative),
            None => checker,
        };
        exhaust(checker, threads)
    }

    fn properties(&self) -> Vec<(&'static str, bool)> {
        let possible = |expectation| matches!(expectation, stateright::Expectation::Sometimes);
        self.0().properties().iter().map(|property| (property.name, possible(property.expectation.clone()))).collect()
    }

    fn trace(&self, property: &str) -> Option<Trace> {
        shortest(self.0(), property)
    }
}

/// A model that must hold.
fn holds<M: Readable>(
    tier: Tier,
    name: &'static str,
    about: &'static str,
    make: impl Fn() -> M + Send + Sync + 'static,
) -> Named {
    Named { name, about, tier, expected: Expected::Holds, model: Box::new(Make(make)) }
}

/// All of them, the quick ones first.
pub fn models() -> Vec<Named> {
    vec![
        holds(
            Tier::Quick,
            "raft",
            "3 servers, 2 terms, logs of 2, a crash at any output, 2 messages on their way",
            || raft(Bounds { crashes: 1, delivery: late(2), ..Bounds::default() }),
        ),
        holds(
            Tier::Quick,
            "raft-late",
            "3 servers, 2 terms, logs of 2, 3 messages on their way: late and stale ones",
            || raft(Bounds { delivery: late(3), ..Bounds::default() }),
        ),
        holds(
            Tier::Quick,
            "locks",
            "3 sessions, 1 key, 2 operations each, late, repeated and lost; keepalives, closes, expiry at any moment",
            || Locks::new(locks::Bounds { alphabet: &[Deed::Wait, Deed::Release], ..LOCKS }),
        ),
        holds(
            Tier::Deep,
            "raft-three-terms",
            "3 servers, 3 terms, logs of 3, a crash at any output, 2 messages on their way",
            || raft(Bounds { terms: 3, log: 3, crashes: 1, delivery: late(2), ..Bounds::default() }),
        ),
        holds(Tier::Deep, "locks-all", "3 sessions, 1 key, 2 operations of every kind each", || Locks::new(LOCKS)),
    ]
}

const LOCKS: locks::Bounds = locks::Bounds {
    sessions: 3,
    keys: 1,
    operations: 2,
    once: 0,
    ttl: 1,
    ticks: 2,
    alphabet: &[Deed::Wait, Deed::Try, Deed::Release, Deed::Withdraw],
};

/// Messages that arrive whenever they do, so many on their way at once.
fn late(most: usize) -> Delivery {
    Delivery::AnyTime { most, answers: Answers::Messages }
}

fn raft(bounds: Bounds) -> World<Proposals> {
    let bounds = Bounds { symmetry: true, ..bounds };
    let most = u8::try_from(bounds.log).expect("logs are short");
    let proposals = Proposals { made: 0, most, log: bounds.log };
    World::new(bounds, Tape::default(), proposals)
}
