//! The traces of docs/gallery.md: what `palisade-model trace` prints. A test of the model crate keeps them equal to
//! what the checker finds.
//!
//! A trace begins with a table of the first state, and each step names what happens and what changes. So the state
//! after each step follows: [`Trace::states`].

use serde::{Deserialize, Serialize};

/// The gallery, as it was when this program was built.
pub(super) const GALLERY: &str = include_str!("../../../../docs/gallery.md");
/// The names of fields in the tables of the gallery. Other fields have no name.
const NAMES: [&str; 3] = ["key", "lease", "greatest token"];

/// A trace of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trace {
    /// The model's name: `gallery-redlock-pause`.
    pub model: String,
    /// The property that is violated at the end.
    pub property: String,
    /// The first state.
    pub first: State,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A step of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What happens, as the model says it.
    pub sentence: String,
    /// What changes, one line for each subject: `instance 1: free → A`.
    pub changes: Vec<String>,
}

/// What a model or an observation says about each subject, in the order of the gallery's table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State(pub Vec<(String, Vec<Field>)>);

/// A field's name, which may be empty, and its value.
pub(super) type Field = (String, String);

/// A field of a state.
#[must_use]
pub(super) fn field(name: &str, value: impl Into<String>) -> Field {
    (name.to_owned(), value.into())
}

/// The trace of a model in a document.
///
/// # Errors
/// The document has no trace of this model, or a line of it has another form.
pub(super) fn find(document: &str, model: &str) -> Result<Trace, String> {
    let command = format!("-- trace {model} --property ");
    let block =
        document.split("```console\n").find(|block| block.lines().next().is_some_and(|it| it.contains(&command)));
    let block = block.ok_or_else(|| format!("the gallery has no trace of {model}"))?;
    let text = block.split("\n```").next().unwrap_or_default();
    parse(model, text).map_err(|reason| format!("the gallery's trace of {model}: {reason}"))
}

fn parse(model: &str, text: &str) -> Result<Trace, String> {
    let mut lines = text.lines().skip(1);
    let title = lines.next().unwrap_or_default();
    let rest = title.strip_prefix(model).and_then(|rest| rest.strip_prefix(": \""));
    let (property, count) = rest
        .and_then(|rest| rest.split_once("\" is violated after "))
        .ok_or_else(|| format!("`{title}` names no violated property"))?;
    let mut first = State::default();
    for line in lines.by_ref().skip(1).take_while(|line| !line.is_empty()) {
        let mut cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        let subject = cells.next().unwrap_or_default().to_owned();
        first.0.push((subject, cells.map(named).collect()));
    }
    let mut steps: Vec<Step> = Vec::new();
    for line in lines {
        let text = line.trim_start();
        let next = format!("{}. ", steps.len() + 1);
        match (text.strip_prefix(&next), steps.last_mut()) {
            (Some(sentence), _) => steps.push(Step { sentence: sentence.to_owned(), changes: Vec::new() }),
            (None, Some(step)) => step.changes.push(text.to_owned()),
            (None, None) => return Err(format!("`{line}` comes before the first step")),
        }
    }
    if count != format!("{} steps", steps.len()) {
        return Err(format!("`{title}`, but it has {} steps", steps.len()));
    }
    let trace = Trace { model: model.to_owned(), property: property.to_owned(), first, steps };
    trace.states().map(|_| trace)
}

/// A cell of a table as a field.
fn named(cell: &str) -> Field {
    let name = NAMES.into_iter().find(|name| cell.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    name.map_or_else(|| field("", cell), |name| field(name, &cell[name.len() + 1..]))
}

fn cell((name, value): &Field) -> String {
    if name.is_empty() { value.clone() } else { format!("{name} {value}") }
}

impl Trace {
    /// The state after each step.
    ///
    /// # Errors
    /// A change does not follow from the state before it.
    pub(super) fn states(&self) -> Result<Vec<State>, String> {
        let mut state = self.first.clone();
        let mut states = Vec::new();
        for step in &self.steps {
            state = state.after(&step.changes)?;
            states.push(state.clone());
        }
        Ok(states)
    }
}

impl State {
    /// The state after changes.
    ///
    /// # Errors
    /// A change does not follow from this state.
    pub(super) fn after<T: AsRef<str>>(&self, changes: &[T]) -> Result<State, String> {
        let mut state = self.clone();
        for change in changes.iter().map(AsRef::as_ref) {
            let wrong = || format!("`{change}` does not follow from {:?}", self.0);
            let (subject, parts) = change.split_once(": ").ok_or_else(wrong)?;
            let row = state.0.iter_mut().find(|(name, _)| name == subject).ok_or_else(wrong)?;
            row.1 = changed(&row.1, parts).ok_or_else(wrong)?;
        }
        Ok(state)
    }

    /// The changes to a later state, as the gallery prints them.
    #[must_use]
    pub(super) fn changes(&self, later: &State) -> Vec<String> {
        let mut changes = Vec::new();
        for (subject, fields) in &later.0 {
            let before = self.0.iter().find(|(name, _)| name == subject).map_or(&[][..], |(_, fields)| fields);
            let parts = fields.iter().filter_map(|one| match before.iter().find(|(name, _)| *name == one.0) {
                Some(old) if old == one => None,
                Some(old) => Some(format!("{} → {}", cell(old), one.1)),
                None => Some(cell(one)),
            });
            let parts: Vec<_> = parts.collect();
            if !parts.is_empty() {
                changes.push(format!("{subject}: {}", parts.join(", ")));
            }
        }
        changes
    }
}

/// The fields of a subject after `OLD → NEW` of some of them, separated by commas. A value may contain a comma, too:
/// then what follows the comma is no change of a later field.
fn changed(fields: &[Field], parts: &str) -> Option<Vec<Field>> {
    let ends = parts.match_indices(", ").map(|(at, _)| (at, at + 2)).chain([(parts.len(), parts.len())]);
    for (end, next) in ends {
        let (head, tail) = (&parts[..end], &parts[next..]);
        for (index, old) in fields.iter().enumerate() {
            let new = head.strip_prefix(&cell(old)).and_then(|rest| rest.strip_prefix(" → "));
            let Some(new) = new else { continue };
            let later = &fields[index + 1..];
            let later = if tail.is_empty() { Some(later.to_vec()) } else { changed(later, tail) };
            if let Some(later) = later {
                return Some(fields[..index].iter().cloned().chain([field(&old.0, new)]).chain(later).collect());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(text: &str) -> State {
        let rows = text.lines().map(|line| {
            let mut cells = line.split("  ").filter(|cell| !cell.is_empty());
            (cells.next().unwrap().to_owned(), cells.map(named).collect())
        });
        State(rows.collect())
    }

    #[test]
    fn states_follow_from_a_trace() {
        let trace = find(GALLERY, "gallery-redis-failover").unwrap();
        assert_eq!((trace.property.as_str(), trace.steps.len()), ("mutual exclusion", 3));
        assert_eq!(trace.steps[0].sentence, "client A asks server 1 for the lock, which grants it");
        let states = trace.states().unwrap();
        let second = "server 1  old primary  key A\nserver 2  primary  key free\nserver 3  replica  key free\n\
                      client A  holds the lock\nclient B  idle";
        assert_eq!(states[1], state(second));
    }

    #[test]
    fn a_value_may_contain_a_comma() {
        let before = state("resource  written by holder 2\nclient A  about to write  lease over");
        let changes = ["resource: written by holder 2 → written by holder 2, then by holder 1"];
        let after = before.after(&changes).unwrap();
        assert_eq!(after.0[0].1, [field("", "written by holder 2, then by holder 1")]);
        assert_eq!(before.changes(&after), changes);
        let both = ["client A: about to write → has written, lease over → runs"];
        let after = before.after(&both).unwrap();
        assert_eq!(after.0[1].1, [field("", "has written"), field("lease", "runs")]);
        assert_eq!(before.changes(&after), both);
    }

    #[test]
    fn a_change_that_does_not_follow_is_an_error() {
        let before = state("instance 1  free");
        assert!(before.after(&["instance 1: A → free"]).is_err());
        assert!(before.after(&["instance 2: free → A"]).is_err());
        let cut = GALLERY.replacen("is violated after 12 steps", "is violated after 13 steps", 1);
        assert!(find(&cut, "gallery-redlock-pause").unwrap_err().contains("has 12 steps"));
        assert!(find(GALLERY, "gallery-none").is_err());
    }
}
