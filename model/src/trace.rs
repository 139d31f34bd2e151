//! Shortest paths: to a violation, or to a witness of what must be possible.
//!
//! stateright's breadth-first search replaces a counterexample by later ones until it gets round to stopping. Looking for
//! one property and nothing else it stops at the first, and the first is a shortest.

use std::fmt;

use serde_json::{Value, json};
use stateright::{Checker, Expectation, Model, Path, Property};

use crate::explore::place;
use crate::readable::Readable;

/// A path, told.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What it shows.
    pub property: &'static str,
    /// Whether the property is about what must be possible (and is met at the end), not about what must hold (and does
    /// not, at the end).
    pub possible: bool,
    /// The state in which it begins, for people.
    pub initial: String,
    /// The state in which it begins, for programs.
    pub setting: Value,
    /// Where stateright's Explorer shows it: what follows `#/steps` in the page's address.
    pub place: String,
    /// Its steps.
    pub steps: Vec<Step>,
}

/// A step of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What happened, as a sentence.
    pub action: String,
    /// What came of it, for people: a line for everything that changed.
    pub outcome: String,
    /// What happened, for programs.
    pub event: Value,
}

/// The version of what [`Trace::lines`] writes.
const FORMAT: u32 = 1;

/// The steps, numbered, each with what changed.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Step { action, outcome, .. }) in self.steps.iter().enumerate() {
            writeln!(f, "{:>3}. {action}", number + 1)?;
            outcome.lines().try_for_each(|line| writeln!(f, "       {line}"))?;
        }
        Ok(())
    }
}

impl Trace {
    /// What the trace shows, as a sentence.
    pub fn title(&self) -> String {
        let Trace { property, possible, steps, .. } = self;
        let steps = match steps.len() {
            1 => "1 step".to_string(),
            count => format!("{count} steps"),
        };
        if *possible {
            format!("\"{property}\" is met after {steps}")
        } else {
            format!("\"{property}\" is violated after {steps}")
        }
    }

    /// One JSON value a line: first what is shown and how it begins, then every step.
    pub fn lines(&self, model: &str) -> Vec<Value> {
        let Trace { property, possible, setting, steps, .. } = self;
        let shows = if *possible { "witness" } else { "violation" };
        let begin = json!({
            "format": FORMAT,
            "model": model,
            "property": property,
            "shows": shows,
            "steps": steps.len(),
            "setting": setting,
        });
        let steps = steps.iter().enumerate().map(|(number, step)| {
            let changes: Vec<&str> = step.outcome.lines().collect();
            json!({ "step": number + 1, "sentence": step.action, "changes": changes, "event": step.event })
        });
        std::iter::once(begin).chain(steps).collect()
    }
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
    with_shortest(model, property, tell)
}

/// What `then` makes of a shortest path, and of the model whose states these are.
///
/// # Panics
/// If the model has no such property.
pub(crate) fn with_shortest<M: Readable, T>(
    model: M,
    property: &str,
    then: impl FnOnce(&M, &Property<M>, Path<M::State, M::Action>) -> T,
) -> Option<T> {
    let named = model.properties().into_iter().find(|known| known.name == property);
    let property = named.unwrap_or_else(|| panic!("the model has no property {property:?}"));
    let checker = Seek { model, property }.checker().threads(1).spawn_bfs().join();
    let path = checker.discoveries().remove("sought")?;
    let Seek { model, property } = checker.model();
    Some(then(model, property, path))
}

pub(crate) fn tell<M: Readable>(model: &M, property: &Property<M>, path: Path<M::State, M::Action>) -> Trace {
    let path = path.into_vec();
    let (initial, _) = path.first().expect("a path has a beginning");
    let steps = path.iter().filter_map(|(state, action)| {
        let action = action.as_ref()?;
        Some(Step {
            action: model.sentence(state, action),
            outcome: model.format_step(state, action.clone()).unwrap_or_default(),
            event: model.event(state, action),
        })
    });
    Trace {
        property: property.name,
        possible: matches!(property.expectation, Expectation::Sometimes),
        initial: format!("{initial:?}"),
        setting: model.setting(initial),
        place: place(model, &path),
        steps: steps.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter that takes steps of 1 and 2, up to 5.
    struct Counter;

    impl Model for Counter {
        type State = u8;
        type Action = u8;

        fn init_states(&self) -> Vec<u8> {
            vec![0]
        }

        fn actions(&self, _: &u8, actions: &mut Vec<u8>) {
            actions.extend([1, 2]);
        }

        fn next_state(&self, last: &u8, action: u8) -> Option<u8> {
            Some(last + action).filter(|next| *next <= 5)
        }

        fn properties(&self) -> Vec<Property<Counter>> {
            vec![
                Property::always("less than 4", |_, state| *state < 4),
                Property::sometimes("is 5", |_, state| *state == 5),
                Property::sometimes("is 6", |_, state| *state == 6),
            ]
        }
    }

    impl Readable for Counter {}

    #[test]
    fn a_trace_is_shortest_and_says_what_it_shows() {
        let violation = shortest(Counter, "less than 4").unwrap();
        assert_eq!(violation.title(), "\"less than 4\" is violated after 2 steps");
        assert_eq!(violation.to_string(), "  1. 2\n       2\n  2. 2\n       4\n");
        let witness = shortest(Counter, "is 5").unwrap();
        assert_eq!(witness.title(), "\"is 5\" is met after 3 steps");
        assert_eq!(shortest(Counter, "is 6"), None);
    }

    #[test]
    fn lines_tell_it_to_programs() {
        let lines = shortest(Counter, "less than 4").unwrap().lines("counter");
        let begin = json!({ "format": 1, "model": "counter", "property": "less than 4", "shows": "violation",
            "steps": 2, "setting": null });
        let step = json!({ "step": 1, "sentence": "2", "changes": ["2"], "event": { "action": "2" } });
        assert_eq!(lines[..2], [begin, step]);
        assert_eq!(lines.len(), 3);
    }
}
