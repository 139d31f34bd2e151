//! A model with all its properties looked at in one go.
//!
//! stateright looks at a model's properties one by one, also at those that it has seen met long ago, and notes the path
//! each time. Of two dozen properties that takes as long as everything else. So the checker is given a model with a
//! single property, which looks at all of them and remembers what each has shown.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use stateright::{Expectation, Model, Property};

/// A model whose properties are looked at together.
pub(crate) struct PropertySet<M: Model> {
    pub(crate) model: M,
    properties: Vec<(Property<M>, AtomicBool)>,
    /// How many properties have shown nothing yet: what must hold held, and what must be possible was not met.
    open: AtomicUsize,
    way: Way,
}

/// How one goes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Everywhere, until every property has been violated or met.
    Everywhere,
    /// At random, until something is amiss. Only what does something can be chosen: stateright could not find its way
    /// again along what was tried in vain.
    AtRandom,
}

/// The one property that the checker sees. It is violated where there is nothing more to look for.
pub(crate) const GOES_ON: &str = "there is something to look for";

impl<M: Model> PropertySet<M> {
    /// Nothing was looked at yet.
    ///
    /// # Panics
    /// If a property is about what must happen eventually: of that, looking at states shows nothing.
    pub(crate) fn new(model: M, way: Way) -> PropertySet<M> {
        let properties: Vec<_> = model.properties().into_iter().map(|known| (known, AtomicBool::new(false))).collect();
        let eventual = |(property, _): &(Property<M>, _)| matches!(property.expectation, Expectation::Eventually);
        assert!(!properties.iter().any(eventual), "only what holds always, or sometimes, can be looked at");
        PropertySet { model, open: AtomicUsize::new(properties.len()), properties, way }
    }

    /// Whether nothing is amiss in a state. Notes which properties were violated, or met.
    pub(crate) fn look(&self, state: &M::State) -> bool {
        let mut sound = true;
        for (property, shown) in &self.properties {
            let must_hold = matches!(property.expectation, Expectation::Always);
            if !must_hold && shown.load(Ordering::Relaxed) {
                continue;
            }
            if (property.condition)(&self.model, state) != must_hold {
                sound &= !must_hold;
                if !shown.swap(true, Ordering::Relaxed) {
                    self.open.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        sound
    }

    /// Whether every property has been violated or met: there is nothing left to find out.
    pub(crate) fn is_decided(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    /// The properties that were violated, or those that were met.
    pub(crate) fn shown(&self, must_hold: bool) -> impl Iterator<Item = &Property<M>> {
        self.all(must_hold).filter(|(_, shown)| *shown).map(|(property, _)| property)
    }

    /// What must be possible, and was not met.
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
        let begin = actions.len();
        self.model.actions(state, actions);
        if self.way == Way::AtRandom {
            let mut possible = actions.split_off(begin);
            possible.retain(|action| self.model.next_state(state, action.clone()).is_some());
            actions.append(&mut possible);
        }
    }

    fn next_state(&self, last: &M::State, action: M::Action) -> Option<M::State> {
        self.model.next_state(last, action)
    }

    fn properties(&self) -> Vec<Property<PropertySet<M>>> {
        vec![Property::always(GOES_ON, |watched: &PropertySet<M>, state| {
            let sound = watched.look(state);
            match watched.way {
                Way::Everywhere => !watched.is_decided(),
                Way::AtRandom => sound,
            }
        })]
    }

    fn within_boundary(&self, state: &M::State) -> bool {
        self.model.within_boundary(state)
    }
}
