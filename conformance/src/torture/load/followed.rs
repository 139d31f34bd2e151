//! Judges the events that a watcher of the load received.
//!
//! The events of each must be in order and each there once; where two have followed the same entries, they have the
//! same events; and what follows from a listing and the events after it is what another listing shows.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use palisade_client::wire::{Event, EventId, Listing, Watched};

use super::Load;
use super::counts::increment;
use crate::watched_state::WatchedState;

/// The record whose change ends all watches.
pub(super) const END: &str = "key-end";

/// What a watcher was told from a listing on, without a gap.
#[derive(Clone, Debug)]
struct Segment {
    /// The end of the listing's entry.
    since: EventId,
    listing: WatchedState,
    events: BTreeMap<EventId, Event>,
}

/// A watcher, and what it was told.
pub(super) struct Watcher {
    pub(super) name: String,
    segments: Vec<Segment>,
    /// Whether it was told of the end.
    pub(super) is_complete: bool,
    pub(super) complaints: Vec<String>,
}

impl Segment {
    fn last(&self) -> EventId {
        self.events.last_key_value().map_or(self.since, |(id, _)| *id)
    }

    /// The state after an entry, if the segment has it.
    fn state_after(&self, revision: u64) -> Option<WatchedState> {
        let end = EventId::end_of(revision);
        if self.since > end {
            return None;
        }
        let mut state = self.listing.clone();
        self.events.range(..=end).for_each(|(_, event)| state.follow(event));
        Some(state)
    }
}

impl Watcher {
    pub(super) fn new(name: String) -> Watcher {
        Watcher { name, segments: Vec::new(), is_complete: false, complaints: Vec::new() }
    }

    pub(super) fn note(&mut self, load: &Load, watched: Watched) {
        match watched {
            Watched::Listing(listing) if listing.begins && listing.complete => {
                increment(&load.counts.listings);
                let (since, listing) = (EventId::end_of(listing.revision), WatchedState::listed(&listing));
                self.segments.push(Segment { since, listing, events: BTreeMap::new() });
            }
            Watched::Listing(listing) => {
                let complaint =
                    format!("{}: five keys fit into one listing, but not into this one: {listing:?}", self.name);
                self.complaints.push(complaint);
            }
            Watched::Event(event) => {
                increment(&load.counts.events);
                let Some(segment) = self.segments.last_mut() else {
                    return self.complaints.push(format!("{}: an event came before any listing: {event:?}", self.name));
                };
                let last = segment.last();
                if event.id <= last {
                    self.complaints.push(format!("{}: an event came after that of {last}: {event:?}", self.name));
                }
                self.is_complete |= event.key == END;
                segment.events.insert(event.id, event);
            }
            Watched::Compacted { .. } => {}
        }
    }

    /// Where two watchers have followed the same entries, they have the same events.
    pub(super) fn compare(&self, other: &Watcher) -> Vec<String> {
        let pairs = self.segments.iter().flat_map(|one| other.segments.iter().map(move |two| (one, two)));
        let differs = |(one, two): (&Segment, &Segment)| {
            let (from, to) = (one.since.max(two.since), one.last().min(two.last()));
            if from >= to {
                return None;
            }
            let range = (Excluded(from), Included(to));
            let mut both = one.events.range(range).zip(two.events.range(range));
            let same_length = one.events.range(range).count() == two.events.range(range).count();
            let different = both.find(|(one, two)| one != two);
            (different.is_some() || !same_length).then(|| {
                format!(
                    "{} and {} have other events after {from}, up to {to}: {different:?}, {} and {} in all",
                    self.name,
                    other.name,
                    one.events.range(range).count(),
                    two.events.range(range).count(),
                )
            })
        };
        pairs.filter_map(differs).collect()
    }

    /// Whether the events lead to what another client was shown.
    pub(super) fn check(&self, listing: &Listing) -> Option<String> {
        let followed = self.segments.iter().rev().find_map(|segment| segment.state_after(listing.revision))?;
        let shown = WatchedState::listed(listing);
        (followed != shown).then(|| {
            let revision = listing.revision;
            format!("{} has followed {followed:?} to the entry {revision}, where a listing shows {shown:?}", self.name)
        })
    }
}

#[cfg(test)]
mod tests {
    use palisade_client::wire::{Because, Change, Mode, RecordSummary};
    use palisade_history::Recorder;

    use super::*;

    fn granted(revision: u64, token: u64, session: u64) -> Event {
        let change = Change::Granted {
            session,
            owner: "o".into(),
            token,
            mode: Mode::Exclusive,
            permits: None,
            of: None,
            keys: Vec::new(),
            value: Some("v".into()),
        };
        Event { id: EventId::end_of(revision), key: "key-0".into(), change }
    }

    fn put(revision: u64, key: &str) -> Event {
        let change = Change::Put { version: revision, fence: None };
        Event { id: EventId::end_of(revision), key: key.into(), change }
    }

    /// A watcher that was told of an empty state after the entry `since`, and then of these events.
    fn watcher(since: u64, events: impl IntoIterator<Item = Event>) -> Watcher {
        let recorder = Recorder::into_writer(Box::new(std::io::sink()));
        let load = Load::new(Vec::new(), palisade_client::Security::plain(), recorder);
        let mut watcher = Watcher::new("w".into());
        let listing = Listing { revision: since, begins: true, complete: true, ..Listing::default() };
        watcher.note(&load, Watched::Listing(listing));
        events.into_iter().for_each(|event| watcher.note(&load, Watched::Event(event)));
        watcher
    }

    #[test]
    fn missed_repeated_and_different_events_are_seen() {
        let all = || [granted(3, 1, 7), put(4, "key-1"), put(5, "key-2"), put(6, END)];
        let whole = watcher(2, all());
        assert!(whole.is_complete && whole.complaints.is_empty());
        assert_eq!(whole.compare(&watcher(2, all())), [""; 0]);
        assert_eq!(whole.compare(&watcher(4, all().into_iter().skip(2))), [""; 0], "it began later");
        assert_eq!(whole.compare(&watcher(2, all().into_iter().take(2))), [""; 0], "it ended earlier");
        let missed = all().into_iter().filter(|event| event.id.revision != 4);
        assert_eq!(whole.compare(&watcher(2, missed)).len(), 1);
        let different = all().map(|event| if event.id.revision == 5 { put(5, "key-3") } else { event });
        assert_eq!(whole.compare(&watcher(2, different)).len(), 1);
        let repeated = watcher(2, all().into_iter().chain([put(5, "key-2")]));
        assert_eq!(repeated.complaints.len(), 1, "{:?}", repeated.complaints);
        assert_eq!(watcher(4, all().into_iter().skip(1)).complaints.len(), 1, "an event of before the listing");
    }

    #[test]
    fn events_lead_to_the_listing() {
        let released = Change::Released { session: 7, token: 1, because: Because::Request };
        let released = Event { id: EventId::end_of(5), key: "key-0".into(), change: released };
        let watcher = watcher(2, [granted(3, 1, 7), put(4, "key-1"), released]);
        let record = |version| RecordSummary { key: "key-1".into(), version, fence: None, bytes: 1 };
        let listing = |revision, version| {
            let records = vec![record(version)];
            Listing { revision, begins: true, complete: true, records, ..Listing::default() }
        };
        assert_eq!(watcher.check(&listing(5, 4)), None);
        assert!(watcher.check(&listing(4, 4)).is_some(), "the lock is held then");
        assert!(watcher.check(&listing(5, 3)).is_some(), "the record is of another version");
        assert_eq!(watcher.check(&listing(1, 3)), None, "it had not begun");
    }
}
