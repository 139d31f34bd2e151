//! The open waits: clients that stand in a queue, and the requests that are to be answered when they get the lock.
//!
//! The queue itself is replicated; a wait is only this node's memory of whom to tell. A claim has at most one wait; a
//! repetition of the request joins it, and takes the place of an earlier one of the same connection: so a client that
//! asks again and again costs no more than one that asks once. When a wait runs out, or its last connection is gone, the desk proposes to
//! withdraw the claim, and answers when that is decided: a grant that comes first still counts. If the leader refuses the
//! proposal (it may be handing over), the wait is due again a moment later: a wait ends when it is answered, not when its
//! withdrawal was asked for.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use palisade_spec::lock::{Key, SessionId};

use super::respond::{ConnectionId, Responder};

/// A place in a queue: a session has at most one for each key.
pub(super) type QueueSlot = (SessionId, Key);

/// One wait.
#[derive(Debug)]
pub(super) struct Wait {
    waiters: Vec<Waiter>,
    /// When it was asked for first.
    pub(super) asked: Instant,
    /// When the claim is to be withdrawn: when the last waiter gives up, or at once if none is left; or when that is to
    /// be tried again.
    ends: Instant,
    /// How often the desk renews the session: one that the acquire opened for itself, whose identity nobody else
    /// knows yet, lives as long as its connection does.
    renew_every: Option<Duration>,
    renew_at: Option<Instant>,
    /// The withdrawal is proposed, and was not refused.
    withdrawing: bool,
}

/// One connection that asked for the place.
#[derive(Debug)]
struct Waiter {
    responder: Responder,
    /// When it gives up.
    ends: Instant,
}

/// What a wait needs now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Its session is to be renewed.
    Renew(QueueSlot),
    /// It ran out, or no connection is left.
    Withdraw(QueueSlot),
}

/// Every open wait of this node.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waits: HashMap<QueueSlot, Wait>,
    by_connection: HashMap<ConnectionId, BTreeSet<QueueSlot>>,
    alarms: BTreeSet<(Instant, QueueSlot)>,
}

impl Wait {
    /// Whom to tell.
    pub(super) fn into_responders(self) -> impl Iterator<Item = Responder> {
        self.waiters.into_iter().map(|waiter| waiter.responder)
    }

    /// Whether no connection is left that asked for it.
    pub(super) fn is_deserted(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether it ends because the wait was withdrawn on its own behalf.
    pub(super) fn ran_out(&self) -> bool {
        self.withdrawing
    }

    fn last_end(&self) -> Option<Instant> {
        self.waiters.iter().map(|waiter| waiter.ends).max()
    }

    fn alarm(&self) -> Option<Instant> {
        let ends = (!self.withdrawing).then_some(self.ends);
        [ends, self.renew_at].into_iter().flatten().min()
    }
}

impl Waits {
    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }

    /// In how many places a connection waits.
    pub(super) fn of(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, BTreeSet::len)
    }

    /// Whether somebody waits at this place.
    pub(super) fn stands(&self, place: &QueueSlot) -> bool {
        self.waits.contains_key(place)
    }

    /// `responder` waits at `place` until `ends`; its session is renewed every so often from when it was asked for, if the
    /// desk has to.
    pub(super) fn add(
        &mut self,
        place: QueueSlot,
        mut responder: Responder,
        ends: Instant,
        renew_every: Option<Duration>,
    ) {
        responder.stands_in_queue();
        self.by_connection.entry(responder.connection).or_default().insert(place.clone());
        let mut wait = self.remove_quietly(&place).unwrap_or_else(|| Wait {
            waiters: Vec::new(),
            asked: responder.asked,
            ends,
            renew_every,
            renew_at: renew_every.map(|every| responder.asked + every),
            withdrawing: false,
        });
        wait.waiters.retain(|earlier| earlier.responder.connection != responder.connection);
        wait.waiters.push(Waiter { responder, ends });
        wait.ends = wait.last_end().expect("one was just added");
        wait.withdrawing = false;
        self.put(place, wait);
    }

    /// Ends a wait; whoever it is for is to be told.
    pub(super) fn remove(&mut self, place: &QueueSlot) -> Option<Wait> {
        let wait = self.remove_quietly(place)?;
        for waiter in &wait.waiters {
            self.forget(waiter.responder.connection, place);
        }
        Some(wait)
    }

    /// A connection is gone. Waits that no connection is left for are due at once.
    pub(super) fn disconnect(&mut self, connection: ConnectionId, now: Instant) {
        for place in self.by_connection.remove(&connection).unwrap_or_default() {
            self.change(&place, |wait| {
                wait.waiters.retain(|waiter| waiter.responder.connection != connection);
                wait.ends = wait.ends.min(wait.last_end().unwrap_or(now));
                if wait.is_deserted() {
                    wait.renew_at = None;
                }
            });
        }
    }

    /// The withdrawal was not taken, or is not to be asked for now: it is due again then, unless a client comes to wait
    /// here.
    pub(super) fn withdraw_again(&mut self, place: &QueueSlot, at: Instant) {
        self.change(place, |wait| {
            if wait.withdrawing {
                (wait.ends, wait.withdrawing) = (at, false);
            }
        });
    }

    /// The renewal was not taken: it is due again then.
    pub(super) fn renew_again(&mut self, place: &QueueSlot, at: Instant) {
        self.change(place, |wait| wait.renew_at = wait.renew_at.map(|next| next.min(at)));
    }

    /// When something is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// What is due now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Due> {
        let mut due = Vec::new();
        while let Some((at, place)) = self.alarms.first().cloned().filter(|&(at, _)| at <= now) {
            let mut wait = self.remove_quietly(&place).expect("an alarm belongs to a wait");
            if !wait.withdrawing && wait.ends <= at {
                wait.withdrawing = true;
                due.push(Due::Withdraw(place.clone()));
            } else {
                wait.renew_at = wait.renew_every.map(|every| now + every);
                due.push(Due::Renew(place.clone()));
            }
            self.put(place, wait);
        }
        due
    }

    /// All waits, to be told that this node can no longer answer them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Responder> {
        self.by_connection.clear();
        self.alarms.clear();
        std::mem::take(&mut self.waits).into_values().flat_map(Wait::into_responders)
    }

    /// Changes a wait, if there is one, and its alarm with it.
    fn change(&mut self, place: &QueueSlot, change: impl FnOnce(&mut Wait)) {
        if let Some(mut wait) = self.remove_quietly(place) {
            change(&mut wait);
            self.put(place.clone(), wait);
        }
    }

    fn put(&mut self, place: QueueSlot, wait: Wait) {
        if let Some(at) = wait.alarm() {
            self.alarms.insert((at, place.clone()));
        }
        self.waits.insert(place, wait);
    }

    fn remove_quietly(&mut self, place: &QueueSlot) -> Option<Wait> {
        let wait = self.waits.remove(place)?;
        if let Some(at) = wait.alarm() {
            self.alarms.remove(&(at, place.clone()));
        }
        Some(wait)
    }

    fn forget(&mut self, connection: ConnectionId, place: &QueueSlot) {
        if let Some(places) = self.by_connection.get_mut(&connection) {
            places.remove(place);
            if places.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }
}
