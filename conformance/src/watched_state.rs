//! The state that a watcher knows: it follows from a listing and the events after it.
//!
//! The simulation and the torture follow watchers with it. It says itself what an event changes; the server's
//! code that makes events of what happens in the lock table is what it judges.

use std::collections::BTreeMap;

use palisade_client::wire::{Change, Event, Listing, LockView};
use palisade_spec::lock::{Key, Lock, LockTable, Value};

/// Locks that are held or waited for, and the versions of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchedState {
    locks: BTreeMap<String, WatchedLock>,
    records: BTreeMap<String, u64>,
}

/// A lock as a watcher knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WatchedLock {
    /// The session and the value of each grant, by its token.
    holders: BTreeMap<u64, (u64, Option<String>)>,
    /// The waiting sessions, first come first.
    queue: Vec<u64>,
}

impl WatchedState {
    /// What a listing, or a part of one, shows.
    pub(crate) fn listed(listing: &Listing) -> WatchedState {
        let lock = |view: &LockView| {
            let holders = view.holders.iter().map(|holder| (holder.token, (holder.session, holder.value.clone())));
            let queue = view.queue.iter().map(|waiter| waiter.session).collect();
            (view.key.clone(), WatchedLock { holders: holders.collect(), queue })
        };
        let records = listing.records.iter().map(|record| (record.key.clone(), record.version));
        WatchedState { locks: listing.locks.iter().map(lock).collect(), records: records.collect() }
    }

    /// What a table has of the keys that are followed.
    pub(crate) fn of(table: &LockTable, follows: impl Fn(&Key) -> bool) -> WatchedState {
        let lock = |(key, lock): (&Key, &Lock)| {
            let value = |value: Option<&Value>| value.map(|value| value.as_str().to_owned());
            let holders = lock.holders.iter().map(|held| (held.token.0, (held.session.number, value(held.value()))));
            let queue = lock.queue.iter().map(|waiter| waiter.session.number).collect();
            (key.to_string(), WatchedLock { holders: holders.collect(), queue })
        };
        let locks = table.locks().iter().filter(|(key, _)| follows(key)).map(lock).collect();
        let records = table.records().iter().filter(|(key, _)| follows(key));
        WatchedState { locks, records: records.map(|(key, record)| (key.to_string(), record.version.0)).collect() }
    }

    /// The next part of the listing.
    pub(crate) fn extend(&mut self, part: WatchedState) {
        self.locks.extend(part.locks);
        self.records.extend(part.records);
    }

    /// An event has happened.
    pub(crate) fn follow(&mut self, Event { key, change, .. }: &Event) {
        let lock = self.locks.entry(key.clone()).or_default();
        match change {
            Change::Granted { session, token, value, .. } => {
                lock.queue.retain(|waiter| waiter != session);
                lock.holders.insert(*token, (*session, value.clone()));
            }
            Change::Queued { session, .. } => lock.queue.push(*session),
            Change::Value { token, value, .. } => {
                if let Some((_, current)) = lock.holders.get_mut(token) {
                    *current = Some(value.clone());
                }
            }
            Change::Released { token, .. } => drop(lock.holders.remove(token)),
            Change::Withdrawn { session, .. } => lock.queue.retain(|waiter| waiter != session),
            Change::Put { version, .. } => drop(self.records.insert(key.clone(), *version)),
            Change::Deleted { .. } => drop(self.records.remove(key)),
            Change::Expired { .. } | Change::Broken { .. } => {}
        }
        self.locks.retain(|_, lock| *lock != WatchedLock::default());
    }
}
