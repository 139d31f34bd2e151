//! Acquires and releases locks, and decides which session is granted a lock, and when.
//!
//! A claim stands in the queue of each of its keys, at one index of the log. It is granted when it is
//! the first in all of them and the holders of every key leave room for it: not before, and no other
//! waiter at these keys before it. So claims are granted in the order in which they came wherever they
//! meet, and none of them can wait for one that came later: there is no deadlock among them.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::details::Details;
use super::keys::Several;
use super::{
    Claim, ClaimIndex, Event, Holder, Key, Keys, Lock, LockRequest, LockTable, Principal, Reply, Right, Sequence,
    Session, SessionId, SharedMap, Token, Value, Waiter,
};
use crate::raft::Stamp;

/// When a new request gets what it asks for.
pub(super) enum Turn {
    /// At once.
    Now,
    /// After others; it waits.
    Later,
}

impl LockTable {
    /// A live session acquires. An existing claim that is the same is kept, and takes the number of this
    /// request.
    pub(super) fn acquire(
        &mut self,
        at: Stamp,
        id: SessionId,
        sequence: Option<Sequence>,
        request: &LockRequest,
        events: &mut Vec<Event>,
    ) -> Reply {
        let session = &self.sessions[&id];
        if let Some(key) = request.keys.iter().find(|key| session.claims_key(key)) {
            return self.acquire_again(at, id, sequence, request, key, events);
        }
        match self.turn(request) {
            Ok(turn) => self.claim(at, id, sequence, request, turn, events),
            Err(refusal) => refusal,
        }
    }

    /// When a request of a session without a claim on these keys gets them; the reply if it does not even
    /// get a position in their queues.
    pub(super) fn turn(&self, request: &LockRequest) -> Result<Turn, Reply> {
        let (mut blocked, mut full) = (None, None);
        for key in &request.keys {
            let Some(lock) = self.locks.get(key) else { continue };
            if let Some(mode) = lock.first_mode().filter(|mode| mode.of() != request.mode.of()) {
                return Err(Reply::OtherSize { key: key.clone(), mode });
            }
            if !lock.queue.is_empty() || !lock.has_room_for(request.mode) {
                blocked = blocked.or(Some((key, lock)));
            }
            if lock.queue.len() as u64 >= u64::from(request.max_queue) {
                full = full.or(Some((key, lock)));
            }
        }
        match (blocked, if request.waits() { full } else { blocked }) {
            (None, _) => Ok(Turn::Now),
            (Some(_), None) => Ok(Turn::Later),
            (Some(_), Some((key, lock))) => Err(self.held(key, lock)),
        }
    }

    /// Gives a session without a claim on these keys the locks, or a position in their queues.
    pub(super) fn claim(
        &mut self,
        at: Stamp,
        id: SessionId,
        sequence: Option<Sequence>,
        request: &LockRequest,
        turn: Turn,
        events: &mut Vec<Event>,
    ) -> Reply {
        let (keys, waiter) = (&request.keys, Waiter::new(id, sequence, request));
        match turn {
            Turn::Now => Reply::Granted { session: id, token: self.grant(at, keys, waiter, events) },
            Turn::Later => {
                let mut most = 0;
                for key in keys {
                    let session = self.sessions.get_mut(&id).expect("an acquiring session lives");
                    session.claims.add(key);
                    let owner = session.owner.clone();
                    let ahead = self.change_queue(key, |queue| {
                        queue.push_back(waiter.clone());
                        queue.len() as u64 - 1
                    });
                    self.claimed += waiter.details.bytes(key);
                    events.push(Event::Queued { key: key.clone(), session: id, mode: waiter.mode, owner, ahead });
                    most = most.max(ahead);
                }
                Reply::Queued { session: id, ahead: most }
            }
        }
    }

    /// A session acquires keys of which it has `key` already. The same claim is kept, with the request's
    /// value if it has one: a holder gets a full time-to-live, and if it asked for that, one more hold. A
    /// request without a wait gives up the positions in the queues.
    fn acquire_again(
        &mut self,
        at: Stamp,
        id: SessionId,
        sequence: Option<Sequence>,
        request: &LockRequest,
        key: &Key,
        events: &mut Vec<Event>,
    ) -> Reply {
        let LockRequest { keys, mode, reentrant, value, .. } = request;
        let lock = &self.locks[key];
        match lock.claim_index(id).expect("a claim is on its lock") {
            ClaimIndex::Holds(index)
                if lock.holders[index].mode == *mode && lock.holders[index].claims_exactly(keys) =>
            {
                let token = lock.holders[index].token;
                self.change_grant(id, keys, |holder| {
                    holder.sequence = sequence.or(holder.sequence);
                    holder.holds = holder.holds.saturating_add(u32::from(*reentrant));
                });
                if let Some(value) = value {
                    self.set_value(id, keys, token, value, events);
                }
                self.renew(at, id);
                Reply::Granted { session: id, token }
            }
            ClaimIndex::Waits(index) if lock.queue[index].mode != *mode || !lock.queue[index].claims_exactly(keys) => {
                Reply::OtherClaim { key: key.clone() }
            }
            ClaimIndex::Waits(index) if request.waits() => {
                let details = &lock.queue[index].details;
                let details = value.as_ref().map_or_else(|| details.clone(), |_| Details::new(keys, value.clone()));
                for key in keys {
                    let before = self.change_queue(key, |queue| {
                        let waiter = queue.iter_mut().find(|waiter| waiter.session == id);
                        let waiter = waiter.expect("a waiter waits for all its keys");
                        waiter.sequence = sequence.or(waiter.sequence);
                        let before = waiter.details.bytes(key);
                        waiter.details = details.clone();
                        before
                    });
                    self.claimed = self.claimed - before + details.bytes(key);
                }
                Reply::Queued { session: id, ahead: self.ahead(id, keys) }
            }
            ClaimIndex::Waits(_) => {
                let is_behind = |key: &&Key| {
                    let lock = &self.locks[*key];
                    lock.queue_position(id) != Some(0) || !lock.has_room_for(*mode)
                };
                let blocked = keys.iter().find(is_behind).expect("a waiter that is first everywhere is granted");
                self.withdraw(at, id, keys, events);
                self.held(blocked, &self.locks[blocked])
            }
            ClaimIndex::Holds(_) => Reply::OtherClaim { key: key.clone() },
        }
    }

    /// Answers a repeated acquire from the state: what is left of its claim.
    pub(super) fn acquired_before(&self, id: SessionId, sequence: Sequence, keys: &Keys) -> Reply {
        let Some(lock) = self.locks.get(keys.first()) else { return Reply::Gone };
        match lock.claim_index(id) {
            Some(ClaimIndex::Holds(index))
                if lock.holders[index].sequence == Some(sequence) && lock.holders[index].claims_exactly(keys) =>
            {
                Reply::Granted { session: id, token: lock.holders[index].token }
            }
            Some(ClaimIndex::Waits(index))
                if lock.queue[index].sequence == Some(sequence) && lock.queue[index].claims_exactly(keys) =>
            {
                Reply::Queued { session: id, ahead: self.ahead(id, keys) }
            }
            _ => Reply::Gone,
        }
    }

    /// The number of waiters before a waiter; of several keys, the greatest number.
    fn ahead(&self, id: SessionId, keys: &Keys) -> u64 {
        let positions = keys.iter().filter_map(|key| self.locks.get(key)?.queue_position(id));
        positions.max().unwrap_or_default() as u64
    }

    fn held(&self, key: &Key, lock: &Lock) -> Reply {
        let holder = lock.holders.first().map(|holder| (holder.session, Some(holder.token)));
        let waiter = lock.queue.front().map(|waiter| (waiter.session, None));
        let (holder, token) = holder.or(waiter).expect("a lock has a holder or a waiter");
        let owner = self.sessions[&holder].owner.clone();
        Reply::Held { key: key.clone(), holder, owner, token, queue: lock.queue.len() as u64 }
    }

    /// Drops a live session's claim on exactly these keys, if that is the named claim; of several holds,
    /// one.
    pub(super) fn release(
        &mut self,
        at: Stamp,
        id: SessionId,
        keys: &Keys,
        claim: Claim,
        events: &mut Vec<Event>,
    ) -> Reply {
        let Some(lock) = self.locks.get(keys.first()) else { return Reply::NotHolder };
        match (lock.claim_index(id), claim) {
            (Some(ClaimIndex::Holds(index)), Claim::Held(_) | Claim::Either) => {
                let holder = &lock.holders[index];
                let is_named = matches!(claim, Claim::Either) || claim == Claim::Held(holder.token);
                if !is_named || !holder.claims_exactly(keys) {
                    return Reply::NotHolder;
                }
                if holder.holds > 1 {
                    let holds = holder.holds - 1;
                    self.change_grant(id, keys, |holder| holder.holds = holds);
                    return Reply::StillHeld { holds };
                }
                self.drop_claim(id, keys);
                self.give_up(at, keys.first(), id, events);
                self.end_if_done(at, id, events);
                Reply::Released
            }
            (Some(ClaimIndex::Waits(index)), Claim::Waiting | Claim::Either) => {
                if !lock.queue[index].claims_exactly(keys) {
                    return Reply::NotHolder;
                }
                self.withdraw(at, id, keys, events);
                Reply::Released
            }
            _ => Reply::NotHolder,
        }
    }

    /// Answers a repeated release from the state: it was done, and these holds of the grant that it names are
    /// left. One that names no grant says so only as long as it is the session's last numbered operation: a later one
    /// may have acquired the lock again.
    pub(super) fn released_before(&self, id: SessionId, sequence: Sequence, keys: &Keys, claim: Claim) -> Reply {
        let is_last = self.sessions[&id].last == Some(sequence);
        let grant = match claim {
            Claim::Held(token) => self.grant_of(id, keys.first(), token),
            Claim::Either if is_last => self.locks.get(keys.first()).and_then(|lock| lock.holder(id)),
            Claim::Either | Claim::Waiting => None,
        };
        match grant.filter(|holder| holder.claims_exactly(keys)) {
            Some(holder) => Reply::StillHeld { holds: holder.holds },
            None => Reply::Gone,
        }
    }

    /// Replaces the value of a live session's grant of this token, if it is a grant of `key`.
    pub(super) fn proclaim(
        &mut self,
        id: SessionId,
        key: &Key,
        token: Token,
        value: &Value,
        events: &mut Vec<Event>,
    ) -> Reply {
        let Some(keys) = self.grant_of(id, key, token).map(|holder| holder.keys(key)) else {
            return Reply::NotHolder;
        };
        self.set_value(id, &keys, token, value, events);
        Reply::Proclaimed
    }

    /// Answers a repeated proclamation: it was done while the session had the grant, which it has had since
    /// if it has it now.
    pub(super) fn proclaimed_before(&self, id: SessionId, key: &Key, token: Token) -> Reply {
        self.grant_of(id, key, token).map_or(Reply::NotHolder, |_| Reply::Proclaimed)
    }

    /// The session's grant of this token, if it is a grant of `key`.
    fn grant_of(&self, id: SessionId, key: &Key, token: Token) -> Option<&Holder> {
        self.locks.get(key)?.holder(id).filter(|holder| holder.token == token)
    }

    fn set_value(&mut self, id: SessionId, keys: &Keys, token: Token, value: &Value, events: &mut Vec<Event>) {
        let details = Details::new(keys, Some(value.clone()));
        for key in keys {
            let before = self.locks[key].holder(id).map_or(0, |holder| holder.details.bytes(key));
            self.claimed += details.bytes(key);
            self.claimed -= before;
        }
        self.change_grant(id, keys, |holder| holder.details = details.clone());
        let proclaimed = |key: &Key| Event::Proclaimed { key: key.clone(), session: id, token, value: value.clone() };
        events.extend(keys.iter().map(proclaimed));
    }

    /// Takes from its holder the grant of this token, with all its keys, if it is a grant of `key`, and the
    /// rules in force permit it for every one of them. A session without another claim ends: its client
    /// learns from its next keepalive that it holds nothing.
    pub(super) fn break_grant(
        &mut self,
        at: Stamp,
        key: &Key,
        token: Token,
        principal: &Principal,
        events: &mut Vec<Event>,
    ) -> Reply {
        let may_break = |key: &Key| self.access.permits(principal, Right::Break, key.as_str());
        if !may_break(key) {
            return Reply::Denied;
        }
        let Some(holder) = self.locks.get(key).and_then(|lock| lock.holder_with(token)) else {
            return Reply::NotHolder;
        };
        let (session, keys) = (holder.session, holder.keys(key));
        if !keys.iter().all(may_break) {
            return Reply::Denied;
        }
        let principal = self.sessions[&session].principal.clone();
        for key in &keys {
            events.push(Event::Broken { key: key.clone(), session, token });
        }
        if self.sessions[&session].claims().len() > keys.count() {
            self.drop_claim(session, &keys);
            self.give_up(at, key, session, events);
        } else {
            self.end(at, &[session], events);
        }
        Reply::Broken { session, principal }
    }

    /// Takes the locks of a grant from its holder, which has dropped its claim or has ended, and passes
    /// each on.
    pub(super) fn give_up(&mut self, at: Stamp, key: &Key, session: SessionId, events: &mut Vec<Event>) {
        let (Holder { token, details, .. }, is_waited_for) = self.remove_holder(key, session);
        events.push(Event::Released { key: key.clone(), session, token });
        let others = || details.several().into_iter().flat_map(Several::as_slice).filter(|other| *other != key);
        for other in others() {
            self.remove_holder(other, session);
            events.push(Event::Released { key: other.clone(), session, token });
        }
        if is_waited_for {
            self.pass_on(at, key, events);
        }
        for other in others() {
            self.pass_on(at, other, events);
        }
    }

    /// Removes a holder; returns with it whether sessions wait for the lock.
    fn remove_holder(&mut self, key: &Key, session: SessionId) -> (Holder, bool) {
        let (holder, is_waited_for) = self.change_lock(key, |lock| {
            let index = lock.holders.iter().position(|holder| holder.session == session);
            (lock.holders.remove(index.expect("a grant is of all its keys")), !lock.queue.is_empty())
        });
        self.claimed -= holder.details.bytes(key);
        (holder, is_waited_for)
    }

    /// Grants the lock on `key` to the waiters whose turn it is: one after the other, as long as the
    /// holders leave room for the first one and it is the first at all its keys. A waiter whose turn has
    /// come and that is due, or that the access rules in force do not permit, loses its positions. The
    /// session of a due waiter ends in a later sweep, unless it was opened for this claim; so one entry
    /// cannot end an unbounded number of sessions.
    pub(super) fn pass_on(&mut self, at: Stamp, key: &Key, events: &mut Vec<Event>) {
        if self.whose_turn(key).is_none() {
            return;
        }
        // Where a waiter for several keys has left, it may be the turn of the next one.
        let mut others = BTreeSet::new();
        let mut next = Some(key.clone());
        while let Some(key) = next {
            while let Some(waiter) = self.whose_turn(&key) {
                let (waiter, keys) = (waiter.clone(), waiter.keys(&key));
                let session = &self.sessions[&waiter.session];
                let denied = self.denied(waiter.session, &keys);
                if session.is_due(at) {
                    events.push(Event::Overdue { key: key.clone(), session: waiter.session });
                    self.leave_queues(at, waiter.session, &keys, events);
                } else if let Some(denied) = denied {
                    let principal = session.principal.clone();
                    events.push(Event::Denied { key: denied.clone(), session: waiter.session, principal });
                    self.leave_queues(at, waiter.session, &keys, events);
                } else if keys.iter().all(|key| self.is_turn(key, waiter.session)) {
                    for key in &keys {
                        let first = self.change_queue(key, VecDeque::pop_front);
                        self.claimed -= first.map_or(0, |first| first.details.bytes(key));
                    }
                    self.grant(at, &keys, waiter, events);
                } else {
                    break;
                }
                others.extend(keys.iter().filter(|other| **other != key).cloned());
            }
            next = others.pop_first();
        }
    }

    /// The first waiter, if the holders leave room for it.
    fn whose_turn(&self, key: &Key) -> Option<&Waiter> {
        let lock = self.locks.get(key)?;
        lock.queue.front().filter(|waiter| lock.has_room_for(waiter.mode))
    }

    fn is_turn(&self, key: &Key, id: SessionId) -> bool {
        self.whose_turn(key).is_some_and(|waiter| waiter.session == id)
    }

    /// Removes a waiter from its queues, and grants what that makes possible.
    fn withdraw(&mut self, at: Stamp, id: SessionId, keys: &Keys, events: &mut Vec<Event>) {
        self.leave_queues(at, id, keys, events);
        for key in keys {
            self.pass_on(at, key, events);
        }
    }

    /// Drops the claim of a session that leaves its queues without a grant.
    fn leave_queues(&mut self, at: Stamp, id: SessionId, keys: &Keys, events: &mut Vec<Event>) {
        self.drop_claim(id, keys);
        for key in keys {
            let waiter = self.change_queue(key, |queue| {
                let index = queue.iter().position(|waiter| waiter.session == id);
                index.and_then(|index| queue.remove(index)).expect("a waiter waits for all its keys")
            });
            self.claimed -= waiter.details.bytes(key);
            events.push(Event::Withdrawn { key: key.clone(), session: id });
        }
        self.end_if_done(at, id, events);
    }

    /// Ends a session that was opened for one claim, once it has none left.
    fn end_if_done(&mut self, at: Stamp, id: SessionId, events: &mut Vec<Event>) {
        // What its claim passed on may have ended the session already.
        let is_done = |session: &Session| session.once && session.claims().is_empty();
        if self.sessions.get(&id).is_some_and(is_done) {
            self.end(at, &[id], events);
        }
    }

    fn drop_claim(&mut self, id: SessionId, keys: &Keys) {
        let session = self.sessions.get_mut(&id).expect("a session with a claim lives");
        keys.iter().for_each(|key| session.claims.drop(key));
    }

    /// Changes a grant at all its keys.
    fn change_grant(&mut self, id: SessionId, keys: &Keys, change: impl Fn(&mut Holder)) {
        for key in keys {
            let lock = self.locks.get_mut(key).expect("a grant is of all its keys");
            let index = lock.holders.iter().position(|holder| holder.session == id);
            change(lock.holders.at(index.expect("a grant is of all its keys")));
        }
    }

    /// Changes the queue of a key.
    pub(super) fn change_queue<R>(&mut self, key: &Key, change: impl FnOnce(&mut VecDeque<Waiter>) -> R) -> R {
        self.change_lock(key, |lock| lock.queue.change(change))
    }

    /// Changes a lock, and with it the index of contended sessions. The lock comes into being with its
    /// first claim, which is held or waits for other keys, and ends with its last.
    fn change_lock<R>(&mut self, key: &Key, change: impl FnOnce(&mut Lock) -> R) -> R {
        let noting = |lock: &mut Lock| {
            let before = lock.contended_holder();
            let result = change(lock);
            ((result, before, lock.contended_holder()), !lock.is_free())
        };
        let (result, before, after) = self.locks.change(key, noting).unwrap_or_else(|noting| {
            let mut lock = Lock::default();
            let (changed, _) = noting(&mut lock);
            self.locks.insert(key.clone(), lock);
            changed
        });
        if before != after {
            note_contended(&self.sessions, &mut self.contended, before, |locks| locks - 1);
            note_contended(&self.sessions, &mut self.contended, after, |locks| locks + 1);
        }
        result
    }

    /// Grants locks to a live session that is in none of their queues, with a new token and a full
    /// time-to-live.
    fn grant(&mut self, at: Stamp, keys: &Keys, claim: Waiter, events: &mut Vec<Event>) -> Token {
        let Waiter { session, sequence, mode, details } = claim;
        let token = self.next_token;
        self.next_token = Token(token.0 + 1);
        let holder = self.sessions.get_mut(&session).expect("locks go to live sessions");
        keys.iter().for_each(|key| holder.claims.add(key));
        let owner = holder.owner.clone();
        self.renew(at, session);
        for key in keys {
            let holder = Holder { session, token, sequence, mode, holds: 1, details: details.clone() };
            self.change_lock(key, |lock| lock.holders.push(holder));
            self.claimed += details.bytes(key);
            let (owner, value) = (owner.clone(), details.value().cloned());
            events.push(Event::Granted { key: key.clone(), session, token, mode, owner, value });
        }
        token
    }
}

/// Changes the number of locks with waiters of which this session is the first holder.
pub(super) fn note_contended(
    sessions: &SharedMap<SessionId, Session>,
    contended: &mut SharedMap<(Stamp, SessionId), u64>,
    holder: Option<SessionId>,
    change: impl FnOnce(u64) -> u64,
) {
    let Some((holder, session)) = holder.and_then(|holder| Some((holder, sessions.get(&holder)?))) else { return };
    let entry = (session.deadline, holder);
    match change(contended.get(&entry).copied().unwrap_or(0)) {
        0 => {
            contended.remove(&entry);
        }
        locks => {
            contended.insert(entry, locks);
        }
    }
}
