//! The documents: prose is wrapped, every link leads to a file and a heading that exist, and docs/ is a book.
//!
//! `just lint` compiles this folder alone, without the crate: it uses the standard library only.

mod book;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The longest line of prose, in characters. Tables, code and headings may be longer.
const COLUMNS: usize = 100;

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace")
}

/// The files with this extension in a folder and in the folders below it.
fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let is_one = |path: &PathBuf| path.extension().is_some_and(|it| it == extension);
    let mut files: Vec<_> = files.into_iter().filter(is_one).collect();
    files.extend(folders.iter().flat_map(|folder| files_below(folder, extension)));
    files.sort();
    files
}

/// Every Markdown file of the project.
fn documents() -> Vec<PathBuf> {
    let folders = ["docs", "spec/tests/scripts"].map(|folder| workspace().join(folder));
    let mut documents: Vec<_> = folders.iter().flat_map(|folder| files_below(folder, "md")).collect();
    let alone =
        ["", "clients/go", "clients/python", "clients/typescript", "fuzz"].map(|folder| workspace().join(folder));
    let alone = alone.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    documents.extend(alone.filter(|path| path.extension().is_some_and(|ext| ext == "md")));
    documents.sort();
    assert!(documents.len() > 20, "only {} documents: this test would check nothing", documents.len());
    documents
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The line without what stands in backquotes.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The anchors of a document's headings, as GitHub makes them: lower case, spaces to hyphens, other punctuation removed.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
            _ => None,
        });
        kept.collect()
    };
    headings.map(anchor).collect()
}

/// The targets of a document's links, with their line numbers.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        links.extend(targets.map(|target| (number + 1, target.to_owned())));
    }
    links
}

/// What is wrong with a link, if anything is.
fn broken(document: &Path, text: &str, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { document.to_owned() } else { document.parent()?.join(file) };
    if !path.exists() {
        return Some(format!("there is no file {file}"));
    }
    if anchor.is_empty() {
        return None;
    }
    let text = if file.is_empty() { text.to_owned() } else { fs::read_to_string(&path).ok()? };
    (!anchors(&text).contains(anchor)).then(|| format!("{} has no heading #{anchor}", path.display()))
}

#[test]
fn prose_is_wrapped() {
    let mut long = Vec::new();
    let by_hand = documents().into_iter().filter(|document| !book::is_written_by_a_program(document));
    for document in by_hand {
        let text = fs::read_to_string(&document).unwrap();
        let lines = prose(&text).filter(|(_, line)| !line.trim_start().starts_with(['|', '#', '<']));
        let lines = lines.filter(|(_, line)| line.chars().count() > COLUMNS && line.trim().contains(' '));
        long.extend(lines.map(|(number, _)| format!("{}:{}", document.display(), number + 1)));
    }
    assert!(long.is_empty(), "longer than {COLUMNS} columns: {long:#?}");
}

#[test]
fn links_lead_to_files_and_headings() {
    let (mut count, mut wrong) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for (line, target) in links(&text) {
            count += 1;
            let problem = broken(&document, &text, &target);
            wrong.extend(problem.map(|problem| format!("{}:{line}: {problem}", document.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 100, "only {count} links: this test would check nothing");
}

#[test]
fn broken_links_are_found() {
    let (document, text) = (workspace().join("README.md"), "# A b, `c`\n\n[x](#a-b-c) `[y](z)`\n");
    assert_eq!(links(text), [(3, "#a-b-c".to_owned())]);
    assert_eq!(broken(&document, text, "#a-b-c"), None);
    assert!(broken(&document, text, "#a-b").is_some_and(|problem| problem.contains("#a-b")));
    assert_eq!(broken(&document, text, "docs/gone.md"), Some("there is no file docs/gone.md".to_owned()));
    assert_eq!(broken(&document, text, "docs/api.md#locks"), None);
}

/// The files and folders of the workspace as docs/architecture.md writes them: without `src/`, folders with a slash at
/// their ends. A program may remove a folder meanwhile.
fn paths_below(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return paths };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = format!("/{}", path.strip_prefix(workspace()).unwrap().display()).replace("/src/", "/");
        let is_foreign = path.ends_with("target") || path.ends_with("node_modules") || path.ends_with(".git");
        match path.is_dir() {
            true if is_foreign => {}
            true => {
                paths.push(name + "/");
                paths.extend(paths_below(&path));
            }
            false => paths.push(name),
        }
    }
    paths
}

/// The sections of docs/architecture.md: each has the folder of the package in its heading (`/spec/`; otherwise `/`), and
/// the files and folders that it names.
fn sections_of_the_architecture() -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(workspace().join("docs/architecture.md")).unwrap();
    let mut sections = vec![("/".to_owned(), Vec::new())];
    for (_, line) in prose(&text) {
        let mut code = line.split('`').skip(1).step_by(2);
        if line.starts_with("## ") {
            sections.push((format!("/{}", code.next().unwrap_or_default()), Vec::new()));
        }
        let named = code.filter(|name| (name.ends_with(".rs") || name.ends_with('/')) && !name.contains(['*', '{']));
        sections.last_mut().unwrap().1.extend(named.map(|name| format!("/{name}").replace("/src/", "/")));
    }
    sections
}

/// Goal: the tables of the architecture name files and folders that exist, by the ends of their paths in the package, or by
/// their paths in the workspace.
#[test]
fn files_of_the_architecture_exist() {
    let paths = paths_below(workspace());
    let exists = |package: &str, named: &str| {
        paths.iter().any(|path| path == named || path.starts_with(package) && path.ends_with(named))
    };
    assert!(exists("/runtime/", "/core/driver.rs") && exists("/runtime/", "/core/driver/"));
    assert!(!exists("/spec/", "/core/driver.rs") && !exists("/runtime/", "/river.rs"));
    let sections = sections_of_the_architecture();
    let named = || sections.iter().flat_map(|(package, named)| named.iter().map(move |name| (package, name)));
    assert!(named().count() > 200, "only {} names: this test would check nothing", named().count());
    let missing: Vec<_> = named().filter(|(package, name)| !exists(package, name)).collect();
    assert!(missing.is_empty(), "docs/architecture.md names files that do not exist: {missing:?}");
}

/// Goal: the tables of the protocol and of its models are whole: they name each module that is a file or a folder there.
#[test]
fn modules_of_the_protocol_and_of_the_models_are_in_the_architecture() {
    let paths = paths_below(workspace());
    let sections = sections_of_the_architecture();
    for folder in ["/spec/raft/", "/spec/lock/", "/spec/checker/", "/model/"] {
        let is_named = |module: &str| {
            let of_package =
                sections.iter().filter(|(package, _)| folder.starts_with(package.as_str()) && package != "/");
            of_package.flat_map(|(_, named)| named).any(|name| module.ends_with(name))
        };
        let modules = paths.iter().filter_map(|path| path.strip_suffix(".rs").filter(|path| path.starts_with(folder)));
        let modules = modules.filter(|path| !path[folder.len()..].contains('/'));
        let modules = modules.filter(|path| !["mod", "lib", "main", "tests"].contains(&&path[folder.len()..]));
        let modules: Vec<String> = modules.map(|path| format!("{path}.rs")).collect();
        assert!(modules.len() > 8, "only {} modules in {folder}: this test would check nothing", modules.len());
        let missing: Vec<_> = modules.iter().filter(|module| !is_named(module)).collect();
        assert!(missing.is_empty(), "docs/architecture.md does not name {missing:?}");
    }
}

/// The code blocks of a document in this language, each with the line where it begins.
fn blocks(text: &str, language: &str) -> Vec<(usize, Vec<String>)> {
    let mut blocks: Vec<(usize, Vec<String>)> = Vec::new();
    let mut is_in_one = false;
    for (number, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if is_in_one => is_in_one = false,
            Some(it) => {
                is_in_one = it == language;
                if is_in_one {
                    blocks.push((number + 1, Vec::new()));
                }
            }
            None if is_in_one => blocks.last_mut().unwrap().1.push(line.to_owned()),
            None => {}
        }
    }
    blocks
}

/// Goal: the Rust code of the documents compiles. Each block stands, line by line, in an example of the client or in the
/// documentation of a module, which the tests compile.
#[test]
fn rust_code_of_the_documents_is_compiled() {
    let bare = |line: &str| {
        let line = line.trim();
        line.strip_prefix("//!").or(line.strip_prefix("///")).unwrap_or(line).trim().to_owned()
    };
    let sources = ["client/src", "client/examples", "fence/src"].map(|folder| workspace().join(folder));
    let sources = sources.iter().flat_map(|folder| files_below(folder, "rs"));
    let sources: Vec<Vec<String>> =
        sources.map(|path| fs::read_to_string(path).unwrap().lines().map(bare).collect()).collect();
    let (mut count, mut missing) = (0, Vec::new());
    for document in documents() {
        for (line, block) in blocks(&fs::read_to_string(&document).unwrap(), "rust") {
            count += 1;
            let block: Vec<String> = block.iter().map(|line| line.trim().to_owned()).collect();
            assert!(!block.is_empty(), "{}:{line} is empty", document.display());
            let stands_in = |source: &Vec<String>| source.windows(block.len()).any(|lines| lines == block);
            if !sources.iter().any(stands_in) {
                missing.push(format!("{}:{line}", document.display()));
            }
        }
    }
    assert!(count > 1, "only {count} blocks: this test would check nothing");
    assert!(missing.is_empty(), "this Rust code is not compiled by any test: {missing:?}");
}
