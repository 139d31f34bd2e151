//! Shortest paths: to a violation, or to a witness of what must be possible.
//!
//! stateright's breadth-first search replaces a counterexample by later ones until it gets round to stopping. Looking for
//! one property and nothing else it stops at the first, and the first is a shortest.

use std::num::NonZeroUsize;

use stateright::{Checker, Expectation, Model, Path, Property};

use crate::readable::Readable;

/// A path, told.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What it shows.
    pub property: &'static str,
    /// The state in which it begins, for people.
    pub initial: String,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// A step of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What happened, as a sentence.
    pub action: String,
    /// What came of it, for people.
    pub outcome: String,
    /// What happened, for programs.
    pub event: serde_json::Value,
}

/// A model of which only one property is asked.
struct Seek<M: Model> {
    model: M,
    property: Property<M>,
}

impl<M: Model> Model for Seek<M> {
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

    fn properties(&self) -> Vec<Property<Seek<M>>> {
        vec![Property::sometimes("sought", |seek, state| {
            let holds = (seek.property.condition)(&seek.model, state);
            holds == matches!(seek.property.expectation, Expectation::Sometimes)
        })]
    }
}

/// A shortest path to where `property` is violated, or met if it is about what must be possible.
///
/// # Panics
/// If the model has no such property.
pub fn shortest<M: Readable>(model: M, property: &str) -> Option<Trace> {
    let named = model.properties().into_iter().find(|known| known.name == property);
    let property = named.unwrap_or_else(|| panic!("the model has no property {property:?}"));
    let name = property.name;
    let checker = Seek { model, property }.checker().threads(NonZeroUsize::MIN.get()).spawn_bfs().join();
    let path = checker.discoveries().remove("sought")?;
    Some(tell(&checker.model().model, name, path))
}

fn tell<M: Readable>(model: &M, property: &'static str, path: Path<M::State, M::Action>) -> Trace {
    let path = path.into_vec();
    let initial = path.first().map_or(String::new(), |(state, _)| format!("{state:?}"));
    let steps = path.iter().filter_map(|(state, action)| {
        let action = action.as_ref()?;
        Some(Step {
            action: model.format_action(action),
            outcome: model.format_step(state, action.clone()).unwrap_or_default(),
            event: model.event(state, action),
        })
    });
    Trace { property, initial, steps: steps.collect() }
}
