//! Shortest paths to a violation, or to a witness of a property that must be possible.
//!
//! [`shortest`] stops at the first state that it looks for. To find many properties of one model,
//! [`witnesses`] runs one search that records the first witness of each. It begins in the first initial
//! state, where [`retrace`] begins; [`shortest`] visits the states in the order of stateright's
//! breadth-first search. That one would be compiled for every type of model, with its threads and their
//! job broker.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use stateright::{Expectation, Model, Property};

use crate::erased::Erased;
use crate::presentation::{Presentation, Way, by_weight};

/// A path and what it shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The property shown.
    pub property: &'static str,
    /// Whether the property must be possible (and is met at the end) or must always hold (and is
    /// violated at the end).
    pub possible: bool,
    /// The initial state, for people.
    pub initial: String,
    /// The initial state, for programs.
    pub setting: Value,
    /// The index of the action taken among the possible ones, for each state: enough to
    /// [`retrace`] a path from the first initial state.
    pub choices: Vec<usize>,
    /// The path in stateright's Explorer: what follows `#/steps` in the page's address.
    pub explorer_path: String,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A step of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The action, as a sentence.
    pub action: String,
    /// The effect, for people: a line for each change.
    pub outcome: String,
    /// The event, for programs.
    pub event: Value,
}

/// Format version of [`Trace::lines`].
const FORMAT: u32 = 1;

/// The numbered steps, each with its changes.
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
    /// The result that the trace shows, as a sentence.
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

    /// One JSON value a line: the header with the property and the initial state, then every step.
    pub fn lines(&self, model: &str) -> Vec<Value> {
        let Trace { property, possible, setting, choices, steps, .. } = self;
        let shows = if *possible { "witness" } else { "violation" };
        let begin = json!({
            "format": FORMAT,
            "model": model,
            "property": property,
            "shows": shows,
            "steps": steps.len(),
            "choices": choices,
            "setting": setting,
        });
        let steps = steps.iter().enumerate().map(|(number, step)| {
            let changes: Vec<&str> = step.outcome.lines().collect();
            json!({ "step": number + 1, "sentence": step.action, "changes": changes, "event": step.event })
        });
        std::iter::once(begin).chain(steps).collect()
    }
}

/// A shortest path to a state that violates `property`, or meets it if it must be possible.
///
/// # Panics
/// If the model has no such property.
pub fn shortest<M: Presentation>(model: M, property: &str) -> Option<Trace> {
    let property = named(&model, property);
    let possible = matches!(property.expectation, Expectation::Sometimes);
    let mut found = None;
    // stateright's search begins with the last initial state.
    let initial = model.init_states().into_iter().enumerate().rev().collect();
    breadth_first(&model, initial, usize::MAX, &mut |reached, index, state| {
        if (property.condition)(&model, state) == possible {
            found = Some(reached.way(index));
        }
        found.is_none()
    });
    let (initial, choices) = found?;
    trace_of_choices(Arc::new(model), property.name, possible, initial, &choices)
}

fn named<M: Presentation>(model: &M, property: &str) -> Property<M> {
    let named = model.properties().into_iter().find(|known| known.name == property);
    named.unwrap_or_else(|| panic!("the model has no property {property:?}"))
}

/// The property name of a random walk, which seeks no property.
pub const WALK: &str = "random walk";

/// The path of these choices among the possible actions, from the first initial state. `None` if it
/// does not exist, or its last state does not violate `property` (or meet it, if it must be
/// possible). [`WALK`] is met everywhere.
///
/// # Panics
/// If the model has no such property.
pub fn retrace<M: Presentation>(model: &M, property: &str, choices: &[usize]) -> Option<Trace> {
    let way = way_of(model, 0, choices)?;
    if property == WALK {
        return Some(trace_of_way(model, WALK, true, &way));
    }
    let property = named(model, property);
    let possible = matches!(property.expectation, Expectation::Sometimes);
    let (last, _) = way.last()?;
    ((property.condition)(model, last) == possible).then(|| trace_of_way(model, property.name, possible, &way))
}

/// A random walk of at most so many steps, each drawn by its [weight](Presentation::weight).
pub fn wander<M: Presentation>(model: &M, seed: u64, steps: usize) -> Option<Trace> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut left = steps;
    let way = take(model, 0, &mut |state, actions| {
        left = left.checked_sub(1)?;
        let mut actions = actions.to_vec();
        while !actions.is_empty() {
            let action = actions.swap_remove(by_weight(&mut random, actions.iter(), M::weight));
            // An action that changes nothing is no step.
            if model.next_state(state, action.clone()).is_some_and(|next| next != *state) {
                return Some(action);
            }
        }
        None
    })?;
    Some(trace_of_way(model, WALK, true, &way))
}

/// A shortest path from the first initial state to a state that meets each of these properties, as
/// choices, for the properties met among the first `most` states.
pub fn witnesses<M: Presentation>(model: &M, sought: &[&str], most: usize) -> Vec<(&'static str, Vec<usize>)> {
    let mut sought: Vec<Property<M>> =
        model.properties().into_iter().filter(|property| sought.contains(&property.name)).collect();
    let mut found = Vec::new();
    let initial = model.init_states().into_iter().enumerate().take(1).collect();
    breadth_first(model, initial, most, &mut |reached, index, state| {
        sought.retain(|property| {
            let is_met = (property.condition)(model, state);
            if is_met {
                found.push((property.name, reached.way(index).1));
            }
            !is_met
        });
        !sought.is_empty()
    });
    found
}

/// Sees a state with its index among those reached; returns whether the search goes on.
type Visitor<'a, S> = dyn FnMut(&Reached<S>, usize, &S) -> bool + 'a;

/// Visits the states breadth first, from these initial ones, each with its index among all, until `goes_on` is
/// false. Once `most` states are known, only those are visited.
fn breadth_first<M: Presentation>(
    model: &M,
    initial: Vec<(usize, M::State)>,
    most: usize,
    goes_on: &mut Visitor<'_, M::State>,
) {
    let mut reached = Reached::default();
    for (choice, state) in initial {
        reached.insert(state, None, choice);
    }
    let mut actions = Vec::new();
    while let Some((index, state)) = reached.next.pop_front() {
        if !goes_on(&reached, index, &state) {
            return;
        }
        if reached.from.len() >= most {
            continue;
        }
        model.actions(&state, &mut actions);
        for (choice, action) in actions.drain(..).enumerate() {
            if let Some(next) = model.next_state(&state, action) {
                reached.insert(next, Some(index), choice);
            }
        }
    }
}

/// The states that a search has reached.
struct Reached<S> {
    /// The hashes of the states.
    known: HashSet<u64>,
    /// For each state in order of discovery: the predecessor's index and the choice among its
    /// actions, or the choice among the initial states.
    from: Vec<(Option<usize>, usize)>,
    /// The states still to be expanded.
    next: VecDeque<(usize, S)>,
}

impl<S> Default for Reached<S> {
    fn default() -> Reached<S> {
        Reached { known: HashSet::new(), from: Vec::new(), next: VecDeque::new() }
    }
}

impl<S: Hash> Reached<S> {
    fn insert(&mut self, state: S, from: Option<usize>, choice: usize) {
        if self.known.insert(hash_of(&state)) {
            self.next.push_back((self.from.len(), state));
            self.from.push((from, choice));
        }
    }
}

impl<S> Reached<S> {
    /// The initial state and the choices that lead to a state.
    fn way(&self, index: usize) -> (usize, Vec<usize>) {
        let mut choices = Vec::new();
        let mut at = self.from[index];
        while let (Some(before), choice) = at {
            choices.push(choice);
            at = self.from[before];
        }
        choices.reverse();
        (at.1, choices)
    }
}

pub(crate) fn hash_of<S: Hash>(state: &S) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// The properties that must always hold and are violated on the path of these choices from the first
/// initial state; `None` if there is no such path.
pub fn violated<M: Presentation>(model: &M, choices: &[usize]) -> Option<Vec<&'static str>> {
    let way = way_of(model, 0, choices)?;
    let must_hold = model.properties().into_iter().filter(|known| matches!(known.expectation, Expectation::Always));
    let fails = |property: &Property<M>| way.iter().any(|(state, _)| !(property.condition)(model, state));
    Some(must_hold.filter(fails).map(|property| property.name).collect())
}

/// The path of another build's events, without the events that are impossible in this build. For a
/// mutant's path, which ends in a violation, the part that exists without the mutant.
pub fn follow<M: Presentation>(model: &M, events: &[Value]) -> Option<Trace> {
    let mut events = events.iter();
    let way = take(model, 0, &mut |state, actions| {
        let does_something = |action: &&M::Action| model.next_state(state, (*action).clone()).is_some();
        let possible = actions.iter().filter(does_something).map(|action| (model.event(state, action), action));
        let possible: Vec<_> = possible.collect();
        events.by_ref().find_map(|event| {
            let like = |exactly| possible.iter().find(move |(own, _)| outline(own, exactly) == outline(event, exactly));
            // A server's progress at its crash may differ without the mutant.
            like(true).or_else(|| like(false)).map(|(_, action)| (*action).clone())
        })
    })?;
    Some(trace_of_way(model, WALK, true, &way))
}

/// The part of an event that does not depend on the servers' reactions: the actor, the message, and
/// the crashing server with the crash point (`exactly`), or without it.
fn outline(event: &Value, exactly: bool) -> Value {
    let turns = event["turns"].as_array().map_or(&[][..], Vec::as_slice);
    let turns = turns.iter().map(|turn| {
        let crash = turn["crash"].as_object().map(|crash| {
            let crash_point =
                if exactly { json!([crash["input"], crash["outputs"], crash["entries"]]) } else { Value::Null };
            json!([crash_point, crash["away"]])
        });
        let lost = turn["sends"].as_array().map(|sends| sends.iter().filter(|send| send["fate"] == "lost").count());
        json!([turn["server"], crash, lost])
    });
    let arrives = &event["turns"][0]["inputs"][0]["input"];
    json!([
        event["kind"],
        event["server"],
        event["again"],
        event["message"],
        event["move"],
        event["client"],
        event["payload"],
        arrives,
        turns.collect::<Vec<_>>()
    ])
}

/// The states on the path of these choices, from the initial state with this index. `None` if there is no such path.
fn way_of<M: Presentation>(model: &M, initial: usize, choices: &[usize]) -> Option<Box<Way<M>>> {
    let mut left = choices.iter();
    let way = take(model, initial, &mut |_, actions| actions.get(*left.next()?).cloned())?;
    // A path has one state more than choices.
    (way.len() > choices.len()).then_some(way)
}

/// The path of these choices as a trace.
pub(crate) fn trace_of_choices<M: Presentation>(
    model: Arc<M>,
    property: &'static str,
    possible: bool,
    initial: usize,
    choices: &[usize],
) -> Option<Trace> {
    let model = Erased::new(model);
    Some(trace_of_way(&model, property, possible, &way_of(&model, initial, choices)?))
}

/// Chooses one of the actions at a state.
type Chooser<'a, M> = dyn FnMut(&<M as Model>::State, &[<M as Model>::Action]) -> Option<<M as Model>::Action> + 'a;

/// The states on the path of the chosen actions, until `choose` returns `None`; `None` if a chosen
/// action has no successor.
fn take<M: Presentation>(model: &M, initial: usize, choose: &mut Chooser<'_, M>) -> Option<Box<Way<M>>> {
    let mut state = model.init_states().into_iter().nth(initial)?;
    let mut way = Vec::new();
    loop {
        let mut actions = Vec::new();
        model.actions(&state, &mut actions);
        let Some(action) = choose(&state, &actions) else {
            way.push((state, None));
            return Some(way.into());
        };
        let next = model.next_state(&state, action.clone())?;
        way.push((std::mem::replace(&mut state, next), Some(action)));
    }
}

pub(crate) fn trace_of_way<M: Presentation>(model: &M, property: &'static str, possible: bool, path: &Way<M>) -> Trace {
    let (initial, _) = path.first().expect("a path has a beginning");
    let steps = path.iter().filter_map(|(state, action)| {
        let action = action.as_ref()?;
        Some(Step {
            action: model.sentence(state, action),
            outcome: model.format_step(state, action.clone()).unwrap_or_default(),
            event: model.event(state, action),
        })
    });
    let choices = path.iter().filter_map(|(state, action)| {
        let mut actions = Vec::new();
        model.actions(state, &mut actions);
        actions.iter().position(|other| Some(other) == action.as_ref())
    });
    Trace {
        property,
        possible,
        initial: format!("{initial:?}"),
        setting: model.setting(initial),
        choices: choices.collect(),
        explorer_path: explorer_path(model, path),
        steps: steps.collect(),
    }
}

/// The path in stateright's Explorer: the index of each choice.
fn explorer_path<M: Presentation>(model: &M, way: &Way<M>) -> String {
    let (first, _) = way.first().expect("a path has a beginning");
    let begin = model.init_states().iter().position(|state| state == first);
    let steps = way.iter().filter_map(|(state, action)| {
        let action = action.as_ref()?;
        model.next_steps(state).iter().position(|(known, _)| known == action)
    });
    begin.into_iter().chain(steps).map(|index| format!("/{index}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter with these initial states that takes steps of 1 and 2, up to 5.
    struct Counter(&'static [u8]);

    const COUNTER: Counter = Counter(&[0]);

    impl Model for Counter {
        type State = u8;
        type Action = u8;

        fn init_states(&self) -> Vec<u8> {
            self.0.to_vec()
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

    impl Presentation for Counter {}

    #[test]
    fn lost_message_is_part_of_an_outline() {
        let outline = |fate: &str| {
            let turn = json!({ "server": 1, "sends": [{ "fate": fate }] });
            outline(&json!({ "kind": "step", "server": 1, "turns": [turn] }), true)
        };
        assert_eq!(outline("arrives"), outline("travels"));
        assert_ne!(outline("arrives"), outline("lost"));
    }

    #[test]
    fn shortest_trace_names_its_property_and_length() {
        let violation = shortest(COUNTER, "less than 4").unwrap();
        assert_eq!(violation.title(), "\"less than 4\" is violated after 2 steps");
        assert_eq!(violation.to_string(), "  1. 2\n       2\n  2. 2\n       4\n");
        let witness = shortest(COUNTER, "is 5").unwrap();
        assert_eq!(witness.title(), "\"is 5\" is met after 3 steps");
        assert_eq!(shortest(COUNTER, "is 6"), None);
    }

    #[test]
    fn retrace_repeats_a_path_and_rejects_impossible_choices() {
        let witness = shortest(COUNTER, "is 5").unwrap();
        assert_eq!(retrace(&COUNTER, "is 5", &witness.choices), Some(witness));
        assert_eq!(retrace(&COUNTER, "is 5", &[1, 1]), None, "it is 4 then");
        assert_eq!(retrace(&COUNTER, "is 5", &[1, 1, 1]), None, "it would be 6");
        assert_eq!(retrace(&COUNTER, "is 5", &[1, 1, 0, 7]), None, "there is no such action");
        let walk = wander(&COUNTER, 1, 9).unwrap();
        assert!((3..=5).contains(&walk.steps.len()), "it ends where nothing can happen: {walk}");
        assert_eq!(retrace(&COUNTER, WALK, &walk.choices), Some(walk));
    }

    #[test]
    fn one_search_finds_a_shortest_witness_of_each() {
        let found = witnesses(&COUNTER, &["is 5", "is 6"], 100);
        assert_eq!(found, [("is 5", vec![0, 1, 1])]);
        assert_eq!(witnesses(&COUNTER, &["is 5"], 3), [], "it is not among the first three states");
    }

    #[test]
    fn witness_begins_in_the_first_initial_state() {
        let model = Counter(&[0, 4]);
        let found = witnesses(&model, &["is 5"], 100);
        assert!(retrace(&model, "is 5", &found[0].1).is_some(), "one step from 4 is no path from 0: {found:?}");
    }

    #[test]
    fn violations_before_the_end_of_a_path_are_reported() {
        assert_eq!(violated(&COUNTER, &[1, 0]), Some(vec![]));
        assert_eq!(violated(&COUNTER, &[1, 1]), Some(vec!["less than 4"]));
        assert_eq!(violated(&COUNTER, &[1, 1, 1]), None, "it would be 6");
    }

    #[test]
    fn follow_skips_impossible_events() {
        let events = [json!({ "action": "2" }), json!({ "action": "7" }), json!({ "action": "1" })];
        // Events of this model have no kinds, so all are alike: the first effective action is taken
        // for each.
        assert_eq!(follow(&COUNTER, &events).unwrap().choices, [0, 0, 0]);
        let other = [json!({ "kind": "crash" }), json!({ "action": "1" })];
        assert_eq!(follow(&COUNTER, &other).unwrap().choices, [0], "there are no crashes here");
    }

    #[test]
    fn json_lines_have_a_header_and_steps() {
        let lines = shortest(COUNTER, "less than 4").unwrap().lines("counter");
        let begin = json!({ "format": 1, "model": "counter", "property": "less than 4", "shows": "violation",
            "steps": 2, "choices": [1, 1], "setting": null });
        let step = json!({ "step": 1, "sentence": "2", "changes": ["2"], "event": { "action": "2" } });
        assert_eq!(lines[..2], [begin, step]);
        assert_eq!(lines.len(), 3);
    }
}
