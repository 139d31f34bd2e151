//! Guided search finds the violations of flawed designs, and none in sound ones.

use palisade_model::check::Expected;
use palisade_model::models::models;
use palisade_model::simulate::Walks;

fn search(model: &str, seed: u64, states: usize) -> Walks {
    let named = models().into_iter().find(|named| named.name == model).expect("there is such a model");
    Walks { seconds: 0.0, ..named.model.search(seed, states) }
}

#[test]
fn violations_of_flawed_designs_are_found() {
    let flawed = models().into_iter().filter_map(|named| match named.expected {
        Expected::Violates(property) => Some((named.name, property)),
        Expected::Holds => None,
    });
    for (model, property) in flawed {
        let found = search(model, 2, 200_000).violated;
        let found: Vec<&str> = found.iter().map(|(property, _)| property.as_str()).collect();
        assert_eq!(found, [property], "{model}");
    }
}

#[test]
fn sound_model_has_no_violation_and_meets_possible_properties() {
    let walks = search("raft-votes", 1, 50_000);
    let shows = walks.met.iter().any(|met| met == "a leader is elected");
    assert!(walks.violated.is_empty() && walks.states >= 50_000 && shows, "{walks:?}");
}

#[test]
fn seed_repeats_its_walks() {
    let walks = |seed| search("cluster-wide", seed, 5_000);
    let first = walks(7);
    assert_eq!(first, walks(7));
    assert_ne!(Walks { seed: 7, ..walks(8) }, first);
}
