//! The modules of a crate, and which of them import which.

use std::collections::BTreeMap;

use super::code::Source;

/// A path, of names.
type Path<'a> = Vec<&'a str>;

/// The modules of a crate, by their paths from its root. They are found by their declarations, so that neither modules
/// for tests are among them nor those of the crate's program.
pub(crate) struct Modules<'a>(BTreeMap<Path<'a>, Module<'a>>);

#[derive(Default)]
struct Module<'a> {
    file: &'a str,
    children: Vec<&'a str>,
    /// What its `use` declarations name; see [`Named`].
    uses: Vec<Named<'a>>,
    /// All paths of two names or more, with those of `use` declarations.
    paths: Vec<Path<'a>>,
}

/// A path, and the name that a `use` declaration gives to its end.
type Named<'a> = (Path<'a>, &'a str);

/// One of two modules that stand in the same module imports the other one.
pub(crate) struct Import<'a> {
    /// The module in which both stand.
    pub(crate) within: Path<'a>,
    pub(crate) importer: &'a str,
    pub(crate) imported: &'a str,
    /// The file that imports: that of the importer, or of a module within it.
    pub(crate) file: &'a str,
    /// The path that the file has.
    pub(crate) path: String,
}

impl<'a> Modules<'a> {
    /// The modules below a folder, whose `lib.rs` is the root.
    pub(crate) fn of(folder: &str, files: &'a [Source]) -> Modules<'a> {
        let mut modules = BTreeMap::new();
        let mut declared: Vec<Path<'a>> = vec![Vec::new()];
        while let Some(path) = declared.pop() {
            let stem = [&[folder][..], &path].concat().join("/");
            let root = if path.is_empty() { "lib.rs" } else { "mod.rs" };
            let is_its_file = |file: &str| file == format!("{stem}.rs") || file == format!("{stem}/{root}");
            let source = files.iter().find(|(file, _)| is_its_file(file));
            let (file, code) = source.unwrap_or_else(|| panic!("{stem} is declared as a module and has no file"));
            let module = Module::parse(file, code);
            declared.extend(module.children.iter().map(|child| [&path[..], &[*child]].concat()));
            modules.insert(path, module);
        }
        Modules(modules)
    }

    /// The modules that the crate's root declares.
    pub(crate) fn top(&self) -> &[&'a str] {
        &self.0[&Vec::new()].children
    }

    /// All imports between modules that stand in the same module. An import of something within `a::x` by something
    /// within `a::y` is one of `x` by `y`, in `a`. What a module re-exports from another one is an import of that one.
    /// A module and those within it may import each other.
    pub(crate) fn imports(&self) -> Vec<Import<'a>> {
        let mut imports = Vec::new();
        for (at, module) in &self.0 {
            for path in &module.paths {
                let Some(target) = self.absolute(at, path).map(|target| self.owner(target)) else { continue };
                let shared = at.iter().zip(&target).take_while(|(one, other)| one == other).count();
                if let (Some(importer), Some(imported)) = (at.get(shared), target.get(shared)) {
                    let (within, file, path) = (target[..shared].to_vec(), module.file, path.join("::"));
                    imports.push(Import { within, importer, imported, file, path });
                }
            }
        }
        imports
    }

    /// The path from the crate's root of what a module names by a path; `None` if that is not of this crate.
    fn absolute(&self, at: &[&'a str], path: &[&'a str]) -> Option<Path<'a>> {
        let module = &self.0[at];
        let supers = path.iter().take_while(|name| **name == "super").count();
        match path[0] {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([at, &path[1..]].concat()),
            "super" => Some([&at[..at.len().saturating_sub(supers)], &path[supers..]].concat()),
            child if module.children.contains(&child) => Some([at, path].concat()),
            // The beginning has its name from a `use`, whose own path may not begin with that name.
            name => {
                let (long, _) = module.uses.iter().find(|(long, short)| *short == name && long[0] != name)?;
                Some([&self.absolute(at, long)?, &path[1..]].concat())
            }
        }
    }

    /// The module that declares what is at a path from the crate's root.
    fn owner(&self, mut path: Path<'a>) -> Path<'a> {
        // A chain of re-exports is short; only one that compiles in no crate is endless.
        for _ in 0..8 {
            let depth = (0..=path.len()).rev().find(|depth| self.0.contains_key(&path[..*depth])).unwrap_or(0);
            let (owner, rest) = path.split_at(depth);
            let is_used = |(_, name): &&Named<'a>| rest.first() == Some(name);
            match self.0[owner].uses.iter().find(is_used).and_then(|(long, _)| self.absolute(owner, long)) {
                Some(target) if target != path[..=depth] => path = [&target, &rest[1..]].concat(),
                _ => return owner.to_vec(),
            }
        }
        path
    }
}

impl<'a> Module<'a> {
    fn parse(file: &'a str, code: &'a str) -> Module<'a> {
        let words = words(code);
        let mut module = Module { file, ..Module::default() };
        let mut at = 0;
        while at < words.len() {
            let is_after = |before| at > 0 && words[at - 1] == before;
            let followed_by = |next| words.get(at + 1) == Some(&next);
            if is_name(words[at]) && is_after("mod") && followed_by(";") {
                module.children.push(words[at]);
            }
            if is_name(words[at]) && followed_by("::") && !is_after("::") {
                let is_use = is_after("use");
                let mut found = Vec::new();
                at = read_path(&words, at, Vec::new(), &mut found);
                module.paths.extend(found.iter().map(|(path, _)| path.clone()));
                module.uses.extend(found.into_iter().filter(|_| is_use));
            } else {
                at += 1;
            }
        }
        module
    }
}

/// Reads the path that continues `path` at a position, or the paths in braces there; returns the position after them.
fn read_path<'a>(words: &[&'a str], mut at: usize, mut path: Path<'a>, found: &mut Vec<Named<'a>>) -> usize {
    while let Some(&word) = words.get(at) {
        at += 1;
        if word == "{" {
            while words.get(at).is_some_and(|word| *word != "}") {
                at = read_path(words, at, path.clone(), found);
                at += usize::from(words.get(at) == Some(&","));
            }
            return at + 1;
        }
        path.push(word);
        let continues = |next: &&str| is_name(next) || ["{", "*"].contains(next);
        if words.get(at) != Some(&"::") || !words.get(at + 1).is_some_and(continues) {
            break;
        }
        at += 1;
    }
    if path.last() == Some(&"self") {
        path.pop();
    }
    let mut name = path.last().copied().unwrap_or_default();
    if let Some([_, renamed]) = words.get(at..at + 2).filter(|words| words[0] == "as") {
        name = renamed;
        at += 2;
    }
    found.push((path, name));
    at
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The names, the `::` and the other characters of the code.
fn words(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_in_name = |c: char| c.is_alphanumeric() || c == '_';
        let length = match rest.find(|c| !is_in_name(c)).unwrap_or(rest.len()) {
            0 if rest.starts_with("::") => 2,
            0 => first.len_utf8(),
            length => length,
        };
        words.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    words
}

/// Goal: every form of an import is seen, and nothing else.
#[test]
fn imports_are_resolved() {
    let seen = |code: &str| {
        let code = super::code::code(code);
        let sources = [
            ("lib.rs", "mod a; mod b; pub use b::{Thing, inner::{self as deep, Deep as Deeper}};"),
            ("a/mod.rs", "mod x; mod y; mod z; pub use self::y::Y; struct Own;"),
            ("a/x.rs", &code),
            ("a/y.rs", "pub struct Y;"),
            ("a/z.rs", ""),
            ("b.rs", "mod inner; pub struct Thing;"),
            ("b/inner.rs", "pub struct Deep;"),
        ];
        let sources = sources.map(|(file, code)| (format!("src/{file}"), code.to_owned()));
        let modules = Modules::of("src", &sources);
        let imports = modules.imports();
        let imports = imports.iter().filter(|import| import.file == "src/a/x.rs");
        let shown = |import: &Import<'_>| format!("{}/{}", import.within.join("/"), import.imported);
        imports.map(shown).collect::<Vec<_>>().join(" ")
    };
    for (code, expected) in [
        ("use super::y::Y;", "a/y"),
        ("use super::y;\nfn f(of: y::Y) {}", "a/y a/y"),
        ("use super::{Own, y::{Y as Other, More}, z};", "a/y a/y a/z"),
        ("use super::Y;", "a/y"),
        ("fn f() -> u8 { super::z::f::<u8>() }", "a/z"),
        ("fn f(of: Vec<super::super::a::z::Z>) {}", "a/z"),
        ("pub(crate) use crate::a::{z::*, y};", "a/z a/y"),
        ("use crate::b::inner::Deep;", "/b"),
        ("use crate::{Thing, Deeper, deep};", "/b /b /b"),
        ("use super::super::Thing;", "/b"),
        ("use std::{fmt, io::Read};\nuse super::Own;\nuse self::local::Own;", ""),
        (
            "// use super::y::Y;\n#[cfg(test)]\nuse super::z::Z;\n#[cfg(test)]\nmod more {\n    use super::super::y::Y;\n}\n",
            "",
        ),
    ] {
        assert_eq!(seen(code), expected, "{code}");
    }
}
