//! Reads of the lock table, as clients see it.

use std::ops::Bound;
use std::time::Duration;

use palisade_client::wire::{
    AccessVerdict, Answer, Code, Failure, HolderView, LockPage, LockView, SessionView, Stale, WaiterView,
};
use palisade_spec::lock::{Entries, Key, Lock, LockTable, Principal, Proof, Right, SessionId};
use palisade_spec::raft::{Node, Stamp};

use super::access;
use super::request::Query;
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
        Query::Lock(key) => {
            access::check(table.access(), reader, Right::Read, key.as_str())?;
            let view = lock(table, now, key, table.lock(key));
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

/// Number of holders and waiters in an answer: its cost.
pub(super) fn claims(answer: &Answer) -> usize {
    match answer {
        Answer::SessionView(session) => 1 + session.keys.len(),
        Answer::Lock(lock) | Answer::StaleLock(Stale { view: lock, .. }) => 1 + lock.queue.len(),
        Answer::Locks(page) | Answer::StaleLocks(Stale { view: page, .. }) => {
            page.locks.iter().map(|lock| 1 + lock.queue.len()).sum::<usize>().max(1)
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

fn lock(table: &LockTable, now: Stamp, key: &Key, lock: Option<&Lock>) -> LockView {
    let holder = lock.and_then(|lock| {
        let session = table.session(lock.holder.session)?;
        Some(HolderView {
            owner: session.owner.to_string(),
            session: lock.holder.session.number,
            token: lock.holder.token.0,
            expires_in_ms: session.deadline.0.saturating_sub(now.0),
        })
    });
    let waiters = lock.into_iter().flat_map(|lock| &lock.queue).filter_map(|waiter| {
        let session = table.session(waiter.session)?;
        Some(WaiterView { owner: session.owner.to_string(), session: waiter.session.number })
    });
    LockView { key: key.to_string(), held: holder.is_some(), holder, queue: waiters.collect() }
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
    let mut claims = 0;
    let start = start.cloned();
    let matching = readable(table, reader, start).take_while(|(key, _)| key.as_str().starts_with(prefix));
    for (key, found) in matching {
        let full = page.locks.len() >= limit || claims + found.queue.len() >= limits::PAGE_CLAIMS;
        if let Some(last) = page.locks.last().filter(|_| full) {
            page.next_after = Some(last.key.clone());
            break;
        }
        claims += 1 + found.queue.len();
        page.locks.push(lock(table, now, key, Some(found)));
    }
    page
}

/// The held locks from `start` on that the reader may read.
fn readable<'a>(
    table: &'a LockTable,
    reader: &'a Principal,
    start: Bound<Key>,
) -> impl Iterator<Item = (&'a Key, &'a Lock)> {
    let mut rest = table.locks().range_from(start.as_ref());
    std::iter::from_fn(move || next_readable(table, reader, &mut rest))
}

/// The next of these locks that the reader may read. It skips all others together to the next key about
/// which other rules may decide: so a page costs as much as it shows, and as there are rules.
fn next_readable<'a>(
    table: &'a LockTable,
    reader: &Principal,
    rest: &mut Entries<'a, Key, Lock>,
) -> Option<(&'a Key, &'a Lock)> {
    loop {
        let (key, lock) = rest.next()?;
        if table.access().permits(reader, Right::Read, key.as_str()) {
            return Some((key, lock));
        }
        let next = table.access().rules()?.next_decision(reader, key.as_str())?;
        *rest = table.locks().range_from(Bound::Included(&Key::from(next.as_str())));
    }
}

#[cfg(test)]
mod tests;
