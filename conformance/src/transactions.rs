//! Transactions of the clients of a simulation or a torture: as histories have them, as the wire has them, and as a node
//! proposes them.

use palisade_client::wire;
use palisade_history::{Call, Change, Key};
use palisade_spec::lock;

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

/// The same as a node proposes it, with conditions and changes in the same order. Its limit is the server's.
pub(crate) fn as_proposed(transaction: &Call) -> lock::Transaction {
    let key = |key: &Key| lock::Key::from(&*key.0);
    let held = transaction.must_hold();
    let held = held.map(|(name, token)| lock::Condition::Held { lock: key(name), token: lock::Token(token) });
    let compared = transaction.must_have().map(|(record, version)| {
        let version = (version > 0).then_some(lock::Version(version));
        lock::Condition::Version { record: key(record), version }
    });
    let bytes = |text: &str| lock::Bytes::from(text);
    let changes = transaction.changes().map(|(record, change)| match (key(record), change) {
        (record, Change::Put(text)) => lock::Change::Put { record, bytes: bytes(text) },
        (record, Change::Append(text)) => lock::Change::Append { record, bytes: bytes(text) },
        (record, Change::Delete) => lock::Change::Delete { record },
    });
    lock::Transaction { conditions: held.chain(compared).collect(), changes: changes.collect(), limit: 0 }
}
