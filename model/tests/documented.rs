//! Compares the documents with the code: docs/results.md with the models, the checks of liveness and
//! the lists of mutants, and the properties of docs/models.md with those of the models.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use palisade_model::document::{NEIGHBOURS, exhausted, measured, page, path};
use palisade_model::expected_counts;
use palisade_model::liveness::checks;
use palisade_model::named::Named;

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The cells of the table of docs/models.md below the heading row that begins with `heading`.
fn table(heading: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(workspace().join("docs/models.md")).expect("the document can be read");
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

#[test]
fn results_are_what_the_command_writes() {
    let (shown, now) = (fs::read_to_string(path(workspace())).unwrap(), page(workspace()).unwrap());
    // The links to the neighbours in the book are not the model's.
    let shown = shown.split(NEIGHBOURS).next().unwrap();
    let differs = shown.lines().zip(now.lines()).find(|(shown, now)| shown != now);
    assert!(
        shown == now,
        "write docs/results.md again with `palisade-model document`; it differs first here: {differs:?}"
    );
}

/// Goal: a new model or check is measured, a removed one is forgotten, and no row has another
/// model's figures.
#[test]
fn every_model_and_check_is_measured() {
    let measured = measured(workspace()).unwrap();
    let explored: BTreeSet<String> = exhausted().into_iter().map(|model| model.name.to_owned()).collect();
    assert_eq!(measured.model.keys().cloned().collect::<BTreeSet<_>>(), explored);
    let checked: BTreeSet<String> = checks().into_iter().map(|check| check.name.to_owned()).collect();
    assert_eq!(measured.liveness.keys().cloned().collect::<BTreeSet<_>>(), checked);
    for (name, exploration) in &measured.model {
        let unique = expected_counts::unique(name).expect("an explored model has an expected number of states");
        assert!(exploration.generated >= unique as u64 && exploration.depth > 0, "{name}");
    }
}

#[test]
fn table_has_every_property() {
    let rows = table("| layer | property |");
    for (layer, layers) in [
        ("raft", &["raft"][..]),
        ("membership", &["raft", "membership"]),
        ("reads", &["raft", "reads"]),
        ("locks", &["locks"]),
        ("store", &["locks", "store"]),
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
