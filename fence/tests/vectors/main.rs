//! The shared test vectors: this program makes `fence/vectors.json`, and every verifier (this
//! crate's, and those in Python and JavaScript) must give the answers in it.
//!
//! `PALISADE_BLESS=1 cargo test -p palisade-fence --test vectors` writes the file anew.

mod cases;
mod forge;

use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_fence::{Clock, Decision, Mark, Verifier, decide};
use serde_json::{Value, json};

fn in_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn vectors() -> Value {
    let cases: Vec<Value> = cases::cases().iter().map(cases::Case::json).collect();
    json!({ "format": "fence1", "cases": cases, "histories": cases::histories() })
}

fn texts<'a>(value: &'a Value, field: &str) -> Vec<&'a str> {
    value[field].as_array().map_or(&[][..], Vec::as_slice).iter().map(|text| text.as_str().unwrap()).collect()
}

fn verifier(case: &Value) -> Verifier {
    let roots = texts(case, "roots").into_iter().map(|root| root.parse().unwrap());
    let verifier = Verifier::new(case["cluster"].as_str().unwrap(), roots);
    let clock = case["now"].as_str().map_or(Clock::None, |now| Clock::At(now.parse().unwrap()));
    let refused = texts(case, "refused").into_iter().map(|id| id.parse().unwrap());
    refused.fold(verifier.with_clock(clock), Verifier::refusing)
}

/// The answer of this crate's verifier: `ok EPOCH TOKEN SESSION`, or the refusal's code.
fn answer(verifier: &mut Verifier, case: &Value) -> String {
    match verifier.verify(case["key"].as_str().unwrap(), case["signed"].as_str().unwrap()) {
        Ok(grant) => format!("ok {} {} {}", grant.epoch, grant.token, grant.session),
        Err(refusal) => refusal.code().to_owned(),
    }
}

/// The answer that the vectors demand.
fn expected(case: &Value) -> String {
    let field = |name: &str| case[name].as_str().unwrap().to_owned();
    match case["result"].as_str().unwrap() {
        "ok" => format!("ok {} {} {}", field("epoch"), field("token"), field("session")),
        code => code.to_owned(),
    }
}

/// The answers that all steps of a history demand.
fn expected_steps(history: &Value) -> Vec<String> {
    let steps = history["steps"].as_array().unwrap();
    steps.iter().map(|step| step["result"].as_str().unwrap().to_owned()).collect()
}

fn name(value: &Value) -> &str {
    value["name"].as_str().unwrap()
}

/// Goal: the file has what this program makes, so that no change of the format goes unnoticed.
#[test]
fn vectors_are_pinned() {
    let (vectors, path) = (vectors(), in_crate("vectors.json"));
    if std::env::var_os("PALISADE_BLESS").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&vectors).unwrap() + "\n").unwrap();
    }
    let pinned: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(
        vectors == pinned,
        "{} differs from what this test makes: bless it, and say in the commit why",
        path.display()
    );
}

/// Goal: the verifier of this crate gives each answer, and gives it again from what it remembers.
#[test]
fn crate_gives_the_answers() {
    for case in vectors()["cases"].as_array().unwrap() {
        let mut verifier = verifier(case);
        for _ in 0..2 {
            assert_eq!(answer(&mut verifier, case), expected(case), "{}", name(case));
        }
    }
}

/// Goal: tokens are admitted in the order of the vectors' histories.
#[test]
fn crate_decides_the_histories() {
    for history in vectors()["histories"].as_array().unwrap() {
        let mut verifier = verifier(history);
        let (mut epoch, mut marks) = (0, std::collections::BTreeMap::new());
        let mut answers = Vec::new();
        for step in history["steps"].as_array().unwrap() {
            let key = step["key"].as_str().unwrap();
            let grant = verifier.verify(key, step["signed"].as_str().unwrap()).unwrap();
            answers.push(match decide(epoch, marks.get(key).copied(), &grant) {
                Ok(Decision::Repeat) => "repeat".to_owned(),
                Ok(Decision::Raise) => {
                    if grant.epoch > epoch {
                        marks.clear();
                        epoch = grant.epoch;
                    }
                    marks.insert(key.to_owned(), Mark::of(&grant));
                    "raise".to_owned()
                }
                Err(refusal) => refusal.code().to_owned(),
            });
        }
        assert_eq!(answers, expected_steps(history), "{}", name(history));
    }
}

/// Goal: every refusal has a vector, except the one of the disk.
#[test]
fn every_refusal_has_a_vector() {
    let source = std::fs::read_to_string(in_crate("src/refusal.rs")).unwrap();
    let codes = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Refusal::")?.split_once("=> \"")?.1.split('"').next());
    let codes: Vec<&str> = codes.filter(|code| *code != "not_persisted").collect();
    assert!(codes.len() >= 17, "{codes:?}");
    let text = serde_json::to_string(&vectors()).unwrap();
    for code in codes {
        assert!(text.contains(&format!("\"result\":\"{code}\"")), "no vector is refused as {code}");
    }
}

/// Runs a verifier of another language on the vectors, if its interpreter is installed, and compares
/// its lines `NAME: ANSWER`.
fn run_elsewhere(program: &str, script: &str, environment: &[(&str, &str)]) {
    if Command::new(program).arg("--version").output().is_err() {
        println!("SKIPPED: {program} is not installed, so {script} was not run");
        return;
    }
    let mut command = Command::new(program);
    // Python would leave its cache in the repository.
    command.arg(in_crate(script)).arg("--vectors").arg(in_crate("vectors.json")).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    let vectors = vectors();
    let cases = vectors["cases"].as_array().unwrap().iter().map(|case| format!("{}: {}", name(case), expected(case)));
    let histories = vectors["histories"].as_array().unwrap().iter();
    let histories = histories.map(|history| format!("{}: {}", name(history), expected_steps(history).join(" ")));
    let expected: Vec<String> = cases.chain(histories).collect();
    let answers = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<&str> = answers.lines().collect();
    for (answer, expected) in answers.iter().zip(&expected) {
        assert_eq!(answer, expected, "{script}");
    }
    assert_eq!(answers.len(), expected.len(), "{script}");
}

#[test]
fn python_gives_the_answers() {
    run_elsewhere("python3", "verifiers/palisade_fence.py", &[]);
}

/// Goal: without the package `cryptography`, too.
#[test]
fn python_alone_gives_the_answers() {
    run_elsewhere("python3", "verifiers/palisade_fence.py", &[("PALISADE_FENCE_PURE", "1")]);
}

#[test]
fn javascript_gives_the_answers() {
    run_elsewhere("node", "verifiers/palisade_fence.mjs", &[]);
}

/// Goal: what the vectors cannot say, because this crate's types exclude it.
#[test]
fn tests_of_the_other_verifiers_pass() {
    let javascript = ["node", "--test", "palisade_fence.test.mjs"].as_slice();
    let python = ["python3", "-B", "-m", "unittest", "-q", "test_palisade_fence"].as_slice();
    for command in [javascript, python] {
        let (program, arguments) = command.split_first().unwrap();
        if Command::new(program).arg("--version").output().is_err() {
            println!("SKIPPED: {program} is not installed, so the tests of its verifier were not run");
            continue;
        }
        let output = Command::new(program).args(arguments).current_dir(in_crate("verifiers")).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}
