//! Locks with their holders and queues, as clients see them.

use palisade_client::wire::{HolderView, LockPage, LockView, WaiterView};
use palisade_spec::lock::{Key, Keys, Lock, LockTable, Principal, Right, Value};
use palisade_spec::raft::Stamp;

use super::readable::readable;
use crate::limits;
use crate::watch::share;

/// A lock, as a reader sees it. Of a claim on several keys it shows those that the reader may read.
pub(super) fn show(table: &LockTable, now: Stamp, reader: &Principal, key: &Key, lock: Option<&Lock>) -> LockView {
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

/// The first page after `after` of the locks that the reader may read.
pub(super) fn list(
    table: &LockTable,
    now: Stamp,
    reader: &Principal,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> LockPage {
    let mut page = LockPage { locks: Vec::new(), next_after: None };
    let (mut claims, mut bytes) = (0, 0);
    for (key, found) in readable(table.locks(), table.access(), reader, prefix, after) {
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
        page.locks.push(show(table, now, reader, key, Some(found)));
    }
    page
}

/// The keys of a claim if there are several: one is shown as the lock's.
fn several(table: &LockTable, reader: &Principal, keys: &Keys) -> Vec<String> {
    if keys.count() == 1 {
        return Vec::new();
    }
    let readable = keys.iter().filter(|key| table.access().permits(reader, Right::Read, key.as_str()));
    readable.map(Key::to_string).collect()
}
