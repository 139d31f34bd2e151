//! Mutants: the models' binary, built over a protocol that has a bug in it.
//!
//! All of them are built at one place under the workspace's `target`, where only files that differ from the last
//! mutant's are written. So the dependencies are built once, ever, and of the models only what a bug touches.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use super::{Bug, Error, FOUND, SURVIVED, in_place, read};

/// The packages that are copied. Nothing else of the workspace is needed to search a model.
const PACKAGES: [&str; 2] = ["spec", "model"];

/// Where mutants are built.
pub struct Mutants {
    workspace: PathBuf,
    copy: PathBuf,
    target: PathBuf,
    binaries: TempDir,
    /// Held while mutants are built: another run waits for this one to end.
    _only: File,
}

/// A binary with a bug in it.
pub struct Mutant {
    binary: PathBuf,
}

impl Mutants {
    /// Copies what is needed of the workspace's sources.
    ///
    /// # Errors
    /// If they cannot be read, or the copy not be written.
    pub fn of(workspace: &Path) -> Result<Mutants, Error> {
        let place = workspace.join("target/mutants");
        let copy = place.join("workspace");
        let lock = place.join("lock");
        let only = in_place(&place, fs::create_dir_all(&place).and_then(|()| File::create(&lock)))?;
        in_place(&lock, only.lock())?;
        for package in PACKAGES {
            mirror(&workspace.join(package), &copy.join(package))?;
        }
        write(&copy.join("Cargo.lock"), &read(&workspace.join("Cargo.lock"))?)?;
        let manifest = workspace.join("Cargo.toml");
        write(&copy.join("Cargo.toml"), &without_other_members(&manifest, &read(&manifest)?)?)?;
        let binaries = in_place(&std::env::temp_dir(), tempfile::tempdir())?;
        Ok(Mutants { workspace: workspace.to_path_buf(), copy, target: place.join("target"), binaries, _only: only })
    }

    /// Builds the mutant that has this bug and no other.
    ///
    /// # Errors
    /// If the bug does not fit the source, or what comes of it does not build.
    pub fn build(&self, bug: &Bug) -> Result<Mutant, Error> {
        let (path, mutated) = (bug.path(&self.workspace), bug.path(&self.copy));
        let sound = read(&path)?;
        write(&mutated, &bug.mutate(&sound)?)?;
        let built = self.cargo_build();
        // Whatever came of it, the next mutant has only its own bug.
        write(&mutated, &sound)?;
        let output = in_place(&self.copy, built)?;
        if !output.status.success() {
            let output = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Build { bug: bug.name.clone(), output });
        }
        let binary = self.binaries.path().join(&bug.name);
        in_place(&binary, fs::copy(self.target.join("seeded/palisade-model"), &binary))?;
        Ok(Mutant { binary })
    }

    fn cargo_build(&self) -> io::Result<Output> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Command::new(cargo)
            .current_dir(&self.copy)
            .args(["build", "--quiet", "--offline", "--profile", "seeded", "--package", "palisade-model"])
            .arg("--target-dir")
            .arg(&self.target)
            .output()
    }
}

impl Mutant {
    /// Searches for a shortest violation of the bug's property, and says how many steps it has; `None` if there is no
    /// violation.
    ///
    /// # Errors
    /// If the search does not come to its end.
    pub fn hunt(&self, bug: &Bug) -> Result<Option<usize>, Error> {
        let broke_off = |output: String| Error::Search { bug: bug.name.clone(), output };
        let output = Command::new(&self.binary)
            .args(["seeded", "--search", &bug.model, &bug.property])
            .output()
            .map_err(|error| broke_off(error.to_string()))?;
        let steps = String::from_utf8_lossy(&output.stdout).trim().parse();
        match (output.status.code().and_then(|code| u8::try_from(code).ok()), steps) {
            (Some(FOUND), Ok(steps)) => Ok(Some(steps)),
            (Some(SURVIVED), _) => Ok(None),
            _ => Err(broke_off(last_lines(&String::from_utf8_lossy(&output.stderr)))),
        }
    }
}

/// What was said last: a mutant may have said much.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

impl Drop for Mutant {
    fn drop(&mut self) {
        // A file that stays goes with its folder, at the end of the run.
        let _ = fs::remove_file(&self.binary);
    }
}

/// The workspace's manifest, with only the copied packages in it.
fn without_other_members(path: &Path, manifest: &str) -> Result<String, Error> {
    let parsed: Result<toml::Table, _> = toml::from_str(manifest);
    let mut manifest = parsed.map_err(|source| Error::Toml { path: path.to_path_buf(), source: Box::new(source) })?;
    if let Some(workspace) = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut) {
        workspace.insert("members".to_string(), PACKAGES.to_vec().into());
        workspace.remove("default-members");
    }
    Ok(manifest.to_string())
}

/// Makes one folder like another, writing only what differs.
fn mirror(from: &Path, to: &Path) -> Result<(), Error> {
    in_place(to, fs::create_dir_all(to))?;
    let names = names(from)?;
    for name in &names {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() { mirror(&from, &to)? } else { write(&to, &read(&from)?)? }
    }
    for stray in self::names(to)?.difference(&names) {
        let stray = to.join(stray);
        in_place(&stray, if stray.is_dir() { fs::remove_dir_all(&stray) } else { fs::remove_file(&stray) })?;
    }
    Ok(())
}

fn names(folder: &Path) -> Result<BTreeSet<OsString>, Error> {
    let names = |entries: fs::ReadDir| entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    in_place(folder, fs::read_dir(folder).and_then(names))
}

/// Writes a file, unless it has that content already: to the compiler, a file that was written has changed.
fn write(path: &Path, content: &str) -> Result<(), Error> {
    if fs::read_to_string(path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    in_place(path, fs::write(path, content))
}
