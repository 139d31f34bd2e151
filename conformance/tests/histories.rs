//! Hand-made histories: incorrect ones that a checker must accuse with a given sentence, and
//! correct ones that look suspicious and must not be accused. The first lines of each file say what
//! happened.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use palisade_history::History;
use palisade_history::check::{Verdict, check_all, linearizable};

fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.clone(), fs::read_to_string(file).unwrap())).collect()
}

fn verdicts(file: &Path, text: &str) -> Vec<Verdict> {
    let history = History::read(text.as_bytes()).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    check_all(&history)
}

fn violations(verdicts: &[Verdict]) -> String {
    let lines = verdicts.iter().flat_map(|verdict| {
        verdict.violations.iter().map(move |violation| format!("{}: {violation}\n", verdict.checker))
    });
    lines.collect()
}

#[test]
fn incorrect_histories_are_accused_with_their_sentence() {
    let files = files("bad");
    assert!(files.len() >= 25, "there are {}", files.len());
    let mut accusers = BTreeSet::new();
    for (file, text) in files {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("# {name}: ")));
            line.unwrap_or_else(|| panic!("{} does not say the {name}", file.display()))
        };
        let verdicts = verdicts(&file, &text);
        let verdict = verdicts.iter().find(|verdict| verdict.checker == field("checker")).unwrap();
        let is_accused = verdict.violations.iter().any(|violation| violation.to_string().contains(field("says")));
        assert!(
            is_accused,
            "{}: {} should say \"{}\":\n{}",
            file.display(),
            field("checker"),
            field("says"),
            violations(&verdicts)
        );
        // The resource, the records and the values are not part of the lock, and the search looks at one key at a time.
        // It must refuse everything else.
        let history = History::read(text.as_bytes()).unwrap();
        let keys: BTreeSet<_> = history.operations.iter().flat_map(|operation| operation.call.keys()).collect();
        let decided = linearizable::decide(&history, linearizable::BUDGET);
        if !["resource", "records", "values"].contains(&verdict.checker)
            && keys.len() == 1
            && decided != linearizable::Outcome::Unknown
        {
            assert_eq!(decided, linearizable::Outcome::Refused, "{}", file.display());
        }
        accusers.insert(verdict.checker);
    }
    let all: BTreeSet<&str> = check_all(&History::default()).iter().map(|verdict| verdict.checker).collect();
    assert_eq!(accusers, all, "a hand-made history for every checker");
}

#[test]
fn correct_histories_are_not_accused() {
    let files = files("good");
    assert!(files.len() >= 10, "there are {}", files.len());
    for (file, text) in files {
        let verdicts = verdicts(&file, &text);
        assert_eq!(violations(&verdicts), "", "{}", file.display());
        assert!(verdicts.iter().all(|verdict| !verdict.checked.contains("to be decided")), "{}", file.display());
    }
}
