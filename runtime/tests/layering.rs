//! The workspace's layers: which package may depend on which, asserted from the output of Cargo.
//!
//! The arrows carry the argument that what is checked is what runs. The spec can do no IO because
//! it has nothing to do it with; the server cannot lean on the model, nor the client on the server.
//! So a new arrow is a decision, and is made here first. Every rule is also shown a workspace that
//! breaks it, so that a rule that sees nothing is noticed.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Every package that may be in the workspace, its folder, and the packages of the workspace that
/// it may depend on in any way: also its tests and its build script, for those run beside the code.
/// A package that does not exist yet breaks no rule; a package that is not in the table does.
const LAYERS: [(&str, &str, &[&str]); 6] = [
    ("palisade-spec", "spec", &[]),
    ("palisade-client", "client", &[]),
    ("palisade", "runtime", &["palisade-spec", "palisade-client"]),
    ("palisade-model", "model", &["palisade-spec"]),
    ("palisade-conformance", "conformance", &["palisade-spec", "palisade-client", "palisade", "palisade-model"]),
    ("palisade-lab", "lab", &["palisade-client"]),
];

/// Packages from elsewhere that only some of ours may depend on, each with its reason.
const RESERVED: [(&str, &[&str], &str); 2] = [
    ("bincode", &["palisade-client"], "the codec is one module behind two functions, client/src/codec.rs"),
    ("stateright", &["palisade-model", "palisade-conformance"], "the model checker stays out of what runs"),
];

/// What `cargo metadata` says of the workspace's own packages.
fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(workspace());
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON")
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is around this package").to_path_buf()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Everything that is wrong with the workspace's arrows, a sentence each.
fn complaints(metadata: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in list(metadata, "packages") {
        let name = text(package, "name");
        let Some(&(_, folder, allowed)) = LAYERS.iter().find(|(layer, ..)| *layer == name) else {
            complaints.push(format!("{name} is in the workspace, but not in the table of layers"));
            continue;
        };
        let manifest = Path::new(text(package, "manifest_path"));
        if manifest.parent() != Some(&Path::new(text(metadata, "workspace_root")).join(folder)) {
            complaints.push(format!("{name} does not live in {folder}/"));
        }
        for dependency in list(package, "dependencies") {
            complaints.extend(complaint(name, allowed, dependency));
        }
    }
    complaints
}

/// What is wrong with one dependency of the package `name`. The name is that of the package itself,
/// whatever the manifest renames it to.
fn complaint(name: &str, allowed: &[&str], dependency: &Value) -> Option<String> {
    let target = text(dependency, "name");
    let ours = LAYERS.iter().any(|(layer, ..)| *layer == target) || !dependency["path"].is_null();
    if ours {
        return (!allowed.contains(&target)).then(|| format!("{name} must not depend on {target}"));
    }
    if let Some((_, holders, reason)) = RESERVED.iter().find(|(reserved, ..)| *reserved == target)
        && !holders.contains(&name)
    {
        return Some(format!("{name} must not depend on {target}: {reason}"));
    }
    // Tests of the spec may use what they like; the spec itself has serde, without its standard
    // library.
    if name != "palisade-spec" || text(dependency, "kind") == "dev" {
        return None;
    }
    if target != "serde" || text(dependency, "kind") == "build" {
        return Some(format!("palisade-spec depends on serde and nothing else, not on {target}"));
    }
    let std = list(dependency, "features").iter().any(|feature| feature == "std");
    let std = std || dependency["uses_default_features"] != json!(false);
    std.then(|| "palisade-spec must take serde without `std`".to_string())
}

/// Goal: the workspace has the arrows of its table and no others.
#[test]
fn the_arrows_of_the_workspace_are_those_of_the_table() {
    let metadata = metadata();
    let names: Vec<&str> = list(&metadata, "packages").iter().map(|package| text(package, "name")).collect();
    for name in ["palisade-spec", "palisade-client", "palisade", "palisade-conformance"] {
        assert!(names.contains(&name), "{name} is missing from {names:?}: this test would look at nothing");
    }
    assert_eq!(complaints(&metadata), Vec::<String>::new());
}

/// Goal: no rule above is blind. Each arrow that must not be is drawn into the real workspace, and
/// is seen.
#[test]
fn every_forbidden_arrow_is_seen() {
    let plain = |name: &str| json!({ "name": name, "kind": null, "path": null, "features": [] });
    let local = |name: &str| json!({ "name": name, "kind": null, "path": format!("/elsewhere/{name}") });
    let of_kind = |kind: &str, mut dependency: Value| {
        dependency["kind"] = json!(kind);
        dependency
    };
    let forbidden = [
        ("palisade-spec", local("palisade-client"), "palisade-spec must not depend on palisade-client"),
        ("palisade-spec", of_kind("dev", local("palisade")), "palisade-spec must not depend on palisade"),
        ("palisade-spec", plain("libc"), "palisade-spec depends on serde and nothing else, not on libc"),
        ("palisade-spec", of_kind("build", plain("cc")), "palisade-spec depends on serde and nothing else, not on cc"),
        ("palisade-spec", plain("serde"), "palisade-spec must take serde without `std`"),
        ("palisade-client", local("palisade-spec"), "palisade-client must not depend on palisade-spec"),
        ("palisade-client", of_kind("dev", local("palisade")), "palisade-client must not depend on palisade"),
        ("palisade", local("palisade-model"), "palisade must not depend on palisade-model"),
        ("palisade", of_kind("dev", local("palisade-model")), "palisade must not depend on palisade-model"),
        ("palisade", local("palisade-conformance"), "palisade must not depend on palisade-conformance"),
        ("palisade-conformance", local("palisade-lab"), "palisade-conformance must not depend on palisade-lab"),
        ("palisade", local("helpers"), "palisade must not depend on helpers"),
        ("palisade", plain("bincode"), "palisade must not depend on bincode: the codec is one module"),
        ("palisade", of_kind("dev", plain("stateright")), "palisade must not depend on stateright: the model checker"),
    ];
    let sound = metadata();
    for (package, dependency, expected) in forbidden {
        let mut broken = sound.clone();
        let packages = broken["packages"].as_array_mut().unwrap();
        let package = packages.iter_mut().find(|candidate| text(candidate, "name") == package).unwrap();
        package["dependencies"].as_array_mut().unwrap().push(dependency.clone());
        let complaints = complaints(&broken);
        assert!(complaints.len() == 1 && complaints[0].starts_with(expected), "{dependency}: {complaints:?}");
    }

    let root = text(&sound, "workspace_root");
    let with = |name: &str, folder: &str| {
        let mut broken = sound.clone();
        let manifest = format!("{root}/{folder}/Cargo.toml");
        let package = json!({ "name": name, "manifest_path": manifest, "dependencies": [] });
        let packages = broken["packages"].as_array_mut().unwrap();
        packages.retain(|candidate| text(candidate, "name") != name);
        packages.push(package);
        complaints(&broken)
    };
    assert_eq!(with("palisade-model", "model"), Vec::<String>::new());
    assert_eq!(with("palisade-model", "runtime/model"), ["palisade-model does not live in model/"]);
    assert_eq!(with("palisade-misc", "misc"), ["palisade-misc is in the workspace, but not in the table of layers"]);
}

/// The source files below a folder of the workspace, and each one's code without its comments.
fn code_below(folder: &str) -> Vec<(PathBuf, String)> {
    let mut folders = vec![workspace().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder exists") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                let code = source.lines().map(|line| line.split("//").next().unwrap_or_default());
                let code = code.collect::<Vec<_>>().join("\n");
                files.push((path, code));
            }
        }
    }
    files
}

/// The words of which identifiers are made: `LockTable`, `lock_table` and `LOCK` have "lock",
/// `clock` does not.
fn words(code: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for character in code.chars() {
        let begins = character.is_ascii_uppercase() && !before.is_ascii_uppercase();
        if begins || !character.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if character.is_ascii_alphanumeric() {
            words.last_mut().unwrap().push(character.to_ascii_lowercase());
        }
        before = character;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Goal: "no IO, no clock, no thread" is the compiler's word, not ours: the spec has no standard
/// library to do them with, and no unsafe code to get around that.
#[test]
fn the_spec_has_no_standard_library_and_no_unsafe_code() {
    let root = std::fs::read_to_string(workspace().join("spec/src/lib.rs")).unwrap();
    for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(root.lines().any(|line| line == attribute), "spec/src/lib.rs lacks {attribute}");
    }
    for (path, code) in code_below("spec/src") {
        // Under `no_std` this is the only way back to it.
        assert!(!code.contains("extern crate std"), "{} brings the standard library back", path.display());
    }
}

/// Goal: consensus is generic over what it replicates, and stays so: it never names the lock table.
#[test]
fn raft_never_names_locks() {
    assert_eq!(words("use crate::lock::LockTable; const LOCKS: Clock = relock();").iter().filter(is_lock).count(), 3);
    let files = code_below("spec/src/raft");
    assert!(files.len() > 5, "spec/src/raft has {} files: this test would look at nothing", files.len());
    for (path, code) in files {
        let named: Vec<String> = words(&code).into_iter().filter(|word| is_lock(&word)).collect();
        assert!(named.is_empty(), "{} names {named:?}", path.display());
    }
}

fn is_lock(word: &&String) -> bool {
    matches!(word.as_str(), "lock" | "locks" | "locked")
}

/// The files below a folder, as paths from it, that read the monotonic clock outside of tests.
fn clock_readers(folder: &str) -> Vec<String> {
    let files = code_below(folder);
    assert!(files.len() > 5, "{folder} has {} files: this test would look at nothing", files.len());
    let is_tests = |path: &Path| path.ends_with("tests.rs");
    let readers = files.into_iter().filter(|(path, code)| !is_tests(path) && reads_clock(code));
    let root = workspace().join(folder);
    let mut readers: Vec<String> =
        readers.map(|(path, _)| path.strip_prefix(&root).unwrap().display().to_string()).collect();
    readers.sort();
    readers
}

fn reads_clock(code: &str) -> bool {
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    ["Instant::now", ".elapsed()"].iter().any(|call| code.contains(call))
}

/// Goal: the driver gets the time as a value, so that a simulation can drive it. In the core only
/// the thread around the driver reads the clock. Below the core only the log does, for durations
/// that it reports to the metrics; a `Stopwatch` tells its time to nothing but the metrics.
#[test]
fn driver_and_storage_get_the_time_as_a_value() {
    assert!(reads_clock("let now = Instant::now();") && reads_clock("asked.elapsed()"));
    assert!(!reads_clock("fn at(now: Instant) {}\n#[cfg(test)]\nmod tests {\n    Instant::now()\n}"));
    assert_eq!(clock_readers("runtime/src/core"), ["thread.rs"]);
    assert_eq!(clock_readers("runtime/src/storage"), ["wal.rs"]);
}
