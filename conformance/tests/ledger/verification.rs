//! docs/verification.md names tests, commands, models and files as the evidence of its claims. These tests check that
//! all of them exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_model::liveness::checks;

use super::{PACKAGES, files, models, mutant_names, workspace};

/// Minimum number of names in the page.
const MINIMUM: usize = 100;

/// The package and the target that the last command of a cell has named.
#[derive(Clone, Copy)]
struct Context<'a> {
    package: &'a str,
    /// `None`: the library, or the program.
    target: Option<&'a str>,
}

/// What the page may name.
struct Known {
    /// Models, checks of liveness, and mutants.
    names: BTreeSet<String>,
    recipes: Vec<String>,
    model_program: String,
}

impl Known {
    fn read() -> Known {
        let mut names = models();
        names.extend(checks().iter().map(|check| check.name.to_owned()));
        names.extend(["model/mutants", "conformance/mutants"].iter().flat_map(|folder| mutant_names(folder)));
        let read = |path| fs::read_to_string(workspace().join(path)).expect("a file can be read");
        let justfile = read("justfile");
        let recipes = justfile.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
        let recipes = recipes.filter_map(|line| line.split([' ', ':']).next()).map(str::to_owned).collect();
        Known { names, recipes, model_program: read("model/src/main.rs") }
    }

    /// Whether the text between back quotes is evidence whatever the column: a command, a test or a file.
    fn is_evidence(text: &str) -> bool {
        let first = text.split(' ').find(|word| !is_variable(word)).unwrap_or_default();
        let is_path = !text.contains(' ') && text.contains('/');
        let is_command = ["just", "palisade-conformance", "palisade-model", "-p", "--test", "--lib"].contains(&first);
        is_command || is_path || text.contains("cargo test -p ") || text.ends_with('…')
    }

    /// What is wrong with this evidence, if anything.
    fn wrong_with<'a>(&self, text: &'a str, context: &mut Context<'a>) -> Option<String> {
        let words: Vec<&str> = text.split(' ').skip_while(|word| is_variable(word)).collect();
        match *words.as_slice() {
            ["just", ..] => text.split(" && ").find_map(|command| self.wrong_with_recipe(command)),
            ["palisade-conformance", command, ref rest @ ..] => wrong_with_program(command, rest),
            ["palisade-model", ref rest @ ..]
            | ["cargo", "run", "--release", "-p", "palisade-model", "--", ref rest @ ..] => self.wrong_with_model(rest),
            ["check" | "simulate" | "liveness" | "mutants", ..] => self.wrong_with_model(&words),
            ["cargo" | "-p" | "--test" | "--lib", ..] => wrong_with_test(&words, context),
            [name] if self.is_known(name) => None,
            [filter] if filter.contains("::") || filter.contains('_') && filter.ends_with('…') => {
                missing(&[filter.trim_end_matches('…')], *context)
            }
            [file, ..] if file.contains('/') || file.ends_with(".rs") => {
                let is_there = workspace().join(file).exists() || sources().iter().any(|path| path.ends_with(file));
                (!is_there).then(|| format!("there is no file {file}"))
            }
            _ => Some("the form is unknown".into()),
        }
    }

    /// A name with an ellipsis stands for all names that begin so.
    fn is_known(&self, name: &str) -> bool {
        match name.strip_suffix('…') {
            Some(beginning) => self.names.iter().any(|known| known.starts_with(beginning)),
            None => self.names.contains(name),
        }
    }

    fn wrong_with_recipe(&self, command: &str) -> Option<String> {
        let name = command.split(' ').nth(1).unwrap_or_default();
        (!self.recipes.iter().any(|recipe| recipe == name)).then(|| format!("there is no recipe {name}"))
    }

    /// The words begin with a subcommand of `palisade-model`.
    fn wrong_with_model(&self, words: &[&str]) -> Option<String> {
        let (command, rest) = words.split_first()?;
        let is_variant = |line: &str| {
            let name = line.trim_end_matches([' ', '{', ',']).split('(').next().unwrap_or_default();
            line.starts_with("    ")
                && name.trim_start().eq_ignore_ascii_case(command)
                && name.len() == 4 + command.len()
        };
        if !self.model_program.lines().any(is_variant) {
            return Some(format!("there is no command {command}"));
        }
        let unknown = rest.iter().find(|word| match word.strip_prefix("--") {
            Some(flag) => !self.model_program.contains(&format!("{flag}: ")),
            None => !self.is_known(word),
        });
        unknown.map(|word| format!("there is no {word}"))
    }
}

/// Whether it sets a variable of the environment, as in `SEEDS=3`.
fn is_variable(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| name.chars().all(|letter| letter.is_ascii_uppercase()))
}

/// A subcommand of `palisade-conformance`, with flags: its help has them.
fn wrong_with_program(command: &str, words: &[&str]) -> Option<String> {
    let program = env!("CARGO_BIN_EXE_palisade-conformance");
    let output = Command::new(program).args([command, "--help"]).output().expect("the program starts");
    let help = String::from_utf8_lossy(&output.stdout);
    let mut flags = words.iter().filter(|word| word.starts_with("--"));
    match flags.find(|flag| !help.contains(**flag)) {
        _ if !output.status.success() => Some(format!("there is no command {command}")),
        Some(flag) => Some(format!("{command} has no {flag}")),
        None => None,
    }
}

/// A call of `cargo test`, or the part of one that differs from the last call.
fn wrong_with_test<'a>(words: &[&'a str], context: &mut Context<'a>) -> Option<String> {
    let (mut filters, mut rest) = (Vec::new(), words.iter().copied());
    while let Some(word) = rest.next() {
        match word {
            "cargo" | "test" | "--" => {}
            "-p" => *context = Context { package: rest.next()?, target: None },
            "--lib" => context.target = None,
            "--bin" => (context.target, _) = (None, rest.next()),
            "--test" => {
                let target = rest.next()?;
                // Without a package, a target of another package that has the only one of this name.
                let own = [context.package].into_iter();
                let package =
                    own.chain(PACKAGES.map(|(name, _)| name)).find(|name| !target_files(name, target).is_empty());
                let Some(package) = package else { return Some(format!("there is no target {target}")) };
                *context = Context { package, target: Some(target) };
            }
            filter => filters.push(filter),
        }
    }
    if !PACKAGES.iter().any(|(name, _)| *name == context.package) {
        return Some(format!("there is no package {}", context.package));
    }
    missing(&filters, *context)
}

/// The first filter that selects no test.
fn missing(filters: &[&str], context: Context) -> Option<String> {
    let files = match context.target {
        Some(target) => target_files(context.package, target),
        None => rust_files(&folder(context.package).join("src")),
    };
    let tests: Vec<String> = files.iter().flat_map(|(path, module)| tests_in(path, module)).collect();
    let absent = filters.iter().find(|filter| !tests.iter().any(|test| test.contains(**filter)));
    absent.map(|filter| format!("there is no test {filter}"))
}

fn folder(package: &str) -> PathBuf {
    let folder = PACKAGES.iter().find(|(name, _)| *name == package).map_or("none", |(_, folder)| folder);
    workspace().join(folder)
}

/// The files of a target of tests, and their modules; none if the package has no such target.
fn target_files(package: &str, target: &str) -> Vec<(PathBuf, String)> {
    let tests = folder(package).join("tests");
    let (alone, many) = (tests.join(target).with_extension("rs"), tests.join(target));
    let mut files = if many.is_dir() { rust_files(&many) } else { Vec::new() };
    if alone.is_file() {
        files.push((alone, String::new()));
    } else if !many.join("main.rs").is_file() {
        files.clear();
    }
    files
}

/// The sources below a folder, with the path of each one's module.
fn rust_files(folder: &Path) -> Vec<(PathBuf, String)> {
    let sources = files(folder).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let with_module = |path: PathBuf| {
        let parts = path.strip_prefix(folder).expect("it is below").with_extension("");
        let parts = parts.iter().filter_map(|part| part.to_str()).filter(|part| !["mod", "main", "lib"].contains(part));
        let module = parts.map(|part| format!("{part}::")).collect();
        (path, module)
    };
    sources.map(with_module).collect()
}

/// The paths of a file's tests, as `cargo test` has them.
fn tests_in(path: &Path, module: &str) -> Vec<String> {
    let text = fs::read_to_string(path).expect("a source can be read");
    let (mut inner, mut is_test, mut tests) = (String::new(), false, Vec::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(" {")) {
            inner = format!("{name}::");
        }
        let line = line.trim_start();
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.trim_start_matches("async ").strip_prefix("fn ");
        if let Some(name) = function.and_then(|rest| rest.split('(').next())
            && std::mem::take(&mut is_test)
        {
            tests.push(format!("{module}{inner}{name}"));
        }
    }
    tests
}

/// All files that a short path may mean.
fn sources() -> Vec<PathBuf> {
    PACKAGES.iter().flat_map(|(_, folder)| files(&workspace().join(folder))).collect()
}

/// The text between back quotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// What is wrong with the page's evidence, and the number of names in it.
fn wrong_names(page: &str) -> (Vec<String>, usize) {
    let known = Known::read();
    let (mut wrong, mut count) = (Vec::new(), 0);
    let mut check = |text, context: &mut _| {
        count += 1;
        wrong.extend(known.wrong_with(text, context).map(|what| format!("`{text}`: {what}")));
    };
    let (mut package, mut column) = ("palisade", None);
    for line in page.lines() {
        if line.starts_with('#') {
            // The commands of a section without a package of its own are the server's.
            let named = quoted(line).flat_map(|command| command.split(' ')).skip_while(|word| *word != "-p").nth(1);
            (package, column) = (named.unwrap_or("palisade"), None);
            continue;
        }
        let mut context = Context { package, target: None };
        let cells: Vec<&str> = if line.starts_with('|') { line.split('|').skip(1).collect() } else { vec![line] };
        let evidence =
            *column.get_or_insert(cells.iter().position(|cell| ["shown by", "where"].contains(&cell.trim())));
        if !line.starts_with('|') {
            column = None;
        }
        for (index, cell) in cells.iter().enumerate() {
            let is_evidence = line.starts_with('|') && Some(index) == evidence;
            for text in quoted(cell).filter(|text| is_evidence || Known::is_evidence(text)) {
                check(text, &mut context);
            }
        }
    }
    (wrong, count)
}

/// Goal: everything that the page names exists.
#[test]
fn names_exist() {
    let page = fs::read_to_string(workspace().join("docs/verification.md")).expect("the page can be read");
    let (wrong, count) = wrong_names(&page);
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count >= MINIMUM, "only {count} names: this test would check nothing");
}

/// Goal: names that do not exist are found, in the column of the evidence and elsewhere.
#[test]
fn missing_names_are_found() {
    for (evidence, expected) in [
        ("`--test no_such_target`", "there is no target no_such_target"),
        ("`--test live failover::no_such_test`", "there is no test failover::no_such_test"),
        ("`--test live failover::`, `no_such_module::`", "there is no test no_such_module::"),
        ("`--test wal` (`no_such_test…`)", "there is no test no_such_test"),
        ("`-p palisade-none --lib`", "there is no package palisade-none"),
        ("`-p palisade-client --lib no::tests`", "there is no test no::tests"),
        ("`cargo test -p palisade --test wal -- pinned none`", "there is no test none"),
        ("`just judge && just none`", "there is no recipe none"),
        ("`palisade-conformance none`", "there is no command none"),
        ("`palisade-conformance torture --none`", "torture has no --none"),
        ("`palisade-model none raft`", "there is no command none"),
        ("`check no-such-model`", "there is no no-such-model"),
        ("`check --none`", "there is no --none"),
        ("`clients/none.py`", "there is no file clients/none.py"),
        ("`none`", "the form is unknown"),
    ] {
        let page = format!("### The server\n\n| claim | shown by | bounds |\n|---|---|---|\n| x | {evidence} | |\n");
        let (wrong, _) = wrong_names(&page);
        assert!(matches!(&wrong[..], [one] if one.ends_with(expected)), "{evidence}: {wrong:?}");
    }
    let (wrong, _) = wrong_names("In `spec/none/` is nothing, and `--test none` is no test.\n");
    assert_eq!(wrong.len(), 2, "{wrong:?}");
}
