//! Transactions are whole: all of their changes are made, and no other ones, or none.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::store_is_fenced::is_held_at;
use super::{Check, EntryStep, Property};
use crate::lock::{
    Change, Command, Condition, Event, Key, LockTable, Outcome, RECORD_BYTES, Record, Reply, SharedMap, Token,
    Transaction, Version, Writer,
};
use crate::raft::Stamp;
use crate::require;

const NAME: Property = Property::TransactionsAreWhole;

/// Compares the records before and after an entry.
///
/// A transaction that was done found all its conditions met, and the records are as its changes make them,
/// one after the other; each record that changed has the transaction's version, which is greater than all
/// before, its fence and its number, and an event reports it. Nothing else changes a record: no other
/// command, no refusal, no repetition, and the version stays, too.
pub fn transactions_are_whole(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, at, command, outcome, after, .. } = *step;
    let told: Vec<&Event> =
        outcome.events.iter().filter(|event| matches!(event, Event::Put { .. } | Event::Deleted { .. })).collect();
    let Some((writer, transaction, version)) = done(before, command, outcome) else {
        let is_same = before.records() == after.records() && before.next_version() == after.next_version();
        require!(NAME, is_same, "{command:?} got {:?}, and changed records", outcome.reply)?;
        return require!(NAME, told.is_empty(), "{command:?} changed no record, and events report {told:?}");
    };
    conditions_are_met(before, at, transaction)?;
    let (was, is) = (before.next_version(), after.next_version());
    require!(NAME, was <= version && version < is, "version {version} was given between {was} and {is}")?;
    let expected = expected(before, writer, transaction, version);
    let found: BTreeMap<Key, Record> = copy(after.records());
    require!(NAME, found == expected, "{transaction:?} made {found:?}, not {expected:?}")?;
    for record in expected.values() {
        let length = record.bytes.as_slice().len();
        require!(NAME, length <= RECORD_BYTES || record.version != version, "a record of {length} bytes was written")?;
    }
    let (held, holds) = (bytes(before), bytes(after));
    let has_room = holds <= transaction.limit || holds <= held;
    require!(NAME, has_room, "the store grew from {held} to {holds} bytes, and may have {}", transaction.limit)?;
    events_are_true(before, transaction, version, &told, after)
}

/// The transaction that the entry did.
fn done<'a>(
    before: &LockTable,
    command: Option<&'a Command>,
    outcome: &Outcome,
) -> Option<(&'a Writer, &'a Transaction, Version)> {
    let Some(Command::Transact { writer, transaction }) = command else { return None };
    let Some(Reply::Written { version }) = outcome.reply else { return None };
    let is_repeated = match writer {
        Writer::Client(_) | Writer::Session { sequence: None, .. } => false,
        Writer::Session { session, sequence } => {
            before.session(*session).is_some_and(|session| session.last >= *sequence)
        }
    };
    (!is_repeated).then_some((writer, transaction, version))
}

fn conditions_are_met(before: &LockTable, at: Stamp, transaction: &Transaction) -> Check {
    for condition in &transaction.conditions {
        let is_met = match condition {
            Condition::Held { lock, token } => is_held_at(before, at, lock, *token),
            Condition::Version { record, version } => {
                before.records().get(record).map(|record| record.version) == *version
            }
        };
        require!(NAME, is_met, "a transaction was done although {condition:?} was not met")?;
    }
    Ok(())
}

/// The records that the transaction should leave: of each the last content that it was given, and what was
/// added to it since.
fn expected(before: &LockTable, writer: &Writer, transaction: &Transaction, version: Version) -> BTreeMap<Key, Record> {
    let tokens = transaction.conditions.iter().filter_map(|condition| match condition {
        Condition::Held { token, .. } => Some(*token),
        Condition::Version { .. } => None,
    });
    let fence: Option<Token> = tokens.max();
    let written = match writer {
        Writer::Client(_) => None,
        Writer::Session { session, sequence } => sequence.map(|sequence| (*session, sequence)),
    };
    let mut records = copy(before.records());
    for key in keys(transaction) {
        let mut content = before.record(key).map(|record| record.bytes.as_slice().to_vec());
        for change in &transaction.changes {
            match change {
                Change::Put { record, bytes } if record == key => content = Some(bytes.as_slice().to_vec()),
                Change::Append { record, bytes } if record == key => {
                    content.get_or_insert_default().extend_from_slice(bytes.as_slice());
                }
                Change::Delete { record } if record == key => content = None,
                Change::Put { .. } | Change::Append { .. } | Change::Delete { .. } => {}
            }
        }
        records.remove(key);
        if let Some(content) = content {
            records.insert(key.clone(), Record { bytes: content.into(), version, fence, written });
        }
    }
    records
}

/// The records that the transaction names as to be changed.
fn keys(transaction: &Transaction) -> BTreeSet<&Key> {
    let key = |change| match change {
        &Change::Put { ref record, .. } | &Change::Append { ref record, .. } | &Change::Delete { ref record } => record,
    };
    transaction.changes.iter().map(key).collect()
}

fn copy(records: &SharedMap<Key, Record>) -> BTreeMap<Key, Record> {
    records.iter().map(|(key, record)| (key.clone(), record.clone())).collect()
}

/// The bytes of all records: of each its key, its content, and 64 more.
pub(super) fn bytes(table: &LockTable) -> u64 {
    table.records().iter().map(|(key, record)| (key.as_str().len() + record.bytes.as_slice().len() + 64) as u64).sum()
}

/// Checks that there is one event for each record that changed, as it is now.
fn events_are_true(
    before: &LockTable,
    transaction: &Transaction,
    of: Version,
    told: &[&Event],
    after: &LockTable,
) -> Check {
    for key in keys(transaction) {
        let mut about = told.iter().filter(|event| match event {
            Event::Put { key: told, .. } | Event::Deleted { key: told, .. } => told == key,
            _ => false,
        });
        let (told, others) = (about.next(), about.count());
        let is_true = match (told, before.record(key), after.record(key)) {
            (Some(Event::Put { version, fence, .. }), _, Some(record)) => (*version, *fence) == (of, record.fence),
            (Some(Event::Deleted { version, .. }), Some(_), None) => *version == of,
            (None, None, None) => true,
            _ => false,
        };
        require!(NAME, is_true && others == 0, "{key} was changed by {transaction:?}, and events report {told:?}")?;
    }
    let changed = keys(transaction);
    let is_changed = |event: &&&Event| match event {
        Event::Put { key, .. } | Event::Deleted { key, .. } => changed.contains(key),
        _ => false,
    };
    require!(NAME, told.iter().all(|event| is_changed(&event)), "events report {told:?} of {transaction:?}")
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::{EntryStep, transactions_are_whole};
    use crate::invariants::states::{acquire, append, complaint, delete, id, put, table, transact, under, written};
    use crate::lock::{
        Bytes, Command, Condition, Event, LockTable, Reply, Sequence, Token, Transaction, Version, Writer,
    };
    use crate::raft::{Stamp, StateMachine};

    /// Session 1 holds k with token 1; r and s are records.
    fn stored() -> LockTable {
        let mut table = table(2);
        table.apply(Stamp(0), &acquire(1, 0, "k"));
        written(&mut table, 0, under(&[put("r", "x"), put("s", "x")], &[]));
        table
    }

    /// All kinds of changes, of which the last ones of a record build on one another.
    fn changes() -> Transaction {
        under(&[put("r", "y"), append("r", "z"), delete("s"), append("t", "new"), delete("none")], &[("k", 1)])
    }

    /// The detail of the violation if the transaction had this result.
    fn judge(command: &Command, at: u64, damage: impl FnOnce(&mut crate::lock::Outcome, &mut LockTable)) -> String {
        let (before, mut after) = (stored(), stored());
        let mut outcome = after.apply(Stamp(at), command);
        damage(&mut outcome, &mut after);
        complaint(transactions_are_whole(&EntryStep::new(&before, Stamp(at), Some(command), &outcome, &after)))
    }

    #[test]
    fn whole_transactions_are_sound() {
        let numbered = Writer::Session { session: id(2), sequence: Sequence::new(3) };
        for writer in [Writer::Client("".into()), numbered] {
            let command = Command::Transact { writer, transaction: changes() };
            assert_eq!(judge(&command, 0, |_, table| assert_eq!(table.records().len(), 2)), "");
        }
        let refused = transact(under(&[put("r", "y")], &[("k", 2)]));
        assert_eq!(judge(&refused, 0, |outcome, _| assert!(matches!(outcome.reply, Some(Reply::NotHeld { .. })))), "");
        assert_eq!(judge(&acquire(2, 0, "k"), 0, |_, _| ()), "");
    }

    #[test]
    fn part_of_a_transaction_is_seen() {
        let command = transact(changes());
        for name in ["r", "t"] {
            let complaint = judge(&command, 0, |_, table| drop(table.store_parts().records.remove(&name.into())));
            assert!(complaint.contains("made {"), "{complaint}");
        }
        for damage in [
            |table: &mut LockTable| table.store_parts().record("r").bytes = Bytes::from("y"),
            |table: &mut LockTable| table.store_parts().record("r").version = Version(1),
            |table: &mut LockTable| table.store_parts().record("r").fence = Some(Token(2)),
            |table: &mut LockTable| {
                table.store_parts().record("t").written = Sequence::new(1).map(|sequence| (id(1), sequence))
            },
            |table: &mut LockTable| {
                let record = table.record(&"r".into()).unwrap().clone();
                table.store_parts().records.insert("s".into(), record);
            },
        ] {
            let complaint = judge(&command, 0, |_, table| damage(table));
            assert!(complaint.contains("made {"), "{complaint}");
        }
    }

    #[test]
    fn change_by_a_refusal_or_by_another_command_is_seen() {
        let refused = transact(under(&[put("r", "y")], &[("k", 2)]));
        for command in [refused, acquire(2, 0, "k")] {
            let damaged = |damage: fn(&mut LockTable)| judge(&command, 0, |_, table| damage(table));
            assert!(
                damaged(|table| table.store_parts().record("r").bytes = Bytes::from("")).contains("changed records")
            );
            assert!(damaged(|table| *table.store_parts().next_version = Version(3)).contains("changed records"));
            let told = Event::Deleted { key: "r".into(), version: Version(1) };
            assert!(judge(&command, 0, |outcome, _| outcome.events.push(told)).contains("changed no record"));
        }
    }

    #[test]
    fn repetition_that_changes_records_is_seen() {
        let writer = Writer::Session { session: id(2), sequence: Sequence::new(1) };
        let command = Command::Transact { writer, transaction: under(&[put("r", "y")], &[]) };
        let mut before = stored();
        before.apply(Stamp(0), &command);
        let mut after = before.clone();
        let outcome = after.apply(Stamp(0), &command);
        assert_eq!(outcome.reply, Some(Reply::Written { version: Version(2) }));
        let judge = |after: &LockTable| {
            complaint(transactions_are_whole(&EntryStep::new(&before, Stamp(0), Some(&command), &outcome, after)))
        };
        assert_eq!(judge(&after), "");
        *after.store_parts().next_version = Version(4);
        assert!(judge(&after).contains("changed records"));
    }

    #[test]
    fn condition_that_was_not_met_is_seen() {
        let met = under(&[put("r", "y")], &[("k", 1)]);
        let version = |version| Condition::Version { record: "r".into(), version };
        for (condition, at) in [
            (Condition::Held { lock: "k".into(), token: Token(2) }, 0),
            (Condition::Held { lock: "l".into(), token: Token(1) }, 0),
            (Condition::Held { lock: "k".into(), token: Token(1) }, 101),
            (version(None), 0),
            (version(Some(Version(2))), 0),
        ] {
            let asked = transact(Transaction { conditions: [condition.clone()].into(), ..met.clone() });
            let (before, mut after) = (stored(), stored());
            let outcome = after.apply(Stamp(0), &transact(met.clone()));
            let complaint =
                complaint(transactions_are_whole(&EntryStep::new(&before, Stamp(at), Some(&asked), &outcome, &after)));
            assert!(complaint.ends_with("was not met"), "{condition:?}: {complaint}");
        }
    }

    #[test]
    fn version_that_was_given_before_is_seen() {
        let command = transact(changes());
        let complaint = judge(&command, 0, |_, table| *table.store_parts().next_version = Version(2));
        assert!(complaint.starts_with("version 2 was given between"), "{complaint}");
        let again = |outcome: &mut crate::lock::Outcome, _: &mut LockTable| {
            outcome.reply = Some(Reply::Written { version: Version(1) });
        };
        assert!(judge(&command, 0, again).starts_with("version 1 was given between"));
    }

    #[test]
    fn store_that_grows_past_its_limit_and_record_that_is_too_long_are_seen() {
        let (before, mut after) = (stored(), stored());
        let put = |text: &str| under(&[put("r", text)], &[]);
        let judge = |after: &mut LockTable, asked: Transaction, done: Transaction| {
            let outcome = after.apply(Stamp(0), &transact(done));
            complaint(transactions_are_whole(&EntryStep::new(
                &before,
                Stamp(0),
                Some(&transact(asked)),
                &outcome,
                after,
            )))
        };
        let limited = |text, limit| Transaction { limit, ..put(text) };
        assert_eq!(judge(&mut after.clone(), limited("xy", 133), limited("xy", 133)), "");
        assert_eq!(judge(&mut after.clone(), limited("y", 0), limited("y", 0)), "", "it keeps its size");
        let grown = judge(&mut after.clone(), limited("xy", 132), put("xy"));
        assert_eq!(grown, "the store grew from 132 to 133 bytes, and may have 132");
        let long = "x".repeat(65_537);
        let outcome = crate::lock::Outcome {
            reply: Some(Reply::Written { version: Version(2) }),
            events: [Event::Put { key: "r".into(), version: Version(2), fence: None }].into(),
        };
        after.apply(Stamp(0), &transact(put("y")));
        after.store_parts().record("r").bytes = Bytes::from(long.as_str());
        let asked = transact(put(&long));
        let complaint =
            complaint(transactions_are_whole(&EntryStep::new(&before, Stamp(0), Some(&asked), &outcome, &after)));
        assert_eq!(complaint, "a record of 65537 bytes was written");
    }

    #[test]
    fn event_that_is_missing_wrong_or_too_much_is_seen() {
        let command = transact(changes());
        for position in 0..3 {
            let complaint = judge(&command, 0, |outcome, _| drop(outcome.events.remove(position)));
            assert!(complaint.contains("events report None"), "{complaint}");
            let twice = |outcome: &mut crate::lock::Outcome, _: &mut LockTable| {
                outcome.events.push(outcome.events[position].clone());
            };
            assert!(judge(&command, 0, twice).contains("events report"));
        }
        for wrong in [
            Event::Put { key: "r".into(), version: Version(1), fence: Some(Token(1)) },
            Event::Put { key: "r".into(), version: Version(2), fence: None },
            Event::Deleted { key: "r".into(), version: Version(2) },
        ] {
            assert!(judge(&command, 0, |outcome, _| outcome.events[0] = wrong).contains("events report"));
        }
        let other = Event::Put { key: "other".into(), version: Version(2), fence: Some(Token(1)) };
        assert!(judge(&command, 0, |outcome, _| outcome.events.push(other)).contains("events report"));
    }
}
