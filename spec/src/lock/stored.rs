//! Writes a table to a snapshot, and reads its locks back.
//!
//! Each key of a claim has the claim's details: all its keys, and its value. They are written once, at the
//! first key, and given to the others when the table is read, which then share them again.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use super::details::Details;
use super::keys::Several;
use super::store::Store;
use super::{Holder, Key, Lock, LockTable, Mode, Sequence, SessionId, SharedMap, Token, Waiter};

/// A table is written field by field. In JSON, which has the names of fields, one without a store is written as
/// before there were stores: so a recording or a trace of locks alone has nothing to say about records.
impl Serialize for LockTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let LockTable {
            sweep,
            next_session,
            next_token,
            sessions,
            deadlines,
            contended,
            locks,
            claimed: _,
            access,
            store,
        } = self;
        let has_store = !serializer.is_human_readable() || *store != Store::default();
        let mut table = serializer.serialize_struct("LockTable", 8 + usize::from(has_store))?;
        table.serialize_field("sweep", sweep)?;
        table.serialize_field("next_session", next_session)?;
        table.serialize_field("next_token", next_token)?;
        table.serialize_field("sessions", sessions)?;
        table.serialize_field("deadlines", deadlines)?;
        table.serialize_field("contended", contended)?;
        table.serialize_field("locks", &Locks(locks))?;
        table.serialize_field("access", access)?;
        if has_store {
            table.serialize_field("store", store)?;
        }
        table.end()
    }
}

/// The locks as a sequence of keys and locks.
struct Locks<'a>(&'a SharedMap<Key, Lock>);

impl Serialize for Locks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for (key, lock) in self.0.iter() {
            list.serialize_element(&(key, StoredLock::new(key, lock)))?;
        }
        list.end()
    }
}

/// As [`Lock`].
#[derive(Serialize)]
struct StoredLock<'a> {
    holders: Vec<StoredHolder<'a>>,
    queue: Vec<StoredWaiter<'a>>,
}

/// As [`Holder`].
#[derive(Serialize)]
struct StoredHolder<'a> {
    session: SessionId,
    token: Token,
    sequence: Option<Sequence>,
    mode: Mode,
    holds: u32,
    details: &'a Details,
}

/// As [`Waiter`].
#[derive(Serialize)]
struct StoredWaiter<'a> {
    session: SessionId,
    sequence: Option<Sequence>,
    mode: Mode,
    details: &'a Details,
}

impl<'a> StoredLock<'a> {
    fn new(key: &Key, lock: &'a Lock) -> StoredLock<'a> {
        const NONE: &Details = &Details::NONE;
        let once = |details: &'a Details| if details.keys(key).first() == key { details } else { NONE };
        let holders = lock.holders.iter().map(|holder| {
            let Holder { session, token, sequence, mode, holds, ref details } = *holder;
            StoredHolder { session, token, sequence, mode, holds, details: once(details) }
        });
        let queue = lock.queue.iter().map(|waiter| {
            let Waiter { session, sequence, mode, ref details } = *waiter;
            StoredWaiter { session, sequence, mode, details: once(details) }
        });
        StoredLock { holders: holders.collect(), queue: queue.collect() }
    }
}

/// Gives the details of each claim on several keys, which its first key has, to all its keys. What a later
/// key has is ignored: so even a damaged table is read back as it is written.
pub(super) fn share_details(locks: &mut SharedMap<Key, Lock>) {
    let mut shared: BTreeMap<Key, BTreeMap<SessionId, Details>> = BTreeMap::new();
    for (key, lock) in locks.iter() {
        let holders = lock.holders.iter().map(|holder| (holder.session, &holder.details));
        let waiters = lock.queue.iter().map(|waiter| (waiter.session, &waiter.details));
        for (session, details) in holders.chain(waiters) {
            if shared.get(key).is_some_and(|shared| shared.contains_key(&session)) {
                continue;
            }
            match details.several().map(Several::as_slice) {
                Some([first, others @ ..]) if first == key => {
                    for other in others {
                        shared.entry(other.clone()).or_default().entry(session).or_insert_with(|| details.clone());
                    }
                }
                Some(_) => drop(shared.entry(key.clone()).or_default().insert(session, Details::NONE)),
                None => {}
            }
        }
    }
    for (key, details) in shared {
        if let Some(lock) = locks.get_mut(&key) {
            lock.set_details(&details);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec::Vec;

    use crate::invariants::states::{id, key, table};
    use crate::lock::{Command, Keys, LockRequest, LockTable, Mode};
    use crate::raft::{Stamp, StateMachine};

    fn acquire(session: u64, keys: &[&str], mode: Mode, value: Option<&str>) -> Command {
        let keys = Keys::new(keys.iter().map(|name| key(name)).collect()).unwrap();
        let value = value.map(Into::into);
        let request = LockRequest { mode, value, ..LockRequest::exclusive(keys, true) };
        Command::Acquire { session: id(session), sequence: None, request }
    }

    /// Holders and waiters with values, on one key and on several, of which the same key is the first and a
    /// later one.
    fn filled() -> LockTable {
        let mut table = table(7);
        for command in [
            acquire(1, &["a", "b", "c"], Mode::SHARED, Some("one")),
            acquire(2, &["b", "c"], Mode::SHARED, None),
            acquire(3, &["b"], Mode::SHARED, Some("three")),
            acquire(4, &["b", "d"], Mode::EXCLUSIVE, Some("four")),
            acquire(5, &["c", "d"], Mode::EXCLUSIVE, None),
            acquire(6, &["e"], Mode::EXCLUSIVE, Some("six")),
            acquire(7, &["f"], Mode::EXCLUSIVE, None),
        ] {
            table.apply(Stamp(0), &command);
        }
        table
    }

    #[test]
    fn details_are_written_once_and_read_at_every_key() {
        let table = filled();
        let text = serde_json::to_string(&table).unwrap();
        let written: Vec<usize> = ["one", "three", "four", "six"].map(|value| text.matches(value).count()).into();
        assert_eq!(written, [1, 1, 1, 1], "{text}");
        let read: LockTable = serde_json::from_str(&text).unwrap();
        assert_eq!(read, table);
        let value = |at: &str, index: usize| read.lock(&key(at)).unwrap().holders[index].value().unwrap().as_str();
        let addresses = [value("a", 0), value("b", 0), value("c", 0)].map(str::as_ptr);
        assert!(addresses.iter().all(|address| *address == addresses[0]), "the keys of a claim share its value");
    }

    /// A damaged file may have lists of keys that contradict one another.
    #[test]
    fn damaged_lists_are_read_back_as_they_are_written() {
        let text = serde_json::to_string(&filled()).unwrap();
        let nothing = "{\"several\":null,\"value\":null}";
        assert!(text.matches(nothing).count() > 3, "{text}");
        for lists in [r#"["A","b"]"#, r#"["x","y"]"#, r#"["b","c"]"#, r#"["c","d"]"#] {
            for (at, _) in text.match_indices(nothing) {
                let list = alloc::format!("{{\"several\":{lists},\"value\":\"other\"}}");
                let damaged: String = [&text[..at], &list, &text[at + nothing.len()..]].concat();
                let read: LockTable = serde_json::from_str(&damaged).unwrap();
                let again: LockTable = serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
                assert_eq!(again, read, "{damaged}");
            }
        }
    }

    /// A file may say that a key has a claim of which the key itself knows nothing.
    #[test]
    fn claim_that_is_missing_at_a_key_is_no_panic() {
        let text = serde_json::to_string(&filled()).unwrap();
        let of_d = text.find("[\"d\",{\"holders\"").unwrap();
        let end = of_d + text[of_d..].find("[\"e\",{").unwrap();
        let text: String = [&text[..of_d], &text[end..]].concat();
        let read: LockTable = serde_json::from_str(&text).unwrap();
        assert!(read.lock(&key("d")).is_none() && read.lock(&key("b")).is_some());
    }
}
