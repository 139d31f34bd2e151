//! The dependencies that each package may have, checked on the output of Cargo.
//!
//! The arrows carry the argument that what is checked is what runs. The spec can do no IO because
//! it has nothing to do it with; the server cannot lean on the model, nor the client on the server.
//! So a new arrow is a decision, and is made here first.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::code::workspace;

/// Every package that may be in the workspace, its folder, and the packages of the workspace that
/// it may depend on in any way: also its tests and its build script, for those run beside the code.
/// A package that does not exist yet breaks no rule; a package that is not in the table does.
const LAYERS: [(&str, &str, &[&str]); 8] = [
    ("palisade-spec", "spec", &[]),
    ("palisade-client", "client", &[]),
    // A resource carries it: it brings nothing else of ours along.
    ("palisade-fence", "fence", &[]),
    ("palisade", "runtime", &["palisade-spec", "palisade-client", "palisade-fence"]),
    ("palisade-model", "model", &["palisade-spec"]),
    // A checker of histories shares no code with the system that it judges.
    ("palisade-history", "conformance/history", &[]),
    (
        "palisade-conformance",
        "conformance",
        &["palisade-spec", "palisade-client", "palisade", "palisade-model", "palisade-history", "palisade-fence"],
    ),
    ("palisade-lab", "lab", &["palisade-client", "palisade-fence", "palisade-history"]),
];

/// Packages from elsewhere that only some of ours may depend on, each with its reason.
const RESERVED: [(&str, &[&str], &str); 2] = [
    ("bincode", &["palisade-client"], "the codec is one module behind two functions, client/src/codec.rs"),
    ("stateright", &["palisade-model", "palisade-history"], "the model checker stays out of what runs"),
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
    // A resource of any kind carries it, with an event loop and encodings of its own.
    if name == "palisade-fence" && text(dependency, "kind") != "dev" && ["tokio", "serde"].contains(&target) {
        return Some(format!("palisade-fence must not depend on {target}"));
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
        ("palisade-history", local("palisade-client"), "palisade-history must not depend on palisade-client"),
        ("palisade-fence", local("palisade-client"), "palisade-fence must not depend on palisade-client"),
        ("palisade-fence", plain("tokio"), "palisade-fence must not depend on tokio"),
        ("palisade-fence", plain("serde"), "palisade-fence must not depend on serde"),
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

/// Goal: no package has unsafe code, and none leaves out the workspace's lints.
#[test]
fn unsafe_code_is_forbidden_everywhere() {
    let root = std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    assert!(root.lines().any(|line| line == "unsafe_code = \"forbid\""), "Cargo.toml allows unsafe code");
    let takes_lints = |manifest: &str| manifest.contains("[lints]\nworkspace = true");
    assert!(!takes_lints("[package]\nname = \"palisade\"\n[lints.rust]\nunsafe_code = \"allow\""));
    for package in list(&metadata(), "packages") {
        let manifest = text(package, "manifest_path");
        assert!(takes_lints(&std::fs::read_to_string(manifest).unwrap()), "{manifest} has lints of its own");
    }
}

/// Goal: the clients of other languages have the workspace's version. The Go client names none: a Go module has the
/// version of its tag.
#[test]
fn clients_of_other_languages_have_the_version_of_the_workspace() {
    let read = |file: &str| std::fs::read_to_string(workspace().join("clients").join(file)).unwrap();
    let line = |file: &str, name: &str| {
        let named = read(file).lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = ").map(str::to_owned));
        named.unwrap_or_else(|| panic!("{file} has no line `{name} = …`")).trim_matches('"').to_owned()
    };
    let json = |file: &str, place: &str| {
        let value: Value = serde_json::from_str(&read(file)).unwrap();
        value.pointer(place).and_then(Value::as_str).unwrap_or_else(|| panic!("{file} has no {place}")).to_owned()
    };
    let versions = [
        ("python/pyproject.toml", line("python/pyproject.toml", "version")),
        ("python/palisade/__init__.py", line("python/palisade/__init__.py", "__version__")),
        ("typescript/package.json", json("typescript/package.json", "/version")),
        ("typescript/package-lock.json", json("typescript/package-lock.json", "/version")),
        ("typescript/package-lock.json, packages", json("typescript/package-lock.json", "/packages//version")),
    ];
    for (place, version) in versions {
        assert_eq!(version, env!("CARGO_PKG_VERSION"), "clients/{place}");
    }
}
