//! Which module of the server may import which.

use super::code::code_below;

/// The server's modules. Each imports only modules that stand before it, so there are no circles:
/// above all, the core knows nothing of sockets, and the storage nothing of the core.
const MODULES: [&str; 23] = [
    "limits",
    "addresses",
    "sync",
    "log_pause",
    "per_address",
    "budget",
    "metrics",
    "accounts",
    "stopwatch",
    "sockets",
    "outbox",
    "descriptors",
    "grant_signer",
    "tls",
    "storage",
    "audit",
    "member_address",
    "watch",
    "core",
    "recording",
    "peers",
    "http",
    "server",
];

/// What is wrong with the imports of a file of the server.
fn complaints(path: &str, code: &str) -> Vec<String> {
    let file = path.strip_prefix("runtime/src/").unwrap_or(path);
    let module = file.split(['/', '.']).next().unwrap_or_default();
    // The library's root, and the program, whose commands use the library from above.
    if ["lib", "main", "cli"].contains(&module) {
        return Vec::new();
    }
    let place = |module: &str| MODULES.iter().position(|known| *known == module);
    let Some(own) = place(module) else { return vec![format!("{path}: {module} is not in the list of modules")] };
    let is_above = |imported: &&str| place(imported).is_none_or(|place| place > own);
    imports(code).into_iter().filter(is_above).map(|imported| format!("{path} must not import {imported}")).collect()
}

/// The modules of this crate that the code names.
fn imports(code: &str) -> Vec<&str> {
    let paths = code.split("crate::").skip(1).flat_map(|rest| match rest.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap_or_default().split(',').collect(),
        None => vec![rest],
    });
    paths.map(|path| path.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()).collect()
}

/// Goal: the modules have the order of the list.
#[test]
fn modules_import_only_what_is_below_them() {
    let files = code_below("runtime/src");
    let complaints: Vec<String> = files.iter().flat_map(|(path, code)| complaints(path, code)).collect();
    assert_eq!(complaints, Vec::<String>::new());
}

/// Goal: the rule above sees every form of an import.
#[test]
fn import_of_a_module_above_is_seen() {
    let seen = |path, code| complaints(path, code).concat();
    assert_eq!(
        seen("runtime/src/core/mod.rs", "use crate::peers::Peers;"),
        "runtime/src/core/mod.rs must not import peers"
    );
    assert_eq!(
        seen("runtime/src/storage/wal.rs", "fn f(c: crate::core::Core) {}"),
        "runtime/src/storage/wal.rs must not import core"
    );
    assert_eq!(
        seen("runtime/src/metrics.rs", "use crate::{limits, core};"),
        "runtime/src/metrics.rs must not import core"
    );
    assert_eq!(seen("runtime/src/core/thread.rs", "use crate::{limits, storage};"), "");
    assert_eq!(seen("runtime/src/extra.rs", ""), "runtime/src/extra.rs: extra is not in the list of modules");
}
