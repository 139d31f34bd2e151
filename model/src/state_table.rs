//! States as tables, and the differences between two states.

use std::fmt;

/// The displayed content of a state, in an order that is the same for all states of a model.
///
/// Its `Display` is a table: one line for each subject; the values of subjects with the same fields
/// are aligned. Fields without a value are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateTable(Vec<Row>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    subject: String,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Fields(Vec<Field>),
    Items(Vec<String>),
    Aside(String),
}

/// A field's name (empty if the value is self-explanatory) and its value (empty if there is none).
pub type Field = (&'static str, String);

impl StateTable {
    /// Adds a subject with its fields.
    pub fn fields(&mut self, subject: impl Into<String>, fields: impl IntoIterator<Item = Field>) {
        let content = Content::Fields(fields.into_iter().collect());
        self.0.push(Row { subject: subject.into(), content });
    }

    /// Adds an item of a subject's collection.
    pub fn items(&mut self, subject: impl Into<String>, items: impl IntoIterator<Item = String>) {
        let content = Content::Items(items.into_iter().collect());
        self.0.push(Row { subject: subject.into(), content });
    }

    /// Adds a subject that the table shows and the list of changes omits.
    pub fn aside(&mut self, subject: impl Into<String>, text: impl Into<String>) {
        self.0.push(Row { subject: subject.into(), content: Content::Aside(text.into()) });
    }

    /// The differences from an earlier state: a line for each subject, and for each added or
    /// removed item.
    pub fn since(&self, before: &StateTable) -> Vec<String> {
        let mut changes = Vec::new();
        for Row { subject, content } in &self.0 {
            let old = before.0.iter().find(|fact| fact.subject == *subject).map(|fact| &fact.content);
            match (old, content) {
                (Some(Content::Items(old)), Content::Items(new)) => {
                    changes.extend(without(new, old).into_iter().map(|item| format!("{subject}: + {item}")));
                    changes.extend(without(old, new).into_iter().map(|item| format!("{subject}: − {item}")));
                }
                (_, Content::Items(new)) => changes.extend(new.iter().map(|item| format!("{subject}: + {item}"))),
                (_, Content::Aside(_)) => {}
                (old, Content::Fields(new)) => {
                    let old: &[Field] = if let Some(Content::Fields(old)) = old { old } else { &[] };
                    let fields: Vec<String> = new.iter().filter_map(|field| changed(old, field)).collect();
                    if !fields.is_empty() {
                        changes.push(format!("{subject}: {}", fields.join(", ")));
                    }
                }
            }
        }
        let stays = |gone: &&Row| self.0.iter().all(|fact| fact.subject != gone.subject);
        let gone = before.0.iter().filter(stays).filter(|fact| !matches!(fact.content, Content::Aside(_)));
        changes.extend(gone.map(|fact| format!("{}: gone", fact.subject)));
        changes
    }

    /// The cell widths of a table with these fields.
    fn widths(&self, names: &[Field]) -> Vec<usize> {
        let alike = self.0.iter().filter_map(|fact| match &fact.content {
            Content::Fields(fields) if fields.iter().map(|field| field.0).eq(names.iter().map(|field| field.0)) => {
                Some(fields)
            }
            _ => None,
        });
        alike.fold(vec![0; names.len()], |widths, fields| {
            let cells = fields.iter().map(|field| cell(field).chars().count());
            widths.into_iter().zip(cells).map(|(width, cell)| width.max(cell)).collect()
        })
    }
}

fn cell((name, value): &Field) -> String {
    if name.is_empty() || value.is_empty() { value.clone() } else { format!("{name} {value}") }
}

fn changed(before: &[Field], field: &Field) -> Option<String> {
    let (name, new) = field;
    let old = before.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
    let none = |value: &str| if value.is_empty() { "–".to_string() } else { value.to_string() };
    match (old, new.as_str()) {
        (old, new) if old == new => None,
        ("", _) => Some(cell(field)),
        (old, new) if grows(old, new).is_some() => Some(cell(&(name, format!("+ {}", grows(old, new)?)))),
        (old, new) if grows(new, old).is_some() => Some(cell(&(name, format!("− {}", grows(new, old)?)))),
        (old, new) => Some(cell(&(name, format!("{} → {}", none(old), none(new))))),
    }
}

/// The items by which a list has grown since `old`.
fn grows<'a>(old: &str, new: &'a str) -> Option<&'a str> {
    new.strip_prefix(old)?.strip_prefix(LIST)
}

/// The separator of a list in a field's value. Of a list that has grown, only the new items are
/// shown.
pub const LIST: &str = "  ";

/// The multiset difference: the items of `all` without those of `others`.
fn without<'a>(all: &'a [String], others: &[String]) -> Vec<&'a String> {
    let mut others: Vec<&String> = others.iter().collect();
    let is_new = |item: &&String| match others.iter().position(|other| other == item) {
        Some(index) => {
            others.swap_remove(index);
            false
        }
        None => true,
    };
    all.iter().filter(is_new).collect()
}

impl fmt::Display for StateTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let margin = self.0.iter().map(|fact| fact.subject.chars().count()).max().unwrap_or(0);
        let mut lines = Vec::new();
        for Row { subject, content } in &self.0 {
            match content {
                Content::Items(items) => lines.extend(items.iter().enumerate().map(|(index, item)| {
                    let subject = if index == 0 { subject } else { "" };
                    format!("{subject:margin$}  {item}")
                })),
                Content::Aside(text) if text.is_empty() => {}
                Content::Aside(text) => lines.push(format!("{subject:margin$}  {text}")),
                Content::Fields(fields) if fields.iter().all(|(_, value)| value.is_empty()) => {}
                Content::Fields(fields) => {
                    let mut line = format!("{subject:margin$}");
                    for (field, width) in fields.iter().zip(self.widths(fields)).filter(|(_, width)| *width > 0) {
                        line.push_str(&format!("  {:width$}", cell(field)));
                    }
                    lines.push(line.trim_end().to_string());
                }
            }
        }
        f.write_str(&lines.join("\n"))
    }
}

/// Aligns rows of equally many cells in columns.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |index: usize| rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(index, cell)| format!("{cell:0$}", width(index)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(vote: &str, log: &str, network: &[&str]) -> StateTable {
        let mut table = StateTable::default();
        table.fields("server 1", [("vote", vote.to_string()), ("", log.to_string())]);
        table.fields("server 2", [("vote", String::new()), ("", "a b".to_string())]);
        table.items("network", network.iter().map(ToString::to_string));
        table
    }

    #[test]
    fn table_aligns_values_and_omits_empty_fields() {
        let text = "server 1  vote 1  a\nserver 2          a b\nnetwork   x\n          y";
        assert_eq!(table("1", "a", &["x", "y"]).to_string(), text);
        assert_eq!(table("", "", &[]).to_string(), "server 2  a b");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "b", "c"], ["long", "", "c"]].map(|row| row.map(String::from));
        assert_eq!(columns(&rows), "a     b  c\nlong     c");
    }

    #[test]
    fn changes_name_new_previous_and_removed_values() {
        let before = table("", "a", &["x", "x", "y"]);
        let after = table("2", "a b", &["x", "z"]);
        let changes = ["server 1: vote 2, a → a b", "network: + z", "network: − x", "network: − y"];
        assert_eq!(after.since(&before), changes);
        assert_eq!(before.since(&after)[0], "server 1: vote 2 → –, a b → a");
        assert_eq!(table("", "a  b  c", &[]).since(&table("", "a", &[])), ["server 1: + b  c"]);
        assert_eq!(table("", "a", &[]).since(&table("", "a  b  c", &[])), ["server 1: − b  c"]);
        assert!(after.since(&after).is_empty());
        assert_eq!(StateTable::default().since(&after), ["server 1: gone", "server 2: gone", "network: gone"]);
        let mut aside = after.clone();
        aside.aside("sends", "b");
        assert!(aside.since(&after).is_empty());
        assert!(aside.to_string().ends_with("sends     b"));
    }
}
