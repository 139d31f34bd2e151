//! The list of mutants fits the sources and the models, and the runner's verdict is what it should be.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use palisade_model::mutants::{Claims, Mutant, mutants};

/// As few bugs there may be.
const LEAST: usize = 206;

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn listed() -> Vec<Mutant> {
    mutants(&workspace().join("model/mutants")).unwrap()
}

#[test]
fn every_bug_fits_the_sources_and_the_models() {
    let (all, claims) = (listed(), Claims::of(&listed()));
    let unfit: Vec<_> = all.iter().filter_map(|bug| bug.fits(workspace(), &claims).err()).collect();
    assert!(unfit.is_empty(), "{unfit:#?}");
}

#[test]
fn there_are_many_bugs_and_each_says_why_its_rule_is_there() {
    let all = listed();
    assert!(all.len() >= LEAST, "there are only {}", all.len());
    let names: BTreeSet<_> = all.iter().map(|bug| &bug.name).collect();
    assert_eq!(names.len(), all.len(), "every bug has its own name");
    for bug in &all {
        assert!(bug.why.ends_with('.') && bug.why.contains(' '), "{}: why is a sentence", bug.name);
        let plain =
            bug.name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-');
        assert!(plain, "{}: a name is in lower case, with hyphens", bug.name);
    }
}

#[test]
fn no_bug_is_listed_twice() {
    let all = listed();
    let changes: BTreeSet<_> = all.iter().map(|bug| (&bug.file, &bug.replace, &bug.with)).collect();
    assert_eq!(changes.len(), all.len());
}

#[test]
fn a_text_must_stand_there_once_and_be_changed() {
    let bug = |replace: &str, with: &str| Mutant { replace: replace.into(), with: with.into(), ..listed().remove(0) };
    assert_eq!(bug("one", "two").mutate("this is one text").unwrap(), "this is two text");
    let refused = |bug: Mutant, source| bug.mutate(source).unwrap_err().to_string();
    assert!(refused(bug("one", "two"), "this is a text").contains("stands 0 times"));
    assert!(refused(bug("one", "two"), "one and one").contains("stands 2 times"));
    assert!(refused(bug("one", "one"), "this is one text").contains("changes nothing"));
}

#[test]
fn a_model_or_a_property_that_does_not_exist_is_an_error() {
    let sound = || Mutant { model: "raft".into(), ..listed().remove(0) };
    let claims = Claims::of(&[sound()]);
    let refused = |bug: Mutant| bug.fits(workspace(), &claims).unwrap_err().to_string();
    assert!(refused(Mutant { model: "rafts".into(), ..sound() }).contains("rafts"));
    assert!(refused(Mutant { property: "luck".into(), ..sound() }).contains("luck"));
    let possible = Mutant { property: "a leader is elected".into(), ..sound() };
    assert!(refused(possible).contains("a leader is elected"), "what must be possible is not what must hold");
}

/// Runs the command on a list of its own.
fn run(list: &str) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("list.toml"), list).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_palisade-model"))
        .args(["mutants", "--lists"])
        .arg(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout.clone()).unwrap();
    (output, told)
}

/// An entry of such a list, which changes `raft/role.rs`: there the roles have names for people.
fn bug(name: &str, replace: &str, with: &str) -> String {
    format!(
        "[[mutant]]\nname = '{name}'\nwhy = 'A test.'\nfile = 'raft/role.rs'\nreplace = '{replace}'\nwith = '{with}'\n\
         model = 'raft-votes'\nproperty = 'election safety'\n"
    )
}

#[test]
fn a_list_that_does_not_fit_is_refused_before_anything_is_built() {
    let (output, told) = run(&bug("gone", "no such text", ""));
    assert_eq!(output.status.code(), Some(64));
    assert!(told.is_empty(), "{told}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("gone: its text stands 0 times"));
}

#[test]
fn what_is_in_no_function_is_refused_before_anything_is_built() {
    let (output, _) = run(&bug("outside", "pub enum Role {", "pub enum Rôle {"));
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("outside: its text is not within the body"));
}

#[test]
fn a_list_without_bugs_is_refused() {
    let (output, _) = run("mutant = []");
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no list with a mutant in it"));
}

#[test]
#[ignore = "builds the models three times; `just check` runs it"]
fn survivors_and_mutants_that_do_not_build_fail_the_run() {
    let unseen = bug("unseen", r#""pre_candidate""#, r#""precandidate""#);
    let broken = bug("broken", r#""pre_candidate""#, "");
    let free = "let free = self.hard.vote.is_none_or(|vote| vote == from);";
    let caught = bug("caught", free, "let free = true;").replace("role.rs", "election.rs");
    let (output, told) = run(&[unseen, caught.replace("election safety", "one vote a term"), broken].concat());
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("unseen: SURVIVES"), "{told}");
    assert!(told.contains("broken does not build"), "{told}");
    assert!(told.contains("caught: caught by \"one vote a term\""), "{told}");
    assert!(told.contains("1 of 3 caught"), "{told}");
}
