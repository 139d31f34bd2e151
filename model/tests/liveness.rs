//! Liveness: what is due comes on every fair run of the quick checks, and the command says so.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use palisade_model::document::measured;
use palisade_model::liveness::{STATES, checks};
use palisade_model::mutants::mutants;
use palisade_model::named::Tier;

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_palisade-model")).arg("liveness").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn quick_checks_hold_with_documented_state_counts() {
    let documented = measured(workspace()).unwrap();
    for check in checks().into_iter().filter(|check| check.tier == Tier::Quick) {
        let report = check.run(STATES).unwrap();
        assert!(report.holds(), "{}: {report}", check.name);
        let graph = &documented.liveness[check.name];
        assert_eq!((report.states as u64, report.edges as u64), (graph.states, graph.edges), "{}", check.name);
    }
}

#[test]
fn command_prints_numbers_and_a_verdict_for_each_property() {
    let (code, report, _) = run(&["queue-sweeps"]);
    assert_eq!(code, 0, "{report}");
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0].starts_with("queue-sweeps: ") && lines[0].contains(" states, "), "{report}");
    assert_eq!(lines.len(), 4, "{report}");
    assert!(lines[1..].iter().all(|line| line.contains("\" holds; due in ")), "{report}");
}

#[test]
fn incomplete_graph_fails() {
    let (code, report, _) = run(&["queue", "--limit", "1000"]);
    assert_eq!(code, 1);
    assert!(report.starts_with("queue: INCOMPLETE"), "{report}");
}

#[test]
fn unknown_check_is_an_error_that_lists_known_ones() {
    let (code, _, complaint) = run(&["queues"]);
    assert_eq!(code, 64);
    assert!(
        complaint.contains("no check of liveness queues") && complaint.contains("healing-returning"),
        "{complaint}"
    );
    let (code, report, _) = run(&["--list"]);
    assert_eq!((code, report.lines().count()), (0, checks().len()));
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn every_property_finds_a_mutant() {
    let all = mutants(&workspace().join("model/mutants")).unwrap();
    let checks = checks();
    let of_liveness = all.iter().filter(|mutant| checks.iter().any(|check| check.name == mutant.model));
    let found: BTreeSet<_> = of_liveness.map(|mutant| mutant.property.as_str()).collect();
    let asked: BTreeSet<_> = checks.iter().flat_map(|check| check.properties()).collect();
    assert_eq!(found, asked, "every property finds a mutant");
}
