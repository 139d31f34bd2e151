//! The quick models, explored to their end. Their numbers of states are pinned: a change of the protocol or of a model
//! that changes them has to say why.

use palisade_model::models::{Tier, models};

/// Name and unique states.
const PINNED: [(&str, usize); 5] = [
    ("raft", 610_096),
    ("raft-late", 2_175_526),
    ("raft-repeats", 2_248_194),
    ("locks", 522_750),
    ("cluster", 249_449),
];

#[test]
fn quick_models_are_exhausted() {
    let quick: Vec<_> = models().into_iter().filter(|model| model.tier == Tier::Quick).collect();
    assert_eq!(quick.iter().map(|model| model.name).collect::<Vec<_>>(), PINNED.map(|(name, _)| name));
    for (model, (name, unique)) in quick.into_iter().zip(PINNED) {
        let verdict = model.model.check(2);
        assert!(verdict.passes(), "{name}: {verdict}");
        assert_eq!(verdict.states.1, unique, "{name}: {verdict}");
    }
}
