//! The watchers of a node, by what they follow, and where each is woken.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[cfg(test)]
use futures_util::FutureExt;

use super::filter::Filter;
use crate::sync::{AtomicU64, Notify};

/// Where a watcher is woken.
#[derive(Debug)]
pub(super) struct Slot {
    /// The first entry since the watcher looked last that it has to read; [`NOTHING`] if there is none.
    pending: AtomicU64,
    woken: Notify,
}

const NOTHING: u64 = u64::MAX;

impl Slot {
    /// A slot of a watcher that looks into the history at once.
    pub(super) fn new() -> Slot {
        Slot { pending: AtomicU64::new(0), woken: Notify::new() }
    }

    /// The first entry to read, if there is one. The watcher reads all from there on.
    pub(super) fn take(&self) -> Option<u64> {
        Some(self.pending.swap(NOTHING, Ordering::SeqCst)).filter(|pending| *pending != NOTHING)
    }

    /// Waits until there may be something to read.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Wakes the watcher.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Notes that there is something to read; whether the watcher is to be woken for that. Entries are noted
    /// in their order: the watcher may look at any moment, and skips what comes before the first one noted.
    pub(super) fn note(&self, revision: u64) -> bool {
        self.pending.fetch_min(revision, Ordering::SeqCst) == NOTHING
    }
}

#[cfg(test)]
impl Slot {
    /// What decides how its watcher goes on.
    pub(super) fn contents(&self) -> String {
        let pending = self.pending.load(Ordering::SeqCst);
        format!("{:?} {}", (pending != NOTHING).then_some(pending), self.is_woken())
    }

    /// Whether the watcher was woken, and has not noticed yet.
    pub(super) fn is_woken(&self) -> bool {
        let is_woken = self.woken.notified().now_or_never().is_some();
        if is_woken {
            self.wake();
        }
        is_woken
    }
}

type Slots = HashMap<u64, Arc<Slot>>;

/// The watchers, by what they follow.
#[derive(Debug, Default)]
pub(super) struct Directory {
    by_key: HashMap<Box<str>, Slots>,
    by_prefix: HashMap<Box<str>, Slots>,
    /// How many prefixes of each length there are.
    lengths: BTreeMap<usize, usize>,
    last_id: u64,
    watchers: usize,
    /// The last entry that was looked through.
    pub(super) dispatched: u64,
}

impl Directory {
    /// Enters a watcher. The first one finds a dispatcher that has looked at nothing for a while: it goes on
    /// at what `reached` says.
    pub(super) fn enter(&mut self, filter: &Filter, slot: &Arc<Slot>, reached: impl FnOnce() -> u64) -> u64 {
        if self.watchers == 0 {
            self.dispatched = reached();
        }
        self.watchers += 1;
        self.last_id += 1;
        let id = self.last_id;
        match filter {
            Filter::Key(key) => {
                self.by_key.entry(key.clone()).or_default().insert(id, Arc::clone(slot));
            }
            Filter::Prefix(prefix) => {
                let slots = self.by_prefix.entry(prefix.clone()).or_default();
                if slots.is_empty() {
                    *self.lengths.entry(prefix.len()).or_default() += 1;
                }
                slots.insert(id, Arc::clone(slot));
            }
        }
        id
    }

    /// A watcher has gone.
    pub(super) fn leave(&mut self, filter: &Filter, id: u64) {
        let (slots, name) = match filter {
            Filter::Key(key) => (&mut self.by_key, key),
            Filter::Prefix(prefix) => (&mut self.by_prefix, prefix),
        };
        let Some(of_name) = slots.get_mut(name) else { return };
        if of_name.remove(&id).is_some() {
            self.watchers -= 1;
        }
        if !of_name.is_empty() {
            return;
        }
        slots.remove(name);
        if let Filter::Prefix(prefix) = filter
            && let Some(count) = self.lengths.get_mut(&prefix.len())
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// The watchers that follow this key.
    pub(super) fn of<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Arc<Slot>> {
        let prefixes = self.lengths.keys().filter_map(|&length| key.get(..length));
        let by_prefix = prefixes.filter_map(|prefix| self.by_prefix.get(prefix));
        self.by_key.get(key).into_iter().chain(by_prefix).flat_map(HashMap::values)
    }

    /// All watchers.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.by_key.values().chain(self.by_prefix.values()).flat_map(HashMap::values)
    }

    /// Wakes every watcher, also one that was woken before: the node stops.
    pub(super) fn wake_all(&self) {
        for slot in self.all() {
            slot.note(0);
            slot.wake();
        }
    }
}
