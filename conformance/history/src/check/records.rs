//! The records of the key-value store, each written under locks or without one, in O(n log n), and for the
//! contents in the product of a record's changes and reads.
//!
//! # What it checks
//!
//! 1. Versions are one order: a transaction that begins after another was answered has a greater version,
//!    and no two have the same.
//! 2. Only holders write under a token: a transaction under a token is of a lock of its grant, and not done
//!    before the grant, nor after its end was answered; in the order of the versions, none under an exclusive
//!    grant of a lock comes after one under a later grant of it; and while the grants certainly last, no token
//!    is refused. A record that was written under a token is changed under tokens only, until it is deleted; no
//!    other record needs a token.
//! 3. Reads are linearizable: a read shows no change that began after its answer, and nothing older than
//!    what was answered, or read, before it began. A condition on a version is such a read, met or not; a read
//!    that shows a part of a transaction shows that all of it is done.
//! 4. A transaction that compares a version finds exactly that one: in the order of the versions, no other
//!    change of the record lies between.
//! 5. Contents are made of the changes: every text was written, once at most, in the order of the versions,
//!    and no answered change is missing.
//!
//! # Why it is sound
//!
//! The store executes each transaction as a whole at one moment between its invocation and its completion,
//! and gives it the next version. Check 2 has the bounds of grants from `facts.rs`. A change without an
//! answer may be done at any later moment, and so may remove others from a content: then check 5 misses none
//! of them. One that was sent more than once without a number may be done more than once. If a text was
//! written by one operation that is done once at most, a content that ends with it shows the operation's
//! version, answered or not: the checks of transactions hold for it too, and it was done before the read's
//! answer.
//!
//! # What it does not find
//!
//! Stale reads that are too old, and refusals of the access rules. A refusal because of another version does
//! not say of which record: it shows something only if a single condition can be meant. It proves nothing of
//! the conditions before that one.

mod store;

use std::collections::{BTreeMap, HashMap};

use self::store::{Done, Record, Sight, Store, Write, by_text, last_text};
use super::facts::Facts;
use super::{MOST, Verdict, Violation, count};
use crate::operation::OperationIndex;
use crate::{Call, Change, Key, Operation, Refusal, Time};

/// The checker's name.
pub const NAME: &str = "records";

/// Runs it.
pub(super) fn check(facts: &Facts<'_>) -> Verdict {
    let mut violations = Vec::new();
    let store = Store::of(facts, &mut violations);
    versions_are_one_order(facts, &store, &mut violations);
    only_holders_write(facts, &store, &mut violations);
    compared_versions_are_the_last(facts, &store, &mut violations);
    for (name, record) in &store.records {
        fenced_records_stay_fenced(facts, record, &mut violations);
        reads_are_current(facts, record, &mut violations);
        for sight in &record.sights {
            let made = shown_version_was_made(facts, &store, name, record, *sight);
            violations.extend(made.or_else(|| contents_are_made_of_changes(facts, record, *sight)));
        }
    }
    violations.truncate(MOST);
    let (transactions, reads, compared) =
        (count(store.transactions, "change"), count(store.reads, "read"), count(store.compared, "comparison"));
    let of = count(store.records.len(), "record");
    Verdict { checker: NAME, checked: format!("{transactions}, {reads} and {compared} of {of}"), violations }
}

fn versions_are_one_order(facts: &Facts<'_>, store: &Store<'_>, violations: &mut Vec<Violation>) {
    let by_invocation: Vec<Done<'_>> = store.with_known_versions(facts).collect();
    let mut by_completion = by_invocation.clone();
    by_completion.sort_by_key(|done| done.shown_by.completed());
    let mut by_completion = by_completion.into_iter().peekable();
    let mut last: Option<Done<'_>> = None;
    let mut seen: HashMap<u64, Done<'_>> = HashMap::new();
    for done in by_invocation {
        while let Some(before) = by_completion.next_if(|before| before.shown_by.completed() < done.operation.invoked) {
            last = last.filter(|last| last.version >= before.version).or(Some(before));
        }
        if let Some(before) = last.filter(|last| last.version >= done.version) {
            violations.push(Violation(format!(
                "a later transaction has a greater version, but not this one: {before}; {done}"
            )));
        }
        if let Some(other) = seen.insert(done.version, done) {
            violations
                .push(Violation(format!("two transactions have different versions, but not these: {other}; {done}")));
        }
    }
}

/// The highest tokens of some transactions, each with its transaction.
#[derive(Clone, Copy, Default)]
struct Highest<'h> {
    of_all: Option<(u64, Done<'h>)>,
    of_exclusive: Option<(u64, Done<'h>)>,
}

fn only_holders_write(facts: &Facts<'_>, store: &Store<'_>, violations: &mut Vec<Violation>) {
    // The transactions that were done under each lock, with their tokens.
    let mut under: BTreeMap<&Key, Vec<(u64, Done<'_>)>> = BTreeMap::new();
    for done in store.with_known_versions(facts) {
        for (lock, token) in done.operation.call.must_hold() {
            violations.extend(is_done_under_its_grant(facts, lock, token, done));
            under.entry(lock).or_default().push((token, done));
        }
    }
    for operation in &facts.history.operations {
        violations.extend(holder_is_not_refused(facts, operation));
        violations.extend(only_fenced_records_need_a_token(facts, store, operation));
    }
    for under in under.values_mut() {
        under.sort_by_key(|(token, done)| (done.version, *token));
        let mut highest = Highest::default();
        for &(token, done) in &*under {
            let is_exclusive = facts.grant_of(token).is_some_and(|grant| facts.is_exclusive(grant));
            let fence = if is_exclusive { highest.of_all } else { highest.of_exclusive };
            if let Some((_, before)) = fence.filter(|(fence, _)| *fence > token) {
                violations.push(Violation(format!(
                    "a former holder writes nothing after its successor, but this one did: {before}; {done}"
                )));
            }
            let higher = |than: Option<(u64, _)>| than.filter(|(than, _)| *than > token).or(Some((token, done)));
            highest.of_all = higher(highest.of_all);
            if is_exclusive {
                highest.of_exclusive = higher(highest.of_exclusive);
            }
        }
    }
}

/// What is wrong with a transaction that was done under this token of this lock.
fn is_done_under_its_grant(facts: &Facts<'_>, lock: &Key, token: u64, done: Done<'_>) -> Option<Violation> {
    let grant = facts.grant_of(token)?;
    if !facts.key_named(lock).is_some_and(|key| grant.keys.contains(&key)) {
        return grant.is_whole.then(|| {
            let names = facts.names(grant);
            Violation(format!(
                "a token is for the lock that it was granted for, but token {token} is of {names}: {done}"
            ))
        });
    }
    if done.shown_by.completed() < grant.not_before {
        return Some(Violation(format!("a record is written after the grant of the token, but not here: {done}")));
    }
    let (ended, by) = grant.ended.filter(|(ended, _)| *ended < done.operation.invoked)?;
    let by = facts.operation(by);
    Some(Violation(format!(
        "a record is written under a token while its grant lasts, but this one had ended by {ended}: {by}; {done}"
    )))
}

fn holder_is_not_refused(facts: &Facts<'_>, operation: &Operation) -> Option<Violation> {
    if operation.refusal() != Some(&Refusal::StaleToken) {
        return None;
    }
    // Until when each of the grants certainly lasts; nothing is known of one that may not have been there.
    let lasts = operation.call.must_hold().map(|(lock, token)| {
        let key = facts.key_named(lock)?;
        let grant = facts.grant_of(token).filter(|grant| grant.keys.contains(&key))?;
        (grant.seen.0 < operation.invoked).then_some(grant.may_end)
    });
    let lasts = lasts.collect::<Option<Vec<Time>>>()?.into_iter().min()?;
    (operation.completed() < lasts).then(|| {
        Violation(format!(
            "a holder's change is not refused, but this one was, although its grant could not have ended before {lasts}: \
             {operation}"
        ))
    })
}

/// A transaction without a token is refused as one of a former holder only if a record that it changes may have been
/// written under a token.
fn only_fenced_records_need_a_token(facts: &Facts<'_>, store: &Store<'_>, operation: &Operation) -> Option<Violation> {
    if operation.refusal() != Some(&Refusal::StaleToken) || operation.call.must_hold().next().is_some() {
        return None;
    }
    let mut writes = operation.call.changes().flat_map(|(record, _)| &store.records[record].writes);
    let may_be_fenced = writes.any(|write| {
        is_possible(facts, write, operation) && *write.change != Change::Delete && has_token(facts, write)
    });
    (!may_be_fenced).then(|| {
        Violation(format!(
            "only a record that was written under a token is fenced, but no client had written so: {operation}"
        ))
    })
}

fn has_token(facts: &Facts<'_>, write: &Write<'_>) -> bool {
    facts.operation(write.index).call.must_hold().next().is_some()
}

/// A record that was written under a token is changed under tokens only, until it is deleted.
fn fenced_records_stay_fenced(facts: &Facts<'_>, record: &Record<'_>, violations: &mut Vec<Violation>) {
    let mut done: Vec<(u64, OperationIndex, &Write<'_>)> = Vec::new();
    done.extend(record.writes.iter().filter_map(|write| {
        let (version, shown_by) = write.version?;
        Some((version, shown_by, write))
    }));
    done.sort_by_key(|(version, ..)| *version);
    let mut fence: Option<(u64, &Write<'_>)> = None;
    for (version, shown_by, write) in done {
        if has_token(facts, write) {
            fence = Some((version, write));
        } else if let Some((fenced, by)) = fence {
            let shown_by = facts.operation(shown_by);
            let deletes = |write: &Write<'_>| !is_certain(facts, write) && may_remove(facts, write, fenced, shown_by);
            if !record.writes.iter().any(deletes) {
                let (by, operation) = (facts.operation(by.index), facts.operation(write.index));
                violations.push(Violation(format!(
                    "a record that was written under a token is changed under tokens only, but not here: {by}; {operation}"
                )));
            }
        }
        fence = fence.filter(|_| *write.change != Change::Delete);
    }
}

/// In the order of the versions, a transaction finds the version that it compares, as no other change of the
/// record lies between.
fn compared_versions_are_the_last(facts: &Facts<'_>, store: &Store<'_>, violations: &mut Vec<Violation>) {
    let mut moments: HashMap<&Key, Vec<Moment>> = HashMap::new();
    for (name, record) in &store.records {
        let written = record.writes.iter().filter_map(|write| {
            let (version, shown_by) = write.version?;
            Some(Moment { version, is_there: *write.change != Change::Delete, shown_by })
        });
        let seen = record
            .sights
            .iter()
            .filter_map(|sight| Some(Moment { version: sight.version?, is_there: true, shown_by: sight.index }));
        let mut of_record: Vec<Moment> = written.chain(seen).collect();
        of_record.sort_unstable();
        moments.insert(name, of_record);
    }
    for done in store.with_known_versions(facts) {
        for (name, compared) in done.operation.call.must_have() {
            let mut wrong = |why: &dyn std::fmt::Display| {
                violations
                    .push(Violation(format!("a transaction finds the version that it compares, but {why}: {done}")));
            };
            if compared >= done.version {
                wrong(&"this one is not before its own");
                continue;
            }
            let moments = moments.get(name).map_or(&[][..], Vec::as_slice);
            let before = moments.partition_point(|moment| moment.version < done.version);
            let Some(last) = before.checked_sub(1).map(|last| moments[last]) else { continue };
            let shown_by = facts.operation(last.shown_by);
            if compared > 0 && last.version > compared {
                wrong(&format_args!("the record was changed between ({shown_by})"));
            }
            let removes =
                |write: &Write<'_>| !is_certain(facts, write) && may_remove(facts, write, last.version, done.shown_by);
            if compared == 0 && last.is_there && !store.records[name].writes.iter().any(removes) {
                wrong(&format_args!("the record was there ({shown_by})"));
            }
        }
    }
}

/// That a record has a version, or that a transaction of this version has removed it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    version: u64,
    is_there: bool,
    shown_by: OperationIndex,
}

/// What was known of a record at a moment: the greatest version that was answered or shown, and by which
/// operation.
type Known = Option<(u64, OperationIndex)>;

fn reads_are_current(facts: &Facts<'_>, record: &Record<'_>, violations: &mut Vec<Violation>) {
    let written = record.writes.iter().filter_map(|write| write.version);
    let shown = record.sights.iter().filter(|sight| !sight.stale);
    let shown = shown.filter_map(|sight| Some((sight.version?, sight.index)));
    let mut known: Vec<(u64, OperationIndex)> = written.chain(shown).collect();
    known.sort_by_key(|(_, index)| facts.operation(*index).completed());
    let mut known = known.into_iter().peekable();
    let mut greatest: Known = None;
    for sight in record.sights.iter().filter(|sight| !sight.stale) {
        let operation = facts.operation(sight.index);
        while let Some(before) = known.next_if(|(_, index)| facts.operation(*index).completed() < operation.invoked) {
            greatest = greatest.max(Some(before));
        }
        let Some((version, before)) = greatest else { continue };
        let is_old = match sight.version {
            Some(shown) => shown < version,
            // The record of this version may have been deleted since.
            None => {
                let is_there = |write: &Write<'_>| write.version() == Some(version) && *write.change != Change::Delete;
                let is_shown = record.sights.iter().any(|sight| sight.version == Some(version));
                (is_shown || record.writes.iter().any(is_there))
                    && !record.writes.iter().any(|write| may_remove(facts, write, version, operation))
            }
        };
        if is_old {
            let before = facts.operation(before);
            violations.push(Violation(format!(
                "an answer shows what was there before its operation began, but not this one: {before}; {operation}"
            )));
        }
    }
}

/// Whether a change may have removed a record after this version, and before an operation was answered.
fn may_remove(facts: &Facts<'_>, write: &Write<'_>, version: u64, by: &Operation) -> bool {
    let operation = facts.operation(write.index);
    *write.change == Change::Delete
        && operation.refusal().is_none()
        && operation.invoked <= by.completed()
        && (write.version().is_none_or(|removed| removed > version) || may_be_repeated(operation))
}

/// A version that an operation shows is that of a transaction that changed the record, and began before the
/// answer.
fn shown_version_was_made(
    facts: &Facts<'_>,
    store: &Store<'_>,
    name: &Key,
    record: &Record<'_>,
    sight: Sight<'_>,
) -> Option<Violation> {
    let (operation, version) = (facts.operation(sight.index), sight.version?);
    let is_earlier = |made: &Operation| made.invoked <= operation.completed();
    let what = match store.done.get(&version).map(|made| facts.operation(*made)) {
        Some(made) if is_earlier(made) => match made.call.changes().find(|(changed, _)| *changed == name) {
            None => "a record has the version of a change of its own, but this one changed others",
            Some((_, Change::Delete)) => "an answer shows a record that was deleted",
            Some(_) => return None,
        },
        None if record
            .writes
            .iter()
            .filter(|write| is_possible(facts, write, operation))
            .any(|write| *write.change != Change::Delete && !is_certain(facts, write)) =>
        {
            return None;
        }
        _ => "an answer shows a change that was made before it, but no client made this one",
    };
    Some(Violation(format!("{what}: {operation}")))
}

/// Whether an operation may have found a change.
fn is_possible(facts: &Facts<'_>, write: &Write<'_>, by: &Operation) -> bool {
    let write = facts.operation(write.index);
    write.refusal().is_none() && write.invoked <= by.completed()
}

fn contents_are_made_of_changes(facts: &Facts<'_>, record: &Record<'_>, read: Sight<'_>) -> Option<Violation> {
    let operation = facts.operation(read.index);
    let (version, content) = (read.version?, read.content?);
    let wrong = |what: &str| Some(Violation(format!("{what}: {operation}")));
    let writes = || record.writes.iter().filter(|write| is_possible(facts, write, operation));
    let made = writes().find(|write| write.version() == Some(version));
    if made.is_some_and(|write| write.change.text() != last_text(content)) {
        return wrong("a content ends with its last change, but not this one");
    }
    // Which texts are written once at most, and which any number of times.
    let by_text = by_text(writes());
    let mut times: HashMap<&str, usize> = HashMap::new();
    let mut last = 0;
    for (number, text) in content.split_inclusive(';').enumerate() {
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
            && let Some(written) = write.version()
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
    if let Some([write]) = last_text(content).and_then(|text| by_text.get(text)).map(Vec::as_slice)
        && is_certain(facts, write)
        && write.version() != Some(version)
    {
        return wrong("a content has the version of its last change, but not this one");
    }
    let removes = |write: &&Write<'_>| !matches!(write.change, Change::Append(_));
    if !writes().filter(removes).all(|write| is_certain(facts, write)) {
        return None;
    }
    let base = writes().filter(removes).filter_map(Write::version).filter(|base| *base <= version).max();
    let missing = |write: &&Write<'_>| {
        let is_in = write.version().is_some_and(|written| written <= version && Some(written) >= base);
        is_in && write.change.text().is_some_and(|text| !times.contains_key(text))
    };
    let missing = writes().find(missing)?;
    let missing = facts.operation(missing.index);
    Some(Violation(format!("a content has every change up to its version, but one is missing: {missing}; {operation}")))
}

/// Whether a change was done once, with a known version.
fn is_certain(facts: &Facts<'_>, write: &Write<'_>) -> bool {
    write.version.is_some() && !may_be_repeated(facts.operation(write.index))
}

/// Whether each sending of a change is executed by itself.
fn may_be_repeated(write: &Operation) -> bool {
    write.was_disconnected() && matches!(write.call, Call::WriteRecord { number: None, .. })
}

#[cfg(test)]
mod tests;
