//! A watch from its beginning to its end: a listing of the present state, unless its client resumes, and
//! then the events after it.
//!
//! A long listing has several parts, and each is of a later state. The events of keys that were listed come
//! before the next part, so at its end all keys are at one revision.
//!
//! The listings come from the caller, who reads the state that the node has applied. The core answers reads
//! when the events of what they show have been published, so the history is never behind a listing.

use std::sync::Arc;

use palisade_client::wire::{EventId, Listing};
use palisade_spec::lock::Principal;

#[cfg(test)]
use super::directory::Slot;
use super::filter::Filter;
use super::follow::{Follower, Listed, Progress, Shown};
use super::hub::Hub;

/// A watch of a client.
#[derive(Debug)]
pub struct Watcher {
    follower: Follower,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// The client resumes: what it lacks may be gone, through no fault of its own.
    Resuming,
    /// The present state is listed.
    Listing {
        /// The key up to which it was listed.
        after: Option<String>,
        /// The next part, if it has been read.
        next: Option<Listing>,
    },
    /// Events are shown.
    Following,
}

/// What a client is told next.
#[derive(Debug)]
pub enum Told {
    /// Events.
    Events(Vec<Shown>),
    /// A part of a listing.
    Listing(Listing),
    /// What the client lacks is gone: the node has all events after this entry. A listing follows.
    Compacted(u64),
    /// The client has not read events that had to make room for newer ones. The watch ends.
    TooSlow,
    /// The access rules do not permit the reader the key. The watch ends.
    Denied,
    /// The node stops. The watch ends.
    Closed,
}

impl Watcher {
    /// A watch for this reader: of the events after the one that it has seen last, or of the present state
    /// and what comes then.
    pub fn new(hub: &Arc<Hub>, filter: Filter, reader: Principal, after: Option<EventId>) -> Watcher {
        let (after, phase) = match after {
            Some(after) => (after, Phase::Resuming),
            None => (EventId::end_of(hub.reached()), Phase::LISTING),
        };
        Watcher { follower: hub.follow(filter, reader, after), phase }
    }

    /// What it follows.
    pub fn filter(&self) -> &Filter {
        self.follower.filter()
    }

    /// The client that follows it.
    pub fn reader(&self) -> &Principal {
        self.follower.reader()
    }

    /// Whether a part of a listing is told next, or events before it.
    pub fn is_listing(&self) -> bool {
        matches!(self.phase, Phase::Listing { .. })
    }

    /// Whether a part of a listing is to be read before anything is told, and after which key.
    pub fn lacks(&self) -> Option<Option<&str>> {
        match &self.phase {
            Phase::Listing { after, next: None } => Some(after.as_deref()),
            Phase::Resuming | Phase::Listing { .. } | Phase::Following => None,
        }
    }

    /// Takes the part that it lacked.
    pub fn take_listing(&mut self, listing: Listing) {
        if let Phase::Listing { next, .. } = &mut self.phase {
            *next = Some(listing);
        }
    }

    /// Waits for what is told next, if it lacks no listing. Can be dropped and called anew.
    pub async fn told(&mut self) -> Told {
        if let Some(told) = self.list() {
            return told;
        }
        let progress = self.follower.follow().await;
        self.tell(progress).unwrap_or_else(|| unreachable!("it waits for something else"))
    }

    /// What is told next, if there is anything.
    pub fn told_at_once(&mut self) -> Option<Told> {
        if let Some(told) = self.list() {
            return Some(told);
        }
        let progress = self.follower.next(None);
        self.tell(progress)
    }

    fn tell(&mut self, progress: Progress) -> Option<Told> {
        Some(match progress {
            Progress::Events(events) => {
                self.phase = Phase::Following;
                Told::Events(events)
            }
            Progress::Dropped(_) if matches!(self.phase, Phase::Following) => Told::TooSlow,
            Progress::NeverHad(floor) | Progress::Dropped(floor) => {
                self.phase = Phase::LISTING;
                Told::Compacted(floor)
            }
            Progress::Denied => Told::Denied,
            Progress::Closed => Told::Closed,
            Progress::CaughtUp => return None,
        })
    }

    /// The next part of the listing, or events that come before it; nothing if it does not list.
    fn list(&mut self) -> Option<Told> {
        let Phase::Listing { after, next } = &mut self.phase else { return None };
        let listing = next.take().expect("the part was read");
        // Of keys that were listed before.
        if after.is_some() {
            match self.follower.next(Some(listing.revision)) {
                Progress::Events(events) => {
                    *next = Some(listing);
                    return Some(Told::Events(events));
                }
                Progress::CaughtUp => {}
                Progress::Dropped(_) | Progress::NeverHad(_) => return Some(Told::TooSlow),
                Progress::Denied => return Some(Told::Denied),
                Progress::Closed => return Some(Told::Closed),
            }
        }
        let last = listing.last_key().map(str::to_owned).filter(|_| !listing.complete);
        let listed = last.clone().map_or(Listed::All, Listed::UpTo);
        self.follower.list(listing.revision, listed);
        self.phase = if last.is_some() { Phase::Listing { after: last, next: None } } else { Phase::Following };
        Some(Told::Listing(listing))
    }
}

#[cfg(test)]
impl Watcher {
    /// What decides how it goes on.
    pub(super) fn contents(&self) -> String {
        format!("{:?} {}", self.phase, self.follower.contents())
    }

    /// Whether it is woken there.
    pub(super) fn is_at(&self, slot: &Arc<Slot>) -> bool {
        self.follower.is_at(slot)
    }

    /// Whether it waits for events.
    pub(super) fn is_asleep(&self) -> bool {
        !self.is_listing() && self.follower.is_asleep()
    }
}

impl Phase {
    /// Nothing is listed yet.
    const LISTING: Phase = Phase::Listing { after: None, next: None };
}
