//! Ends sessions, and passes their locks on.
//!
//! Three events end a session: a sweep, a command that names a key of which it is a due holder, and its
//! own end (it is closed, or it was opened for one claim and has none left). Each of them calls
//! [`LockTable::end`], which passes every lock of the session on to the first waiters that can still
//! act, in the same step.
//!
//! The work of one step is bounded, however many sessions are due (docs/decisions/0013): a sweep
//! ends so many and leaves the others for the next one.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Event, Key, Keys, LockTable, SessionId, Waiter};
use crate::raft::Stamp;

impl LockTable {
    /// Ends sessions whose deadlines lie before `at`, until the work reaches that of a full sweep:
    /// first the first holders of locks with waiters, then the others, each group in the order of
    /// deadlines.
    pub(super) fn sweep(&mut self, at: Stamp, events: &mut Vec<Event>) {
        let is_due = |(deadline, _): &&(Stamp, SessionId)| *deadline < at;
        let contended = self.contended.keys().take_while(is_due);
        let others = self.deadlines.keys().take_while(is_due).filter(|entry| !self.contended.contains_key(entry));
        let first = self.within_one_sweep(contended.chain(others).map(|&(_, session)| session));
        self.end(at, &first, events);
    }

    /// What is to be done before a command about these keys: their due holders end, as many of them as a
    /// sweep would end, so that the command meets the next holders; and waiters whose turn it is, and that
    /// are due or denied, lose their positions.
    pub(super) fn let_time_pass(&mut self, at: Stamp, keys: &Keys, events: &mut Vec<Event>) {
        // Mostly no session is due: then the holders, of which there may be many, need no look.
        let is_any_due = self.deadlines.first().is_some_and(|(&(deadline, _), ())| deadline < at);
        if is_any_due {
            let holders = keys.iter().filter_map(|key| self.locks.get(key)).flat_map(|lock| lock.holders.iter());
            // A session may hold several of the keys.
            let mut seen = BTreeSet::new();
            let is_due = |id: &SessionId| self.sessions[id].is_due(at) && seen.insert(*id);
            let due = self.within_one_sweep(holders.map(|holder| holder.session).filter(is_due));
            if !due.is_empty() {
                self.end(at, &due, events);
            }
        }
        if is_any_due || self.access.is_enabled() {
            for key in keys {
                self.pass_on(at, key, events);
            }
        }
    }

    /// The first sessions, until ending them is the work of a full sweep; at least one.
    fn within_one_sweep(&self, sessions: impl Iterator<Item = SessionId>) -> Vec<SessionId> {
        let mut full = 0;
        let has_room = |session: &SessionId| {
            let has_room = full < self.sweep.max(1);
            full += self.ending_cost(*session);
            has_room
        };
        sessions.take_while(has_room).collect()
    }

    /// The work of ending a session: the session, its claims, and the waiters for its locks, all of
    /// which may be passed over.
    fn ending_cost(&self, id: SessionId) -> u64 {
        let session = &self.sessions[&id];
        let waiters = |key: &Key| {
            let lock = self.locks.get(key).filter(|lock| !lock.queue.is_empty() && lock.holder(id).is_some());
            lock.map_or(0, |lock| lock.queue.len())
        };
        // Mostly no session waits for a held lock: then the locks, of which there may be many, need no look.
        let is_any_waited_for = !self.contended.is_empty();
        let waiting: usize = if is_any_waited_for { session.claims().iter().map(waiters).sum() } else { 0 };
        (1 + session.claims().len() + waiting) as u64
    }

    /// Ends the existing sessions among `ids`: first removes all sessions, then clears each of their
    /// queues once for all of them, and finally passes their locks on.
    pub(super) fn end(&mut self, at: Stamp, ids: &[SessionId], events: &mut Vec<Event>) {
        let mut ended = Vec::new();
        let mut gone = BTreeSet::new();
        for &id in ids {
            if let Some(session) = self.sessions.remove(&id) {
                let deadline = session.deadline;
                self.deadlines.remove(&(deadline, id));
                self.contended.remove(&(deadline, id));
                let expired = Event::Expired { session: id, deadline };
                events.push(if session.is_due(at) { expired } else { Event::Closed { session: id } });
                ended.push((id, session.claims));
                gone.insert(id);
            }
        }
        let (mut held, mut queues_to_clear) = (Vec::new(), BTreeSet::new());
        for (id, claims) in ended {
            for key in claims.into_vec() {
                match self.locks.get(&key).map(|lock| lock.holder(id)) {
                    // A grant on several keys is given up with the first of them.
                    Some(Some(holder)) if holder.all_keys(&key)[0] == key => held.push((id, key)),
                    Some(None) => {
                        events.push(Event::Withdrawn { key: key.clone(), session: id });
                        queues_to_clear.insert(key);
                    }
                    _ => {}
                }
            }
        }
        for key in &queues_to_clear {
            let mut left = 0;
            let stays = |waiter: &Waiter| {
                let ends = gone.contains(&waiter.session);
                left += if ends { waiter.details.bytes(key) } else { 0 };
                !ends
            };
            self.change_queue(key, |queue| queue.retain(stays));
            self.claimed -= left;
        }
        for (id, key) in held {
            self.give_up(at, &key, id, events);
        }
        for key in &queues_to_clear {
            self.pass_on(at, key, events);
        }
    }
}
