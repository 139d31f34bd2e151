//! The imports that each module of the server may have.

use super::code::{Source, code_below};
use super::imports::Modules;

/// The server's modules. Each imports only modules that stand before it, so there are no cycles:
/// above all, the core knows nothing of sockets, and the storage nothing of the core.
const MODULES: [&str; 24] = [
    "limits",
    "addresses",
    "sync",
    "per_address",
    "log_pause",
    "certificate_end",
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

/// What is wrong with the imports of the server's files.
fn complaints(files: &[Source]) -> Vec<String> {
    let modules = Modules::of("runtime/src", files);
    let place = |module: &str| MODULES.iter().position(|known| *known == module);
    let unknown = modules.top().iter().filter(|module| place(module).is_none());
    let unknown = unknown.map(|module| format!("runtime/src/{module} is not in the list of modules"));
    let imports = modules.imports().into_iter().filter(|import| import.within.is_empty());
    let above = imports.filter(|import| place(import.imported) > place(import.importer));
    unknown.chain(above.map(|import| format!("{} must not import {}", import.file, import.imported))).collect()
}

/// Goal: the modules have the order of the list.
#[test]
fn modules_import_only_what_is_below_them() {
    assert_eq!(complaints(&code_below("runtime/src")), Vec::<String>::new());
}

/// Goal: the rule above sees an import of a module above, and a module that is not in the list.
#[test]
fn import_of_a_module_above_is_seen() {
    let seen = |root: &str, file: &str, code: &str| {
        let sources = [("lib.rs", root), (file, code), ("core/mod.rs", ""), ("limits.rs", "")];
        complaints(&sources.map(|(file, code)| (format!("runtime/src/{file}"), code.to_owned()))).concat()
    };
    let root = "mod limits; mod metrics; mod core;";
    let above = "runtime/src/metrics.rs must not import core";
    assert_eq!(seen(root, "metrics.rs", "use crate::{limits, core};"), above);
    assert_eq!(seen(root, "metrics.rs", "fn f(of: super::core::Core) {}"), above);
    assert_eq!(seen(root, "metrics.rs", "use crate::limits::LIMIT;"), "");
    let unknown = "mod limits; mod extra; mod core;";
    assert_eq!(seen(unknown, "extra.rs", ""), "runtime/src/extra is not in the list of modules");
}
