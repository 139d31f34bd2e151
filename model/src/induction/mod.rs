//! Invariants that are *inductive*: from every state that satisfies them, reachable or not, every step leads to one that does.
//!
//! The other layers begin at the beginning, and say "no violation within these depths". A layer of induction begins in *every*
//! state within small bounds that satisfies its invariants, takes every single step from it, and checks the invariants again. No
//! depth is left: what holds at the beginning and is kept by every step holds for ever, in clusters and tables of that size.
//!
//! A state that is reached by a step that keeps the invariants is one of those begun with, as far as it is within the bounds; so
//! it is not followed. A step that breaks them is a *counterexample to induction*: either the code is wrong, or the invariants
//! do not say enough about the states that can be reached.
//!
//! | module | what is inductive |
//! |---|---|
//! | [`tables`] | what is true of a lock table by itself, and of every entry that it applies |
//! | [`clocks`] | a node's clock moves on from an entry's stamp by no more than the entry's age |
//! | [`consensus`] | votes, logs and commits of one node, whatever the others may send |
//!
//! The last two take one node at a time. What the other nodes have done appears as a *history*: the logs of the leaders that
//! there were, which the node and each message must fit. A step changes one node, and adds to the history what it sends; that
//! what it sends fits the history is part of what is checked. Each module says what its histories are, and what is left out.

pub mod clocks;
pub mod consensus;
mod logs;
pub mod tables;

use std::any::Any;
use std::cell::RefCell;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};

use palisade_spec::invariants::Violation;
use stateright::{Model, Property};

use crate::presentation::Presentation;
use crate::world::panic_text;

/// What is to be inductive.
pub trait Case: Send + Sync + Sized + 'static {
    /// A state that satisfies the invariants, in few bytes.
    type Scene: Clone + Debug + PartialEq + Hash + Send + Sync + 'static;
    /// A step.
    type Step: Clone + Debug + PartialEq + Send + Sync + 'static;

    /// Every state within the bounds that satisfies the invariants.
    fn scenes(&self) -> Vec<Self::Scene>;
    /// Every step that can be taken in it.
    fn steps(&self, scene: &Self::Scene, steps: &mut Vec<Self::Step>);
    /// Takes a step and checks the invariants. Says what the step is an example of, if that must be possible.
    ///
    /// # Errors
    /// What does not hold any more.
    fn take(&self, scene: &Self::Scene, step: &Self::Step) -> Result<Option<&'static str>, Violation>;
    /// The invariants by their names, and what must be possible.
    fn properties() -> Vec<Property<Induction<Self>>>;
    /// A state, for people.
    fn picture(&self, scene: &Self::Scene) -> String;
    /// A step, for people.
    fn sentence(&self, step: &Self::Step) -> String;
}

/// What was made last: many steps are taken from one state, one after the other.
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

/// Where a step has led.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum State<S> {
    /// A state that satisfies the invariants, from which steps are taken.
    Satisfies(S),
    /// A step has kept the invariants, and was an example of this.
    Shows(&'static str),
    /// A step has broken an invariant.
    Breaks(&'static str, String),
}

impl<S: Debug> Debug for State<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Satisfies(scene) => scene.fmt(f),
            State::Shows(what) => write!(f, "the invariants hold: {what}"),
            State::Breaks(property, detail) => write!(f, "{property} is violated: {detail}"),
        }
    }
}

impl<S> State<S> {
    /// Whether a step has broken this invariant.
    pub(crate) fn breaks(&self, name: &str) -> bool {
        matches!(self, State::Breaks(property, _) if *property == name)
    }

    /// Whether a step was an example of this.
    pub(crate) fn shows(&self, name: &str) -> bool {
        matches!(self, State::Shows(what) if *what == name)
    }
}

/// Properties by their names: what must hold, and what must be possible.
macro_rules! properties {
    (always: $($always:literal),* ; sometimes: $($sometimes:literal),* $(,)?) => {
        vec![
            $(stateright::Property::always($always, |_: &Induction<_>, state: &State<_>| !state.breaks($always)),)*
            $(stateright::Property::sometimes($sometimes, |_: &Induction<_>, state: &State<_>| state.shows($sometimes)),)*
        ]
    };
}
use properties;

impl<C: Case> Induction<C> {
    /// The induction of a case.
    pub fn new(case: C) -> Induction<C> {
        Induction { case }
    }
}

impl<C: Case> Model for Induction<C> {
    type State = State<C::Scene>;
    type Action = C::Step;

    fn properties(&self) -> Vec<Property<Self>> {
        C::properties()
    }

    fn init_states(&self) -> Vec<Self::State> {
        self.case.scenes().into_iter().map(State::Satisfies).collect()
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<C::Step>) {
        if let State::Satisfies(scene) = state {
            self.case.steps(scene, actions);
        }
    }

    fn next_state(&self, last: &Self::State, step: C::Step) -> Option<Self::State> {
        let State::Satisfies(scene) = last else { return None };
        let taken = catch_unwind(AssertUnwindSafe(|| self.case.take(scene, &step)));
        let stopped =
            |panic: Box<dyn Any + Send>| Err(Violation { property: "assertions", detail: panic_text(&*panic) });
        match taken.unwrap_or_else(stopped) {
            Ok(shown) => shown.map(State::Shows),
            Err(violation) => {
                let named = C::properties().iter().any(|property| property.name == violation.property);
                assert!(named, "no property asks for {violation}");
                Some(State::Breaks(violation.property, violation.detail))
            }
        }
    }

    fn format_step(&self, last: &Self::State, step: C::Step) -> Option<String> {
        let next = self.next_state(last, step)?;
        let State::Satisfies(scene) = last else { return None };
        Some(format!("{}\n{next:?}", self.case.picture(scene)))
    }
}

impl<C: Case> Presentation for Induction<C> {
    fn sentence(&self, last: &Self::State, step: &C::Step) -> String {
        match last {
            State::Satisfies(scene) => format!("{}: {}", self.case.picture(scene), self.case.sentence(step)),
            State::Shows(_) | State::Breaks(..) => unreachable!("no step follows"),
        }
    }
}
