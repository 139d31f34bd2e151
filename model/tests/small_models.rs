//! Explores the small models to their end and checks their expected number of states. `palisade-model
//! check` explores all models.

use palisade_model::expected_counts;
use palisade_model::models::models;

/// Number of states up to which a model is small.
const SMALL: usize = 20_000;

#[test]
fn small_models_are_exhausted() {
    let mut explored = 0;
    for model in models() {
        let Some(unique) = expected_counts::unique(model.name).filter(|&unique| unique < SMALL) else { continue };
        let verdict = model.model.check(2);
        assert!(verdict.is_as(model.expected), "{}: {verdict}", model.name);
        assert!(verdict.is_pinned(unique), "{}: {unique} unique states are pinned: {verdict}", model.name);
        explored += 1;
    }
    assert!(explored >= 15, "{explored} models are small");
}
