//! The records of the key-value store, each written under the lock on the same key or without one, in
//! O(n log n), and for the contents in the product of a record's changes and reads.
//!
//! # What it checks
//!
//! 1. Versions are one order: a change that begins after another was answered has a greater version, and
//!    no two have the same.
//! 2. Only holders write under a token: a change under a token is not done before the grant, nor after its
//!    end was answered; in the order of the versions, no change under an exclusive grant comes after one
//!    under a later grant; and while the grant certainly lasts, its token is not refused.
//! 3. Reads are linearizable: a read shows no change that began after its answer, and nothing older than
//!    what was answered, or read, before it began.
//! 4. Contents are made of the changes: every text was written, once at most, in the order of the versions,
//!    and no answered change is missing.
//!
//! # Why it is sound
//!
//! The store executes each change at one moment between its invocation and its completion, and gives it
//! the next version. Check 2 has the bounds of grants from `facts.rs`. A change without an answer may be
//! done at any later moment, and so may remove others from a content: then check 4 misses none of them. One
//! that was sent more than once without a number may be done more than once.
//!
//! # What it does not find
//!
//! Stale reads that are too old, and refusals of the access rules. A change under a token of another key
//! than the record's is judged as one without a token.

use std::collections::HashMap;

use super::facts::Facts;
use super::{MOST, Verdict, Violation, count};
use crate::operation::OperationIndex;
use crate::{Answer, Call, Change, Key, Operation, Refusal, Time};

/// The checker's name.
pub const NAME: &str = "records";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut records: HashMap<&Key, Record<'_>> = HashMap::new();
    let (mut writes, mut reads) = (0, 0);
    for (index, operation) in facts.history.operations.iter().enumerate() {
        match &operation.call {
            Call::WriteRecord { record, change, token, .. } => {
                writes += 1;
                let write = Write { index, version: version(operation), change, token: *token };
                records.entry(record).or_default().writes.push(write);
            }
            Call::ReadRecord { record, stale } => {
                reads += 1;
                let shown = match operation.answer() {
                    Some(Answer::Record { version, value }) => Some((*version, &**value)),
                    Some(Answer::NoRecord) => None,
                    _ => continue,
                };
                records.entry(record).or_default().reads.push(Read { index, shown, stale: *stale });
            }
            _ => {}
        }
    }
    let mut names: Vec<_> = records.keys().copied().collect();
    names.sort();
    let mut violations = Vec::new();
    versions_are_one_order(facts, &mut violations);
    for name in names {
        let record = &records[name];
        only_holders_write(facts, name, record, &mut violations);
        reads_are_current(facts, record, &mut violations);
        for read in &record.reads {
            violations.extend(contents_are_made_of_changes(facts, record, *read));
        }
    }
    violations.truncate(MOST);
    let (writes, reads) = (count(writes, "change"), count(reads, "read"));
    Verdict {
        checker: NAME,
        checked: format!("{writes} and {reads} of {}", count(records.len(), "record")),
        violations,
    }
}

/// The operations on one record, in the order of their invocations.
#[derive(Default)]
struct Record<'h> {
    writes: Vec<Write<'h>>,
    reads: Vec<Read<'h>>,
}

/// A change.
#[derive(Clone, Copy)]
struct Write<'h> {
    index: OperationIndex,
    /// `None` without an answer.
    version: Option<u64>,
    change: &'h Change,
    token: Option<u64>,
}

/// An answered read, and the version and the content that it shows.
#[derive(Clone, Copy)]
struct Read<'h> {
    index: OperationIndex,
    shown: Option<(u64, &'h str)>,
    stale: bool,
}

fn version(operation: &Operation) -> Option<u64> {
    match operation.answer() {
        Some(Answer::Written { version }) => Some(*version),
        _ => None,
    }
}

fn versions_are_one_order(facts: &Facts<'_>, violations: &mut Vec<Violation>) {
    let versions = facts.history.operations.iter().filter_map(|operation| Some((version(operation)?, operation)));
    let by_invocation: Vec<(u64, &Operation)> = versions.collect();
    let mut by_completion = by_invocation.clone();
    by_completion.sort_by_key(|(_, operation)| operation.completed());
    let mut done = by_completion.into_iter().peekable();
    let mut last: Option<(u64, &Operation)> = None;
    let mut seen: HashMap<u64, &Operation> = HashMap::new();
    for (version, operation) in by_invocation {
        while let Some(before) = done.next_if(|(_, before)| before.completed() < operation.invoked) {
            last = last.filter(|last| last.0 >= before.0).or(Some(before));
        }
        if let Some((_, before)) = last.filter(|last| last.0 >= version) {
            violations.push(Violation(format!(
                "a later change has a greater version, but not this one: {before}; {operation}"
            )));
        }
        if let Some(other) = seen.insert(version, operation) {
            violations
                .push(Violation(format!("two changes have different versions, but not these: {other}; {operation}")));
        }
    }
}

/// The highest tokens of some changes, each with its operation.
#[derive(Clone, Copy, Default)]
struct Highest {
    of_all: Option<(u64, OperationIndex)>,
    of_exclusive: Option<(u64, OperationIndex)>,
}

fn only_holders_write(facts: &Facts<'_>, name: &Key, record: &Record<'_>, violations: &mut Vec<Violation>) {
    for write in &record.writes {
        let (operation, grant) = (facts.operation(write.index), write.token.and_then(|token| facts.grant_of(token)));
        let is_of_key = |keys: &[usize]| facts.key_named(name).is_some_and(|key| keys.contains(&key));
        let Some(grant) = grant.filter(|grant| is_of_key(&grant.keys)) else { continue };
        if operation.answer().is_some() && operation.completed() < grant.not_before {
            violations.push(Violation(format!(
                "a record is written after the grant of the token, but not here: {operation}"
            )));
        }
        if let Some((ended, by)) = grant.ended
            && operation.answer().is_some()
            && ended < operation.invoked
        {
            let by = facts.operation(by);
            violations.push(Violation(format!(
                "a record is written under a token while its grant lasts, but this one had ended: {by}; {operation}"
            )));
        }
        if operation.refusal() == Some(&Refusal::StaleToken)
            && grant.seen.0 < operation.invoked
            && operation.completed() < grant.may_end
        {
            violations.push(Violation(format!(
                "a holder's change is not refused, but this one was, although its grant could not have ended before {}: \
                 {operation}",
                grant.may_end
            )));
        }
    }
    let mut done: Vec<&Write<'_>> = record.writes.iter().filter(|write| write.version.is_some()).collect();
    done.sort_by_key(|write| write.version);
    let mut highest = Highest::default();
    for write in done {
        let Some(token) = write.token else { continue };
        let is_exclusive = facts.grant_of(token).is_some_and(|grant| facts.is_exclusive(grant));
        let fence = if is_exclusive { highest.of_all } else { highest.of_exclusive };
        if let Some((_, before)) = fence.filter(|(fence, _)| *fence > token) {
            let (before, operation) = (facts.operation(before), facts.operation(write.index));
            violations.push(Violation(format!(
                "a former holder writes nothing after its successor, but this one did: {before}; {operation}"
            )));
        }
        highest.of_all = highest.of_all.max(Some((token, write.index)));
        if is_exclusive {
            highest.of_exclusive = highest.of_exclusive.max(Some((token, write.index)));
        }
    }
}

/// What was known of a record at a moment: the greatest version that was answered or shown, and by which
/// operation.
type Known = Option<(u64, OperationIndex)>;

fn reads_are_current(facts: &Facts<'_>, record: &Record<'_>, violations: &mut Vec<Violation>) {
    let written = record.writes.iter().filter_map(|write| Some((write.version?, write.index)));
    let shown = record.reads.iter().filter_map(|read| Some((read.shown.filter(|_| !read.stale)?.0, read.index)));
    let mut known: Vec<(u64, OperationIndex)> = written.chain(shown).collect();
    known.sort_by_key(|(_, index)| facts.operation(*index).completed());
    let mut known = known.into_iter().peekable();
    let mut greatest: Known = None;
    for read in record.reads.iter().filter(|read| !read.stale) {
        let operation = facts.operation(read.index);
        while let Some(before) = known.next_if(|(_, index)| facts.operation(*index).completed() < operation.invoked) {
            greatest = greatest.max(Some(before));
        }
        let Some((version, before)) = greatest else { continue };
        let is_old = match read.shown {
            Some((shown, _)) => shown < version,
            // The record of this version may have been deleted since.
            None => {
                let is_there = |write: &Write<'_>| write.version == Some(version) && *write.change != Change::Delete;
                let is_shown = record.reads.iter().any(|read| read.shown.is_some_and(|(shown, _)| shown == version));
                (is_shown || record.writes.iter().any(is_there))
                    && !record.writes.iter().any(|write| may_remove(facts, write, version, operation))
            }
        };
        if is_old {
            let before = facts.operation(before);
            violations.push(Violation(format!(
                "a read shows what was there before it began, but not this one: {before}; {operation}"
            )));
        }
    }
}

/// Whether a change may have removed a record after this version, and before a read was answered.
fn may_remove(facts: &Facts<'_>, write: &Write<'_>, version: u64, read: &Operation) -> bool {
    let operation = facts.operation(write.index);
    *write.change == Change::Delete
        && operation.refusal().is_none()
        && operation.invoked <= read.completed()
        && (write.version.is_none_or(|removed| removed > version) || may_be_repeated(operation))
}

fn contents_are_made_of_changes(facts: &Facts<'_>, record: &Record<'_>, read: Read<'_>) -> Option<Violation> {
    let operation = facts.operation(read.index);
    let (version, value) = read.shown?;
    let wrong = |what: &str| Some(Violation(format!("{what}: {operation}")));
    let answered_by: Time = operation.completed();
    let possible = |write: &&Write<'_>| {
        let write = facts.operation(write.index);
        write.refusal().is_none() && write.invoked <= answered_by
    };
    let writes = || record.writes.iter().filter(possible);
    match writes().find(|write| write.version == Some(version)) {
        Some(Write { change: Change::Delete, .. }) => return wrong("a read shows a record that was deleted"),
        Some(write) if !value.ends_with(write.change.text().unwrap_or_default()) => {
            return wrong("a content ends with its last change, but not this one");
        }
        None if writes().all(|write| is_certain(facts, write)) => {
            return wrong("a read shows a change that was made before its answer, but no client made this one");
        }
        Some(_) | None => {}
    }
    // The changes by their texts: which are done once at most, and which any number of times.
    let mut by_text: HashMap<&str, Vec<&Write<'_>>> = HashMap::new();
    for write in writes() {
        if let Some(text) = write.change.text() {
            by_text.entry(text).or_default().push(write);
        }
    }
    let mut times: HashMap<&str, usize> = HashMap::new();
    let mut last = 0;
    for (number, text) in value.split_inclusive(';').enumerate() {
        let Some(of_text) = by_text.get(text) else { return wrong("a content has texts that were written") };
        let is_repeated = |write: &&Write<'_>| may_be_repeated(facts.operation(write.index));
        let seen = times.entry(text).or_default();
        *seen += 1;
        if *seen > of_text.len() && !of_text.iter().any(is_repeated) {
            return wrong("a change is done once, but a text is there more often than it was written");
        }
        if number > 0 && of_text.iter().all(|write| matches!(write.change, Change::Put(_))) {
            return wrong("a put replaces the content, but text is there before one");
        }
        if let [write] = of_text[..]
            && let Some(written) = write.version
            && !is_repeated(&write)
        {
            if written > version {
                return wrong("a content has no change of a later version than its own");
            }
            if written <= last {
                return wrong("a content has its texts in the order of their versions");
            }
            last = written;
        }
    }
    let removes = |write: &&Write<'_>| !matches!(write.change, Change::Append(_));
    if !writes().filter(removes).all(|write| is_certain(facts, write)) {
        return None;
    }
    let base = writes().filter(removes).filter_map(|write| write.version).filter(|base| *base <= version).max();
    let missing = |write: &&Write<'_>| {
        let is_in = write.version.is_some_and(|written| written <= version && Some(written) >= base);
        is_in && write.change.text().is_some_and(|text| !times.contains_key(text))
    };
    let missing = writes().find(missing)?;
    let missing = facts.operation(missing.index);
    Some(Violation(format!("a content has every change up to its version, but one is missing: {missing}; {operation}")))
}

/// Whether a change was done once, with the version that was answered.
fn is_certain(facts: &Facts<'_>, write: &Write<'_>) -> bool {
    write.version.is_some() && !may_be_repeated(facts.operation(write.index))
}

/// Whether each sending of a change is executed by itself.
fn may_be_repeated(write: &Operation) -> bool {
    write.was_disconnected() && matches!(write.call, Call::WriteRecord { number: None, .. })
}

#[cfg(test)]
mod tests;
