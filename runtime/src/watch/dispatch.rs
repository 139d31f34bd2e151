//! Decides which watchers are woken, and how fast.
//!
//! The dispatcher is one task. It reads the history as a watcher does, and looks each key up in the
//! [`Directory`](super::directory::Directory). A watcher that has something to read already is not woken again. Wakes are spread over
//! time: after a burst, so many a second, so that watchers of keys that change all the time take a bounded
//! part of the processors, and read several events at a time instead. Those of keys with few watchers do
//! not wait for that.

use std::collections::{HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use palisade_client::wire::EventId;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::directory::Slot;
use super::hub::Hub;
use crate::limits;

/// Batches that are looked through at a time.
const BATCHES: usize = 8;
/// Wakes between two moments at which other tasks may run.
const GROUP: usize = 64;

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
            .flat_map(|batch| batch.entries())
            .flat_map(|entry| entry.keys().map(move |key| (key.as_str(), entry.revision)));
        for (key, revision) in noted.filter(|(key, _)| keys.insert(key)) {
            let slots: Vec<&Arc<Slot>> = directory.of(key).collect();
            let has_few = slots.len() <= GROUP;
            for slot in slots.into_iter().filter(|slot| slot.note(revision)) {
                if has_few {
                    slot.wake();
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
    group.map(|slot| slot.wake()).count()
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
