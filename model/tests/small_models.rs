//! Explores the small models to their end and checks their expected number of states. `palisade-model
//! check` explores all models.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use palisade_model::expected_counts;
use palisade_model::models::models;
use palisade_model::named::Named;

/// Number of states up to which a model is small.
const SMALL: usize = 20_000;

#[test]
fn small_models_are_exhausted() {
    let unique = |model: &Named| expected_counts::unique(model.name).filter(|&unique| unique < SMALL);
    let small: Vec<_> = models().into_iter().filter_map(|model| Some((unique(&model)?, model))).collect();
    assert!(small.len() >= 15, "{} models are small", small.len());
    // A thread explores a small model alone faster than several do it together.
    let next = AtomicUsize::new(0);
    let explore = || {
        while let Some((unique, model)) = small.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = model.model.check(1);
            assert!(verdict.is_as(model.expected), "{}: {verdict}", model.name);
            assert!(verdict.is_pinned(*unique), "{}: {unique} unique states are pinned: {verdict}", model.name);
        }
    };
    thread::scope(|scope| {
        scope.spawn(explore);
        scope.spawn(explore);
    });
}
