//! Bugs in the server that a replay must find: lists in `conformance/seeded`, each bug a text of `runtime/src` that stands
//! there exactly once and is replaced by another.
//!
//! A replay that finds nothing shows something only if it would have found a bug. So all of them are put into a copy of the
//! sources, each behind a switch (docs/decisions/0011), the copy is built once, and with each of them on the traces that
//! its entry names are played until one finds it: in the way that the entry says, or the run fails. With none on, nothing
//! may be found.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use palisade_model::seeded::{self as switches, SWITCHES, mirror, with_switches};
use serde::Deserialize;

use super::kept::{self, Kept};
use super::live::Program;
use super::play::{Company, Finding, PlayError, play};

/// A bug in the server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bug {
    /// Its name.
    pub name: String,
    /// Why what it breaks is there.
    pub why: String,
    /// The file that it changes, within `runtime/src`.
    pub file: PathBuf,
    /// The text that it replaces. It stands exactly once in the file.
    pub replace: String,
    /// What stands there instead.
    pub with: String,
    /// The model of the traces that find it.
    pub model: String,
    /// What the traces show that find it, if not any will do.
    pub property: Option<String>,
    /// Of what a difference is found, as the finding's words begin.
    pub finds: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    bug: Vec<Bug>,
}

/// Where the project's own lists are.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeded")
}

/// Every bug of the lists in a folder.
///
/// # Errors
/// If one of its lists cannot be read.
pub fn bugs(folder: &Path) -> Result<Vec<Bug>, String> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    let mut lists: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    lists.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    lists.sort_unstable();
    let mut all = Vec::new();
    for path in lists {
        let text = read(&path)?;
        all.extend(toml::from_str::<List>(&text).map_err(|error| failed(&path, &error))?.bug);
    }
    Ok(all)
}

impl Bug {
    /// Whether a trace is one of those that find it.
    pub fn is_found_by(&self, kept: &Kept) -> bool {
        self.model == kept.model && self.property.as_ref().is_none_or(|property| *property == kept.property)
    }

    /// As the switches take it.
    fn change(&self) -> switches::Bug {
        let Bug { name, why, file, replace, with, .. } = self.clone();
        switches::Bug { name, why, file, replace, with, model: String::new(), property: String::new() }
    }

    /// Plays traces until one finds it. `None` if none does.
    fn hunt(&self, company: &Company, kept: &[Kept]) -> Result<Option<(String, Finding)>, String> {
        hunt(company, kept.iter().filter(|kept| self.is_found_by(kept)))
    }

    /// What came of it, in a line, and whether it is what must.
    fn verdict(&self, found: Result<Option<(String, Finding)>, String>, seconds: f64) -> (String, bool) {
        let Bug { name, finds, .. } = self;
        match found {
            Ok(Some((title, finding))) if finding.difference.what.starts_with(finds) => {
                (format!("{name}: found by {title}, {seconds:.0} s: {finding}"), true)
            }
            Ok(Some((title, finding))) => {
                (format!("{name}: FOUND OTHERWISE than by {finds}: by {title}: {finding}"), false)
            }
            Ok(None) => (format!("{name}: SURVIVES, {seconds:.0} s"), false),
            Err(error) => (format!("{name}: {error}"), false),
        }
    }
}

/// Plays traces until one finds something.
fn hunt<'a>(company: &Company, traces: impl Iterator<Item = &'a Kept>) -> Result<Option<(String, Finding)>, String> {
    for kept in traces {
        match play(company, &kept::told(kept).map_err(|error| error.to_string())?) {
            Ok(_) => {}
            Err(PlayError::Found(finding)) => return Ok(Some((kept.title(), *finding))),
            Err(error @ PlayError::Stage(_)) => return Err(error.to_string()),
        }
    }
    Ok(None)
}

/// How many traces must find nothing where there is no bug.
const CONTROLS: usize = 10;

/// Hunts the bugs of these names, or all. Says whether each was found as it must be.
///
/// # Errors
/// If they cannot be hunted.
pub fn hunt_all(kept: &[Kept], names: &[String], segment_bytes: u64, out: &mut impl Write) -> Result<bool, String> {
    let mut say = |line: String| writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string());
    let begun = Instant::now();
    let mut bugs = bugs(&folder())?;
    if let Some(unknown) = names.iter().find(|name| !bugs.iter().any(|bug| bug.name == **name)) {
        return Err(format!("no list has a bug called {unknown}"));
    }
    bugs.retain(|bug| names.is_empty() || names.contains(&bug.name));
    let file = build(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &bugs)?;
    say(format!("{} bugs built in {:.0} s", bugs.len(), begun.elapsed().as_secs_f64()))?;
    let company = |on| Company { program: Program { file: file.clone(), on }, segment_bytes };
    let is_used = |kept: &&Kept| bugs.iter().any(|bug| bug.is_found_by(kept));
    if let Some((title, finding)) = hunt(&company(String::new()), kept.iter().filter(is_used).take(CONTROLS))? {
        say(format!("no bug: {title} finds {finding}; it must find nothing"))?;
        return Ok(false);
    }
    let mut caught = 0;
    for (number, bug) in bugs.iter().enumerate() {
        let begun = Instant::now();
        let found = bug.hunt(&company(number.to_string()), kept);
        let (told, is_caught) = bug.verdict(found, begun.elapsed().as_secs_f64());
        caught += usize::from(is_caught);
        say(told)?;
    }
    say(format!("{caught} of {} caught in {:.0} s", bugs.len(), begun.elapsed().as_secs_f64()))?;
    Ok(caught == bugs.len())
}

/// What the server is built from.
const PACKAGES: [&str; 3] = ["spec", "client", "runtime"];

/// Builds the server with all these bugs in it, in a copy of the sources at one place under `target`.
fn build(workspace: &Path, bugs: &[Bug]) -> Result<PathBuf, String> {
    let place = workspace.join("target/replayed");
    let (copy, target) = (place.join("workspace"), place.join("target"));
    let sources = workspace.join("runtime/src");
    let changes: Vec<switches::Bug> = bugs.iter().map(Bug::change).collect();
    let says = |path: &Path| -> Result<String, switches::Error> {
        let source = fs::read_to_string(path);
        let source = source.map_err(|source| switches::Error::File { path: path.to_owned(), source })?;
        let here = changes.iter().enumerate().filter(|(_, change)| sources.join(&change.file) == path);
        let here: Vec<_> = here.collect();
        let source = if here.is_empty() { source } else { with_switches(&source, &here)? };
        Ok(if path == sources.join("lib.rs") { source + SWITCHES } else { source })
    };
    for package in PACKAGES {
        let mirrored = mirror(&workspace.join(package), &copy.join(package), &says);
        mirrored.map_err(|error| error.to_string())?;
    }
    let failed = |error: std::io::Error| format!("{}: {error}", copy.display());
    fs::copy(workspace.join("Cargo.lock"), copy.join("Cargo.lock")).map_err(failed)?;
    let manifest = without_other_members(&read(&workspace.join("Cargo.toml"))?)?;
    fs::write(copy.join("Cargo.toml"), manifest).map_err(failed)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(&copy).args(["build", "--quiet", "--offline", "--package", "palisade", "--target-dir"]);
    let output = build.arg(&target).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        Ok(target.join("debug/palisade"))
    } else {
        Err(format!("the copy with the bugs does not build:\n{}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn without_other_members(manifest: &str) -> Result<String, String> {
    let mut manifest: toml::Table = toml::from_str(manifest).map_err(|error| error.to_string())?;
    if let Some(workspace) = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut) {
        workspace.insert("members".into(), PACKAGES.to_vec().into());
        if let Some(dependencies) = workspace.get_mut("dependencies").and_then(toml::Value::as_table_mut) {
            dependencies.remove("palisade-model");
        }
    }
    toml::to_string(&manifest).map_err(|error| error.to_string())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list cannot rot unnoticed.
    #[test]
    fn every_bug_fits_the_source_and_has_a_trace() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let kept = kept::all(&kept::folder()).unwrap();
        let bugs = bugs(&folder()).unwrap();
        assert!(bugs.len() >= 10);
        for bug in bugs {
            let source = read(&workspace.join("runtime/src").join(&bug.file)).unwrap();
            with_switches(&source, &[(0, &bug.change())]).unwrap();
            assert!(kept.iter().any(|kept| bug.is_found_by(kept)), "{}: no trace is kept that could find it", bug.name);
        }
    }
}
