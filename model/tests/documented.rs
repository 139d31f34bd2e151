//! Compares docs/verification.md with the models: their names, tiers, bounds and numbers of states,
//! their properties, and the mutants that show that each property can fail.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use palisade_model::expected_counts;
use palisade_model::models::{Named, Tier, models};

/// The cells of the table below the heading row that begins with `heading`.
fn table(heading: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/verification.md");
    let text = fs::read_to_string(path).expect("the document can be read");
    let rows: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with(heading))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(!rows.is_empty(), "there is a table {heading}");
    let cells = |row: &&str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect();
    rows.iter().map(cells).collect()
}

/// All models that are explored to their end, without the gallery, which docs/gallery.md covers.
fn exhausted() -> Vec<Named> {
    models().into_iter().filter(|model| model.tier <= Tier::Deep && !model.is_of_the_gallery()).collect()
}

fn digits(text: &str) -> usize {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{text:?} is a number"))
}

#[test]
fn table_of_models_matches_the_models() {
    let documented: BTreeSet<_> = table("| model | tier |")
        .into_iter()
        .map(|row| (row[0].clone(), row[1].clone(), row[2].clone(), Some(digits(&row[4]))))
        .collect();
    let explored = exhausted().into_iter().map(|model| {
        let texts = [model.name, model.tier.name(), model.about].map(String::from);
        let [name, tier, about] = texts;
        (name, tier, about, expected_counts::unique(model.name))
    });
    assert_eq!(documented, explored.collect::<BTreeSet<_>>());
}

#[test]
fn table_has_every_property() {
    let rows = table("| layer | property |");
    for (layer, layers) in [
        ("raft", &["raft"][..]),
        ("membership", &["raft", "membership"]),
        ("reads", &["raft", "reads"]),
        ("locks", &["locks"]),
        ("cluster", &["raft", "locks", "cluster"]),
        ("clocks", &["raft", "locks", "cluster", "clocks"]),
        ("leases", &["leases"]),
        ("induction-table", &["induction-table"]),
        ("induction-clocks", &["induction-clocks"]),
        ("induction-consensus", &["induction-consensus"]),
    ] {
        let documented: BTreeSet<&str> =
            rows.iter().filter(|row| layers.contains(&row[0].as_str())).map(|row| row[1].as_str()).collect();
        let of_layer: Vec<Named> = exhausted().into_iter().filter(|model| model.name.starts_with(layer)).collect();
        assert!(!of_layer.is_empty());
        let mut possible = BTreeSet::new();
        for model in &of_layer {
            let properties = model.model.properties();
            let must_hold: BTreeSet<&str> =
                properties.iter().filter(|(_, possible)| !possible).map(|(name, _)| *name).collect();
            assert_eq!(must_hold, documented, "{}", model.name);
            possible.extend(properties.iter().filter(|(_, possible)| *possible).map(|(name, _)| *name));
        }
        for row in rows.iter().filter(|row| row[0] == layer) {
            assert!(possible.contains(row[3].as_str()), "{layer}: {:?} is possible, says the table", row[3]);
        }
    }
}
