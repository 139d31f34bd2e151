//! Runs all scripts of a folder.
//!
//! `UPDATE_GOLDENFILES=1 cargo test -p palisade-spec` rewrites the outputs: review the difference,
//! because the scripts are the specification. `SCRIPT=figure_8 cargo test …` runs only the scripts
//! whose path contains that text.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use goldenscript::Runner;

/// Runs every script below `tests/scripts/<folder>`, each with a new runner, and fails with the
/// list of failed scripts.
pub(crate) fn scripts<R: Runner>(folder: &str, runner: impl Fn() -> R) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let only = std::env::var("SCRIPT").unwrap_or_default();
    let mut paths = Vec::new();
    collect(&root.join(folder), &mut paths);
    paths.retain(|path| path.to_string_lossy().contains(&only));
    assert!(!paths.is_empty(), "there are no scripts");
    let failed: Vec<String> = paths.iter().filter_map(|path| fails(runner(), path)).collect();
    assert!(failed.is_empty(), "{} of {} scripts failed:\n{}", failed.len(), paths.len(), failed.join("\n"));
}

/// Runs one script; returns which one failed and why.
fn fails(mut runner: impl Runner, path: &Path) -> Option<String> {
    let why = match catch_unwind(AssertUnwindSafe(|| goldenscript::run(&mut runner, path))) {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "see above".into(),
    };
    Some(format!("{}: {why}", path.display()))
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("the folder of scripts can be read");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry can be read").path()).collect();
    found.sort();
    for path in found {
        if path.is_dir() { collect(&path, paths) } else { paths.push(path) }
    }
}
