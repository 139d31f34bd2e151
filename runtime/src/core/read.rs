//! Reads of the lock table, as clients see it.

use std::time::Duration;

use palisade_client::wire::{
    AccessVerdict, Answer, Failure, Listing, LockPage, LockView, RecordPage, RecordSummary, Stale, Watched,
};
use palisade_spec::lock::{Key, LockTable, Principal, Right};
use palisade_spec::raft::{Node, Stamp};

use super::query::Query;
use super::{access, locks, records, sessions};
use crate::limits;

/// Answers a reader's query from the applied state, by the access rules of that state.
pub(super) fn answer(
    node: &Node<LockTable>,
    query: &Query,
    reader: &Principal,
    age: Option<Age>,
) -> Result<Answer, Failure> {
    let (table, now) = (node.machine(), node.clock());
    match query {
        Query::Session(id) => sessions::show(table, now, *id),
        // Its client may know of its own grant, whatever else it may read.
        Query::Grant { session, secret, keys } => sessions::grant(table, *session, *secret, keys),
        Query::Lock(key) => {
            access::check(table.access(), reader, Right::Read, key.as_str())?;
            let view = locks::show(table, now, reader, key, table.lock(key));
            Ok(match age {
                None => Answer::Lock(view),
                Some(age) => Answer::StaleLock(age.of(view)),
            })
        }
        Query::Locks { prefix, after, limit } => {
            let view = locks::list(table, now, reader, prefix, after.as_ref(), *limit);
            Ok(match age {
                None => Answer::Locks(view),
                Some(age) => Answer::StaleLocks(age.of(view)),
            })
        }
        Query::Record(key) => {
            access::check(table.access(), reader, Right::Read, key.as_str())?;
            let view = records::show(table, key)?;
            Ok(match age {
                None => Answer::Record(view),
                Some(age) => Answer::StaleRecord(age.of(view)),
            })
        }
        Query::Records { prefix, after, limit } => {
            let view = records::list(table, reader, prefix, after.as_ref(), *limit);
            Ok(match age {
                None => Answer::Records(view),
                Some(age) => Answer::StaleRecords(age.of(view)),
            })
        }
        Query::Listing(key) => {
            access::check(table.access(), reader, Right::Read, key.as_str())?;
            let locks =
                table.lock(key).map(|found| locks::show(table, now, reader, key, Some(found))).into_iter().collect();
            let records = table.record(key).map(|record| records::summary(key, record)).into_iter().collect();
            let revision = node.commit().0;
            let listing = Listing { revision, begins: true, locks, records, complete: true };
            Ok(Answer::Watched(Watched::Listing(listing)))
        }
        Query::ListingOf { prefix, after } => {
            let listing = listing_of(node, reader, prefix, after.as_ref(), limits::PAGE);
            Ok(Answer::Watched(Watched::Listing(listing)))
        }
        Query::Access => {
            access::check(table.access(), reader, Right::Admin, "")?;
            Ok(Answer::Access(access::document(table.access())))
        }
        Query::Permits { principal, right, key } => {
            // A denial tells a client as much of its own rights.
            if principal != reader {
                access::check(table.access(), reader, Right::Admin, "")?;
            }
            let (permitted, why) = access::verdict(table.access(), principal, *right, key);
            Ok(Answer::AccessVerdict(AccessVerdict { permitted, why }))
        }
    }
}

/// Time since this node's state was known to be current; `None` if it never was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age(pub(super) Option<Duration>);

impl Age {
    fn of<T>(self, view: T) -> Stale<T> {
        let age_ms = self.0.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        Stale { view, age_ms }
    }
}

/// Number of holders, waiters and records in an answer: its cost. A claim on several keys counts once for each of
/// them, and 100 bytes of values and contents count as one more.
pub(super) fn claims(answer: &Answer) -> usize {
    let of_lock = |lock: &LockView| {
        let values: usize = lock.holders.iter().filter_map(|holder| holder.value.as_ref()).map(String::len).sum();
        let holders: usize = lock.holders.iter().map(|holder| holder.keys.len().max(1)).sum();
        let waiters: usize = lock.queue.iter().map(|waiter| waiter.keys.len().max(1)).sum();
        holders.max(1) + waiters + values / 100
    };
    match answer {
        Answer::SessionView(session) => 1 + session.keys.len(),
        Answer::Lock(lock) | Answer::StaleLock(Stale { view: lock, .. }) => of_lock(lock),
        Answer::Locks(page) | Answer::StaleLocks(Stale { view: page, .. }) => {
            page.locks.iter().map(of_lock).sum::<usize>().max(1)
        }
        Answer::Record(record) | Answer::StaleRecord(Stale { view: record, .. }) => 1 + record.value.0.len() / 100,
        Answer::Records(page) | Answer::StaleRecords(Stale { view: page, .. }) => page.records.len().max(1),
        Answer::Watched(Watched::Listing(Listing { locks, records, .. })) => {
            (locks.iter().map(of_lock).sum::<usize>() + records.len()).max(1)
        }
        _ => 1,
    }
}

/// About how many bytes of memory an answer takes, if it may be a large one.
pub(super) fn weight(answer: &Answer) -> usize {
    match answer {
        Answer::SessionView(session) => texts(&session.keys),
        Answer::Lock(lock) | Answer::StaleLock(Stale { view: lock, .. }) => weight_of_lock(lock),
        Answer::Locks(page) | Answer::StaleLocks(Stale { view: page, .. }) => {
            page.locks.iter().map(weight_of_lock).sum()
        }
        Answer::Record(record) | Answer::StaleRecord(Stale { view: record, .. }) => record.value.0.len(),
        Answer::Records(page) | Answer::StaleRecords(Stale { view: page, .. }) => {
            page.records.iter().map(weight_of_record).sum()
        }
        Answer::Access(_) => limits::ACCESS_BYTES,
        // Listings of watches are weighed where they are made (`http/watch.rs`).
        _ => 0,
    }
}

/// About how many bytes of memory a part of a watch's listing takes.
pub fn weight_of_listing(listing: &Listing) -> usize {
    let locks = listing.locks.iter().map(weight_of_lock);
    locks.chain(listing.records.iter().map(weight_of_record)).sum()
}

fn weight_of_lock(lock: &LockView) -> usize {
    const CLAIM: usize = 200;
    // The first holder is there twice.
    let holders =
        lock.holders.iter().chain(&lock.holder).map(|holder| {
            CLAIM + holder.owner.len() + texts(&holder.keys) + holder.value.as_ref().map_or(0, String::len)
        });
    let waiters = lock.queue.iter().map(|waiter| CLAIM + waiter.owner.len() + texts(&waiter.keys));
    lock.key.len() + holders.chain(waiters).sum::<usize>()
}

fn weight_of_record(record: &RecordSummary) -> usize {
    record.key.len() + size_of::<RecordSummary>()
}

fn texts(texts: &[String]) -> usize {
    texts.iter().map(|text| text.len() + size_of::<String>()).sum()
}

/// A part of a watch's listing: the locks and records of the applied state that begin with `prefix`, come after
/// the key `after`, and may be read by this reader; of both together, up to the key that is the last one of
/// `limit` locks or of `limit` records.
pub fn listing_of(
    node: &Node<LockTable>,
    reader: &Principal,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Listing {
    let listed = listing(node.machine(), node.clock(), reader, prefix, after, limit);
    Listing { revision: node.commit().0, ..listed }
}

/// The same of a table. The caller says of which revision it is.
fn listing(
    table: &LockTable,
    now: Stamp,
    reader: &Principal,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Listing {
    let LockPage { mut locks, next_after: locks_to } = locks::list(table, now, reader, prefix, after, limit);
    let RecordPage { mut records, next_after: records_to, .. } = records::list(table, reader, prefix, after, limit);
    let last = locks_to.into_iter().chain(records_to).min();
    if let Some(last) = &last {
        locks.retain(|lock| lock.key <= *last);
        records.retain(|record| record.key <= *last);
    }
    Listing { revision: 0, begins: after.is_none(), locks, records, complete: last.is_none() }
}

#[cfg(test)]
mod tests;
