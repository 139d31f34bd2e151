//! The key-value store: records beside the locks, in the same log.
//!
//! A resource that checks fencing tokens can still be written by a client that has lost its lock, until
//! its successor has written: the resource knows only the tokens that it has seen. Records know the locks.
//! An entry of the log that changes a record says under which grant ([`Condition::Held`]), and every
//! replica looks whether that grant is held at the stamp of that very entry. So no write of a former
//! holder is ever done, and no token need be remembered once its grant has ended.
//!
//! - A **record** has a key, a content and a version. Keys of records and keys of locks have nothing to do
//!   with each other.
//! - A **transaction** is done whole or not at all. Its reply names the first reason against it.
//! - A **version** is the number of the transaction that changed the record last. Numbers never come back,
//!   so a record that was deleted and written again has another version, and a client that compares
//!   versions ([`Condition::Version`]) notices every change.
//! - A record that was written under a token is **fenced**: only a transaction that holds some lock may
//!   change it, until such a transaction deletes it. So a client that forgets its token, or has none,
//!   cannot overwrite what the holder has written.

mod bytes;
mod transaction;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

pub use self::bytes::Bytes;
pub use self::transaction::{Change, Condition, Transaction, Writer};
use super::{Event, Key, LockTable, Principal, Reply, Right, Sequence, SessionId, SharedMap, Token, Version};
use crate::raft::Stamp;

/// The longest content of a record, in bytes.
pub const RECORD_BYTES: usize = 65_536;

/// What a record counts beside its key and its content, in bytes.
const RECORD_COST: u64 = 64;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// Its content.
    pub bytes: Bytes,
    /// The transaction that changed it last.
    pub version: Version,
    /// The greatest token that this transaction had to hold, if it had to hold any.
    pub fence: Option<Token>,
    /// The session and the number of this transaction, if it had one: a repetition of it is answered
    /// with this version.
    pub written: Option<(SessionId, Sequence)>,
}

/// All records.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub(super) struct Store {
    next_version: Version,
    /// The bytes of all records, as [`cost`] counts them.
    #[serde(skip)]
    bytes: u64,
    records: SharedMap<Key, Record>,
}

/// A serialized store. The number of bytes is recomputed, not read.
#[derive(Deserialize)]
#[serde(rename = "Store")]
struct Stored {
    next_version: Version,
    records: SharedMap<Key, Record>,
}

impl From<Stored> for Store {
    fn from(Stored { next_version, records }: Stored) -> Store {
        let bytes = records.iter().map(|(key, record)| cost(key, &record.bytes)).sum();
        Store { next_version, bytes, records }
    }
}

impl Default for Store {
    fn default() -> Store {
        Store { next_version: Version(1), bytes: 0, records: SharedMap::new() }
    }
}

impl Store {
    pub(super) fn skip_versions(&mut self, gap: u64) {
        self.next_version = Version(self.next_version.0 + gap);
    }
}

/// The bytes that a record counts.
fn cost(key: &Key, bytes: &Bytes) -> u64 {
    (key.as_str().len() + bytes.len()) as u64 + RECORD_COST
}

/// The records that a transaction changes, as they are after it; `None` is a record that is deleted.
type Changed<'a> = BTreeMap<&'a Key, Option<Bytes>>;

impl LockTable {
    /// The record of this key.
    pub fn record(&self, key: &Key) -> Option<&Record> {
        self.store.records.get(key)
    }

    /// All records, in the order of their keys.
    pub fn records(&self) -> &SharedMap<Key, Record> {
        &self.store.records
    }

    /// The bytes of all records: of each its key, its content, and 64 more.
    pub fn stored_bytes(&self) -> u64 {
        self.store.bytes
    }

    /// The version that the next transaction will have.
    pub fn next_version(&self) -> Version {
        self.store.next_version
    }

    /// Does a transaction that has not been done, for a client.
    pub(super) fn transact(
        &mut self,
        at: Stamp,
        principal: &Principal,
        number: Option<(SessionId, Sequence)>,
        transaction: &Transaction,
        events: &mut Vec<Event>,
    ) -> Reply {
        if !self.may_transact(principal, transaction) {
            return Reply::Denied;
        }
        let unmet = transaction.conditions.iter().find_map(|condition| self.unmet(at, condition, transaction));
        match unmet.map_or_else(|| self.store.changed(transaction), Err) {
            Ok(changed) => self.store.change(changed, transaction.fence(), number, events),
            Err(refusal) => refusal,
        }
    }

    /// Whether the access rules in force permit it: to write the records that it changes, and to read those
    /// whose versions it compares.
    fn may_transact(&self, principal: &Principal, transaction: &Transaction) -> bool {
        let may = |right: Right, key: &Key| self.access.permits(principal, right, key.as_str());
        let may_compare = |condition: &Condition| match condition {
            Condition::Held { .. } => true,
            Condition::Version { record, .. } => may(Right::Read, record),
        };
        transaction.changes.iter().all(|change| may(Right::Write, change.record()))
            && transaction.conditions.iter().all(may_compare)
    }

    /// The refusal of a transaction, one of whose conditions this is; `None` if it is met.
    fn unmet(&self, at: Stamp, condition: &Condition, transaction: &Transaction) -> Option<Reply> {
        match condition {
            Condition::Held { lock, token } => {
                let holder = self.locks.get(lock).and_then(|held| held.holder_with(*token));
                if holder.is_some_and(|holder| !self.sessions[&holder.session].is_due(at)) {
                    return None;
                }
                let holders = self.locks.get(lock).into_iter().flat_map(|held| held.holders.iter());
                let changed = transaction.changes.iter().filter_map(|change| self.record(change.record())?.fence);
                let seen = holders.map(|holder| holder.token).chain(changed).max();
                Some(Reply::NotHeld { lock: lock.clone(), token: *token, seen })
            }
            Condition::Version { record, version } => {
                let present = self.record(record).map(|record| record.version);
                (present != *version).then(|| Reply::OtherVersion { record: record.clone(), version: present })
            }
        }
    }
}

#[cfg(test)]
impl LockTable {
    /// The parts of the store, for tests of states that no command reaches.
    pub(crate) fn store_parts(&mut self) -> Parts<'_> {
        let Store { next_version, bytes, records } = &mut self.store;
        Parts { next_version, bytes, records }
    }
}

/// The parts that the invariants compare.
#[cfg(test)]
pub(crate) struct Parts<'a> {
    pub(crate) next_version: &'a mut Version,
    pub(crate) bytes: &'a mut u64,
    pub(crate) records: &'a mut SharedMap<Key, Record>,
}

#[cfg(test)]
impl Parts<'_> {
    pub(crate) fn record(&mut self, name: &str) -> &mut Record {
        self.records.get_mut(&name.into()).expect("it exists")
    }
}

impl Store {
    /// What a transaction whose conditions are met makes of the records, or the reason against it.
    fn changed<'a>(&self, transaction: &'a Transaction) -> Result<Changed<'a>, Reply> {
        if transaction.fence().is_none() {
            for record in transaction.changes.iter().map(Change::record) {
                if let Some(fence) = self.records.get(record).and_then(|record| record.fence) {
                    return Err(Reply::Fenced { record: record.clone(), fence });
                }
            }
        }
        let mut changed = Changed::new();
        for change in &transaction.changes {
            let record = change.record();
            let before = || {
                let present = || self.records.get(record).map(|record| record.bytes.clone());
                changed.get(record).cloned().unwrap_or_else(present)
            };
            let before = if let Change::Append { .. } = change { before() } else { None };
            let (Change::Put { bytes, .. } | Change::Append { bytes, .. }) = change else {
                changed.insert(record, None);
                continue;
            };
            let length = before.as_ref().map_or(0, Bytes::len) + bytes.len();
            if length > RECORD_BYTES {
                return Err(Reply::RecordTooLarge { record: record.clone(), length: length as u64 });
            }
            let bytes = before.map_or_else(|| bytes.clone(), |before| before.with(bytes));
            changed.insert(record, Some(bytes));
        }
        let bytes = self.bytes_after(&changed);
        if bytes > transaction.limit && bytes > self.bytes {
            return Err(Reply::StoreFull { bytes, limit: transaction.limit });
        }
        Ok(changed)
    }

    fn bytes_after(&self, changed: &Changed<'_>) -> u64 {
        let present = |key: &Key| self.records.get(key).map_or(0, |record| cost(key, &record.bytes));
        let before: u64 = changed.keys().map(|key| present(key)).sum();
        let after: u64 = changed.iter().filter_map(|(key, bytes)| Some(cost(key, bytes.as_ref()?))).sum();
        self.bytes - before + after
    }

    /// Changes the records, in one transaction.
    fn change(
        &mut self,
        changed: Changed<'_>,
        fence: Option<Token>,
        written: Option<(SessionId, Sequence)>,
        events: &mut Vec<Event>,
    ) -> Reply {
        let version = self.next_version;
        self.next_version = Version(version.0 + 1);
        self.bytes = self.bytes_after(&changed);
        for (key, bytes) in changed {
            let key = key.clone();
            if let Some(bytes) = bytes {
                self.records.insert(key.clone(), Record { bytes, version, fence, written });
                events.push(Event::Put { key, version, fence });
            } else if self.records.remove(&key).is_some() {
                events.push(Event::Deleted { key, version });
            }
        }
        Reply::Written { version }
    }

    /// Answers a repeated transaction from the state: it was done, if a record that it changes has its number.
    pub(super) fn written_before(&self, number: (SessionId, Sequence), transaction: &Transaction) -> Reply {
        let records = transaction.changes.iter().filter_map(|change| self.records.get(change.record()));
        let mut written = records.filter(|record| record.written == Some(number));
        written.next().map_or(Reply::Gone, |record| Reply::Written { version: record.version })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};

    use super::{Bytes, Record, Version};
    use crate::invariants::states::{acquire, complaint, delete, id, key, put, table, under, written};
    use crate::invariants::table_is_sound;
    use crate::lock::{Command, LockTable, Sequence, Token, Writer};
    use crate::raft::{MAX_NUMBER, Stamp, StateMachine};

    /// A table with records of every kind: fenced, numbered, empty, and of bytes that are no text.
    fn filled() -> LockTable {
        let mut table = table(1);
        table.apply(Stamp(0), &acquire(1, 0, "k"));
        written(&mut table, 0, under(&[put("fenced", "x"), put("gone", "x")], &[("k", 1)]));
        written(&mut table, 0, under(&[put("empty", ""), delete("gone")], &[("k", 1)]));
        let writer = Writer::Session { session: id(1), sequence: Sequence::new(7) };
        let bytes = Bytes::from([0xff, 0, b'"'].to_vec());
        let transaction = under(&[super::Change::Put { record: key("numbered"), bytes }], &[]);
        table.apply(Stamp(0), &Command::Transact { writer, transaction });
        assert_eq!((table.records().len(), table.next_version()), (3, Version(4)));
        table
    }

    #[test]
    fn stored_records_are_read_back_and_their_bytes_are_counted_again() {
        let table = filled();
        let text = serde_json::to_string(&table).unwrap();
        let read: LockTable = serde_json::from_str(&text).unwrap();
        assert_eq!((&read, read.stored_bytes()), (&table, 3 * 64 + 7 + 5 + 11));
        let number = Sequence::new(7).map(|sequence| (id(1), sequence));
        let bytes = Bytes::from([0xff, 0, b'"'].to_vec());
        let expected = Record { bytes, version: Version(3), fence: None, written: number };
        assert_eq!(read.record(&key("numbered")), Some(&expected));
        assert_eq!(read.record(&key("fenced")).unwrap().fence, Some(Token(1)));
        assert!(!text.contains("215"), "the sum is not written: {text}");
    }

    #[test]
    fn table_without_records_is_written_in_json_as_before_there_were_any() {
        let text = serde_json::to_string(&table(1)).unwrap();
        assert!(!text.contains("store"), "{text}");
        assert_eq!(serde_json::from_str::<LockTable>(&text).unwrap(), table(1));
        let mut emptied = table(1);
        written(&mut emptied, 0, under(&[delete("r")], &[]));
        let text = serde_json::to_string(&emptied).unwrap();
        assert_eq!(serde_json::from_str::<LockTable>(&text).unwrap(), emptied, "its next version is kept: {text}");
    }

    /// A damaged file is refused, or it is a table with other records, whose bytes are counted.
    #[test]
    fn damaged_store_is_no_panic() {
        let text = serde_json::to_string(&filled()).unwrap();
        let store = text.find("\"store\"").unwrap();
        let in_order = [&text[..store], &text[store..].replace("numbered", "a")].concat();
        assert!(serde_json::from_str::<LockTable>(&in_order).is_err(), "its keys are not in order");
        for (from, to) in [("\"x\"", "\"xyz\""), ("\"version\":1", "\"version\":9"), ("[255,0,34]", "[]")] {
            let damaged: String = [&text[..store], &text[store..].replace(from, to)].concat();
            assert_ne!(damaged, text);
            let mut read: LockTable = serde_json::from_str(&damaged).unwrap();
            let counted: usize =
                read.records().iter().map(|(key, record)| key.as_str().len() + record.bytes.len()).sum();
            assert_eq!(read.stored_bytes(), counted as u64 + 3 * 64);
            written(&mut read, 0, under(&[delete("fenced"), put("other", "x")], &[("k", 1)]));
            assert!(read.record(&key("other")).is_some() && read.record(&key("fenced")).is_none());
        }
        for cut in (store..text.len()).step_by(7) {
            assert!(serde_json::from_str::<LockTable>(&text[..cut]).is_err());
        }
    }

    #[test]
    fn next_version_is_limited() {
        let mut table = filled();
        *table.store_parts().next_version = Version(MAX_NUMBER);
        assert!(table.in_range());
        *table.store_parts().next_version = Version(MAX_NUMBER + 1);
        assert!(!table.in_range());
    }

    /// Copies share their records until one of them changes.
    #[test]
    fn copy_is_not_changed_with_its_original() {
        let mut table = filled();
        let copy = table.clone();
        written(&mut table, 0, under(&[put("fenced", "y")], &[("k", 1)]));
        assert_eq!(copy, filled());
        assert_eq!(table.record(&key("fenced")).unwrap().bytes.as_slice(), b"y");
        assert_eq!((complaint(table_is_sound(&copy)), complaint(table_is_sound(&table))), Default::default());
        assert_eq!(Version(4).to_string(), "4");
    }
}
