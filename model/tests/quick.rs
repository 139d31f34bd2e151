//! Explores the quick models to their end and checks their expected number of states.

use palisade_model::expected_counts;
use palisade_model::models::{Tier, models};

#[test]
fn quick_models_are_exhausted() {
    for model in models().into_iter().filter(|model| model.tier == Tier::Quick) {
        let verdict = model.model.check(2);
        assert!(verdict.is_as(model.expected), "{}: {verdict}", model.name);
        let unique = expected_counts::unique(model.name).expect("it is pinned");
        assert!(verdict.is_pinned(unique), "{}: {unique} unique states are pinned: {verdict}", model.name);
    }
}
