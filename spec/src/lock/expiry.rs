//! How sessions end, and who holds their locks next.
//!
//! Three events end a session: a sweep, a command that names a key whose holder is due, and its own
//! end (it is closed, or it was opened for one lock and has no claim left). Each of them calls
//! [`LockTable::end`], which passes every lock of the session on to the first waiter that can still
//! act, in the same step.
//!
//! The work of one step is bounded, however many sessions are due (docs/decisions/0013): a sweep
//! ends so many and leaves the others for the next one.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::{Event, Key, Lock, LockTable, SessionId};
use crate::raft::Stamp;

impl LockTable {
    /// Ends sessions whose deadlines lie before `at`, until the work reaches that of a full sweep:
    /// first the holders of locks with waiters, then the others, each group in the order of
    /// deadlines.
    pub(super) fn sweep(&mut self, at: Stamp, events: &mut Vec<Event>) {
        let mut full = 0;
        let is_due = |(deadline, _): &&(Stamp, SessionId)| *deadline < at;
        let contended = self.contended.keys().take_while(is_due);
        let others = self.deadlines.keys().take_while(is_due).filter(|entry| !self.contended.contains_key(entry));
        let due = contended.chain(others).map(|&(_, session)| session);
        let has_room = |session: &SessionId| {
            let has_room = full < self.sweep.max(1);
            full += self.ending_cost(*session);
            has_room
        };
        let first: Vec<SessionId> = due.take_while(has_room).collect();
        self.end(at, &first, events);
    }

    /// The work of ending a session: the session, its claims, and the waiters for its locks, all of
    /// which may be passed over.
    fn ending_cost(&self, id: SessionId) -> u64 {
        let session = &self.sessions[&id];
        let waiters =
            |key: &Key| self.locks.get(key).filter(|lock| lock.holder.session == id).map_or(0, |lock| lock.queue.len());
        let is_contended = self.contended.contains_key(&(session.deadline, id));
        let waiting = if is_contended { session.claims().iter().map(waiters).sum() } else { 0 };
        (1 + session.claims().len() + waiting) as u64
    }

    /// Ends the holder of `key` if it is due, so that the command meets the next holder.
    pub(super) fn end_due_holder(&mut self, at: Stamp, key: &Key, events: &mut Vec<Event>) {
        let Some(holder) = self.locks.get(key).map(|lock| lock.holder.session) else { return };
        if self.sessions[&holder].is_due(at) {
            self.end(at, &[holder], events);
        }
    }

    /// Ends the existing sessions among `ids`: first removes all sessions, then passes their locks
    /// on, and finally clears each queue once for all of them.
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
        let mut queues_to_clear = BTreeSet::new();
        for (id, claims) in ended {
            for key in claims.into_vec() {
                if self.locks.get(&key).is_some_and(|lock| lock.holder.session == id) {
                    self.grant_next(at, &key, events);
                } else {
                    events.push(Event::Withdrawn { key: key.clone(), session: id });
                    queues_to_clear.insert(key);
                }
            }
        }
        for key in queues_to_clear {
            let Some(lock) = self.locks.get_mut(&key) else { continue };
            let had_waiters = !lock.queue.is_empty();
            lock.queue.retain(|waiter| !gone.contains(&waiter.session));
            let (holder, has_waiters) = (lock.holder.session, !lock.queue.is_empty());
            self.has_waiters(holder, had_waiters, has_waiters);
        }
    }

    /// Passes the lock on after its holder is gone: the first waiter that is not due, and that the
    /// access rules in force permit to acquire it, gets the lock. A waiter that they do not permit
    /// loses its position, and so do due waiters. Due waiters before it lose their positions; their sessions end in a later sweep, except
    /// those opened for this lock, which end at once; so one expiry cannot sweep an unbounded number
    /// of others.
    pub(super) fn grant_next(&mut self, at: Stamp, key: &Key, events: &mut Vec<Event>) {
        let Lock { holder, mut queue } = self.locks.remove(key).expect("what is passed on was held");
        self.has_waiters(holder.session, !queue.is_empty(), false);
        events.push(Event::Released { key: key.clone(), session: holder.session, token: holder.token });
        while let Some(waiter) = queue.pop_front() {
            match self.sessions.get(&waiter.session) {
                // The waiter's session ends in the same call as the holder's.
                None => {}
                Some(session) if session.is_due(at) => self.leave_queue(at, waiter.session, key, events),
                Some(session) if !self.may_acquire(waiter.session, key) => {
                    let principal = session.principal.clone();
                    events.push(Event::Denied { key: key.clone(), session: waiter.session, principal });
                    self.leave_queue(at, waiter.session, key, events);
                }
                Some(_) => {
                    self.grant(at, waiter.session, waiter.sequence, key, queue, events);
                    return;
                }
            }
        }
    }
}
