//! Tests that the lists of mutants fit the sources and the models, and that the runner's verdicts
//! are right.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use palisade_model::mutants::{Claims, Mutant, mutants};

/// Minimum number of mutants.
const LEAST: usize = 209;

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn listed() -> Vec<Mutant> {
    mutants(&workspace().join("model/mutants")).unwrap()
}

#[test]
fn every_mutant_fits_the_sources_and_the_models() {
    let (all, claims) = (listed(), Claims::of(&listed()));
    let unfit: Vec<_> = all.iter().filter_map(|entry| entry.fits(workspace(), &claims).err()).collect();
    assert!(unfit.is_empty(), "{unfit:#?}");
}

#[test]
fn mutants_are_named_and_explained() {
    let all = listed();
    assert!(all.len() >= LEAST, "there are only {}", all.len());
    let names: BTreeSet<_> = all.iter().map(|entry| &entry.name).collect();
    assert_eq!(names.len(), all.len(), "every mutant has its own name");
    for entry in &all {
        assert!(entry.why.ends_with('.') && entry.why.contains(' '), "{}: why is a sentence", entry.name);
        let plain =
            entry.name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-');
        assert!(plain, "{}: a name is in lower case, with hyphens", entry.name);
    }
}

#[test]
fn no_mutant_is_listed_twice() {
    let all = listed();
    let changes: BTreeSet<_> = all.iter().map(|entry| (&entry.file, &entry.replace, &entry.with)).collect();
    assert_eq!(changes.len(), all.len());
}

#[test]
fn replaced_text_must_occur_once_and_change() {
    let entry = |replace: &str, with: &str| Mutant { replace: replace.into(), with: with.into(), ..listed().remove(0) };
    assert_eq!(entry("one", "two").mutate("this is one text").unwrap(), "this is two text");
    let refused = |entry: Mutant, source| entry.mutate(source).unwrap_err().to_string();
    assert!(refused(entry("one", "two"), "this is a text").contains("stands 0 times"));
    assert!(refused(entry("one", "two"), "one and one").contains("stands 2 times"));
    assert!(refused(entry("one", "one"), "this is one text").contains("changes nothing"));
}

#[test]
fn unknown_model_or_property_is_an_error() {
    let sound = || Mutant { model: "raft".into(), ..listed().remove(0) };
    let claims = Claims::of(&[sound()]);
    let refused = |entry: Mutant| entry.fits(workspace(), &claims).unwrap_err().to_string();
    assert!(refused(Mutant { model: "rafts".into(), ..sound() }).contains("rafts"));
    assert!(refused(Mutant { property: "luck".into(), ..sound() }).contains("luck"));
    let possible = Mutant { property: "a leader is elected".into(), ..sound() };
    assert!(refused(possible).contains("a leader is elected"), "what must be possible is not what must hold");
}

/// Runs the command on this list.
fn run(list: &str) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("list.toml"), list).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_palisade-model"))
        .args(["mutants", "--lists"])
        .arg(folder.path())
        .output()
        .unwrap();
    let report = String::from_utf8(output.stdout.clone()).unwrap();
    (output, report)
}

/// A list's entry for a mutant of `raft/role.rs`, which has the displayed names of roles.
fn entry(name: &str, replace: &str, with: &str) -> String {
    format!(
        "[[mutant]]\nname = '{name}'\nwhy = 'A test.'\nfile = 'raft/role.rs'\nreplace = '{replace}'\nwith = '{with}'\n\
         model = 'raft-votes'\nproperty = 'election safety'\n"
    )
}

#[test]
fn unfit_list_is_rejected_before_the_build() {
    let (output, report) = run(&entry("gone", "no such text", ""));
    assert_eq!(output.status.code(), Some(64));
    assert!(report.is_empty(), "{report}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("gone: its text stands 0 times"));
}

#[test]
fn mutant_outside_of_functions_is_rejected_before_the_build() {
    let (output, _) = run(&entry("outside", "pub enum Role {", "pub enum Rôle {"));
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("outside: its text is not within the body"));
}

#[test]
fn list_without_mutants_is_rejected() {
    let (output, _) = run("mutant = []");
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no list with a mutant in it"));
}

#[test]
#[ignore = "builds the models three times; `just check-deep` runs it"]
fn survivors_and_unbuildable_mutants_fail_the_run() {
    let unseen = entry("unseen", r#""pre_candidate""#, r#""precandidate""#);
    let broken = entry("broken", r#""pre_candidate""#, "");
    let free = "let free = self.hard.vote.is_none_or(|vote| vote == from);";
    let caught = entry("caught", free, "let free = true;").replace("role.rs", "election.rs");
    let (output, report) = run(&[unseen, caught.replace("election safety", "one vote a term"), broken].concat());
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report.contains("unseen: SURVIVES"), "{report}");
    assert!(report.contains("broken does not build"), "{report}");
    assert!(report.contains("caught: caught by \"one vote a term\""), "{report}");
    assert!(report.contains("1 of 3 caught"), "{report}");
}
