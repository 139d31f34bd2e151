//! What is so at one moment, and what changed from one moment to the next: states as people read them.

use std::fmt;

/// Everything that is worth saying of a state, in an order that is the same for all states of a model.
///
/// Its `Display` is a table: one line for each subject, with the values of subjects that have the same fields one
/// below the other. Fields without a value are left out.
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

/// A field's name, which may be empty where the value speaks for itself, and its value, which is empty if it has none.
pub type Field = (&'static str, String);

impl StateTable {
    /// Says something of a subject, field by field.
    pub fn fields(&mut self, subject: impl Into<String>, fields: impl IntoIterator<Item = Field>) {
        let content = Content::Fields(fields.into_iter().collect());
        self.0.push(Row { subject: subject.into(), content });
    }

    /// Says what is among a subject's things.
    pub fn items(&mut self, subject: impl Into<String>, items: impl IntoIterator<Item = String>) {
        let content = Content::Items(items.into_iter().collect());
        self.0.push(Row { subject: subject.into(), content });
    }

    /// Says something that belongs into a table, but is not worth a word when it changes.
    pub fn aside(&mut self, subject: impl Into<String>, text: impl Into<String>) {
        self.0.push(Row { subject: subject.into(), content: Content::Aside(text.into()) });
    }

    /// What is different from what was before, in a line for each subject, or each thing that came or went.
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

    /// How wide the cells of a table are whose lines have these fields.
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

/// By what a list is longer that was `old`.
fn grows<'a>(old: &str, new: &'a str) -> Option<&'a str> {
    new.strip_prefix(old)?.strip_prefix(LIST)
}

/// What stands between the items of a list that is a field's value. A list that has grown tells only what is new.
pub const LIST: &str = "  ";

/// The items of `all` that are not among `others`, each as often as it is more often there.
fn without<'a>(all: &'a [String], others: &[String]) -> Vec<&'a String> {
    let mut others: Vec<&String> = others.iter().collect();
    let is_new = |item: &&String| match others.iter().position(|other| other == item) {
        Some(place) => {
            others.swap_remove(place);
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
                Content::Items(items) => lines.extend(items.iter().enumerate().map(|(place, item)| {
                    let subject = if place == 0 { subject } else { "" };
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

/// Rows of equally many cells, one below the other.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |place: usize| rows.iter().map(|row| row[place].chars().count()).max().unwrap_or(0);
    let line = |row: &[String; N]| {
        let cells = row.iter().enumerate().map(|(place, cell)| format!("{cell:0$}", width(place)));
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
    fn a_table_has_its_values_one_below_the_other_and_leaves_out_what_is_not_there() {
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
    fn changes_name_what_is_new_what_was_and_what_is_gone() {
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
