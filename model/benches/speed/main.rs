//! States a second, beside stateright's own `raft` example (3 servers, depth 10), in one run: `cargo bench -p palisade-model`.
//! And what each of the things gains that make the difference, by doing without it.
//!
//! The example comes with stateright's package. It is copied to a temporary directory and built there as it is.

mod laborious;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use palisade_model::check::Verdict;
use palisade_model::models::models;
use palisade_model::world::{Answers, Bounds, Delivery};

use laborious::Without;

/// Ours: models of consensus.
const OURS: [&str; 3] = ["raft", "raft-late", "raft-repeats"];

fn main() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let home = tempfile::tempdir().expect("there is room for temporary files");
    let example = build_example(home.path());
    let output = run(Command::new(example).args(["check", "3", "10"]));
    // "Done. states=N, unique=N, depth=N, sec=N": whole seconds, so the time is taken here.
    let (text, seconds) = output;
    let figure = |name: &str| -> f64 {
        let done = text.lines().find(|line| line.starts_with("Done.")).expect("the example says when it is done");
        let rest = done.split_once(name).expect("it says how many").1;
        rest.split(',').next().and_then(|number| number.trim().parse().ok()).expect("a number")
    };
    let theirs = figure("states=") / seconds;
    println!(
        "{:<34} {:>11} generated {seconds:>6.1} s {:>6.2} M/s",
        "stateright's raft, 3 servers",
        figure("states="),
        theirs / 1e6
    );
    for model in models().iter().filter(|model| OURS.contains(&model.name)) {
        let verdict = model.model.check(threads);
        println!("{:<34} {}, {:.1} times as many", model.name, told(&verdict), rate(&verdict) / theirs);
    }
    println!("\nraft, without");
    let late = Delivery::AnyTime { most: 2, answers: Answers::Messages };
    let bounds = Bounds { crashes: 1, delivery: late, symmetry: true, ..Bounds::default() };
    let whole = laborious::explore(bounds.clone(), Without::Nothing, threads);
    println!("{:<34} {}", "nothing", told(&whole));
    for (name, without) in [
        ("shared parts", Without::Sharing),
        ("cached digests", Without::Caches),
        ("remembered steps", Without::Memory),
        ("symmetry", Without::Symmetry),
    ] {
        let verdict = laborious::explore(bounds.clone(), without, threads);
        let times = verdict.elapsed.as_secs_f64() / whole.elapsed.as_secs_f64();
        println!("{name:<34} {}, {} unique, {times:.1} times as long", told(&verdict), verdict.states.1);
    }
}

fn rate(verdict: &Verdict) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
    let generated = verdict.states.0 as f64;
    generated / verdict.elapsed.as_secs_f64()
}

fn told(verdict: &Verdict) -> String {
    let (generated, seconds) = (verdict.states.0, verdict.elapsed.as_secs_f64());
    format!("{generated:>11} generated {seconds:>6.1} s {:>6.2} M/s", rate(verdict) / 1e6)
}

/// Copies stateright's package and builds its example.
fn build_example(home: &Path) -> PathBuf {
    let (metadata, _) = run(Command::new(env!("CARGO")).args(["metadata", "--format-version", "1", "--locked"]));
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("cargo's metadata are JSON");
    let packages = metadata["packages"].as_array().expect("there are packages");
    let package = packages.iter().find(|package| package["name"] == "stateright").expect("stateright is used");
    let manifest = Path::new(package["manifest_path"].as_str().expect("a package has a manifest"));
    let copy = home.join("stateright");
    copy_tree(manifest.parent().expect("a manifest stands in a directory"), &copy);
    run(Command::new(env!("CARGO"))
        .args(["build", "--release", "--example", "raft", "--target-dir"])
        .arg(home.join("target"))
        .current_dir(&copy));
    home.join("target/release/examples/raft")
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory can be made");
    for entry in fs::read_dir(from).expect("a package can be read").flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_tree(&source, &target);
        } else {
            fs::copy(&source, &target).expect("a file can be copied");
        }
    }
}

/// What a command says on its standard output, and the seconds it took.
fn run(command: &mut Command) -> (String, f64) {
    let begun = Instant::now();
    let output = command.output().expect("the command can be started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8_lossy(&output.stdout).into_owned(), begun.elapsed().as_secs_f64())
}
