//! Invariants that are *inductive*: every step from a state that satisfies them, reachable or not,
//! leads to a state that satisfies them.
//!
//! The other layers start in the initial states, and show "no violation within these depths". A
//! layer of induction starts in *every* state within small bounds that satisfies its invariants,
//! takes every single step from it, and checks the invariants again. The result has no depth: what
//! holds initially and is kept by every step holds for ever, in clusters and tables of that size.
//!
//! The successor of a step that keeps the invariants is itself a start state, as far as it is
//! within the bounds, so it is not expanded. A step that breaks an invariant is a *counterexample
//! to induction*: either the code is wrong, or the invariants are too weak.
//!
//! | module | what is inductive |
//! |---|---|
//! | [`tables`] | what is true of a lock table by itself, and of every entry that it applies |
//! | [`clocks`] | a node's clock moves on from an entry's stamp by no more than the entry's age |
//! | [`consensus`] | votes, logs and commits of one node, whatever the others may send |
//!
//! The last two take one node at a time. The actions of the other nodes appear as a *history*: the
//! logs of the past leaders, which the node and each message must fit. A step changes one node, and
//! adds the messages that it sends to the history; the checks include that these fit the history.
//! Each module describes its histories, and what it leaves out.

pub mod clocks;
pub mod consensus;
mod logs;
pub mod tables;

use std::cell::RefCell;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade_spec::invariants::{self, Violation};
use stateright::{Model, Property};

use crate::presentation::Presentation;
use crate::world::panicked;

/// A case of induction.
pub trait Case: Send + Sync + Sized + 'static {
    /// A state that satisfies the invariants, in compact form.
    type StartState: Clone + Debug + PartialEq + Hash + Send + Sync + 'static;
    /// A step.
    type Step: Clone + Debug + PartialEq + Send + Sync + 'static;

    /// Every state within the bounds that satisfies the invariants.
    fn start_states(&self) -> Vec<Self::StartState>;
    /// Every step that is possible in a state.
    fn steps(&self, initial: &Self::StartState, steps: &mut Vec<Self::Step>);
    /// Takes a step and checks the invariants. Returns what the step is an example of, if that must
    /// be possible.
    ///
    /// # Errors
    /// If an invariant is violated.
    fn take(&self, initial: &Self::StartState, step: &Self::Step) -> Result<Option<&'static str>, Violation>;
    /// The names of the invariants, and of what must be possible.
    fn properties(&self) -> Vec<Property<Induction<Self>>>;
    /// A state as text.
    fn picture(&self, initial: &Self::StartState) -> String;
    /// A step as text.
    fn sentence(&self, step: &Self::Step) -> String;
}

/// A cache of the latest value: many steps are taken from one state, one after the other.
struct Latest<K, V>(RefCell<Option<(K, V)>>);

impl<K: PartialEq, V: Clone> Latest<K, V> {
    const fn new() -> Latest<K, V> {
        Latest(RefCell::new(None))
    }

    fn get(&self, key: K, make: impl FnOnce() -> V) -> V {
        let mut latest = self.0.borrow_mut();
        match &*latest {
            Some((known, value)) if *known == key => value.clone(),
            _ => latest.insert((key, make())).1.clone(),
        }
    }
}

/// The model: every state that satisfies the invariants, and one step from each.
pub struct Induction<C> {
    case: C,
}

/// A state of the model.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum State<S> {
    /// A start state, from which steps are taken.
    Satisfies(S),
    /// A step has kept the invariants, and was an example of this property.
    Shows(&'static str),
    /// A step has broken an invariant.
    Breaks(invariants::Property, String),
}

impl<S: Debug> Debug for State<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Satisfies(initial) => initial.fmt(f),
            State::Shows(what) => write!(f, "the invariants hold: {what}"),
            State::Breaks(property, detail) => write!(f, "{property} is violated: {detail}"),
        }
    }
}

impl<S> State<S> {
    /// Whether a step has broken this invariant.
    pub(crate) fn breaks(&self, property: invariants::Property) -> bool {
        matches!(self, State::Breaks(broken, _) if *broken == property)
    }

    /// Whether a step was an example of this property.
    pub(crate) fn shows(&self, name: &str) -> bool {
        matches!(self, State::Shows(what) if *what == name)
    }
}

/// Properties by name: those that must always hold, and those that must be possible.
macro_rules! properties {
    (always: $($always:ident),* ; sometimes: $($sometimes:literal),* $(,)?) => {
        vec![
            $(stateright::Property::always(
                palisade_spec::invariants::Property::$always.name(),
                |_: &Induction<_>, state: &State<_>| !state.breaks(palisade_spec::invariants::Property::$always),
            ),)*
            $(stateright::Property::sometimes($sometimes, |_: &Induction<_>, state: &State<_>| state.shows($sometimes)),)*
        ]
    };
}
use properties;

impl<C: Case> Induction<C> {
    /// The model of a case.
    pub fn new(case: C) -> Induction<C> {
        Induction { case }
    }
}

impl<C: Case> Model for Induction<C> {
    type State = State<C::StartState>;
    type Action = C::Step;

    fn properties(&self) -> Vec<Property<Self>> {
        self.case.properties()
    }

    fn init_states(&self) -> Vec<Self::State> {
        self.case.start_states().into_iter().map(State::Satisfies).collect()
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<C::Step>) {
        if let State::Satisfies(initial) = state {
            self.case.steps(initial, actions);
        }
    }

    fn next_state(&self, last: &Self::State, step: C::Step) -> Option<Self::State> {
        let State::Satisfies(initial) = last else { return None };
        let taken = catch_unwind(AssertUnwindSafe(|| self.case.take(initial, &step)));
        match taken.unwrap_or_else(|panic| Err(panicked(panic))) {
            Ok(shown) => shown.map(State::Shows),
            Err(violation) => {
                let named = self.case.properties().iter().any(|property| property.name == violation.property.name());
                assert!(named, "no property asks for {violation}");
                Some(State::Breaks(violation.property, violation.detail))
            }
        }
    }

    fn format_step(&self, last: &Self::State, step: C::Step) -> Option<String> {
        let next = self.next_state(last, step)?;
        let State::Satisfies(initial) = last else { return None };
        Some(format!("{}\n{next:?}", self.case.picture(initial)))
    }
}

impl<C: Case> Presentation for Induction<C> {
    fn sentence(&self, last: &Self::State, step: &C::Step) -> String {
        match last {
            State::Satisfies(initial) => format!("{}: {}", self.case.picture(initial), self.case.sentence(step)),
            State::Shows(_) | State::Breaks(..) => unreachable!("no step follows"),
        }
    }
}
