//! Which watchers are woken, and how fast.
//!
//! The dispatcher is one task. It reads the history as a watcher does, and looks each key up in the
//! [`Directory`]. A watcher that has something to read already is not woken again. Wakes are spread over
//! time: after a burst, so many a second, so that watchers of keys that change all the time take a bounded
//! part of the processors, and read several events at a time instead. Those of keys with few watchers do
//! not wait for that.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade_client::wire::EventId;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::filter::Filter;
use super::hub::Hub;
use crate::limits;
use crate::sync::{AtomicU64, Notify};

/// Batches that are looked through at a time.
const BATCHES: usize = 8;
/// Wakes between two moments at which other tasks may run.
const GROUP: usize = 64;

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

    /// Notes that there is something to read; whether the watcher is to be woken for that. Entries are noted
    /// in their order: the watcher may look at any moment, and skips what comes before the first one noted.
    fn note(&self, revision: u64) -> bool {
        self.pending.fetch_min(revision, Ordering::SeqCst) == NOTHING
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
    dispatched: u64,
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
    fn of<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Arc<Slot>> {
        let prefixes = self.lengths.keys().filter_map(|&length| key.get(..length));
        let by_prefix = prefixes.filter_map(|prefix| self.by_prefix.get(prefix));
        self.by_key.get(key).into_iter().chain(by_prefix).flat_map(HashMap::values)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.by_key.values().chain(self.by_prefix.values()).flat_map(HashMap::values)
    }

    /// Wakes every watcher, also one that was woken before: the node stops.
    pub(super) fn wake_all(&self) {
        for slot in self.all() {
            slot.note(0);
            slot.woken.notify_one();
        }
    }
}

impl Hub {
    /// Wakes watchers until the node stops.
    pub async fn dispatch(self: Arc<Hub>) {
        let mut pace = Pace::new(Instant::now());
        let (mut queue, mut next_group) = (VecDeque::<Arc<Slot>>::new(), Instant::now());
        let mut access = 0;
        loop {
            tokio::select! {
                () = self.news.notified() => {}
                () = sleep_until(next_group), if !queue.is_empty() => {}
            }
            while self.look_through(&mut access, &mut queue) {
                yield_now().await;
            }
            if self.shared.lock().closed {
                return;
            }
            if !queue.is_empty() && next_group <= Instant::now() {
                let wakes = wake_group(&mut queue);
                let now = Instant::now();
                next_group = now + pace.after(wakes, now);
                // Requests of other clients come in between.
                yield_now().await;
            }
        }
    }

    /// Looks through the next batches, and notes at each watcher what concerns it. The watchers of a key that
    /// has few are woken, those of others are put into the queue. Returns whether there may be more batches.
    pub(super) fn look_through(&self, access: &mut u64, queue: &mut VecDeque<Arc<Slot>>) -> bool {
        let mut directory = self.directory.lock();
        let (found, floor, revision) = {
            let shared = self.shared.lock();
            let found = shared.history.after(EventId::end_of(directory.dispatched), BATCHES);
            (found, shared.history.floor(), shared.access.revision().0)
        };
        let Ok((batches, until)) = found else {
            // What was not looked through may be of any watcher.
            queue.extend(directory.all().filter(|slot| slot.note(0)).cloned());
            directory.dispatched = floor;
            return true;
        };
        if mem::replace(access, revision) != revision {
            // A watcher of one key learns that it may no longer read it.
            let from = directory.dispatched + 1;
            queue.extend(directory.all().filter(|slot| slot.note(from)).cloned());
        }
        // In the order of the entries: a watcher that looks meanwhile goes on at the first one that was noted.
        let mut keys = HashSet::<&str>::new();
        let noted = batches
            .iter()
            .flat_map(|batch| &batch.entries)
            .flat_map(|entry| entry.keys().map(move |key| (key.as_str(), entry.revision)));
        for (key, revision) in noted.filter(|(key, _)| keys.insert(key)) {
            let slots: Vec<&Arc<Slot>> = directory.of(key).collect();
            let has_few = slots.len() <= GROUP;
            for slot in slots.into_iter().filter(|slot| slot.note(revision)) {
                if has_few {
                    slot.woken.notify_one();
                } else {
                    queue.push_back(Arc::clone(slot));
                }
            }
        }
        directory.dispatched = until.revision;
        batches.len() == BATCHES
    }
}

/// Wakes the first watchers of the queue; how many.
pub(super) fn wake_group(queue: &mut VecDeque<Arc<Slot>>) -> usize {
    let group = queue.drain(..GROUP.min(queue.len()));
    group.map(|slot| slot.woken.notify_one()).count()
}

/// Spreads wakes over time.
pub(super) struct Pace {
    /// Wakes that are still allowed at once.
    allowed: f64,
    at: Instant,
}

impl Pace {
    pub(super) fn new(at: Instant) -> Pace {
        Pace { allowed: limits::WATCH_BURST, at }
    }

    /// How long to wait after so many wakes.
    pub(super) fn after(&mut self, wakes: usize, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        #[expect(clippy::cast_precision_loss, reason = "a group is small")]
        let wakes = wakes as f64;
        self.allowed = (self.allowed + passed * limits::WATCH_WAKES_PER_SECOND).min(limits::WATCH_BURST) - wakes;
        Duration::from_secs_f64((-self.allowed / limits::WATCH_WAKES_PER_SECOND).max(0.0))
    }
}
