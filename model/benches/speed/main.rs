//! States a second, beside stateright's own `raft` example (3 servers, depth 10), in one run:
//! `cargo bench -p palisade-model`. Also measures the gain of each optimization, by disabling it.
//!
//! The example comes with stateright's package. It is copied to a temporary directory and built
//! there, with one change: it looks once a second whether it has come to its end, and is made to
//! end when it has.

mod laborious;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use palisade_model::expected_counts;
use palisade_model::models::models;
use palisade_model::named::Named;

use laborious::{Run, Without};

/// Models of consensus that are compared with the example.
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
        let run = explored(model, threads);
        println!("{:<34} {}, {:.1} times as many", model.name, summary(&run), rate(&run) / theirs);
    }
    let unique = expected_counts::unique("raft");
    let compare = |name: &str, run: &Run, whole: &Run| {
        let times = run.elapsed.as_secs_f64() / whole.elapsed.as_secs_f64();
        println!("{name:<34} {}, {} unique, {times:.1} times as long", summary(run), run.states.1);
    };
    println!("\nraft, with one property, without");
    let whole = laborious::explore(Without::Nothing, threads);
    for (name, without) in [
        ("nothing", Without::Nothing),
        ("shared parts", Without::Sharing),
        ("cached digests", Without::Caches),
        ("remembered steps", Without::Memory),
        ("symmetry", Without::Symmetry),
        ("symmetry and a canonical network", Without::Order),
    ] {
        let run = laborious::explore(without, threads);
        let tells_more_apart = matches!(without, Without::Symmetry | Without::Order);
        assert!(tells_more_apart || Some(run.states.1) == unique, "{name}: {} unique", run.states.1);
        compare(name, &run, &whole);
    }
    println!("\nraft-repeats, all properties");
    let repeats = models().into_iter().find(|model| model.name == "raft-repeats").expect("there is such a model");
    let together = explored(&repeats, threads);
    let one_by_one = laborious::one_by_one(threads);
    assert_eq!(one_by_one.states.1, together.states.1, "the same model");
    compare("looked at together", &together, &together);
    compare("looked at one by one", &one_by_one, &together);
}

fn explored(model: &Named, threads: usize) -> Run {
    let verdict = model.model.check(threads);
    assert!(verdict.is_as(model.expected), "{}: {verdict}", model.name);
    Run { states: verdict.states, elapsed: verdict.elapsed }
}

fn rate(run: &Run) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
    let generated = run.states.0 as f64;
    generated / run.elapsed.as_secs_f64()
}

fn summary(run: &Run) -> String {
    let (generated, seconds) = (run.states.0, run.elapsed.as_secs_f64());
    format!("{generated:>11} generated {seconds:>6.1} s {:>6.2} M/s", rate(run) / 1e6)
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
    let example = copy.join("examples/raft.rs");
    let source = fs::read_to_string(&example).expect("the package has the example");
    let prompt = source.replace(".report(", ".join_and_report(");
    assert_ne!(prompt, source, "the example reports");
    fs::write(&example, prompt).expect("a file can be written");
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

/// A command's standard output and its duration in seconds.
fn run(command: &mut Command) -> (String, f64) {
    let begun = Instant::now();
    let output = command.output().expect("the command can be started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8_lossy(&output.stdout).into_owned(), begun.elapsed().as_secs_f64())
}
