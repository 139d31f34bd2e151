//! What a history has of the key-value store: the changes of each record, and what answers show of it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::super::Violation;
use super::super::facts::Facts;
use super::may_be_repeated;
use crate::operation::OperationIndex;
use crate::{Answer, Call, Change, Key, Operation, Refusal};

/// What the history has of the store.
#[derive(Default)]
pub(super) struct Store<'h> {
    pub(super) records: BTreeMap<&'h Key, Record<'h>>,
    /// The transactions whose version is known.
    pub(super) done: HashMap<u64, OperationIndex>,
    /// The versions of transactions without an answer that reads show, each with the first of these reads.
    pub(super) shown: BTreeMap<OperationIndex, (u64, OperationIndex)>,
    pub(super) transactions: usize,
    pub(super) reads: usize,
    /// How many versions transactions compared, with a known outcome.
    pub(super) compared: usize,
}

/// What happened to one record, in the order of the invocations.
#[derive(Default)]
pub(super) struct Record<'h> {
    pub(super) writes: Vec<Write<'h>>,
    pub(super) sights: Vec<Sight<'h>>,
}

/// A change, as a part of its transaction.
#[derive(Clone, Copy)]
pub(super) struct Write<'h> {
    pub(super) index: OperationIndex,
    /// The version of the transaction, and the operation whose completion shows it: its own, or a read.
    pub(super) version: Option<(u64, OperationIndex)>,
    pub(super) change: &'h Change,
}

impl Write<'_> {
    pub(super) fn version(&self) -> Option<u64> {
        self.version.map(|(version, _)| version)
    }
}

/// What an answer shows of a record: that of a read, or of a transaction that compares its version.
#[derive(Clone, Copy)]
pub(super) struct Sight<'h> {
    pub(super) index: OperationIndex,
    /// `None`: there is no record.
    pub(super) version: Option<u64>,
    /// The content, in a read that finds the record.
    pub(super) content: Option<&'h str>,
    pub(super) stale: bool,
}

/// A transaction that was done, and the operation whose completion shows its version: itself, or a read.
#[derive(Clone, Copy)]
pub(super) struct Done<'h> {
    pub(super) version: u64,
    pub(super) operation: &'h Operation,
    pub(super) shown_by: &'h Operation,
}

impl fmt::Display for Done<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if self.operation.id == self.shown_by.id { Ok(()) } else { write!(f, ", shown by {}", self.shown_by) }
    }
}

fn answered_version(operation: &Operation) -> Option<u64> {
    match operation.answer() {
        Some(Answer::Written { version }) => Some(*version),
        _ => None,
    }
}

impl<'h> Store<'h> {
    pub(super) fn of(facts: &Facts<'h>, violations: &mut Vec<Violation>) -> Store<'h> {
        let mut store = Store::default();
        for (index, operation) in facts.history.operations.iter().enumerate() {
            match &operation.call {
                Call::WriteRecord { .. } => {
                    store.transactions += 1;
                    let version = answered_version(operation).map(|version| (version, index));
                    store.done.extend(version);
                    for (record, change) in operation.call.changes() {
                        store.records.entry(record).or_default().writes.push(Write { index, version, change });
                    }
                    store.add_comparisons(index, operation, violations);
                }
                Call::ReadRecord { record, stale } => {
                    store.reads += 1;
                    let (version, content) = match operation.answer() {
                        Some(Answer::Record { version, value }) => (Some(*version), Some(&**value)),
                        Some(Answer::NoRecord) => (None, None),
                        _ => continue,
                    };
                    let sight = Sight { index, version, content, stale: *stale };
                    store.records.entry(record).or_default().sights.push(sight);
                }
                _ => {}
            }
        }
        store.add_versions_that_are_shown(facts, violations);
        store
    }

    /// What a transaction shows of the records whose versions it compares.
    fn add_comparisons(&mut self, index: OperationIndex, operation: &'h Operation, violations: &mut Vec<Violation>) {
        let conditions = || operation.call.must_have();
        let mut add = |record: &'h Key, version: u64| {
            self.compared += 1;
            let sight = Sight { index, version: (version > 0).then_some(version), content: None, stale: false };
            self.records.entry(record).or_default().sights.push(sight);
        };
        match (operation.answer(), operation.refusal()) {
            (Some(_), _) => conditions().for_each(|(record, version)| add(record, version)),
            (_, Some(Refusal::OtherVersion { version: seen })) => {
                let mut unmet = conditions().filter(|(_, version)| version != seen);
                match (unmet.next(), unmet.next()) {
                    (Some((record, _)), None) => add(record, *seen),
                    (Some(_), Some(_)) => {}
                    (None, _) => violations.push(Violation(format!(
                        "a version is refused if it is another one than the record's, but this is the same: {operation}"
                    ))),
                }
            }
            _ => {}
        }
    }

    /// A content that ends with the text of a transaction whose answer is missing shows its version, and that
    /// all of it is done.
    fn add_versions_that_are_shown(&mut self, facts: &Facts<'h>, violations: &mut Vec<Violation>) {
        for record in self.records.values() {
            let by_text =
                by_text(record.writes.iter().filter(|write| facts.operation(write.index).refusal().is_none()));
            for sight in &record.sights {
                let (Some(version), Some(text)) = (sight.version, sight.content.and_then(last_text)) else { continue };
                let Some([write]) = by_text.get(text).map(Vec::as_slice) else { continue };
                let (operation, read) = (facts.operation(write.index), facts.operation(sight.index));
                if write.version.is_some() || may_be_repeated(operation) || operation.invoked > read.completed() {
                    continue;
                }
                let (first, first_read) = *self.shown.entry(write.index).or_insert((version, sight.index));
                let other = *self.done.entry(version).or_insert(write.index);
                if first != version || other != write.index {
                    let (other, first_read) = (facts.operation(other), facts.operation(first_read));
                    violations.push(Violation(format!(
                        "a transaction has a version of its own, but not this one: {operation}; {other}; {first_read}; {read}"
                    )));
                }
                let seen_before = facts.operation(first_read).completed() <= read.completed();
                if !seen_before {
                    self.shown.insert(write.index, (version, sight.index));
                }
            }
        }
        for write in self.records.values_mut().flat_map(|record| &mut record.writes) {
            write.version = write.version.or(self.shown.get(&write.index).copied());
        }
    }

    /// The transactions with a known version, in the order of the invocations.
    pub(super) fn with_known_versions(&self, facts: &Facts<'h>) -> impl Iterator<Item = Done<'h>> {
        let history = facts.history;
        history.operations.iter().enumerate().filter_map(|(index, operation)| {
            let answered = answered_version(operation).map(|version| (version, index));
            let (version, shown_by) = answered.or_else(|| self.shown.get(&index).copied())?;
            Some(Done { version, operation, shown_by: &history.operations[shown_by] })
        })
    }
}

/// The changes of a record by their texts.
pub(super) fn by_text<'w, 'h: 'w>(writes: impl Iterator<Item = &'w Write<'h>>) -> HashMap<&'h str, Vec<&'w Write<'h>>> {
    let mut by_text: HashMap<&str, Vec<&Write<'_>>> = HashMap::new();
    for write in writes {
        if let Some(text) = write.change.text() {
            by_text.entry(text).or_default().push(write);
        }
    }
    by_text
}

pub(super) fn last_text(content: &str) -> Option<&str> {
    content.split_inclusive(';').next_back()
}
