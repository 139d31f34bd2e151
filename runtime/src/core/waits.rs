//! Waiting acquires: clients with a session in a queue, and the requests to answer when the session
//! gets the lock.
//!
//! The queue itself is replicated; a wait is only this node's record of the requests to answer. A
//! queue slot has at most one wait. A repeated request joins the wait, and replaces an earlier one
//! of the same connection: so a client that repeats its request costs no more than one that does
//! not. When a wait times out, or its last connection ends, the node proposes to withdraw the
//! claim, and answers when that is decided: a grant that is applied first still counts. If the node
//! rejects the proposal (it may be transferring leadership), the wait is due again a moment later:
//! a wait ends when it is answered, not when its withdrawal is proposed.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use palisade_spec::lock::{Key, Keys, SessionId};

use super::credential::Secret;
use super::respond::{ConnectionId, Responder};
use crate::accounts::AccountName;
use crate::addresses::RemoteAddress;

/// A session's slot in the queue of a key: a session has at most one for each key. Of a claim on several
/// keys, the slot at the first key stands for all.
pub(super) type QueueSlot = (SessionId, Key);

/// The wait for one queue slot.
#[derive(Debug)]
pub(super) struct Wait {
    waiters: Vec<Waiter>,
    keys: Keys,
    /// The secret of the session, for the answer: all requests for a slot have presented it.
    secret: Secret,
    /// When its first request arrived.
    pub(super) arrived: Instant,
    /// When the claim is to be withdrawn: at the end of the last waiter, or at once if none is
    /// left; after a rejected withdrawal, at the next attempt.
    ends: Instant,
    /// How often the node renews the session, if the acquire opened it for itself (a once-session):
    /// until the grant no client knows its ID, and it lives as long as the connection that waits.
    renew_every: Option<Duration>,
    renew_at: Option<Instant>,
    /// The withdrawal is proposed, and was not rejected.
    withdrawing: bool,
}

/// A request of one connection.
#[derive(Debug)]
struct Waiter {
    responder: Responder,
    /// When it times out.
    ends: Instant,
}

/// What a wait needs now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Renew its session.
    Renew(QueueSlot),
    /// Withdraw its claim: the wait timed out, or no connection is left.
    Withdraw(QueueSlot),
}

/// All waits of this node.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waits: HashMap<QueueSlot, Wait>,
    /// Of waits for several keys: the slots at all keys but the first, each with the first key.
    others: HashMap<QueueSlot, Key>,
    by_connection: HashMap<ConnectionId, BTreeSet<QueueSlot>>,
    /// Number of the requests of each client.
    by_client: HashMap<AccountName, usize>,
    alarms: BTreeSet<(Instant, QueueSlot)>,
}

impl Wait {
    /// The requests to answer.
    pub(super) fn into_responders(self) -> impl Iterator<Item = Responder> {
        self.waiters.into_iter().map(|waiter| waiter.responder)
    }

    /// The keys that it waits for.
    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The secret of the session that waits.
    pub(super) fn secret(&self) -> Secret {
        self.secret
    }

    /// Whether the acquire opened the session for itself, so that no client knows its ID yet.
    pub(super) fn is_of_unknown_session(&self) -> bool {
        self.renew_every.is_some()
    }

    /// Whether no connection is left.
    pub(super) fn is_deserted(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether this node has proposed its withdrawal.
    pub(super) fn ran_out(&self) -> bool {
        self.withdrawing
    }

    /// Removes the requests of a connection, and returns their clients.
    fn take_those_of(&mut self, connection: ConnectionId) -> Vec<AccountName> {
        let taken = self.waiters.extract_if(.., |waiter| waiter.responder.connection == connection);
        taken.filter_map(|waiter| waiter.responder.client).collect()
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

    /// Number of queue slots for which a connection waits.
    pub(super) fn of(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, BTreeSet::len)
    }

    /// Number of requests of this client that wait.
    pub(super) fn of_client(&self, client: &AccountName) -> usize {
        self.by_client.get(client).copied().unwrap_or(0)
    }

    /// Where a client is that waits for this slot.
    pub(super) fn remote(&self, session: SessionId, key: &Key) -> Option<RemoteAddress> {
        if self.waits.is_empty() {
            return None;
        }
        self.waits.get(&self.slot(session, key))?.waiters.first()?.responder.remote
    }

    /// Number of keys of waits that are not the first of their wait.
    #[cfg(test)]
    pub(super) fn other_keys(&self) -> usize {
        self.others.len()
    }

    /// The slot that stands for this one.
    fn slot(&self, session: SessionId, key: &Key) -> QueueSlot {
        let slot = (session, key.clone());
        let first = self.others.get(&slot).cloned();
        first.map_or(slot, |first| (session, first))
    }

    /// Whether the session waits here for these keys.
    pub(super) fn contains(&self, session: SessionId, keys: &Keys) -> bool {
        self.waits.get(&(session, keys.first().clone())).is_some_and(|wait| wait.keys == *keys)
    }

    /// All keys of the wait for this slot.
    pub(super) fn keys(&self, slot: &QueueSlot) -> Keys {
        self.waits.get(slot).map_or_else(|| slot.1.clone().into(), |wait| wait.keys.clone())
    }

    /// `responder` waits for the session's locks on these keys until `ends`. If `renew_every` is set, the
    /// node renews the session at that interval, from the arrival of the first request.
    pub(super) fn add(
        &mut self,
        session: SessionId,
        keys: Keys,
        secret: Secret,
        mut responder: Responder,
        ends: Instant,
        renew_every: Option<Duration>,
    ) {
        responder.release_room();
        let slot = (session, keys.first().clone());
        self.others.extend(keys.iter().skip(1).map(|key| ((session, key.clone()), slot.1.clone())));
        self.by_connection.entry(responder.connection).or_default().insert(slot.clone());
        let mut wait = self.remove_with_alarm(&slot).unwrap_or_else(|| Wait {
            waiters: Vec::new(),
            keys,
            secret,
            arrived: responder.arrived,
            ends,
            renew_every,
            renew_at: renew_every.map(|every| responder.arrived + every),
            withdrawing: false,
        });
        self.leave(wait.take_those_of(responder.connection));
        if let Some(client) = &responder.client {
            *self.by_client.entry(client.clone()).or_default() += 1;
        }
        wait.waiters.push(Waiter { responder, ends });
        wait.ends = wait.last_end().expect("one was just added");
        wait.withdrawing = false;
        self.put(slot, wait);
    }

    /// Removes the session's wait for the lock on this key, and on the other keys of its claim; the caller
    /// answers its requests.
    pub(super) fn remove(&mut self, session: SessionId, key: &Key) -> Option<Wait> {
        if self.waits.is_empty() {
            return None;
        }
        let slot = self.slot(session, key);
        let wait = self.remove_with_alarm(&slot)?;
        for key in wait.keys.iter().skip(1) {
            self.others.remove(&(session, key.clone()));
        }
        for waiter in &wait.waiters {
            self.unlink(waiter.responder.connection, &slot);
            self.leave(waiter.responder.client.clone());
        }
        Some(wait)
    }

    /// A connection has ended. Waits without a connection are due at once.
    pub(super) fn disconnect(&mut self, connection: ConnectionId, now: Instant) {
        for slot in self.by_connection.remove(&connection).unwrap_or_default() {
            let mut left = Vec::new();
            self.change(&slot, |wait| {
                left = wait.take_those_of(connection);
                wait.ends = wait.ends.min(wait.last_end().unwrap_or(now));
                if wait.is_deserted() {
                    wait.renew_at = None;
                }
            });
            self.leave(left);
        }
    }

    /// The withdrawal was rejected or postponed: it is due again at `at`, unless a client joins the
    /// wait before.
    pub(super) fn withdraw_again(&mut self, slot: &QueueSlot, at: Instant) {
        self.change(slot, |wait| {
            if wait.withdrawing {
                (wait.ends, wait.withdrawing) = (at, false);
            }
        });
    }

    /// The renewal was rejected: it is due again at `at`.
    pub(super) fn renew_again(&mut self, slot: &QueueSlot, at: Instant) {
        self.change(slot, |wait| wait.renew_at = wait.renew_at.map(|next| next.min(at)));
    }

    /// When the next wait is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// Takes what is due now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Due> {
        let mut due = Vec::new();
        while let Some((at, slot)) = self.alarms.first().cloned().filter(|&(at, _)| at <= now) {
            let mut wait = self.remove_with_alarm(&slot).expect("an alarm belongs to a wait");
            if !wait.withdrawing && wait.ends <= at {
                wait.withdrawing = true;
                due.push(Due::Withdraw(slot.clone()));
            } else {
                wait.renew_at = wait.renew_every.map(|every| now + every);
                due.push(Due::Renew(slot.clone()));
            }
            self.put(slot, wait);
        }
        due
    }

    /// Removes all waits: this node can no longer answer them with an outcome.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Responder> {
        self.others.clear();
        self.by_connection.clear();
        self.by_client.clear();
        self.alarms.clear();
        std::mem::take(&mut self.waits).into_values().flat_map(Wait::into_responders)
    }

    /// Changes a wait, if there is one, and its alarm.
    fn change(&mut self, slot: &QueueSlot, change: impl FnOnce(&mut Wait)) {
        if let Some(mut wait) = self.remove_with_alarm(slot) {
            change(&mut wait);
            self.put(slot.clone(), wait);
        }
    }

    fn put(&mut self, slot: QueueSlot, wait: Wait) {
        if let Some(at) = wait.alarm() {
            self.alarms.insert((at, slot.clone()));
        }
        self.waits.insert(slot, wait);
    }

    fn remove_with_alarm(&mut self, slot: &QueueSlot) -> Option<Wait> {
        let wait = self.waits.remove(slot)?;
        if let Some(at) = wait.alarm() {
            self.alarms.remove(&(at, slot.clone()));
        }
        Some(wait)
    }

    /// Requests of these clients wait no longer.
    fn leave(&mut self, clients: impl IntoIterator<Item = AccountName>) {
        for client in clients {
            if let Some(requests) = self.by_client.get_mut(&client) {
                *requests -= 1;
                if *requests == 0 {
                    self.by_client.remove(&client);
                }
            }
        }
    }

    fn unlink(&mut self, connection: ConnectionId, slot: &QueueSlot) {
        if let Some(slots) = self.by_connection.get_mut(&connection) {
            slots.remove(slot);
            if slots.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }
}
