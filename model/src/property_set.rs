//! Evaluates all properties of a model in one pass.
//!
//! stateright evaluates a model's properties one by one, even those already met, and records a path
//! each time. With two dozen properties that takes as long as everything else. So the checker gets
//! a model with a single property, which evaluates all of them and records each result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use stateright::{Expectation, Model, Property};

/// A model whose properties are evaluated together.
pub(crate) struct PropertySet<M: Model> {
    pub(crate) model: Arc<M>,
    properties: Vec<(Property<M>, AtomicBool)>,
    /// Number of undecided properties: neither violated nor met so far.
    open: AtomicUsize,
}

/// The only property that the checker sees. It fails in the state in which the search may end.
const GOES_ON: &str = "there is something to look for";

impl<M: Model> PropertySet<M> {
    /// A set without results.
    ///
    /// # Panics
    /// If a property is `eventually`: evaluating single states cannot decide it.
    pub(crate) fn new(model: M) -> PropertySet<M> {
        let properties: Vec<_> = model.properties().into_iter().map(|known| (known, AtomicBool::new(false))).collect();
        let eventual = |(property, _): &(Property<M>, _)| matches!(property.expectation, Expectation::Eventually);
        assert!(!properties.iter().any(eventual), "only `always` and `sometimes` properties can be evaluated");
        PropertySet { model: Arc::new(model), open: AtomicUsize::new(properties.len()), properties }
    }

    /// Evaluates a state. Returns whether no property is violated there, and records violated and
    /// met properties.
    pub(crate) fn look(&self, state: &M::State) -> bool {
        let mut sound = true;
        for (property, shown) in &self.properties {
            let must_hold = matches!(property.expectation, Expectation::Always);
            if !must_hold && shown.load(Ordering::Relaxed) {
                continue;
            }
            if (property.condition)(&*self.model, state) != must_hold {
                sound &= !must_hold;
                if !shown.swap(true, Ordering::Relaxed) {
                    self.open.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        sound
    }

    /// Whether every property has been violated or met.
    pub(crate) fn is_decided(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    /// The properties that were violated (`must_hold`), or those that were met.
    pub(crate) fn shown(&self, must_hold: bool) -> impl Iterator<Item = &Property<M>> {
        self.all(must_hold).filter(|(_, shown)| *shown).map(|(property, _)| property)
    }

    /// Properties that must be possible and were not met.
    pub(crate) fn unmet(&self) -> impl Iterator<Item = &Property<M>> {
        self.all(false).filter(|(_, shown)| !*shown).map(|(property, _)| property)
    }

    fn all(&self, must_hold: bool) -> impl Iterator<Item = (&Property<M>, bool)> {
        let alike = move |property: &Property<M>| matches!(property.expectation, Expectation::Always) == must_hold;
        let all = self.properties.iter().filter(move |(property, _)| alike(property));
        all.map(|(property, shown)| (property, shown.load(Ordering::Relaxed)))
    }
}

impl<M: Model<Action: Clone>> Model for PropertySet<M> {
    type State = M::State;
    type Action = M::Action;

    fn init_states(&self) -> Vec<M::State> {
        self.model.init_states()
    }

    fn actions(&self, state: &M::State, actions: &mut Vec<M::Action>) {
        self.model.actions(state, actions);
    }

    fn next_state(&self, last: &M::State, action: M::Action) -> Option<M::State> {
        self.model.next_state(last, action)
    }

    fn properties(&self) -> Vec<Property<PropertySet<M>>> {
        vec![Property::always(GOES_ON, |watched: &PropertySet<M>, state| {
            watched.look(state);
            !watched.is_decided()
        })]
    }

    fn within_boundary(&self, state: &M::State) -> bool {
        self.model.within_boundary(state)
    }
}
