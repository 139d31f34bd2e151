//! Pages are made of their results alone, and a run ends to end.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use clap::ValueEnum;
use palisade_lab::dlock::Backend;
use palisade_lab::experiments::Name;
use palisade_lab::servers::Kind;

use self::support::is_missing;

mod support;

/// What stands above the lines that `just book` writes at the end of a page (conformance/tests/documents/book.rs).
const NEIGHBOURS: &str = "\n<!-- `just book` writes what follows. -->\n";

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_palisade-lab")).args(arguments).output().unwrap()
}

fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/lab")
}

/// The names of all experiments, sorted.
fn experiments() -> Vec<String> {
    let names = Name::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let mut names: Vec<_> = names.map(|name| name.get_name().to_owned()).collect();
    names.sort();
    names
}

/// docs/lab/README.md's table has one row for each experiment, which links its page.
#[test]
fn readme_has_a_row_for_each_experiment() {
    let readme = std::fs::read_to_string(pages().join("README.md")).unwrap();
    let (_, table) = readme.split_once("| page | question |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut rows: Vec<_> = rows
        .map(|row| {
            let name = row.strip_prefix("| [").and_then(|row| row.split_once(']')).unwrap_or_else(|| panic!("{row}")).0;
            assert!(row.starts_with(&format!("| [{name}]({name}.md) |")), "{row}");
            name.to_owned()
        })
        .collect();
    rows.sort();
    assert_eq!(rows, experiments());
}

/// docs/lab/programs.md's table has the flags and the lock services of each experiment.
#[test]
fn programs_page_has_the_flags_of_each_experiment() {
    let page = std::fs::read_to_string(pages().join("programs.md")).unwrap();
    let (_, table) = page.split_once("| experiment | its flags of `run` | `--backend` |\n").expect("the table");
    let rows: Vec<_> = table.lines().skip(1).take_while(|line| line.starts_with('|')).collect();
    let row = |name: &Name| {
        let flags: Vec<_> = name.flags().iter().map(|flag| format!("`--{flag}`")).collect();
        let flags = if flags.is_empty() { "–".to_owned() } else { flags.join(", ") };
        let backends: Vec<_> = name.backends().iter().map(|backend| backend.name()).collect();
        let backends = if backends.len() == Backend::ALL.len() { "all".to_owned() } else { backends.join(", ") };
        format!("| `{}` | {flags} | {backends} |", name.text())
    };
    assert_eq!(rows, Name::value_variants().iter().map(row).collect::<Vec<_>>());
}

/// Each committed page and plot is what its committed results render to. The tables as CSV are not committed.
#[test]
fn committed_pages_are_what_their_results_render_to() {
    let found = std::fs::read_dir(pages()).unwrap().map(|entry| entry.unwrap().path());
    let found = found.filter(|directory| directory.join("results.json").exists());
    let mut names: Vec<_> = found.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, experiments(), "each experiment has its docs/lab/NAME/results.json");
    for name in &names {
        let directory = tempfile::tempdir().unwrap();
        let committed = pages().join(name);
        std::fs::create_dir(directory.path().join(name)).unwrap();
        std::fs::copy(committed.join("results.json"), directory.path().join(name).join("results.json")).unwrap();
        let output = lab(&["run", name, "--render", "--out", directory.path().to_str().unwrap()]);
        assert!(output.status.success(), "a committed run was not as predicted: {output:?}");
        let same = |file: &str| {
            let (rendered, kept) = (directory.path().join(file), pages().join(file));
            let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            // The links to the neighbours in the book are not the lab's.
            let own = |text: String| text.split(NEIGHBOURS).next().unwrap().to_owned();
            assert!(own(read(&rendered)) == own(read(&kept)), "{file} differs: run `palisade-lab run {name} --render`");
        };
        same(&format!("{name}.md"));
        let files = |directory: PathBuf| {
            let names = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().file_name());
            let names = names.map(|name| name.into_string().unwrap());
            let mut names: Vec<_> = names.filter(|name| !name.ends_with(".csv")).collect();
            names.sort();
            names
        };
        let rendered = files(directory.path().join(name));
        assert_eq!(rendered, files(committed));
        rendered.iter().for_each(|file| same(&format!("{name}/{file}")));
    }
}

/// docs/lab/README.md's tables of findings are what the committed results render to.
#[test]
fn findings_are_what_the_committed_results_render_to() {
    let directory = tempfile::tempdir().unwrap();
    for name in experiments() {
        let file = Path::new(&name).join("results.json");
        if pages().join(&file).exists() {
            std::fs::create_dir(directory.path().join(&name)).unwrap();
            std::fs::copy(pages().join(&file), directory.path().join(&file)).unwrap();
        }
    }
    let committed = std::fs::read_to_string(pages().join("README.md")).unwrap();
    // The command must write each row, so none is there before.
    let is_row = |line: &&str| Backend::ALL.iter().any(|backend| line.starts_with(&format!("| {backend} |")));
    assert_eq!(
        committed.lines().filter(is_row).count(),
        2 * Backend::ALL.len(),
        "one row for each backend in both tables"
    );
    let without: String = committed.split_inclusive('\n').filter(|line| !is_row(line)).collect();
    std::fs::write(directory.path().join("README.md"), without).unwrap();
    let output = lab(&["run", "clocks", "--render", "--out", directory.path().to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let rendered = std::fs::read_to_string(directory.path().join("README.md")).unwrap();
    assert!(rendered == committed, "README.md differs: run `palisade-lab run clocks --render`\n{rendered}");
}

/// docs/performance.md quotes the short tables of `peers` as they were rendered.
#[test]
fn performance_page_quotes_the_peers() {
    let summary = pages().join("peers/summary.md");
    let Ok(table) = std::fs::read_to_string(&summary) else {
        eprintln!("SKIPPED: there are no results of `peers` yet");
        return;
    };
    let performance = std::fs::read_to_string(pages().parent().unwrap().join("performance.md")).unwrap();
    assert!(table.lines().count() > 2, "{table}");
    assert!(performance.contains(&table), "put the tables of {} into docs/performance.md:\n{table}", summary.display());
}

/// README.md's table has the figures of `peers` for 1, 64 and 256 clients, and the commit that was measured.
#[test]
fn readme_quotes_the_peers() {
    let root = pages().join("../..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let (readme, summary) = (read("README.md"), read("docs/lab/peers/summary.md"));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let figures = |system: &str| {
        // The first of its tables.
        let mut rows = summary.lines().filter(|line| line.starts_with('|')).map(cells);
        let row = rows.find(|row| row[0] == system).unwrap_or_else(|| panic!("no {system}"));
        [1, 3, 4].map(|column| row[column].clone())
    };
    assert_eq!(figures(""), ["1", "64", "256"], "the columns of the summary");
    let (_, table) = readme.split_once("| | an answer stands for | 1 | 64 | 256 |\n").expect("README.md has the table");
    let rows: Vec<_> = table.lines().skip(1).take_while(|line| line.starts_with('|')).map(cells).collect();
    let systems = ["palisade", "etcd-lock", "zookeeper", "redis"];
    assert_eq!(rows.len(), systems.len(), "{rows:?}");
    for (row, system) in rows.iter().zip(systems) {
        let name = row[0].trim_matches('*').to_lowercase();
        assert!(system.starts_with(name.split(',').next().unwrap()), "{name} is not {system}");
        assert_eq!(row[2..], figures(system), "{system}: correct README.md");
    }
    let results: serde_json::Value = serde_json::from_str(&read("docs/lab/peers/results.json")).unwrap();
    for run in results["runs"].as_array().unwrap() {
        let commit = run["setup"]["commit"].as_str().unwrap_or_else(|| panic!("no commit: {}", run["setup"]));
        assert!(readme.contains(&format!("`{commit}`")), "README.md names another commit than {commit}");
    }
}

/// An experiment that fails is named at the end, and those after it are run all the same.
#[test]
fn run_goes_on_after_a_failed_experiment() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let names = ["run", "ttl", "release", "--backend", "palisade", "--palisade", "/no/such/program", "--out", out];
    let output = lab(&names);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    for name in ["ttl", "release"] {
        assert!(stderr.contains(&format!("palisade-lab: {name} on palisade failed: ")), "{name} in\n{stderr}");
    }
}

/// Runs an experiment on real Redis servers for one round; all of these lines are in its page, and README.md has the
/// tables of findings.
fn page_has(name: &str, backend: &str, lines: &[&str]) {
    if is_missing(name, &[Kind::Redis]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let readme = directory.path().join("README.md");
    std::fs::write(&readme, "<!-- `palisade-lab run` writes these tables. -->\n<!-- The tables end here. -->\n")
        .unwrap();
    let once =
        if Name::from_str(name, false).is_ok_and(|name| name.takes("rounds")) { &["--rounds", "1"][..] } else { &[] };
    let output = lab(&[&["run", name, "--backend", backend, "--out", out], once].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let page = std::fs::read_to_string(directory.path().join(format!("{name}.md"))).unwrap();
    for line in lines {
        assert!(page.contains(line), "{line} is missing in\n{page}");
    }
    let readme = std::fs::read_to_string(readme).unwrap();
    assert!(readme.contains(&format!("\n| {backend} | ")), "{readme}");
}

/// One round of the centrepiece on a real Redis, with two workers and the resource as processes.
#[test]
fn a_pause_corrupts_without_the_fence_only() {
    let lines = [
        "| redis | stop | off | 1 | 2 | 1 | 0 | 0 | 1 | 1 |",
        "| redis | stop | on | 1 | 1 | 0 | 1 | 1 | 0 | 0 |",
        "| redis | sleep | off | 1 | 2 | 1 | 0 | 0 | 1 | 1 |",
        "| redis | sleep | on | 1 | 1 | 0 | 1 | 1 | 0 | 0 |",
    ];
    page_has("pause", "redis", &lines);
}

/// Redis follows the gallery's traces step by step.
#[test]
fn redis_does_what_the_gallery_predicts() {
    let lines = [
        "| `gallery-redis-failover` | as it is | 3 of 3 | mutual exclusion | **violated** |",
        "| `gallery-redis-release` | as it is | 6 of 6 | mutual exclusion | **violated** |",
        "| `gallery-redis-release` | with the repair | 6 of 6 | mutual exclusion | holds |",
    ];
    page_has("prediction", "redis", &lines);
}

/// Redlock loses the lock by a crash without sync only, and the fence needs tokens from one counter.
#[test]
fn redlock_needs_sync_and_a_counter_elsewhere() {
    let lines = [
        "| minority partition | 1 | 1 | 1 | 0 | 0 |",
        "| crash with sync | 1 | 1 | 1 | 0 | 0 |",
        "| crash without sync | 3 | 3 | 0 | 3 | 3 |",
        "| crash without sync | on | Redlock's own | 1 | 4, 1 | 2 | 1 | 0 | 0 |",
        "| crash without sync | on | one counter | 1 | 1, 2 | 1 | 0 | 1 | 0 |",
    ];
    page_has("redlock", "redlock", &lines);
}
