//! docs/ is a book: docs/README.md has its contents in the order of reading, and each page ends with links to its
//! neighbours. What follows from the contents is written by `just book` and compared here: the list of decisions, the
//! last lines of each page, and docs/SUMMARY.md, which mdBook reads.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::{COLUMNS, files_below, links, workspace};

const CONTENTS: &str = "README.md";
const SUMMARY: &str = "SUMMARY.md";
const DECISIONS: &str = "\n## Decisions\n";
/// What stands above the links at the end of a page. The rest of the page belongs to `just book`.
const MARK: &str = "\n<!-- `just book` writes what follows. -->\n";

fn docs() -> PathBuf {
    workspace().join("docs")
}

fn read(page: &Path) -> String {
    let path = docs().join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The heading of a page, which is its name in links.
fn title(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix("# ")
}

/// The pages of docs/, with names relative to it. A file without a heading is a part of another page.
fn pages() -> BTreeSet<PathBuf> {
    let files = files_below(&docs(), "md").into_iter().map(|path| path.strip_prefix(docs()).unwrap().to_owned());
    files.filter(|file| file != Path::new(SUMMARY) && title(&read(file)).is_some()).collect()
}

/// Programs write these pages, except the links at their ends, and mdBook takes one link a line in the
/// last: nothing wraps their lines.
pub(crate) fn is_written_by_a_program(page: &Path) -> bool {
    let page = page.strip_prefix(docs()).unwrap_or(page);
    [Path::new("commands.md"), Path::new("results.md"), Path::new(SUMMARY)].contains(&page)
        || page.starts_with("lab") && !page.ends_with("README.md")
}

/// The pages that the contents name, in their order.
fn listed(contents: &str) -> Vec<PathBuf> {
    let targets = links(contents).into_iter().map(|(_, target)| target);
    targets.filter(|target| target.ends_with(".md") && !target.starts_with("..")).map(PathBuf::from).collect()
}

/// The text in lines of at most `COLUMNS` characters.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= COLUMNS {
            *line = format!("{line} {word}");
        } else {
            lines.push(format!("{indent}{word}"));
        }
    }
    lines.join("\n")
}

/// The contents with the list of all decisions at their end.
fn with_decisions(contents: &str, pages: &BTreeSet<PathBuf>) -> String {
    let (before, after) = contents.split_once(DECISIONS).expect("the contents end with the decisions");
    let about = after.lines().take_while(|line| !line.starts_with("- ")).collect::<Vec<_>>().join("\n");
    let decisions = pages.iter().filter(|page| page.starts_with("decisions")).map(|page| {
        let entry = format!("- [{}]({})", title(&read(page)).unwrap(), page.display());
        wrapped(&entry, "  ") + "\n"
    });
    format!("{before}{DECISIONS}{about}\n{}", decisions.collect::<String>())
}

/// How `page` names `target` in a link.
fn relative(page: &Path, target: &Path) -> String {
    let folder: Vec<Component> = page.parent().expect("a page has a folder").components().collect();
    let target: Vec<Component> = target.components().collect();
    let common = folder.iter().zip(&target).take_while(|(a, b)| a == b).count();
    let up = (common..folder.len()).map(|_| "..");
    let down = target[common..].iter().map(|part| part.as_os_str().to_str().unwrap());
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// The page with links to its neighbours at its end.
fn with_neighbours(text: &str, page: &Path, previous: Option<&Path>, next: Option<&Path>) -> String {
    let own = text.split(MARK).next().unwrap().trim_end();
    let link = |target: &Path, before: &str, after: &str| {
        let text = read(target);
        format!("[{before}{}{after}]({})", title(&text).unwrap(), relative(page, target))
    };
    let links = [
        previous.map(|page| link(page, "← ", "")),
        Some(format!("[Contents]({})", relative(page, Path::new(CONTENTS)))),
        next.map(|page| link(page, "", " →")),
    ];
    let links: Vec<_> = links.into_iter().flatten().collect();
    format!("{own}\n{MARK}\n---\n\n{}\n", wrapped(&links.join(" · "), ""))
}

/// The contents as mdBook reads them: parts, and one page a line.
fn summary(contents: &str) -> String {
    let mut summary = "# Summary\n\n[Contents](README.md)\n".to_owned();
    for line in contents.split(MARK).next().unwrap().lines() {
        if let Some(part) = line.strip_prefix("## ").or(line.strip_prefix("### ")) {
            summary += &format!("\n# {part}\n\n");
        }
        for page in listed(line) {
            summary += &format!("- [{}]({})\n", title(&read(&page)).unwrap(), page.display());
        }
    }
    // A part without a page of docs/ has nothing for mdBook.
    let parts = summary.split("\n# ").filter(|part| part.contains("]("));
    format!("# Summary\n{}", parts.map(|part| part.trim_start_matches("# Summary\n")).collect::<Vec<_>>().join("\n# "))
}

/// What `just book` writes: each file, and what it must have.
fn written() -> Vec<(PathBuf, String)> {
    let pages = pages();
    let contents = with_decisions(&read(Path::new(CONTENTS)), &pages);
    let order = listed(&contents);
    let chain: Vec<&Path> = order.iter().map(PathBuf::as_path).collect();
    let with_neighbours = |at: usize, page: &&Path| {
        let previous = at.checked_sub(1).map(|before| chain[before]);
        let text = with_neighbours(&read(page), page, previous, chain.get(at + 1).copied());
        (page.to_path_buf(), text)
    };
    let mut files: Vec<_> = chain.iter().enumerate().map(|(at, page)| with_neighbours(at, page)).collect();
    files.push((SUMMARY.into(), summary(&contents)));
    files.push((CONTENTS.into(), contents));
    files
}

#[test]
fn contents_list_every_page_once() {
    let contents = with_decisions(&read(Path::new(CONTENTS)), &pages());
    let mut listed = listed(&contents);
    listed.push(CONTENTS.into());
    listed.sort();
    let missing: Vec<_> = pages().into_iter().filter(|page| !listed.contains(page)).collect();
    assert!(missing.is_empty(), "add to docs/README.md, where a reader needs them: {missing:?}");
    let twice: Vec<_> = listed.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert!(twice.is_empty(), "docs/README.md lists these twice: {twice:?}");
    assert!(listed.len() > 60, "only {} pages: this test would check nothing", listed.len());
}

#[test]
fn pages_lead_to_their_neighbours() {
    let update = std::env::var_os("UPDATE_GOLDENFILES").is_some();
    let mut stale = Vec::new();
    for (file, text) in written() {
        let path = docs().join(&file);
        if fs::read_to_string(&path).is_ok_and(|now| now == text) {
            continue;
        }
        if update { fs::write(&path, text).unwrap() } else { stale.push(file) }
    }
    assert!(stale.is_empty(), "run `just book`, which writes these again: {stale:?}");
}

#[test]
fn neighbours_are_named_from_the_page() {
    let page = Path::new("lab/README.md");
    let text = with_neighbours("# x\n", page, Some(Path::new("api.md")), Some(Path::new("lab/README.md")));
    assert!(text.contains("[← The interface for clients](../api.md) ·"), "{text}");
    assert!(text.contains("[Contents](../README.md)"), "{text}");
    assert!(text.ends_with("[The lab →](README.md)\n"), "{text}");
    assert_eq!(with_neighbours(&text, page, Some(Path::new("api.md")), Some(Path::new("lab/README.md"))), text);
}
