//! The newest events of a node, in order, within a number of bytes.
//!
//! An entry whose events are older than the **floor** is gone, with all before it. The history begins
//! where the node's state began when it was started: at its snapshot, if it had one. A snapshot that the
//! node receives from a leader stands for entries that it has not applied itself, so the history begins
//! anew behind it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use palisade_client::wire::{self, EventId};
use palisade_spec::lock::{Event, Key};

use super::notice::{self, Notice};

/// An entry of the log, with its events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub(super) revision: u64,
    events: &'a [Event],
    items: &'a OnceLock<Box<[Item]>>,
}

/// An event of a watch, and its text once a watcher has needed it.
#[derive(Debug)]
struct Item {
    notice: Notice,
    text: OnceLock<Bytes>,
}

impl<'a> Entry<'a> {
    /// The keys that the events are about; a key may come more than once.
    pub(super) fn keys(self) -> impl Iterator<Item = &'a Key> {
        self.events.iter().filter_map(notice::key)
    }

    fn items(self) -> &'a [Item] {
        let item = |notice| Item { notice, text: OnceLock::new() };
        self.items.get_or_init(|| notice::notices(self.events).into_iter().map(item).collect())
    }

    /// Number of events that watchers are told of.
    pub(super) fn count(self) -> usize {
        self.items().len()
    }

    /// The key of an event.
    pub(super) fn key(self, number: usize) -> &'a Key {
        self.items()[number].notice.key(self.events)
    }

    /// The ID of an event.
    pub(super) fn id(self, number: usize) -> EventId {
        let event = (number + 1 < self.count()).then(|| u32::try_from(number + 1).unwrap_or(u32::MAX));
        EventId { revision: self.revision, event }
    }

    /// Whether the reader may see all that the event says.
    pub(super) fn may_see_all(self, number: usize, may_see: impl Fn(&Key) -> bool) -> bool {
        self.items()[number].notice.keys(self.events).into_iter().all(may_see)
    }

    /// Bytes of the value that the event shows.
    pub(super) fn value_bytes(self, number: usize) -> usize {
        self.items()[number].notice.value_bytes(self.events)
    }

    /// The event, with those keys of its claim that the reader may see.
    pub(super) fn event(self, number: usize, may_see: impl Fn(&Key) -> bool) -> wire::Event {
        let notice = &self.items()[number].notice;
        let (id, key) = (self.id(number), notice.key(self.events).to_string());
        wire::Event { id, key, change: notice.change(self.events, may_see) }
    }

    /// The event as a stream shows it to a reader that may see all; its first line is the ID. The number of
    /// bytes is not zero for the first caller, whose call has made them.
    fn shared_text(self, number: usize) -> (Bytes, usize) {
        let mut made = 0;
        let text = self.items()[number].text.get_or_init(|| {
            let text = text_of(&self.event(number, |_| true));
            made = text.len();
            text
        });
        (text.clone(), made)
    }
}

/// An event as a stream of server-sent events shows it; its first line is the ID.
pub(super) fn text_of(event: &wire::Event) -> Bytes {
    let json = serde_json::to_string(event).expect("an event has a JSON form");
    format!("id: {}\nevent: {}\ndata: {json}\n\n", event.id, event.change.name()).into()
}

/// Events that are not in the history yet.
#[derive(Debug, Default)]
pub(super) struct Unpublished {
    events: Vec<Event>,
    /// The entries of the events, in order.
    entries: Vec<Span>,
}

/// Events and entries for which there is room without an allocation in each iteration.
const ROOM_KEPT: usize = 1_024;

/// Where an entry has its events among those of several entries.
#[derive(Debug)]
struct Span {
    revision: u64,
    /// The events begin where those of the entry before end.
    end: usize,
    items: OnceLock<Box<[Item]>>,
}

impl Unpublished {
    /// An entry was applied, with these events.
    pub(super) fn push(&mut self, revision: u64, events: Vec<Event>) {
        if !events.is_empty() {
            self.events.extend(events);
            self.entries.push(Span { revision, end: self.events.len(), items: OnceLock::new() });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.entries.clear();
        // A node that starts applies its whole log at once.
        self.events.shrink_to(ROOM_KEPT);
        self.entries.shrink_to(ROOM_KEPT);
    }
}

/// The events of one iteration of the core. They lie side by side: without watchers, they are all that
/// an iteration leaves in memory.
#[derive(Debug)]
pub(super) struct Batch {
    events: Box<[Event]>,
    entries: Box<[Span]>,
    /// What it costs, in bytes, with the texts that were made; [`GONE`] once it is out of the history.
    bytes: AtomicUsize,
    of_all: Arc<AtomicUsize>,
}

/// In place of the number of bytes.
const GONE: usize = usize::MAX;

/// What a batch costs beside its entries and events: it, and its allocations.
const BATCH_BYTES: usize = size_of::<Batch>() + 64;
/// What an event costs beside it: its key's allocation, and what is told of it.
const NOTICE_BYTES: usize = 96;

impl Batch {
    #[cfg(test)]
    fn first(&self) -> u64 {
        self.entries.first().map_or(0, |entry| entry.revision)
    }

    pub(super) fn last(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.revision)
    }

    /// Its entries, in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        (0..self.entries.len()).map(|index| self.entry(index))
    }

    /// One of its entries.
    pub(super) fn entry(&self, index: usize) -> Entry<'_> {
        let Span { revision, end, items } = &self.entries[index];
        let start = index.checked_sub(1).map_or(0, |before| self.entries[before].end);
        Entry { revision: *revision, events: &self.events[start..*end], items }
    }

    /// Number of entries that end with this event or before it.
    pub(super) fn entries_up_to(&self, event: EventId) -> usize {
        self.entries.partition_point(|entry| EventId::end_of(entry.revision) <= event)
    }

    /// The event as a stream shows it to a reader that may see all. Its bytes count towards the history.
    pub(super) fn text(&self, entry: usize, number: usize) -> Bytes {
        let (text, made) = self.entry(entry).shared_text(number);
        if made > 0 {
            let counted = |bytes: usize| (bytes != GONE).then(|| bytes + made);
            if self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).is_ok() {
                self.of_all.fetch_add(made, Ordering::Relaxed);
            }
        }
        text
    }
}

fn bytes_of(unpublished: &Unpublished) -> usize {
    let of_event = |event: &Event| {
        let key = notice::key(event).map_or(0, |key| key.as_str().len());
        size_of::<Event>() + NOTICE_BYTES + key + notice::value_bytes(event)
    };
    let events: usize = unpublished.events.iter().map(of_event).sum();
    BATCH_BYTES + unpublished.entries.len() * size_of::<Span>() + events
}

/// The history. Not shared itself: the hub has a lock around it.
#[derive(Debug)]
pub(super) struct History {
    batches: VecDeque<Arc<Batch>>,
    /// All events of entries after this one are here.
    floor: u64,
    /// The last entry that the node has applied, as far as the hub was told.
    reached: u64,
    /// The history began anew behind this entry.
    began: u64,
    limit: usize,
    bytes: Arc<AtomicUsize>,
}

/// Why a reader gets no events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// They were here, and had to make room for newer ones.
    Dropped,
    /// The node has never had them: they are part of the snapshot with which the history began.
    NeverHad,
}

impl History {
    /// An empty history of at most this many bytes.
    pub(super) fn new(limit: usize) -> History {
        let bytes = Arc::default();
        History { batches: VecDeque::new(), floor: 0, reached: 0, began: 0, limit, bytes }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn reached(&self) -> u64 {
        self.reached
    }

    /// Begins anew: the node's state is that after `floor`, and it has none of the events before.
    pub(super) fn begin(&mut self, floor: u64) {
        while self.drop_oldest() {}
        (self.floor, self.reached, self.began) = (floor, floor, floor);
    }

    /// Takes the events of entries that were applied after the last ones, up to the entry `reached`.
    pub(super) fn append(&mut self, unpublished: &mut Unpublished, reached: u64) {
        self.reached = reached;
        if unpublished.is_empty() {
            return;
        }
        let bytes = bytes_of(unpublished);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let (events, entries) = (unpublished.events.drain(..).collect(), unpublished.entries.drain(..).collect());
        unpublished.clear();
        let (bytes, of_all) = (AtomicUsize::new(bytes), Arc::clone(&self.bytes));
        self.batches.push_back(Arc::new(Batch { events, entries, bytes, of_all }));
        while self.bytes.load(Ordering::Relaxed) > self.limit && self.drop_oldest() {}
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.batches.pop_front() else { return false };
        self.floor = oldest.last();
        self.bytes.fetch_sub(oldest.bytes.swap(GONE, Ordering::Relaxed), Ordering::Relaxed);
        true
    }

    /// The first batches with events after this one, at most so many, and the end of the entry up to which
    /// they have all events.
    ///
    /// # Errors
    /// If some of these events are not here.
    pub(super) fn after(&self, event: EventId, at_most: usize) -> Result<(Vec<Arc<Batch>>, EventId), Missing> {
        // Of an entry of which a part was seen, the rest must be here.
        let first_needed = if event.event.is_none() { event.revision.saturating_add(1) } else { event.revision };
        if first_needed <= self.floor {
            return Err(if first_needed <= self.began { Missing::NeverHad } else { Missing::Dropped });
        }
        let first = self.batches.partition_point(|batch| batch.last() < first_needed);
        let batches: Vec<_> = self.batches.range(first..).take(at_most).cloned().collect();
        let has_all = first + batches.len() == self.batches.len();
        let until = if has_all { self.reached } else { batches.last().map_or(self.reached, |batch| batch.last()) };
        // A node that lags behind is waited for.
        Ok((batches, EventId::end_of(until).max(event)))
    }
}

#[cfg(test)]
impl History {
    /// Number of bytes.
    pub(super) fn bytes(&self) -> usize {
        assert!(self.batches.iter().is_sorted_by_key(|batch| (batch.first(), batch.last())));
        self.bytes.load(Ordering::Relaxed)
    }

    /// What it has, and what it lacks. How the entries are put together into batches decides nothing but
    /// which of them make room together.
    pub(super) fn contents(&self) -> String {
        let History { batches, began, floor, reached, limit, .. } = self;
        let of_batch = |batch: &Arc<Batch>| (batch.first(), batch.last(), batch.bytes.load(Ordering::Relaxed));
        let may_drop = self.bytes.load(Ordering::Relaxed) > *limit / 100;
        let batches: Vec<_> = batches.iter().filter(|_| may_drop).map(of_batch).collect();
        format!("{began} {floor} {reached} {batches:?}")
    }

    /// Whether events had to make room for newer ones.
    pub(super) fn has_dropped(&self) -> bool {
        self.floor > self.began
    }
}
