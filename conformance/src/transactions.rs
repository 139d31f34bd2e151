//! Transactions of the clients of a simulation or a torture: as histories have them, and as the wire has them.

use palisade_client::wire;
use palisade_history::{Answer, Call, Change, Key};

/// The transaction that a call asks for, without its session.
pub(crate) fn on_wire(transaction: &Call) -> wire::Transaction {
    let text = |key: &Key| key.0.to_string();
    let held = transaction.must_hold().map(|(lock, token)| wire::Condition::Held { lock: text(lock), token });
    let compared =
        transaction.must_have().map(|(record, version)| wire::Condition::Version { key: text(record), version });
    let changes = transaction.changes().map(|(record, change)| match (text(record), change) {
        (key, Change::Put(text)) => wire::RecordChange::Put { key, value: (&**text).into() },
        (key, Change::Append(text)) => wire::RecordChange::Append { key, value: (&**text).into() },
        (key, Change::Delete) => wire::RecordChange::Delete { key },
    });
    wire::Transaction { session: None, conditions: held.chain(compared).collect(), changes: changes.collect() }
}

/// What a read shows of a record, whose content is a text.
pub(crate) fn shown(record: &wire::RecordView) -> Answer {
    let value = record.value.as_text().expect("clients write texts").into();
    Answer::Record { version: record.version, value }
}
