//! docs/bug-ledger.md names commands, tests, scripts, models, mutants and files. These tests check
//! that all of them exist and that every story has all its parts.

#[path = "ledger/verification.rs"]
mod verification;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Minimum number of stories.
const MINIMUM: usize = 30;
/// The parts of every story, in order.
const PARTS: [&str; 5] = ["**There.** ", "**Here.** ", "```sh", "**It shows** ", "**It can fail.** "];
/// Each package's folder.
const PACKAGES: [(&str, &str); 6] = [
    ("palisade", "runtime"),
    ("palisade-spec", "spec"),
    ("palisade-client", "client"),
    ("palisade-fence", "fence"),
    ("palisade-model", "model"),
    ("palisade-conformance", "conformance"),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn ledger() -> String {
    fs::read_to_string(workspace().join("docs/bug-ledger.md")).expect("the page can be read")
}

/// The stories, by their headings.
fn stories(text: &str) -> Vec<(&str, &str)> {
    text.split("\n### ").skip(1).map(|story| story.split_once('\n').expect("a heading is a line")).collect()
}

/// The lines of a text's command blocks.
fn commands(text: &str) -> Vec<&str> {
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    blocks.flat_map(str::lines).collect()
}

/// The text between back quotes within a text's paragraphs.
fn quoted(text: &str) -> Vec<&str> {
    let paragraphs = text.split("```").step_by(2);
    paragraphs.flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2)).collect()
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry can be read").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[derive(Deserialize)]
struct List {
    mutant: Vec<Mutant>,
}

/// The fields of every list of mutants that these tests use.
#[derive(Deserialize)]
struct Mutant {
    name: String,
    /// The test that must notice the mutant, for mutants found by a test.
    test: Option<String>,
}

/// The names of all mutants in the lists below a folder.
fn mutant_names(folder: &str) -> BTreeSet<String> {
    mutants(folder, |_| true).into_iter().map(|mutant| mutant.name).collect()
}

fn mutants(folder: &str, is_wanted: impl Fn(&Path) -> bool) -> Vec<Mutant> {
    let lists = files(&workspace().join(folder));
    let lists = lists.iter().filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    let lists = lists.filter(|path| is_wanted(path));
    let mutants_of = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a list can be read");
        toml::from_str::<List>(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())).mutant
    };
    lists.flat_map(mutants_of).collect()
}

fn models() -> BTreeSet<String> {
    palisade_model::models::models().iter().map(|model| model.name.to_owned()).collect()
}

/// Whether a file has a test of this name, and whether the test is ignored by default.
fn test_in(file: &Path, name: &str) -> Option<bool> {
    let text = fs::read_to_string(file).ok()?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_it = |line: &str| {
        let line = line.trim_start_matches("pub ").trim_start_matches("async ");
        line.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name)).is_some_and(|rest| rest.starts_with('('))
    };
    let index = lines.iter().position(|line| is_it(line))?;
    let attributes: Vec<&str> =
        lines[..index].iter().rev().take_while(|line| line.starts_with("#[")).copied().collect();
    let is_test = attributes.iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
    is_test.then(|| attributes.iter().any(|line| line.starts_with("#[ignore")))
}

/// What is wrong with `cargo test …`, given the arguments after that and the value of SCRIPT.
fn wrong_with_test(script: Option<&str>, arguments: &[&str]) -> Option<String> {
    let (arguments, flags) =
        arguments.split_at(arguments.iter().position(|&word| word == "--").unwrap_or(arguments.len()));
    let (package, target, filter) = match *arguments {
        ["-p", package, "--test", target] => (package, Some(target), None),
        ["-p", package, "--test", target, filter] => (package, Some(target), Some(filter)),
        ["-p", package, "--lib", filter] => (package, None, Some(filter)),
        _ => return Some("the command has an unknown form".into()),
    };
    let Some((_, folder)) = PACKAGES.iter().find(|(name, _)| *name == package) else {
        return Some(format!("there is no package {package}"));
    };
    let folder = workspace().join(folder);
    let sources = match target {
        None => files(&folder.join("src")),
        Some(target) => {
            let (file, many) = (folder.join(format!("tests/{target}.rs")), folder.join("tests").join(target));
            match (file.exists(), many.join("main.rs").exists()) {
                (true, _) => vec![file],
                (_, true) => files(&many),
                _ => return Some(format!("there is no test {target} in {package}")),
            }
        }
    };
    if let Some(script) = script {
        let kind = target.and_then(|target| target.strip_suffix("_scripts")).unwrap_or_default();
        let path = folder.join("tests/scripts").join(kind).join(script);
        if !path.is_file() {
            return Some(format!("there is no script {}", path.display()));
        }
    }
    let Some(filter) = filter else {
        return (script.is_none() && target.is_some_and(|target| target.ends_with("_scripts")))
            .then(|| "SCRIPT is missing".into());
    };
    let (module, name) = filter.rsplit_once("::").map_or((None, filter), |(module, name)| (Some(module), name));
    let module = module.map(|module| module.split("::").filter(|part| *part != "tests").collect::<PathBuf>());
    let is_module = |path: &PathBuf| {
        module
            .as_ref()
            .is_none_or(|module| path.with_extension("").ends_with(module) || path.ends_with(module.join("mod.rs")))
    };
    if name.is_empty() {
        return (!sources.iter().any(is_module)).then(|| format!("there is no module {filter}"));
    }
    let of_module = |path: &&PathBuf| is_module(path);
    let found: Vec<bool> = sources.iter().filter(of_module).filter_map(|path| test_in(path, name)).collect();
    match *found {
        [] => Some(format!("there is no test {name}")),
        [ignored] if ignored != flags.contains(&"--ignored") => {
            Some(format!("{name} must be run with --ignored if it is ignored, and only then"))
        }
        [_] => None,
        _ => Some(format!("there are {} tests {name}", found.len())),
    }
}

/// What is wrong with a command, if anything.
fn wrong_with(command: &str) -> Option<String> {
    let arguments: Vec<&str> = command.split_whitespace().collect();
    let (script, arguments) = match arguments.split_first() {
        Some((first, rest)) if first.starts_with("SCRIPT=") => (first.strip_prefix("SCRIPT="), rest),
        _ => (None, arguments.as_slice()),
    };
    match arguments {
        ["cargo", "test", rest @ ..] => wrong_with_test(script, rest),
        ["cargo", "run", "--release", "-p", "palisade-model", "--", "check", names @ ..] => unknown(names, &models()),
        ["cargo", "run", "--release", "-p", "palisade-model", "--", "mutants", names @ ..] => {
            unknown(names, &mutant_names("model/mutants"))
        }
        _ => Some("the command has an unknown form".into()),
    }
}

fn unknown(names: &[&str], known: &BTreeSet<String>) -> Option<String> {
    if names.is_empty() {
        return Some("the command names no model or mutant".into());
    }
    names.iter().find(|name| !known.contains(**name)).map(|name| format!("there is no {name}"))
}

/// Goal: everything that a command names exists.
#[test]
fn names_in_commands_exist() {
    let text = ledger();
    let wrong: Vec<String> =
        commands(&text).iter().filter_map(|command| Some(format!("{command}: {}", wrong_with(command)?))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Goal: every story says what happened elsewhere, why it does not happen here, the command, what
/// the command shows, and how it was seen to fail; and the stories are numbered.
#[test]
fn every_story_has_all_parts() {
    let text = ledger();
    let stories = stories(&text);
    assert!(stories.len() >= MINIMUM, "only {} stories", stories.len());
    for (index, (heading, story)) in (1..).zip(&stories) {
        assert!(heading.starts_with(&format!("{index}. ")), "{heading}: story {index} has another number");
        let mut rest = *story;
        for part in PARTS {
            let lines = rest.split_once(&format!("\n{part}"));
            rest = lines.unwrap_or_else(|| panic!("{heading}: {part} is missing, or in the wrong place")).1;
        }
        assert_eq!(commands(story).len(), 1, "{heading}: a story has one command");
    }
}

/// Goal: a mutant in `stories.toml` belongs to a story, and its test is the story's command.
#[test]
fn mutants_of_stories_are_tested_by_their_commands() {
    let text = ledger();
    let stories = stories(&text);
    for Mutant { name, test } in mutants("conformance/mutants/test", |path| path.ends_with("stories.toml")) {
        let found = stories.iter().find(|(_, story)| story.contains(&format!("`{name}`")));
        let (_, story) = found.unwrap_or_else(|| panic!("no story names {name}"));
        assert_eq!(commands(story), [format!("cargo test {}", test.expect("a test"))], "{name}");
    }
}

/// Goal: the mutants, models and files that the text names exist. A name with hyphens is a mutant's
/// or a model's.
#[test]
fn mutants_models_and_files_in_the_text_exist() {
    let text = ledger();
    let mut known = mutant_names("model/mutants");
    known.extend(mutant_names("conformance/mutants"));
    known.extend(models());
    let is_name = |text: &str| {
        text.contains('-')
            && text.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-')
    };
    let sources: Vec<PathBuf> = PACKAGES.iter().flat_map(|(_, folder)| files(&workspace().join(folder))).collect();
    let is_there = |file: &str| sources.iter().any(|path| path.ends_with(file));
    let mut mutants = 0;
    for name in quoted(&text) {
        if name.starts_with("cargo ") && !name.ends_with(" NAME") {
            assert_eq!(wrong_with(name), None, "{name}");
        } else if is_name(name) && !name.starts_with('-') {
            assert!(known.contains(name), "there is no mutant and no model {name}");
            mutants += 1;
        } else if name.ends_with(".rs") {
            assert!(is_there(name), "there is no file {name}");
        }
    }
    assert!(mutants >= MINIMUM, "only {mutants} mutants and models are named, fewer than {MINIMUM}");
}

/// Goal: the checks of this file find missing names.
#[test]
fn missing_names_are_found() {
    for (command, expected) in [
        ("cargo test -p palisade --test live ledger::no_such_story", "there is no test no_such_story"),
        ("cargo test -p palisade --test live ledger::locks::", "there is no module ledger::locks::"),
        ("cargo test -p palisade --test live ledger::no_such_module::", "there is no module ledger::no_such_module::"),
        ("cargo test -p palisade --test live api::locks::no_such_story", "there is no test no_such_story"),
        ("cargo test -p palisade --test no_such_target", "there is no test no_such_target in palisade"),
        ("cargo test -p none --test ledger", "there is no package none"),
        ("SCRIPT=commit/none cargo test -p palisade-spec --test raft_scripts", "there is no script"),
        ("cargo test -p palisade-spec --test raft_scripts", "SCRIPT is missing"),
        ("cargo run --release -p palisade-model -- check none", "there is no none"),
        ("cargo run --release -p palisade-model -- mutants none", "there is no none"),
        ("cargo run --release -p palisade-model -- mutants", "the command names no model or mutant"),
        ("true", "the command has an unknown form"),
    ] {
        let wrong = wrong_with(command);
        assert!(wrong.as_ref().is_some_and(|wrong| wrong.starts_with(expected)), "{command}: {wrong:?}");
    }
}
