//! Builds mutants: the models' binary over a copy of the protocol that contains the mutants, each
//! behind a [switch](super::switches).
//!
//! Mutants are built in one folder under the workspace's `target`. Only files that differ from the
//! last build are written, so the dependencies are built once.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempPath;

use super::switches::{ON, SWITCHES, with_switches};
use super::{Error, FOUND, Mutant, SURVIVED, at_path, read};

/// The copied packages. A search of a model needs no other package of the workspace.
const PACKAGES: [&str; 2] = ["spec", "model"];

/// The folder in which mutants are built.
pub(super) struct MutantBuilds {
    workspace: PathBuf,
    /// The copy of the workspace that is built.
    copy: PathBuf,
    target: PathBuf,
    /// Lock held during builds: a second run waits until the first has ended.
    _only: File,
}

/// One mutant of a built binary.
pub(super) struct MutantBuild {
    binary: Arc<TempPath>,
    number: usize,
}

impl MutantBuilds {
    /// Copies the required sources of the workspace.
    ///
    /// # Errors
    /// If the sources cannot be read, or the copy cannot be written.
    pub(super) fn of(workspace: &Path) -> Result<MutantBuilds, Error> {
        let directory = workspace.join("target/builds");
        let copy = directory.join("workspace");
        let lock = directory.join("lock");
        let only = at_path(&directory, fs::create_dir_all(&directory).and_then(|()| File::create(&lock)))?;
        at_path(&lock, only.lock())?;
        mirror(&workspace.join("model"), &copy.join("model"), &read)?;
        write(&copy.join("Cargo.lock"), &read(&workspace.join("Cargo.lock"))?)?;
        let manifest = workspace.join("Cargo.toml");
        write(&copy.join("Cargo.toml"), &without_other_members(&manifest, &read(&manifest)?)?)?;
        Ok(MutantBuilds { workspace: workspace.to_path_buf(), copy, target: directory.join("target"), _only: only })
    }

    /// Builds all mutants into one binary. If that fails, splits the list in halves until each
    /// mutant that does not build stands alone.
    ///
    /// # Errors
    /// If files cannot be read or written, or a mutant does not fit the source. Per mutant: if the
    /// mutated source does not build.
    pub(super) fn build(&self, mutants: &[Mutant]) -> Result<Vec<Result<MutantBuild, Error>>, Error> {
        let built = self.cargo_build(mutants)?;
        if built.status.success() {
            let path = at_path(&std::env::temp_dir(), tempfile::NamedTempFile::new())?.into_temp_path();
            at_path(&path, fs::copy(self.target.join("mutants/palisade-model"), &path))?;
            let binary = Arc::new(path);
            return Ok((0..mutants.len()).map(|number| Ok(MutantBuild { binary: binary.clone(), number })).collect());
        }
        if let [mutant] = mutants {
            let output = String::from_utf8_lossy(&built.stderr).into_owned();
            return Ok(vec![Err(Error::Build { mutant: mutant.name.clone(), output })]);
        }
        let (some, others) = mutants.split_at(mutants.len().div_ceil(2));
        let mut builds = self.build(some)?;
        builds.extend(self.build(others)?);
        Ok(builds)
    }

    fn cargo_build(&self, mutants: &[Mutant]) -> Result<Output, Error> {
        let spec = self.workspace.join("spec");
        let switched = |path: &Path| {
            let is_in = |(_, mutant): &(usize, &Mutant)| mutant.path(&self.workspace) == path;
            let mutants: Vec<_> = mutants.iter().enumerate().filter(is_in).collect();
            let source = if mutants.is_empty() { read(path)? } else { with_switches(&read(path)?, &mutants)? };
            Ok(if path == spec.join("src/lib.rs") { source + SWITCHES } else { source })
        };
        mirror(&spec, &self.copy.join("spec"), &switched)?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .current_dir(&self.copy)
            .args(["build", "--quiet", "--offline", "--profile", "mutants", "--package", "palisade-model"])
            .arg("--target-dir")
            .arg(&self.target)
            .output();
        at_path(&self.copy, output)
    }
}

impl MutantBuild {
    /// Searches for a shortest violation of the mutant's property. Returns the events of its steps,
    /// or `None` if there is no violation.
    ///
    /// # Errors
    /// If the search does not finish.
    pub(super) fn find_violation(&self, mutant: &Mutant) -> Result<Option<Vec<Value>>, Error> {
        self.search(&mutant.name, &mutant.model, &mutant.property, &self.number.to_string())
    }

    /// Searches without any mutant. It must find nothing: else a violation found with a mutant on
    /// would prove nothing.
    ///
    /// # Errors
    /// If the search does not finish.
    pub(super) fn control(&self, model: &str, property: &str) -> Result<Option<Vec<Value>>, Error> {
        self.search("no mutant", model, property, "")
    }

    fn search(&self, name: &str, model: &str, property: &str, on: &str) -> Result<Option<Vec<Value>>, Error> {
        let failed = |output: String| Error::Search { mutant: name.to_string(), output };
        let mut search = Command::new(&**self.binary);
        let output = search.args(["mutants", "--search", model, property]).env(ON, on).output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        match (output.status.code().and_then(|code| u8::try_from(code).ok()), events(&output.stdout)) {
            (Some(FOUND), Some(events)) => Ok(Some(events)),
            (Some(SURVIVED), _) => Ok(None),
            _ => Err(failed(last_lines(&String::from_utf8_lossy(&output.stderr)))),
        }
    }
}

/// The events of a trace as JSON, one for each step.
fn events(lines: &[u8]) -> Option<Vec<Value>> {
    let steps = std::str::from_utf8(lines).ok()?.lines().skip(1);
    steps.map(|line| Some(serde_json::from_str::<Value>(line).ok()?["event"].take())).collect()
}

/// The last lines of a mutant's error output, which may be long.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// The workspace's manifest, reduced to the copied packages.
fn without_other_members(path: &Path, manifest: &str) -> Result<String, Error> {
    let parsed: Result<toml::Table, _> = toml::from_str(manifest);
    let mut manifest = parsed.map_err(|source| Error::Toml { path: path.to_path_buf(), source: Box::new(source) })?;
    if let Some(workspace) = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut) {
        workspace.insert("members".to_string(), PACKAGES.to_vec().into());
        workspace.remove("default-members");
    }
    Ok(manifest.to_string())
}

/// Mirrors a folder, with the file contents that `says` returns; writes only files that differ.
///
/// # Errors
/// If a file cannot be read or written, or `says` fails.
pub fn mirror<C: AsRef<[u8]>>(from: &Path, to: &Path, says: &dyn Fn(&Path) -> Result<C, Error>) -> Result<(), Error> {
    at_path(to, fs::create_dir_all(to))?;
    let names = names(from)?;
    for name in &names {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() { mirror(&from, &to, says)? } else { write(&to, says(&from)?)? }
    }
    for stray in self::names(to)?.difference(&names) {
        let stray = to.join(stray);
        at_path(&stray, if stray.is_dir() { fs::remove_dir_all(&stray) } else { fs::remove_file(&stray) })?;
    }
    Ok(())
}

fn names(folder: &Path) -> Result<BTreeSet<OsString>, Error> {
    let names = |entries: fs::ReadDir| entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    at_path(folder, fs::read_dir(folder).and_then(names))
}

/// Writes a file unless it has that content already: the compiler rebuilds whatever was written.
fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|present| present == content.as_ref()) {
        return Ok(());
    }
    at_path(path, fs::write(path, content))
}
