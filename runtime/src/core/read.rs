//! Reads of the lock table, as clients see it.

use std::ops::Bound;
use std::time::Duration;

use palisade_client::wire::{
    self, AccessVerdict, Acquired, Answer, Code, Failure, HolderView, Listing, LockPage, LockView, RecordPage,
    SessionView, Stale, WaiterView, Watched,
};
use palisade_spec::lock::{
    Access, Entries, Key, Keys, Lock, LockTable, Mode, Principal, Proof, Right, SessionId, SharedMap, Token, Value,
};
use palisade_spec::raft::{Node, Stamp};

use super::credential::Secret;
use super::request::Query;
use super::{access, records};
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
        Query::Session(id) => session(table, now, *id),
        // Its client may know of its own grant, whatever else it may read.
        Query::Grant { session, secret, keys } => grant(table, *session, *secret, keys),
        Query::Lock(key) => {
            access::check(table.access(), reader, Right::Read, key.as_str())?;
            let view = lock(table, now, reader, key, table.lock(key));
            Ok(match age {
                None => Answer::Lock(view),
                Some(age) => Answer::StaleLock(age.of(view)),
            })
        }
        Query::Locks { prefix, after, limit } => {
            let view = locks(table, now, reader, prefix, after.as_ref(), *limit);
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
            let locks = table.lock(key).map(|found| lock(table, now, reader, key, Some(found))).into_iter().collect();
            let records = table.record(key).map(|record| records::summary(key, record)).into_iter().collect();
            let revision = node.commit().0;
            let listing = Listing { revision, begins: true, locks, records, complete: true };
            Ok(Answer::Watched(Watched::Listing(listing)))
        }
        Query::ListingOf { prefix, after } => {
            let listed = listing(table, now, reader, prefix, after.as_ref(), limits::PAGE);
            Ok(Answer::Watched(Watched::Listing(Listing { revision: node.commit().0, ..listed })))
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

/// The failure of a request in the name of a session that does not exist.
pub(super) fn no_session(table: &LockTable, id: SessionId) -> Failure {
    wrong_secret(table, id).unwrap_or_else(|| {
        let message = "the session does not exist: it expired, was closed, or was never opened";
        Failure::new(Code::NoSession, message)
    })
}

/// The failure of a request that names a live session's number and is not of its client.
pub(super) fn wrong_secret(table: &LockTable, id: SessionId) -> Option<Failure> {
    let first = SessionId { proof: Proof::default(), ..id };
    let live = table.sessions().range_from(Bound::Included(&first)).next().map(|(live, _)| *live);
    live.filter(|live| live.number == id.number && live.proof != id.proof).map(|live| {
        let message = format!(
            "session {} is another client's: its secret, or the identity under which it is presented, is another one; open a session of your own",
            live.number
        );
        Failure::new(Code::NoSession, message)
    })
}

/// The failure of a request that names a grant that its session does not have.
pub(super) fn not_holder() -> Failure {
    let message = "the session does not hold the lock with this token: \
                   the lock was released before, or the session expired";
    Failure::new(Code::NotHolder, message)
}

/// The failure of a renewal whose session has lost the grant.
pub(super) fn grant_lost(key: &Key, token: Token) -> Failure {
    let message = format!(
        "the session is alive, and no longer holds {key} with token {token}: another request with its credential has \
         released the lock, or an operator broke the grant"
    );
    Failure::new(Code::NotHolder, message)
}

/// The answer to a granted acquire. The table may be some entries ahead of the grant; if the
/// session has ended in them, so has the grant.
pub(super) fn acquired(
    table: &LockTable,
    keys: &Keys,
    id: SessionId,
    secret: Secret,
    token: Token,
) -> Result<Answer, Failure> {
    let ttl_ms = table.session(id).ok_or_else(|| no_session(table, id))?.ttl.0;
    let keys = match keys.as_slice() {
        [key] => key.to_string().into(),
        several => several.iter().map(Key::to_string).collect::<Vec<String>>().into(),
    };
    let session = secret.credential(id.number);
    // Signed off this thread, where the answer is encoded (`crate::grant_signer`).
    Ok(Answer::Acquired(Acquired { keys, token: token.0, session, ttl_ms, signed: Vec::new() }))
}

/// The grant by which the session holds exactly these keys. A session whose deadline has passed has it until it is swept:
/// a renewal of an earlier time may be on its way.
fn grant(table: &LockTable, id: SessionId, secret: Secret, keys: &Keys) -> Result<Answer, Failure> {
    table.session(id).ok_or_else(|| no_session(table, id))?;
    let holders = table.lock(keys.first()).into_iter().flat_map(|lock| lock.holders.iter());
    let held = holders.filter(|holder| holder.session == id).find(|holder| holder.keys(keys.first()) == *keys);
    acquired(table, keys, id, secret, held.ok_or_else(not_holder)?.token)
}

fn session(table: &LockTable, now: Stamp, id: SessionId) -> Result<Answer, Failure> {
    let session = table.session(id).ok_or_else(|| no_session(table, id))?;
    Ok(Answer::SessionView(SessionView {
        session: id.number,
        owner: session.owner.to_string(),
        ttl_ms: session.ttl.0,
        expires_in_ms: session.deadline.0.saturating_sub(now.0),
        keys: session.claims().iter().map(Key::to_string).collect(),
    }))
}

/// Of a claim on several keys it shows those that the reader may read.
fn lock(table: &LockTable, now: Stamp, reader: &Principal, key: &Key, lock: Option<&Lock>) -> LockView {
    let mut view = LockView { key: key.to_string(), held: false, holder: None, holders: Vec::new(), queue: Vec::new() };
    let Some(lock) = lock else { return view };
    for holder in lock.holders.iter() {
        let Some(session) = table.session(holder.session) else { continue };
        let (mode, permits, of) = share(holder.mode);
        view.holders.push(HolderView {
            owner: session.owner.to_string(),
            session: holder.session.number,
            token: holder.token.0,
            expires_in_ms: session.deadline.0.saturating_sub(now.0),
            mode,
            permits,
            of,
            holds: holder.holds,
            keys: several(table, reader, &holder.keys(key)),
            value: holder.value().map(Value::to_string),
        });
    }
    for waiter in lock.queue.iter() {
        let Some(session) = table.session(waiter.session) else { continue };
        let (mode, permits, of) = share(waiter.mode);
        let (owner, keys) = (session.owner.to_string(), several(table, reader, &waiter.keys(key)));
        view.queue.push(WaiterView { owner, session: waiter.session.number, mode, permits, of, keys });
    }
    view.holder = view.holders.first().cloned();
    view.held = view.holder.is_some();
    view
}

/// A mode, the permits that it takes, and all of them, as clients write them.
fn share(mode: Mode) -> (wire::Mode, Option<u32>, Option<u32>) {
    match mode.as_semaphore() {
        Some((permits, of)) => (wire::Mode::Semaphore, Some(permits), Some(of)),
        None if mode == Mode::SHARED => (wire::Mode::Shared, None, None),
        None => (wire::Mode::Exclusive, None, None),
    }
}

/// The keys of a claim if there are several: one is shown as the lock's.
fn several(table: &LockTable, reader: &Principal, keys: &Keys) -> Vec<String> {
    if keys.count() == 1 {
        return Vec::new();
    }
    let readable = keys.iter().filter(|key| table.access().permits(reader, Right::Read, key.as_str()));
    readable.map(Key::to_string).collect()
}

/// The first page after `after` of the locks that the reader may read.
fn locks(
    table: &LockTable,
    now: Stamp,
    reader: &Principal,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> LockPage {
    let prefix_key = Key::from(prefix);
    let start = match after.filter(|after| after.as_str() >= prefix) {
        Some(after) => Bound::Excluded(after),
        None => Bound::Included(&prefix_key),
    };
    let mut page = LockPage { locks: Vec::new(), next_after: None };
    let (mut claims, mut bytes) = (0, 0);
    let start = start.cloned();
    let matching = readable_from(table.locks(), table.access(), reader, start)
        .take_while(|(key, _)| key.as_str().starts_with(prefix));
    for (key, found) in matching {
        let values: usize =
            found.holders.iter().filter_map(|holder| holder.value()).map(|value| value.as_str().len()).sum();
        let holders: usize = found.holders.iter().map(|holder| holder.all_keys(key).len()).sum();
        let waiters: usize = found.queue.iter().map(|waiter| waiter.all_keys(key).len()).sum();
        let full = page.locks.len() >= limit
            || claims + holders + waiters > limits::PAGE_CLAIMS
            || bytes + values > limits::PAGE_VALUE_BYTES;
        if let Some(last) = page.locks.last().filter(|_| full) {
            page.next_after = Some(last.key.clone());
            break;
        }
        claims += holders + waiters;
        bytes += values;
        page.locks.push(lock(table, now, reader, key, Some(found)));
    }
    page
}

/// The locks and records after `after` that the reader may read, up to a key: as many as fit into a part. The
/// caller says of which revision they are.
fn listing(
    table: &LockTable,
    now: Stamp,
    reader: &Principal,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Listing {
    let LockPage { mut locks, next_after: locks_to } = locks(table, now, reader, prefix, after, limit);
    let RecordPage { mut records, next_after: records_to, .. } = records::list(table, reader, prefix, after, limit);
    let last = locks_to.into_iter().chain(records_to).min();
    if let Some(last) = &last {
        locks.retain(|lock| lock.key <= *last);
        records.retain(|record| record.key <= *last);
    }
    Listing { revision: 0, begins: after.is_none(), locks, records, complete: last.is_none() }
}

/// The locks or records from `start` on that the reader may read.
pub(super) fn readable_from<'a, T>(
    all: &'a SharedMap<Key, T>,
    access: &'a Access,
    reader: &'a Principal,
    start: Bound<Key>,
) -> impl Iterator<Item = (&'a Key, &'a T)> {
    let mut rest = all.range_from(start.as_ref());
    std::iter::from_fn(move || next_readable(all, access, reader, &mut rest))
}

/// The next of them that the reader may read. It skips all others together to the next key about which
/// other rules may decide: so a page costs as much as it shows, and as there are rules.
fn next_readable<'a, T>(
    all: &'a SharedMap<Key, T>,
    access: &Access,
    reader: &Principal,
    rest: &mut Entries<'a, Key, T>,
) -> Option<(&'a Key, &'a T)> {
    loop {
        let (key, found) = rest.next()?;
        if access.permits(reader, Right::Read, key.as_str()) {
            return Some((key, found));
        }
        let next = access.rules()?.next_decision(reader, key.as_str())?;
        *rest = all.range_from(Bound::Included(&Key::from(next.as_str())));
    }
}

#[cfg(test)]
mod tests;
