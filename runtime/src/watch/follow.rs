//! A watcher's way through the history.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Bytes;
use palisade_client::wire::{self, EventId};
use palisade_spec::lock::{Access, Key, Principal, Right};
use tokio::task::yield_now;

use super::directory::Slot;
use super::filter::Filter;
use super::history::{Batch, Missing, text_of};
use super::hub::Hub;

/// Batches that a watcher reads at a time.
const BATCHES: usize = 16;
/// Events that a watcher gets at a time.
const EVENTS: usize = 64;
/// Bytes of values that it gets at a time, beside one event.
const VALUE_BYTES: usize = 16 * 1024;

/// A watcher. It has left the hub once it is dropped.
#[derive(Debug)]
pub struct Follower {
    hub: Arc<Hub>,
    filter: Filter,
    reader: Principal,
    /// All events up to this one were shown, or are none of this watch.
    cursor: EventId,
    /// Only events of keys up to this one are shown: later ones are not listed yet.
    listed: Listed,
    /// Whether it has looked at everything that it was woken for. The history may then forget what comes
    /// after the cursor: it is not of this watch.
    is_idle: bool,
    /// Whether it has been shown everything that there was when it looked last.
    is_caught_up: bool,
    id: u64,
    slot: Arc<Slot>,
}

/// What of the keys was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// All of them.
    All,
    /// Those up to this one.
    UpTo(String),
}

/// How far a watcher has come.
#[derive(Debug)]
pub enum Progress {
    /// Events.
    Events(Vec<Shown>),
    /// There are none at the moment.
    CaughtUp,
    /// The node does not have the events that come next, and never had them. It has all after this entry.
    NeverHad(u64),
    /// The events that come next were there, and had to make room for newer ones. It has all after this
    /// entry.
    Dropped(u64),
    /// The access rules do not permit the reader the key.
    Denied,
    /// The node stops.
    Closed,
}

/// An event that a watcher is shown.
#[derive(Clone, Debug)]
pub struct Shown {
    batch: Arc<Batch>,
    entry: usize,
    number: usize,
    /// The rules by which it is shown, if they hide keys of its claim.
    hides: Option<(Access, Principal)>,
    /// Whether all keys were listed: only then can a watch be resumed after this event.
    resumes: bool,
}

impl Hub {
    /// Follows the events after this one, for this reader. Nothing that happens from now on is missed.
    pub fn follow(self: &Arc<Hub>, filter: Filter, reader: Principal, after: EventId) -> Follower {
        let slot = Arc::new(Slot::new());
        // Before the history is read: the core either sees this watcher, or its events are read.
        self.watching.fetch_add(1, Ordering::SeqCst);
        self.metrics.watchers.inc();
        let id = {
            let mut directory = self.directory.lock();
            directory.enter(&filter, &slot, || self.shared.lock().history.reached())
        };
        let hub = Arc::clone(self);
        let (cursor, listed, is_idle, is_caught_up) = (after, Listed::All, false, false);
        Follower { hub, filter, reader, cursor, listed, is_idle, is_caught_up, id, slot }
    }
}

impl Follower {
    /// What it follows.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The client that follows it.
    pub fn reader(&self) -> &Principal {
        &self.reader
    }

    /// The state after this entry was listed, as far as `listed` says: the watch goes on from there.
    pub fn list(&mut self, revision: u64, listed: Listed) {
        (self.cursor, self.listed, self.is_idle) = (EventId::end_of(revision), listed, false);
    }

    /// The next events, up to the end of the entry `until` if there is one. Returns at once.
    pub fn next(&mut self, until: Option<u64>) -> Progress {
        loop {
            if let Some(progress) = self.look(until) {
                return progress;
            }
        }
    }

    /// The same in the next batches only; nothing if there are none of this watch in them, and more behind them.
    fn look(&mut self, until: Option<u64>) -> Option<Progress> {
        let (read, access, floor) = {
            let shared = self.hub.shared.lock();
            if shared.closed {
                return Some(Progress::Closed);
            }
            (shared.history.after(self.cursor, BATCHES), shared.access.clone(), shared.history.floor())
        };
        if self.is_denied(&access) {
            return Some(Progress::Denied);
        }
        let (batches, end) = match read {
            Ok(read) => read,
            // What came since was dropped before the watcher was woken: that is not its fault.
            Err(Missing::Dropped) if self.is_caught_up => return Some(Progress::NeverHad(floor)),
            Err(Missing::Dropped) => return Some(Progress::Dropped(floor)),
            Err(Missing::NeverHad) => return Some(Progress::NeverHad(floor)),
        };
        let until = until.map(EventId::end_of);
        let end = until.map_or(end, |until| end.min(until));
        let shown = self.read(&batches, &access, end);
        if !shown.is_empty() {
            self.is_caught_up = false;
            return Some(Progress::Events(shown));
        }
        let is_done = batches.len() < BATCHES || until.is_some_and(|until| self.cursor >= until);
        self.is_caught_up |= is_done && until.is_none();
        is_done.then_some(Progress::CaughtUp)
    }

    /// Waits for the next events, or for why there are none. Can be dropped and called anew.
    pub async fn follow(&mut self) -> Progress {
        loop {
            if !self.is_idle {
                match self.look(None) {
                    Some(Progress::CaughtUp) => self.is_idle = true,
                    Some(progress) => return progress,
                    // A watch that resumes may have the whole history before it: others have their turn meanwhile.
                    None => {
                        yield_now().await;
                        continue;
                    }
                }
            }
            self.wait().await;
            self.is_idle = false;
        }
    }

    /// Waits until there may be more events.
    pub(super) async fn wait(&mut self) {
        loop {
            if let Some(first) = self.slot.take() {
                // Nothing between the last look and this entry was of this watch.
                self.cursor = self.cursor.max(EventId::end_of(first.saturating_sub(1)));
                return;
            }
            self.slot.woken().await;
        }
    }

    fn is_denied(&self, access: &Access) -> bool {
        matches!(&self.filter, Filter::Key(key) if !access.permits(&self.reader, Right::Read, key))
    }

    /// Reads batches up to an event: at most so many events as are shown at a time.
    fn read(&mut self, batches: &[Arc<Batch>], access: &Access, end: EventId) -> Vec<Shown> {
        let (mut shown, mut bytes) = (Vec::new(), 0);
        let may_see = |reader: &Principal, key: &Key| access.permits(reader, Right::Read, key.as_str());
        for batch in batches {
            let first = batch.entries_up_to(self.cursor);
            for (index, entry) in batch.entries().enumerate().skip(first) {
                if EventId::end_of(entry.revision) > end {
                    break;
                }
                if !entry.keys().any(|key| self.follows(key)) {
                    continue;
                }
                let seen = self.cursor;
                for number in (0..entry.count()).filter(|&number| entry.id(number) > seen) {
                    let key = entry.key(number);
                    if !self.follows(key) || !may_see(&self.reader, key) {
                        continue;
                    }
                    if shown.len() == EVENTS || bytes > VALUE_BYTES {
                        return shown;
                    }
                    bytes += entry.value_bytes(number);
                    self.cursor = entry.id(number);
                    let sees_all = entry.may_see_all(number, |key| may_see(&self.reader, key));
                    let hides = (!sees_all).then(|| (access.clone(), self.reader.clone()));
                    let (batch, resumes) = (Arc::clone(batch), self.listed == Listed::All);
                    shown.push(Shown { batch, entry: index, number, hides, resumes });
                }
                self.cursor = EventId::end_of(entry.revision);
            }
        }
        self.cursor = self.cursor.max(end);
        shown
    }

    fn follows(&self, key: &Key) -> bool {
        let is_listed = match &self.listed {
            Listed::All => true,
            Listed::UpTo(last) => key.as_str() <= last.as_str(),
        };
        is_listed && self.filter.matches(key.as_str())
    }
}

#[cfg(test)]
impl Follower {
    /// What decides how it goes on.
    pub(super) fn contents(&self) -> String {
        let Follower { cursor, listed, is_idle, is_caught_up, slot, .. } = self;
        format!("{cursor} {listed:?} {is_idle} {is_caught_up} {}", slot.contents())
    }

    /// Whether it is woken there.
    pub(super) fn is_at(&self, slot: &Arc<Slot>) -> bool {
        Arc::ptr_eq(&self.slot, slot)
    }

    /// Whether it waits to be woken.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_idle && !self.slot.is_woken()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.hub.directory.lock().leave(&self.filter, self.id);
        self.hub.watching.fetch_sub(1, Ordering::SeqCst);
        self.hub.metrics.watchers.dec();
    }
}

impl Shown {
    /// The event.
    pub fn event(&self) -> wire::Event {
        let may_see = |key: &Key| match &self.hides {
            Some((access, reader)) => access.permits(reader, Right::Read, key.as_str()),
            None => true,
        };
        self.batch.entry(self.entry).event(self.number, may_see)
    }

    /// The event as a stream of server-sent events shows it.
    pub fn text(&self) -> Bytes {
        let text = if self.hides.is_some() { text_of(&self.event()) } else { self.batch.text(self.entry, self.number) };
        if self.resumes {
            return text;
        }
        // Without the line of the ID: a client that reconnects must not resume here.
        let line = text.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        text.slice(line..)
    }
}
