//! Locks and records as clients see them.

use palisade_spec::lock::{Key, Keys, Lock, Mode, Token};

/// A lock's holders and its queue, as every client may see them: sessions by their public numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) struct LockState {
    /// In the order of the grants.
    pub(in crate::sim) holders: Vec<HolderState>,
    pub(in crate::sim) queue: Vec<WaiterState>,
}

/// A record as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) struct RecordState {
    pub(in crate::sim) version: u64,
    pub(in crate::sim) fence: Option<u64>,
    pub(in crate::sim) content: Vec<u8>,
}

/// A holder as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) struct HolderState {
    pub(in crate::sim) session: u64,
    pub(in crate::sim) token: Token,
    pub(in crate::sim) mode: Mode,
    pub(in crate::sim) holds: u32,
    pub(in crate::sim) value: Option<String>,
    /// All keys of the grant if there are several; a client sees those that it may read.
    pub(in crate::sim) keys: Vec<String>,
}

/// A waiter as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) struct WaiterState {
    pub(in crate::sim) session: u64,
    pub(in crate::sim) mode: Mode,
    /// As in [`HolderState`].
    pub(in crate::sim) keys: Vec<String>,
}

impl LockState {
    pub(super) fn of(lock: &Lock, key: &Key) -> LockState {
        let several = |keys: Keys| match keys.as_slice() {
            [_] => Vec::new(),
            several => several.iter().map(Key::to_string).collect(),
        };
        let holders = lock.holders.iter().map(|holder| HolderState {
            session: holder.session.number,
            token: holder.token,
            mode: holder.mode,
            holds: holder.holds,
            value: holder.value().map(|value| value.as_str().to_owned()),
            keys: several(holder.keys(key)),
        });
        let queue = lock.queue.iter().map(|waiter| WaiterState {
            session: waiter.session.number,
            mode: waiter.mode,
            keys: several(waiter.keys(key)),
        });
        LockState { holders: holders.collect(), queue: queue.collect() }
    }

    /// Whether a client that may read all keys, or not (`all_keys`), sees this state so.
    pub(super) fn is_seen_as(&self, seen: &LockState, all_keys: bool) -> bool {
        let may_be = |all: &[String], seen: &[String]| {
            if all_keys { all == seen } else { seen.iter().all(|key| all.contains(key)) }
        };
        let is_holder = |(holder, seen): (&HolderState, &HolderState)| {
            let HolderState { session, token, mode, holds, value, keys } = seen;
            (holder.session, holder.token, holder.mode, holder.holds) == (*session, *token, *mode, *holds)
                && holder.value == *value
                && may_be(&holder.keys, keys)
        };
        let is_waiter = |(waiter, seen): (&WaiterState, &WaiterState)| {
            (waiter.session, waiter.mode) == (seen.session, seen.mode) && may_be(&waiter.keys, &seen.keys)
        };
        self.holders.len() == seen.holders.len()
            && self.queue.len() == seen.queue.len()
            && self.holders.iter().zip(&seen.holders).all(is_holder)
            && self.queue.iter().zip(&seen.queue).all(is_waiter)
    }
}
