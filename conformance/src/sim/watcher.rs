//! Clients that watch: what a watcher was told, and whether it follows from what was committed.
//!
//! A watcher is told of a state by a listing, and of every event after it. The judge does not ask how the
//! server makes these events: it counts the committed changes of the watcher's keys, and compares the state
//! that the watcher knows with the committed one after each entry that the watcher has seen whole.

use std::collections::VecDeque;
use std::time::Duration;

use palisade::watch::{self, Filter, Told};
use palisade_client::WatchPosition;
use palisade_client::wire::{self, Change, EventId, Listing, Watched};
use palisade_spec::checker::Reference;
use palisade_spec::invariants::{Check, Property, Violation};
use palisade_spec::lock::{Event, Key, LockTable};
use palisade_spec::raft::{Index, NodeId};
use palisade_spec::{require, violated};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::watched_state::WatchedState;

/// Number of watchers of a cluster.
pub(super) const WATCHERS: usize = 3;
/// The most locks, and the most records, of a part of a listing: the clients use three of each.
pub(super) const PART: usize = 1;
/// What every watcher is promised, of what clients saw.
pub(super) const PROPERTY: Property = Property::History("watches miss nothing");

/// A client that watches.
pub(super) struct Watcher {
    number: usize,
    pub(super) filter: Filter,
    /// A generator of its own: watchers change nothing else of a run.
    pub(super) rng: SmallRng,
    pub(super) connection: Option<Connection>,
    pub(super) position: WatchPosition,
    seen: Option<Seen>,
    pub(super) counts: Counts,
}

/// Counts of a watcher.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) listings: u64,
    pub(super) resumed: u64,
    pub(super) compacted: u64,
    pub(super) too_slow: u64,
}

/// A watch at a node.
pub(super) struct Connection {
    pub(super) node: NodeId,
    pub(super) boot: u64,
    pub(super) watch: watch::Watcher,
    /// A part of the state that was read, and that the watch has not taken yet.
    pub(super) read: Option<Listing>,
    /// What the node has told, and the client has not received yet; at the end, that the watch has ended.
    pub(super) under_way: VecDeque<Option<Watched>>,
}

/// What a watcher knows.
#[derive(Debug)]
struct Seen {
    state: WatchedState,
    /// It has seen all events up to this one.
    last: EventId,
    /// How many changes of the entry of that event it has seen; `None` if it has seen a later state of it.
    of_entry: Option<usize>,
    /// The key up to which the state was listed; `None` once all of it was.
    listed: Option<String>,
}

impl Watcher {
    pub(super) fn new(number: usize, seed: u64) -> Watcher {
        let rng = SmallRng::seed_from_u64(seed ^ (number as u64 + 1).wrapping_mul(0xA076_1D64_78BD_642F));
        let filter = match number {
            0 => Filter::Prefix("".into()),
            1 => Filter::Prefix("m".into()),
            _ => Filter::Key("ledger".into()),
        };
        let (position, counts) = (WatchPosition::new(None), Counts::default());
        Watcher { number, filter, rng, connection: None, position, seen: None, counts }
    }

    /// Time until its next turn. Now and then it reads nothing for long.
    pub(super) fn pause(&mut self) -> Duration {
        let most = if self.rng.random_bool(0.03) { 20_000 } else { 300 };
        Duration::from_millis(self.rng.random_range(1..most))
    }

    /// It begins a watch. Without an event after which to go on, it may be shown an earlier state than before.
    pub(super) fn begin(&mut self) {
        self.counts.resumed += u64::from(self.position.after().is_some());
        self.position.resume();
        if self.position.after().is_none() {
            self.seen = None;
        }
    }

    /// The end of its watch: some of what was under way arrives, and the client goes on elsewhere.
    pub(super) fn disconnect(&mut self, agreed: &Reference<LockTable>) -> Check {
        let Some(connection) = &self.connection else { return Ok(()) };
        let arrives = self.rng.random_range(0..=connection.under_way.len());
        let arrived = self.receive(agreed, arrives);
        self.connection = None;
        arrived
    }

    /// The node tells what comes next, if there is anything. Returns whether there may be more.
    pub(super) fn tell(&mut self, agreed: &Reference<LockTable>, reached: u64) -> Result<bool, Violation> {
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let told = match connection.watch.told_at_once() {
            Some(Told::Events(events)) => events.iter().map(|shown| Some(Watched::Event(shown.event()))).collect(),
            Some(Told::Listing(listing)) => vec![Some(Watched::Listing(listing))],
            Some(Told::Compacted(floor)) => vec![Some(Watched::Compacted { floor })],
            Some(Told::TooSlow) => {
                self.counts.too_slow += 1;
                vec![None]
            }
            Some(Told::Closed) => vec![None],
            Some(Told::Denied) => return violated!(PROPERTY, "{} may read every key, and is denied one", self.name()),
            None if connection.under_way.is_empty() => {
                self.check_complete(agreed, reached)?;
                return Ok(false);
            }
            None => return Ok(false),
        };
        let has_ended = told.last().is_some_and(Option::is_none);
        connection.under_way.extend(told);
        Ok(!has_ended)
    }

    /// Receives so much of what is under way, and hangs up if the watch has ended.
    pub(super) fn receive(&mut self, agreed: &Reference<LockTable>, count: usize) -> Check {
        for _ in 0..count {
            let Some(connection) = &mut self.connection else { return Ok(()) };
            match connection.under_way.pop_front() {
                None => return Ok(()),
                Some(None) => self.connection = None,
                Some(Some(watched)) => {
                    self.position.note(&watched);
                    self.note(agreed, watched)?;
                    self.check_position()?;
                }
            }
        }
        Ok(())
    }

    /// A client that resumes after an event is never shown the keys that were not listed.
    fn check_position(&self) -> Check {
        let listed = self.seen.as_ref().and_then(|seen| seen.listed.as_ref());
        let after = self.position.after().filter(|_| listed.is_some());
        require!(
            PROPERTY,
            after.is_none(),
            "{} would resume after {after:?}, and has a listing up to {listed:?}",
            self.name()
        )
    }

    fn name(&self) -> String {
        format!("watcher {} of {:?}", self.number, self.filter)
    }

    fn note(&mut self, agreed: &Reference<LockTable>, watched: Watched) -> Check {
        let (name, filter) = (self.name(), self.filter.clone());
        let follows = |key: &Key| filter.matches(key.as_str());
        match watched {
            Watched::Listing(listing) => {
                self.counts.listings += u64::from(listing.begins);
                self.list(agreed, &listing)
            }
            Watched::Compacted { floor } => {
                self.counts.compacted += 1;
                let Some(seen) = &self.seen else { return Ok(()) };
                let last = seen.last;
                let lacks = if last.event.is_none() { last.revision + 1 } else { last.revision };
                require!(
                    PROPERTY,
                    floor >= lacks,
                    "{name} has seen all up to {last}, and is told that it lacks events up to entry {floor}"
                )
            }
            Watched::Event(event) => {
                self.counts.events += 1;
                let Some(seen) = &mut self.seen else {
                    return violated!(PROPERTY, "{name} is told of {event:?} before any state");
                };
                require!(PROPERTY, filter.matches(&event.key), "{name} is told of {event:?}")?;
                named(&name, seen.follow(agreed, &event, &follows))
            }
        }
    }

    fn list(&mut self, agreed: &Reference<LockTable>, listing: &Listing) -> Check {
        let (name, revision) = (self.name(), listing.revision);
        let listed = listing.last_key().map(str::to_owned).filter(|_| !listing.complete);
        let (last, part) = (EventId::end_of(revision), WatchedState::listed(listing));
        if let Some(seen) = &self.seen {
            require!(
                PROPERTY,
                seen.last <= last,
                "{name} has seen all up to {}, and is shown the state at {revision}",
                seen.last
            )?;
        }
        match &mut self.seen {
            Some(seen) if !listing.begins => {
                seen.state.extend(part);
                (seen.last, seen.of_entry, seen.listed) = (last, None, listed);
            }
            _ => self.seen = Some(Seen { state: part, last, of_entry: None, listed }),
        }
        self.compare(agreed, revision)
    }

    /// Compares what the watcher knows with the committed state after an entry, if all of it was listed.
    fn compare(&self, agreed: &Reference<LockTable>, revision: u64) -> Check {
        let Some(seen) = self.seen.as_ref().filter(|seen| seen.listed.is_none()) else { return Ok(()) };
        let follows = |key: &Key| self.filter.matches(key.as_str());
        named(&self.name(), seen.compare(agreed, revision, &follows))
    }

    /// A node that has told of all entries up to `reached` has nothing more: the watcher has seen all of them.
    pub(super) fn check_complete(&self, agreed: &Reference<LockTable>, reached: u64) -> Check {
        let Some(seen) = self.seen.as_ref().filter(|seen| seen.listed.is_none()) else { return Ok(()) };
        if seen.last.revision > reached || self.position.after().is_none() {
            return Ok(());
        }
        let follows = |key: &Key| self.filter.matches(key.as_str());
        let checked = seen.check_whole(agreed, &follows).and_then(|()| seen.check_none(agreed, reached + 1, &follows));
        named(&format!("{} is told nothing more", self.name()), checked)?;
        self.compare(agreed, reached)
    }
}

impl Seen {
    fn follow(&mut self, agreed: &Reference<LockTable>, event: &wire::Event, follows: &impl Fn(&Key) -> bool) -> Check {
        let (id, last) = (event.id, self.last);
        require!(PROPERTY, id > last, "the event {id} comes after that of {last}: {event:?}")?;
        if let Some(listed) = &self.listed {
            require!(
                PROPERTY,
                event.key <= *listed,
                "the state is listed up to {listed}, and this is told: {event:?}"
            )?;
            self.state.follow(event);
            self.last = id;
            return Ok(());
        }
        if id.revision > last.revision {
            self.check_whole(agreed, follows)?;
            self.compare(agreed, last.revision, follows)?;
            self.check_none(agreed, id.revision, follows)?;
            self.of_entry = Some(0);
        }
        self.state.follow(event);
        self.last = id;
        // The end of a session is told beside each loss that it causes.
        if let Some(seen) = self.of_entry.as_mut().filter(|_| !matches!(event.change, Change::Expired { .. })) {
            *seen += 1;
        }
        if id.event.is_none() {
            self.check_whole(agreed, follows)?;
            self.compare(agreed, id.revision, follows)?;
        }
        Ok(())
    }

    /// All changes of the entry of the last event were seen.
    fn check_whole(&self, agreed: &Reference<LockTable>, follows: &impl Fn(&Key) -> bool) -> Check {
        let Some(seen) = self.of_entry else { return Ok(()) };
        let Some(there) = changes(agreed, self.last.revision, follows) else { return Ok(()) };
        require!(
            PROPERTY,
            seen == there,
            "it has seen {seen} changes of entry {}, which has {there}",
            self.last.revision
        )
    }

    /// No entry after the last one that was seen, and before this one, changes a key that is followed.
    fn check_none(&self, agreed: &Reference<LockTable>, before: u64, follows: &impl Fn(&Key) -> bool) -> Check {
        let missed = (self.last.revision + 1..before)
            .find(|&index| changes(agreed, index, follows).is_some_and(|count| count > 0));
        match missed {
            Some(index) => violated!(
                PROPERTY,
                "it has seen all up to {}, and nothing of entry {index}: {:?}",
                self.last,
                agreed.get(Index(index)).map(|entry| &entry.outcome.events)
            ),
            None => Ok(()),
        }
    }

    fn compare(&self, agreed: &Reference<LockTable>, revision: u64, follows: &impl Fn(&Key) -> bool) -> Check {
        let Some(table) = agreed.get(Index(revision)).and_then(|entry| entry.machine()) else { return Ok(()) };
        let there = WatchedState::of(table, follows);
        require!(
            PROPERTY,
            self.state == there,
            "it knows {:?} after entry {revision}, and the state is {there:?}",
            self.state
        )
    }
}

/// A violation, with whose it is.
fn named(whose: &str, check: Check) -> Check {
    check.map_err(|Violation { property, detail }| Violation { property, detail: format!("{whose}: {detail}") })
}

/// How many changes of the keys an entry makes; `None` if that is not known any more.
fn changes(agreed: &Reference<LockTable>, index: u64, follows: &impl Fn(&Key) -> bool) -> Option<usize> {
    let is_followed = |event: &&Event| match event {
        Event::Granted { key, .. }
        | Event::Queued { key, .. }
        | Event::Proclaimed { key, .. }
        | Event::Released { key, .. }
        | Event::Withdrawn { key, .. }
        | Event::Broken { key, .. }
        | Event::Put { key, .. }
        | Event::Deleted { key, .. } => follows(key),
        Event::Expired { .. } | Event::Closed { .. } | Event::Denied { .. } | Event::Overdue { .. } => false,
    };
    Some(agreed.get(Index(index))?.outcome.events.iter().filter(is_followed).count())
}
