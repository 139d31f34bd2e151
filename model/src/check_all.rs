//! Explores models by name, and reports a line for each.

use crate::check::verdict::{Effort, Expected, Verdict};
use crate::expected_counts;
use crate::named::{Named, Tier};

/// Explores models one after the other and reports a line for each. Returns whether every verdict
/// and every number of states is the expected one.
pub fn check_all(models: &[&Named], effort: &Effort, mut say: impl FnMut(String)) -> bool {
    let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0);
    let mut passes = true;
    for model in models {
        let Named { name, expected, .. } = *model;
        let verdict = model.model.attempt(&Effort { name: Some(name), ..effort.clone() });
        let is_expected = verdict.is_as(*expected);
        let mut line = format!("{name:<width$}  {verdict}");
        if let Expected::Violates(property) = expected {
            line.push_str(&if is_expected { as_expected(model, property) } else { not_as_expected(property) });
        }
        let count_error = check_count(model, &verdict).err();
        line.extend(count_error);
        if !is_expected {
            line.extend(verdict.violated.iter().map(|property| how_to_see(name, property)));
        }
        say(line);
        passes &= is_expected && count_error.is_none();
    }
    passes
}

/// Checks a model's number of unique states against the expected one. Tests of the gallery check
/// its models.
fn check_count(model: &Named, verdict: &Verdict) -> Result<(), &'static str> {
    let needs_count = model.expected == Expected::Holds && model.tier <= Tier::Deep && !model.is_of_the_gallery();
    match expected_counts::unique(model.name) {
        Some(unique) if !verdict.is_pinned(unique) => Err(
            "; UNEXPECTED COUNT: the number of unique states differs from model/src/expected_counts.rs; explain the change there",
        ),
        None if needs_count => {
            Err("; NO EXPECTED COUNT: add the number of unique states to model/src/expected_counts.rs")
        }
        _ => Ok(()),
    }
}

fn as_expected(model: &Named, property: &str) -> String {
    let steps = model.model.trace(property).map_or(0, |trace| trace.steps.len());
    format!("; as expected: \"{property}\" is violated after {steps} steps")
}

fn not_as_expected(property: &str) -> String {
    format!("; NOT AS EXPECTED: \"{property}\" must be violated, and no other property")
}

fn how_to_see(name: &str, property: &str) -> String {
    format!("\n  show a shortest path: palisade-model trace {name} --property \"{property}\"")
}

#[cfg(test)]
mod tests {
    use stateright::{Model, Property};

    use super::*;
    use crate::named::holds;
    use crate::presentation::Presentation;

    /// A counter from 0 to 3, with these properties.
    struct Three(Vec<Property<Three>>);

    impl Model for Three {
        type State = u8;
        type Action = u8;

        fn init_states(&self) -> Vec<u8> {
            vec![0]
        }

        fn actions(&self, state: &u8, actions: &mut Vec<u8>) {
            actions.extend((*state < 3).then_some(1));
        }

        fn next_state(&self, last: &u8, action: u8) -> Option<u8> {
            Some(last + action)
        }

        fn properties(&self) -> Vec<Property<Three>> {
            self.0.clone()
        }
    }

    impl Presentation for Three {}

    fn small() -> Property<Three> {
        Property::always("small", |_, number| *number < 9)
    }

    /// The line reported for a model of a tier without expected numbers, and whether the model
    /// passes.
    fn run(properties: &'static [fn() -> Property<Three>], expected: Expected) -> (String, bool) {
        let make = || Three(properties.iter().map(|property| property()).collect());
        let model = Named { expected, ..holds(Tier::Random, "three", "", make) };
        let mut lines = Vec::new();
        let passes = check_all(&[&model], &Effort { threads: 1, ..Effort::default() }, |line| lines.push(line));
        assert_eq!(lines.len(), 1);
        (lines.remove(0), passes)
    }

    #[test]
    fn exhaustive_run_without_violation_passes() {
        let (lines, passes) = run(&[small, || Property::sometimes("two", |_, number| *number == 2)], Expected::Holds);
        assert!(
            passes && lines.starts_with("three  4 generated, 4 unique") && lines.ends_with("; exhaustive"),
            "{lines}"
        );
    }

    #[test]
    fn unmet_sometimes_property_fails() {
        let (lines, passes) = run(&[small, || Property::sometimes("four", |_, number| *number == 4)], Expected::Holds);
        assert!(!passes && lines.contains("; never met: four"), "{lines}");
    }

    #[test]
    fn violation_fails_unless_expected() {
        let properties: &[fn() -> Property<Three>] = &[small, || Property::always("not two", |_, number| *number != 2)];
        let (lines, passes) = run(properties, Expected::Holds);
        assert!(!passes && lines.contains("; VIOLATED: not two"), "{lines}");
        assert!(
            lines.ends_with("\n  show a shortest path: palisade-model trace three --property \"not two\""),
            "{lines}"
        );
        let (lines, passes) = run(properties, Expected::Violates("not two"));
        assert!(passes && lines.ends_with("; as expected: \"not two\" is violated after 2 steps"), "{lines}");
        let (lines, passes) = run(properties, Expected::Violates("small"));
        assert!(!passes && lines.contains("; NOT AS EXPECTED: \"small\" must be violated"), "{lines}");
    }

    #[test]
    fn model_without_expected_count_fails() {
        let model = holds(Tier::Deep, "three", "", || Three(vec![small()]));
        let mut lines = String::new();
        let passes = check_all(&[&model], &Effort { threads: 1, ..Effort::default() }, |line| lines = line);
        assert!(!passes && lines.contains("; NO EXPECTED COUNT"), "{lines}");
    }
}
