//! The page docs/results.md: every model and check of liveness with what it explores, its size and
//! its cost, and every mutant with what must find it.
//!
//! Claims, and why a result supports them, stand in docs/verification.md and docs/models.md. This
//! page has only what can be read from the code and the lists, so that a test can compare it with
//! them. `model/measured.toml` has the figures that take hours to measure again.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::expected_counts;
use crate::liveness::checks;
use crate::models::models;
use crate::named::{Named, Tier};

/// The widest line of prose, in characters.
const COLUMNS: usize = 100;

/// Why the page cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// A file or folder cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file does not have the expected content.
    #[error("{}: {what}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The defect.
        what: String,
    },
}

/// The measured figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// By the model's name.
    pub model: BTreeMap<String, Exploration>,
    /// By the name of the check of liveness.
    pub liveness: BTreeMap<String, Graph>,
}

/// What the exploration of a model took.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exploration {
    /// Number of states that were generated, repetitions included.
    pub generated: u64,
    /// Number of steps to the deepest state.
    pub depth: u32,
    seconds: f64,
    memory_mib: u64,
}

/// What a check of liveness took.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// Number of states.
    pub states: u64,
    /// Number of edges.
    pub edges: u64,
    components: u64,
    seconds: f64,
    memory_mib: u64,
}

/// A list of mutants: of the protocol, or of the server.
#[derive(Debug, Deserialize)]
struct List {
    mutant: Vec<Listed>,
}

/// A mutant, with the fields of all kinds of lists.
#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    why: String,
    model: Option<String>,
    property: Option<String>,
    finds: Option<String>,
    breaks: Option<Words>,
    says: Option<Words>,
    test: Option<String>,
}

/// One text or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Words {
    One(String),
    Several(Vec<String>),
}

/// Where the page is.
pub fn path(workspace: &Path) -> PathBuf {
    workspace.join("docs/results.md")
}

/// What stands above the links at the end of a page, which `just book` writes (conformance/tests/documents/book.rs).
pub const NEIGHBOURS: &str = "\n<!-- `just book` writes what follows. -->\n";

/// Writes the page, above the links to its neighbours in the book if it has some.
///
/// # Errors
/// If a list or the measured figures cannot be read, or the page cannot be written.
pub fn write(workspace: &Path) -> Result<PathBuf, DocumentError> {
    let (path, mut text) = (path(workspace), page(workspace)?);
    if let Some((_, links)) = fs::read_to_string(&path).unwrap_or_default().split_once(NEIGHBOURS) {
        text += &[NEIGHBOURS, links].concat();
    }
    fs::write(&path, text).map_err(|source| DocumentError::File { path: path.clone(), source })?;
    Ok(path)
}

/// All models that are explored to their end, without the gallery, which docs/gallery.md covers.
pub fn exhausted() -> Vec<Named> {
    models().into_iter().filter(|model| model.tier <= Tier::Deep && !model.is_of_the_gallery()).collect()
}

/// The measured figures of this workspace.
///
/// # Errors
/// If the file cannot be read or is invalid.
pub fn measured(workspace: &Path) -> Result<Measured, DocumentError> {
    parse(&workspace.join("model/measured.toml"))
}

/// The page.
///
/// # Errors
/// If a list or the measured figures cannot be read.
pub fn page(workspace: &Path) -> Result<String, DocumentError> {
    let measured = measured(workspace)?;
    let of_protocol = lists(&workspace.join("model/mutants"))?;
    let mut of_server = Vec::new();
    for part in ["replay", "sim", "torture", "test"] {
        of_server.extend(lists(&workspace.join("conformance/mutants").join(part))?);
    }
    let mut page = String::from("# Results\n");
    paragraph(
        &mut page,
        "`palisade-model document` writes this page, and a test compares it with the code and the lists: edit those. \
         [Verification](verification.md) says what the results support, [models](models.md) what the models leave \
         out, and [runs](runs.md) has what was measured by hand.",
    );
    add_models(&mut page, &measured);
    add_liveness(&mut page, &measured);
    add_mutants(&mut page, "Mutants of the protocol", "A model, or a check of liveness, must find each", &of_protocol);
    add_mutants(
        &mut page,
        "Mutants of the server",
        "Replay, the simulation, live faults or a test must find each",
        &of_server,
    );
    Ok(page)
}

/// Adds a wrapped paragraph.
fn paragraph(page: &mut String, text: &str) {
    let mut line = String::from("\n");
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 {
            let breaks = width + 1 + length > COLUMNS;
            line.push(if breaks { '\n' } else { ' ' });
            width = if breaks { 0 } else { width + 1 };
        }
        line.push_str(word);
        width += length;
    }
    *page += &(line + "\n");
}

fn add_table(page: &mut String, heading: &str, rows: impl Iterator<Item = String>) {
    let columns = heading.matches(" | ").count() + 1;
    let _ = writeln!(page, "\n{heading}\n|{}", "---|".repeat(columns));
    rows.for_each(|row| page.push_str(&(row + "\n")));
}

fn add_models(page: &mut String, measured: &Measured) {
    page.push_str("\n## Models\n");
    paragraph(
        page,
        "Each row is a model that `palisade-model check NAME` explores to its end. *Unique* is the number of \
         states that the command requires. Quick and full models run with `just check`, deep ones with \
         `just check-deep`.",
    );
    let row = |model: Named| {
        let Named { name, tier, about, .. } = model;
        let unique = expected_counts::unique(name).map_or("–".into(), |count| digits(count as u64));
        let costs = measured.model.get(name).map(|Exploration { generated, depth, seconds, memory_mib }| {
            format!("{} | {unique} | {depth} | {seconds:.1} | {} MiB", digits(*generated), digits(*memory_mib))
        });
        let costs = costs.unwrap_or_else(|| format!("– | {unique} | – | – | –"));
        format!("| `{name}` | {} | {about} | {costs} |", tier.name())
    };
    let heading = "| model | tier | bounds | generated | unique | depth | seconds | memory |";
    add_table(page, heading, exhausted().into_iter().map(row));
}

fn add_liveness(page: &mut String, measured: &Measured) {
    page.push_str("\n## Checks of liveness\n");
    paragraph(
        page,
        "`palisade-model liveness NAME` builds the whole graph of each. *Components* are those of the states in \
         which the awaited event is due and has not happened, counted for each property.",
    );
    let row = |check: crate::liveness::Check| {
        let costs = measured.liveness.get(check.name).map(|graph| {
            let Graph { states, edges, components, seconds, memory_mib } = graph;
            let [states, edges, components] = [states, edges, components].map(|count| digits(*count));
            format!("{states} | {edges} | {components} | {seconds:.1} | {memory_mib} MiB")
        });
        let costs = costs.unwrap_or_else(|| "– | – | – | – | –".into());
        format!("| `{}` | {} | {} | {costs} |", check.name, check.tier.name(), check.about)
    };
    let heading = "| check | tier | bounds | states | edges | components | seconds | memory |";
    add_table(page, heading, checks().into_iter().map(row));
}

fn add_mutants(page: &mut String, title: &str, rule: &str, lists: &[(PathBuf, String, List)]) {
    let count: usize = lists.iter().map(|(_, _, list)| list.mutant.len()).sum();
    let _ = writeln!(page, "\n## {title}");
    paragraph(page, &format!("{rule} of the {count}. The second column is the rule that the mutant breaks."));
    for (path, about, list) in lists {
        let parts: Vec<_> = path.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
        let name = if parts[1] == "mutants" { parts[0].to_string() } else { format!("{}/{}", parts[1], parts[0]) };
        let _ = writeln!(page, "\n### `{name}`");
        paragraph(page, about);
        let row = |mutant: &Listed| format!("| `{}` | {} | {} |", mutant.name, mutant.why, mutant.found_by());
        add_table(page, "| mutant | the rule | found by |", list.mutant.iter().map(row));
    }
}

impl Listed {
    /// What must find the mutant, and how it shows.
    fn found_by(&self) -> String {
        let quoted = self.breaks.as_ref().or(self.says.as_ref()).map(|words| match words {
            Words::One(text) => format!("“{text}”"),
            Words::Several(texts) => texts.iter().map(|text| format!("“{text}”")).collect::<Vec<_>>().join(" or "),
        });
        match (&self.model, &self.property, &self.finds, &self.test, quoted) {
            (Some(model), Some(property), ..) => format!("`{model}`: {property}"),
            (Some(model), None, Some(finds), ..) => format!("replay of `{model}`: {finds}"),
            (.., Some(test), Some(says)) => format!("`cargo test {test}`: {says}"),
            (.., Some(says)) => says,
            _ => "–".into(),
        }
    }
}

/// The lists of a folder, with the comments at their tops.
fn lists(folder: &Path) -> Result<Vec<(PathBuf, String, List)>, DocumentError> {
    let failed = |source| DocumentError::File { path: folder.to_owned(), source };
    let entries: Vec<_> = fs::read_dir(folder).and_then(Iterator::collect).map_err(failed)?;
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort_unstable();
    let list = |path: PathBuf| {
        let text = read(&path)?;
        let about: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("# ")).collect();
        let list = parse(&path)?;
        Ok((path, about.join(" "), list))
    };
    paths.into_iter().map(list).collect()
}

fn read(path: &Path) -> Result<String, DocumentError> {
    fs::read_to_string(path).map_err(|source| DocumentError::File { path: path.to_owned(), source })
}

fn parse<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, DocumentError> {
    toml::from_str(&read(path)?)
        .map_err(|error| DocumentError::Content { path: path.to_owned(), what: error.to_string() })
}

/// The number with a comma before every three digits.
fn digits(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        assert_eq!([7, 1_234, 123_456, 1_234_567].map(digits), ["7", "1,234", "123,456", "1,234,567"]);
    }

    #[test]
    fn paragraphs_are_wrapped_after_an_empty_line() {
        let mut page = String::from("# Title\n");
        paragraph(&mut page, &"word ".repeat(21));
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!((lines[1], lines[2].len(), lines[3]), ("", 99, "word"));
    }
}
