//! Tests of the verdict: a run with a failure, or that is not explored to its end, does not pass.

use std::time::Duration;

use palisade_model::check::Expected;
use palisade_model::check::{Effort, End, Verdict, explore};
use stateright::{Model, Property};

/// Numbers as in a binary tree, counted from its root: many of them, and none far from the root.
struct Numbers {
    last: u64,
    properties: Vec<Property<Numbers>>,
    panics_at: Option<u64>,
}

impl Model for Numbers {
    type State = u64;
    type Action = u64;

    fn init_states(&self) -> Vec<u64> {
        vec![0]
    }

    fn actions(&self, _: &u64, actions: &mut Vec<u64>) {
        actions.extend([1, 2]);
    }

    fn next_state(&self, last: &u64, action: u64) -> Option<u64> {
        let next = last * 2 + action;
        assert_ne!(Some(next), self.panics_at, "the model is at its wits' end");
        (next <= self.last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Numbers>> {
        self.properties.clone()
    }
}

fn sound() -> Property<Numbers> {
    Property::always("small", |_, number| *number < u64::MAX)
}

fn broken() -> Property<Numbers> {
    Property::always("not seven", |_, number| *number != 7)
}

fn met() -> Property<Numbers> {
    Property::sometimes("nine", |_, number| *number == 9)
}

fn met_at_once() -> Property<Numbers> {
    Property::sometimes("zero", |_, number| *number == 0)
}

fn unmet() -> Property<Numbers> {
    Property::sometimes("negative", |_, _| false)
}

fn run(last: u64, properties: Vec<Property<Numbers>>, effort: &Effort) -> Verdict {
    explore(Numbers { last, properties, panics_at: None }, None, effort)
}

fn effort() -> Effort {
    Effort { threads: 1, ..Effort::default() }
}

#[test]
fn exhaustive_run_passes() {
    let verdict = run(100, vec![sound(), met()], &effort());
    assert!(verdict.passes(), "{verdict}");
    assert_eq!((verdict.states.1, verdict.end), (101, End::Exhausted));
    assert!(verdict.to_string().ends_with("; exhaustive"), "{verdict}");
}

#[test]
fn violation_fails_and_is_named() {
    let verdict = run(100, vec![sound(), broken(), met()], &effort());
    assert!(!verdict.passes());
    assert_eq!(verdict.violated, ["not seven"]);
    assert!(verdict.to_string().contains("VIOLATED"), "{verdict}");
}

#[test]
fn unmet_sometimes_property_fails_and_is_named() {
    let verdict = run(100, vec![sound(), unmet()], &effort());
    assert!(!verdict.passes());
    assert!(verdict.to_string().contains("never met: negative"), "{verdict}");
}

#[test]
fn incomplete_run_without_violation_fails() {
    let limited = Effort { states: Some(5_000), ..effort() };
    let verdict = run(1_000_000, vec![sound(), met_at_once()], &limited);
    assert_eq!((verdict.end, verdict.violated.len(), verdict.unmet.len()), (End::Cut, 0, 0));
    assert!(!verdict.passes() && !verdict.is_as(Expected::Violates("small")));
    assert!(verdict.to_string().contains("INCOMPLETE"), "{verdict}");
    assert!(verdict.states.1 < 1_000_000);
    // A limit that is not reached has no effect.
    assert!(run(100, vec![sound(), met_at_once()], &limited).passes());
}

#[test]
fn time_limit_applies_to_a_single_thread() {
    let limited = Effort { time: Some(Duration::from_millis(300)), ..effort() };
    let verdict = run(u64::MAX / 4, vec![sound(), met_at_once()], &limited);
    assert_eq!(verdict.end, End::Cut);
    assert!(!verdict.passes());
}

#[test]
fn flawed_design_passes_only_with_exactly_the_expected_violation() {
    let expected = Expected::Violates("not seven");
    assert!(run(100, vec![sound(), broken(), met()], &effort()).is_as(expected));
    assert!(!run(100, vec![sound(), met()], &effort()).is_as(expected), "it holds");
    assert!(!run(100, vec![sound(), broken(), unmet()], &effort()).is_as(expected), "something else is amiss");
    let two = vec![broken(), Property::always("not eight", |_: &Numbers, number: &u64| *number != 8), met(), sound()];
    assert!(!run(100, two, &effort()).is_as(expected), "more is violated");
}

#[test]
fn run_that_ends_early_is_not_reported_as_exhaustive() {
    let verdict = run(1_000_000, vec![broken(), met()], &effort());
    assert_eq!(verdict.end, End::Decided);
    assert!(!verdict.to_string().contains("exhaustive"), "{verdict}");
}

#[test]
#[should_panic(expected = "checker thread")]
fn panic_in_the_model_is_propagated() {
    let model = Numbers { last: 100, properties: vec![sound(), met()], panics_at: Some(50) };
    explore(model, None, &effort());
}

#[test]
fn memory_is_reported_where_the_system_reports_it() {
    let verdict = run(300_000, vec![sound(), met()], &effort());
    if cfg!(target_os = "linux") {
        let memory = verdict.memory.expect("Linux tells");
        assert!(memory.peak.0 > 1 << 20 && memory.growth <= memory.peak, "{memory:?}");
        assert!(verdict.to_string().contains("B per unique state"), "{verdict}");
    }
}
