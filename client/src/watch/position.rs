//! The position in a watch from which the client resumes it.

use crate::wire::{EventId, Watched};

/// How far a client has followed a watch: after which event it goes on, at the same node or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchPosition {
    after: Option<EventId>,
    /// Whether a listing has begun, and is not complete.
    is_listing: bool,
}

impl WatchPosition {
    /// That of a client that has seen all events up to this one; without one, its watch begins with a listing.
    pub fn new(after: Option<EventId>) -> WatchPosition {
        WatchPosition { after, is_listing: after.is_none() }
    }

    /// The last event that was seen, or the end of the last listing. `None` before the first listing is complete, and after
    /// [`Watched::Compacted`] until the next one is.
    pub fn after(&self) -> Option<EventId> {
        self.after
    }

    /// The watch goes on at another node: of a listing, what came so far is out of date.
    pub fn resume(&mut self) {
        *self = WatchPosition::new(self.after);
    }

    /// The client was told this.
    pub fn note(&mut self, watched: &Watched) {
        match watched {
            Watched::Event(event) if !self.is_listing => self.after = Some(event.id),
            // A part of a listing begins anew at the next node.
            Watched::Event(_) => {}
            Watched::Listing(listing) => {
                self.is_listing = !listing.complete;
                if listing.complete {
                    self.after = Some(EventId::end_of(listing.revision));
                }
            }
            // Without an ID: if the listing does not come from this node, it comes from the next one.
            Watched::Compacted { .. } => *self = WatchPosition::new(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Change, Event, Listing};

    fn listing(revision: u64, complete: bool) -> Watched {
        Watched::Listing(Listing { revision, begins: true, complete, ..Listing::default() })
    }

    fn event(revision: u64) -> Watched {
        let change = Change::Deleted { version: revision };
        Watched::Event(Event { id: EventId::end_of(revision), key: "k".into(), change })
    }

    /// Goal: when events were missed, the watch is resumed with a listing, at whatever node it goes on, until one is
    /// complete.
    #[test]
    fn what_was_missed_is_listed_at_the_next_node() {
        let mut position = WatchPosition::new(None);
        let mut after = |watched| {
            position.note(&watched);
            position.after()
        };
        assert_eq!(after(listing(7, true)), Some(EventId::end_of(7)));
        assert_eq!(after(event(9)), Some(EventId::end_of(9)));
        assert_eq!(after(Watched::Compacted { floor: 20 }), None);
        assert_eq!(after(listing(25, false)), None);
        assert_eq!(after(event(26)), None, "the listing is not complete");
        assert_eq!(after(listing(27, true)), Some(EventId::end_of(27)));
    }

    /// Goal: a listing that was interrupted at one node says nothing of where to go on at the next one.
    #[test]
    fn an_interrupted_listing_is_begun_anew() {
        let mut position = WatchPosition::new(None);
        position.note(&listing(7, false));
        position.resume();
        position.note(&event(8));
        assert_eq!(position.after(), None);
        let mut resumed = WatchPosition::new(Some(EventId::end_of(3)));
        resumed.resume();
        resumed.note(&event(8));
        assert_eq!(resumed.after(), Some(EventId::end_of(8)));
    }
}
