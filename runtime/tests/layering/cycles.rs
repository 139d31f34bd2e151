//! In no crate do modules import each other in a cycle.
//!
//! The server's uppermost modules also have a list that orders them (`modules.rs`), because the order itself is a decision
//! there: above all, the core knows nothing of sockets. Elsewhere only that there is an order matters: so this test reads
//! the imports from the source, and a new module needs no entry in a list.
//!
//! A module and those within it may import each other. Code for tests does not count. Not seen: a method that is called
//! and whose module is not named, and names that a `use` with a `*` brings in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::code::code_below;
use super::imports::{Import, Modules};

/// The crates, and whether the rule also holds within their modules, between the files of one folder.
///
/// It does not in the spec, where `raft`, `lock` and `checker` each have a type whose methods stand in a file for each
/// topic.
const CRATES: [(&str, bool); 8] = [
    ("spec/src", false),
    ("client/src", true),
    ("fence/src", true),
    ("runtime/src", true),
    ("model/src", true),
    ("conformance/history/src", true),
    ("conformance/src", true),
    ("lab/src", true),
];

/// Imports that would close a cycle, and are there for a reason: the module that imports, what it imports, the reason.
const EXCEPTIONS: [(&str, &str, &str); 3] = [
    ("spec/src/raft", "invariants", "a node asserts after each step that its state is sound"),
    ("client/src/engine", "guard", "the engine answers a request with a guard, which has a sender of commands to it"),
    ("model/src/world/environment", "setup", "an environment states the properties of the world that it is a part of"),
];

/// The number of the exception that an import is, if it is one.
fn exception(folder: &str, import: &Import<'_>) -> Option<usize> {
    let importer = [&[folder][..], &import.within, &[import.importer]].concat().join("/");
    EXCEPTIONS.iter().position(|(from, to, _)| *from == importer && *to == import.imported)
}

/// The imports in order of a shortest cycle through a module, one for each pair of modules.
fn cycle<'a>(imports: &[&'a Import<'a>], module: &str) -> Option<Vec<&'a Import<'a>>> {
    let mut ways = VecDeque::from([Vec::new()]);
    let mut reached = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        let end = way.last().map_or(module, |last: &&Import<'_>| last.imported);
        if end == module && !way.is_empty() {
            return Some(way);
        }
        for &next in imports.iter().filter(|import| import.importer == end) {
            if reached.insert(next.imported) {
                ways.push_back([&way[..], &[next]].concat());
            }
        }
    }
    None
}

/// A complaint for each cycle among these imports; of modules with several cycles, for one of them at least.
fn complaints(folder: &str, imports: &[&Import<'_>]) -> Vec<String> {
    let mut within: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for import in imports {
        within.entry(&import.within).or_default().push(*import);
    }
    let mut complaints = Vec::new();
    for (path, imports) in within {
        let mut modules: Vec<&str> = imports.iter().map(|import| import.importer).collect();
        modules.sort_unstable();
        modules.dedup();
        let cycles = modules.iter().filter_map(|module| Some((module, cycle(&imports, module)?)));
        // Each cycle is shown from its first module on.
        for (_, cycle) in cycles.filter(|(first, cycle)| cycle.iter().all(|import| import.importer >= **first)) {
            let folder = [&[folder][..], path].concat().join("/");
            let line = |import: &&Import<'_>| {
                let Import { importer, imported, file, path, .. } = import;
                format!("\n  {importer} imports {imported}: {file} names {path}")
            };
            let lines: String = cycle.iter().map(line).collect();
            complaints.push(format!(
                "modules of {folder} import each other in a cycle; move what they share to one of them, or to a module \
                 of its own:{lines}"
            ));
        }
    }
    complaints
}

/// Goal: the modules of a crate can be read in an order in which each knows only those before it.
#[test]
fn modules_import_each_other_in_no_cycle() {
    let mut found = Vec::new();
    let mut needed = BTreeSet::new();
    for (folder, is_deep) in CRATES {
        let files = code_below(folder);
        let modules = Modules::of(folder, &files);
        let imports = modules.imports();
        let checked = imports.iter().filter(|import| is_deep || import.within.is_empty());
        let (excepted, checked): (Vec<_>, Vec<_>) = checked.partition(|import| exception(folder, import).is_some());
        found.extend(complaints(folder, &checked));
        // An exception is needed if its import alone would close a cycle.
        for import in excepted {
            let others = checked.iter().filter(|other| other.within == import.within).copied();
            let closes_a_cycle = cycle(&others.chain([import]).collect::<Vec<_>>(), import.importer).is_some();
            needed.extend(exception(folder, import).filter(|_| closes_a_cycle));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(
        needed.len(),
        EXCEPTIONS.len(),
        "only the exceptions {needed:?}, counted from 0, are needed: remove the others"
    );
}

/// Goal: the rule above finds a cycle at any depth, of any length, and names what ties it.
#[test]
fn cycles_are_found_and_named() {
    let found = |a: &str, b: &str, x: &str| {
        let sources = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", a),
            ("b/mod.rs", b),
            ("b/x.rs", x),
            ("b/y.rs", "use super::x::X; use super::Parent;"),
            ("c.rs", "use crate::a::A;"),
        ];
        let sources = sources.map(|(file, code)| (format!("src/{file}"), code.to_owned()));
        let modules = Modules::of("src", &sources);
        let imports = modules.imports();
        let found = complaints("src", &imports.iter().collect::<Vec<_>>());
        let lines = found.iter().flat_map(|complaint| complaint.lines().skip(1)).map(str::trim);
        lines.collect::<Vec<_>>().join("; ")
    };
    assert_eq!(found("", "mod x; mod y; pub use self::x::X;", "use super::Parent; use crate::c;"), "");
    assert_eq!(
        found("use crate::b::Parent;", "mod x; mod y;", "use crate::c::C;"),
        "a imports b: src/a.rs names crate::b::Parent; b imports c: src/b/x.rs names crate::c::C; c imports a: src/c.rs \
         names crate::a::A"
    );
    assert_eq!(
        found("", "mod x; mod y;", "use super::y::Y;"),
        "x imports y: src/b/x.rs names super::y::Y; y imports x: src/b/y.rs names super::x::X"
    );
}
