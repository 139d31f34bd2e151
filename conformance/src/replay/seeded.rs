//! Bugs in the server that a replay must find: a list in `conformance/seeded`, each a text of `runtime/src` that stands there
//! exactly once and is replaced by another.
//!
//! A replay that finds nothing shows something only if it would have found a bug. So each bug is put into a copy of the
//! sources, the copy is built, and the traces that its entry names are played with what comes of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::kept::Kept;
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

/// Where the project's own list is.
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
        let text = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        all.extend(toml::from_str::<List>(&text).map_err(|error| failed(&path, &error))?.bug);
    }
    Ok(all)
}

impl Bug {
    /// The source with the bug in it.
    ///
    /// # Errors
    /// If the text to be replaced does not stand there exactly once.
    pub fn mutate(&self, source: &str) -> Result<String, String> {
        match source.matches(&self.replace).count() {
            1 if self.replace != self.with => Ok(source.replacen(&self.replace, &self.with, 1)),
            1 => Err(format!("{}: it changes nothing", self.name)),
            count => {
                Err(format!("{}: its text stands {count} times in {}, and must once", self.name, self.file.display()))
            }
        }
    }

    /// Whether a trace is one of those that find it.
    pub fn is_found_by(&self, kept: &Kept) -> bool {
        self.model == kept.model && self.property.as_ref().is_none_or(|property| *property == kept.property)
    }

    /// Builds the server with the bug in it, and plays traces until one finds it. `None` if none does.
    ///
    /// # Errors
    /// If it cannot be built, or a trace not be played.
    pub fn hunt(
        &self,
        workspace: &Path,
        kept: &[Kept],
        segment_bytes: u64,
    ) -> Result<Option<(String, Finding)>, String> {
        let company = Company { program: self.build(workspace)?, segment_bytes };
        for kept in kept.iter().filter(|kept| self.is_found_by(kept)) {
            match play(&company, &kept.trace().map_err(|error| error.to_string())?) {
                Ok(_) => {}
                Err(PlayError::Found(finding)) => return Ok(Some((kept.title(), *finding))),
                Err(error @ PlayError::Stage(_)) => return Err(error.to_string()),
            }
        }
        Ok(None)
    }

    /// A copy of what the server is built from, with the bug in it, built at one place under `target`.
    fn build(&self, workspace: &Path) -> Result<PathBuf, String> {
        let place = workspace.join("target/replayed");
        let copy = place.join("workspace");
        for package in PACKAGES {
            mirror(&workspace.join(package), &copy.join(package))?;
        }
        write(&copy.join("Cargo.lock"), &read(&workspace.join("Cargo.lock"))?)?;
        write(&copy.join("Cargo.toml"), &without_other_members(&read(&workspace.join("Cargo.toml"))?)?)?;
        let file = Path::new("runtime/src").join(&self.file);
        write(&copy.join(&file), &self.mutate(&read(&workspace.join(&file))?)?)?;
        let target = place.join("target");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build
            .current_dir(&copy)
            .args(["build", "--quiet", "--offline", "--package", "palisade", "--target-dir"])
            .arg(&target);
        let output = build.output().map_err(|error| format!("cannot run cargo: {error}"))?;
        if output.status.success() {
            Ok(target.join("debug/palisade"))
        } else {
            Err(format!("{} does not build:\n{}", self.name, String::from_utf8_lossy(&output.stderr)))
        }
    }
}

/// What the server is built from.
const PACKAGES: [&str; 3] = ["spec", "client", "runtime"];

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

/// Makes one folder like another, writing only what differs: to the compiler, a file that was written has changed.
fn mirror(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { mirror(&from, &to)? } else { write(&to, &read(&from)?)? }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, content: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list cannot rot unnoticed.
    #[test]
    fn every_bug_fits_the_source_and_has_a_trace() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let kept = super::super::kept::all(&super::super::kept::folder()).unwrap();
        let bugs = bugs(&folder()).unwrap();
        assert!(bugs.len() >= 5);
        for bug in bugs {
            bug.mutate(&read(&workspace.join("runtime/src").join(&bug.file)).unwrap()).unwrap();
            assert!(kept.iter().any(|kept| bug.is_found_by(kept)), "{}: no trace is kept that could find it", bug.name);
        }
    }
}
