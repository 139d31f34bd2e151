//! Builds the copy of the workspace that contains the mutants: once, with a switch for each mutant.
//!
//! The copy is in a fixed folder under the workspace's `target`. A build writes only the files that
//! differ from the previous build's, so dependencies are compiled only once.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_model::mutants::{self as switched, SWITCHES, mirror, with_switches};
use serde::Deserialize;

use super::error::Error;
use super::mutant::Mutant;
use super::programs::{MutantBuilds, cargo};

/// The crate roots of the packages that can have mutants.
pub(super) const ROOTS: [&str; 4] =
    ["spec/src/lib.rs", "client/src/lib.rs", "runtime/src/lib.rs", "runtime/src/main.rs"];

/// Builds the programs. A mutant's number is its index in `mutants`.
///
/// # Errors
/// If files cannot be read or written, if a mutant does not fit the source, or if the copy does not
/// build.
pub fn build(workspace: &Path, mutants: &[Mutant]) -> Result<MutantBuilds, Error> {
    let builds = workspace.join("target/server-mutants");
    fs::create_dir_all(&builds)?;
    let only = File::create(builds.join("lock"))?;
    only.lock()?;
    let (copy, target) = (builds.join("workspace"), builds.join("target"));
    let tests: BTreeSet<Vec<&str>> = mutants.iter().filter_map(|mutant| mutant.finder.test()).map(program).collect();
    copy_workspace(workspace, &copy, mutants)?;
    let programs = ["--package", "palisade", "--package", "palisade-conformance", "--bins"];
    built(cargo("build", &copy, &target).args(programs))?;
    // By it the shared suite drives the Rust client.
    built(cargo("build", &copy, &target).args(["--package", "palisade-client", "--example", "adapter"]))?;
    for test in tests {
        built(cargo("test", &copy, &target).arg("--no-run").args(test))?;
    }
    Ok(MutantBuilds { copy, folder: target.join("mutants"), _only: only })
}

/// Copies the packages, and the documents that tests include, with a switch for each mutant.
fn copy_workspace(workspace: &Path, copy: &Path, mutants: &[Mutant]) -> Result<(), Error> {
    let mutants: Vec<switched::Mutant> = mutants.iter().map(Mutant::switched).collect();
    let says = |path: &Path| {
        let is_in = |(_, mutant): &(usize, &switched::Mutant)| workspace.join(&mutant.file) == path;
        let here: Vec<(usize, &switched::Mutant)> = mutants.iter().enumerate().filter(is_in).collect();
        let has_switches = ROOTS.iter().any(|root| workspace.join(root) == path);
        if here.is_empty() && !has_switches {
            return content(path);
        }
        let text = String::from_utf8(content(path)?).map_err(|error| in_file(path, io::Error::other(error)))?;
        let text = if here.is_empty() { text } else { with_switches(&text, &here)? };
        Ok(if has_switches { text + SWITCHES } else { text }.into_bytes())
    };
    for package in members(&workspace.join("Cargo.toml"))? {
        mirror(&workspace.join(&package), &copy.join(&package), &says)?;
    }
    fs::create_dir_all(copy.join("docs"))?;
    let documents =
        ["api.md", "gallery.md", "lock-command.md", "messages.json", "openapi.json"].map(|it| format!("docs/{it}"));
    for file in ["Cargo.toml", "Cargo.lock", "README.md"].into_iter().chain(documents.iter().map(String::as_str)) {
        fs::copy(workspace.join(file), copy.join(file))?;
    }
    Ok(())
}

/// The workspace whose server is changed.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn built(cargo: &mut Command) -> Result<(), Error> {
    let output = cargo.arg("--quiet").output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::Build(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// The arguments of `cargo test` without the test's name: package and test file.
fn program(test: &str) -> Vec<&str> {
    let mut arguments: Vec<&str> = test.split_whitespace().collect();
    arguments.pop();
    arguments
}

/// A file's content; not every file is text.
fn content(path: &Path) -> Result<Vec<u8>, switched::Error> {
    fs::read(path).map_err(|source| in_file(path, source))
}

fn in_file(path: &Path, source: io::Error) -> switched::Error {
    switched::Error::File { path: path.to_path_buf(), source }
}

/// The folders of the workspace's packages.
fn members(manifest: &Path) -> Result<Vec<String>, Error> {
    #[derive(Deserialize)]
    struct Manifest {
        workspace: Workspace,
    }
    #[derive(Deserialize)]
    struct Workspace {
        members: Vec<String>,
    }
    let parsed: Result<Manifest, _> = toml::from_str(&fs::read_to_string(manifest)?);
    let parsed = parsed.map_err(|source| Error::List { path: manifest.to_path_buf(), source: Box::new(source) })?;
    Ok(parsed.workspace.members)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file of the copy, and of its subfolders.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn the_copy_has_every_file_that_sources_include() {
        let directory = tempfile::tempdir().unwrap();
        copy_workspace(&workspace(), directory.path(), &[]).unwrap();
        let mut included = 0;
        for source in files(directory.path()).iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
            let text = fs::read_to_string(source).unwrap();
            for (_, rest) in text.match_indices("include_str!(\"").map(|(at, begin)| text.split_at(at + begin.len())) {
                let file = source.parent().unwrap().join(rest.split('"').next().unwrap());
                assert!(file.exists(), "{} includes {}, which the copy lacks", source.display(), file.display());
                included += 1;
            }
        }
        assert!(included > 2, "README and docs/api.md are examples that tests run");
    }
}
