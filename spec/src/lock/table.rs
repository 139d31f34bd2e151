//! The lock table: the state machine that Raft replicates.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::claims::Claims;
use super::{
    Access, Claim, Command, Event, Holder, Key, Lock, Opening, Outcome, Reply, Right, Sequence, Session, SessionId,
    SharedMap, Token, Waiter,
};
use crate::raft::{MAX_NUMBER, Stamp, StateMachine};

/// All sessions and all held locks.
///
/// A session whose deadline has passed is **due**: it cannot act any more, and is granted nothing.
/// It may end later: a no-op **sweeps** the due sessions with the earliest deadlines, as many as
/// every replica can end in a few milliseconds, and first the holders of locks with waiters; a
/// command that names a key first ends the key's holder if that is due.
///
/// Invariants (checked by [`table_is_sound`](crate::invariants::table_is_sound)): holders and
/// waiters are live sessions; a session claims exactly the keys it holds or waits for, each once;
/// the deadline index has exactly the deadlines of all live sessions; a second index has the
/// deadlines of exactly the sessions that hold a lock with waiters, and counts these locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct LockTable {
    /// Work after which a sweep ends no further session, counted in sessions, claims, and waiters
    /// behind them. The last session may exceed it; a sweep always ends at least one.
    pub(super) sweep: u64,
    next_session: u64,
    pub(super) next_token: Token,
    pub(super) sessions: SharedMap<SessionId, Session>,
    pub(super) deadlines: SharedMap<(Stamp, SessionId), ()>,
    pub(super) contended: SharedMap<(Stamp, SessionId), u64>,
    pub(super) locks: SharedMap<Key, Lock>,
    pub(super) access: Access,
}

/// A serialized table. The index of contended sessions is recomputed, not read: so no file and no
/// peer can contradict the rest of the table.
#[derive(Deserialize)]
struct Stored {
    sweep: u64,
    next_session: u64,
    next_token: Token,
    sessions: SharedMap<SessionId, Session>,
    deadlines: SharedMap<(Stamp, SessionId), ()>,
    #[serde(rename = "contended")]
    _contended: SharedMap<(Stamp, SessionId), u64>,
    locks: SharedMap<Key, Lock>,
    #[serde(default)]
    access: Access,
}

impl From<Stored> for LockTable {
    fn from(stored: Stored) -> LockTable {
        let Stored { sweep, next_session, next_token, sessions, deadlines, locks, access, .. } = stored;
        let contended = SharedMap::new();
        let mut table = LockTable { sweep, next_session, next_token, sessions, deadlines, contended, locks, access };
        let queues = table.locks.clone();
        for lock in queues.values().filter(|lock| !lock.queue.is_empty()) {
            table.has_waiters(lock.holder.session, false, true);
        }
        table
    }
}

/// Default maximum work of one sweep: a few milliseconds (docs/performance.md).
const SWEEP: u64 = 250;

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable::sweeping(SWEEP)
    }
}

impl LockTable {
    /// An empty table whose sweeps end no further session after this many sessions and claims,
    /// including the waiters behind them, but always at least one session. All replicas must start
    /// with the same value.
    pub fn sweeping(sweep: u64) -> LockTable {
        LockTable {
            sweep,
            next_session: 1,
            next_token: Token(1),
            sessions: SharedMap::new(),
            deadlines: SharedMap::new(),
            contended: SharedMap::new(),
            locks: SharedMap::new(),
            access: Access::default(),
        }
    }
}

impl StateMachine for LockTable {
    type Command = Command;
    type Outcome = Outcome;

    /// A session whose deadline lies before `at` can neither act nor block others.
    fn apply(&mut self, at: Stamp, command: &Command) -> Outcome {
        let mut events = Vec::new();
        if let Some(key) = command.key() {
            self.end_due_holder(at, key, &mut events);
        }
        let reply = self.execute(at, command, &mut events);
        Outcome { reply: Some(reply), events }
    }

    fn advance(&mut self, at: Stamp) -> Outcome {
        let mut events = Vec::new();
        self.sweep(at, &mut events);
        Outcome { reply: None, events }
    }

    fn in_range(&self) -> bool {
        [self.next_session, self.next_token.0, self.access.revision().0].into_iter().all(|next| next <= MAX_NUMBER)
    }

    fn next_deadline(&self) -> Option<Stamp> {
        self.deadlines.first().map(|(&(deadline, _), ())| deadline)
    }
}

impl LockTable {
    /// The session, if it has not ended.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// The lock on `key`, if it is held.
    pub fn lock(&self, key: &Key) -> Option<&Lock> {
        self.locks.get(key)
    }

    /// All sessions that have not ended.
    pub fn sessions(&self) -> &SharedMap<SessionId, Session> {
        &self.sessions
    }

    /// All held locks, in the order of their keys.
    pub fn locks(&self) -> &SharedMap<Key, Lock> {
        &self.locks
    }

    /// The sessions' deadlines, the earliest first.
    pub fn deadlines(&self) -> &SharedMap<(Stamp, SessionId), ()> {
        &self.deadlines
    }

    /// The deadlines of the sessions that hold a lock with waiters, and the number of such locks
    /// per session. These sessions are swept first.
    pub fn contended(&self) -> &SharedMap<(Stamp, SessionId), u64> {
        &self.contended
    }

    /// The access rules in force.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// The work after which a sweep ends no further session.
    pub fn sweep_cost(&self) -> u64 {
        self.sweep
    }

    /// The number that the next session will get.
    pub fn next_session(&self) -> u64 {
        self.next_session
    }

    /// The token that the next grant will get.
    pub fn next_token(&self) -> Token {
        self.next_token
    }

    /// Skips this many tokens. A cluster restored from a backup needs that: the old cluster may
    /// have granted tokens after the backup was made.
    pub fn skip_tokens(&mut self, gap: u64) {
        self.next_token = Token(self.next_token.0 + gap);
    }

    /// The table's parts, for tests of states that no command reaches.
    #[cfg(test)]
    pub(crate) fn parts(&mut self) -> Parts<'_> {
        let LockTable { next_token, sessions, deadlines, contended, locks, access, .. } = self;
        Parts { next_token, sessions, deadlines, contended, locks, access }
    }

    fn execute(&mut self, at: Stamp, command: &Command, events: &mut Vec<Event>) -> Reply {
        match command {
            Command::Open { opening } => Reply::Opened { session: self.open(at, opening, false) },
            Command::Close { session } => {
                self.end(at, &[*session], events);
                Reply::Closed
            }
            Command::KeepAlive { sessions } => {
                let missing = sessions.iter().copied().filter(|&session| !self.renew(at, session)).collect();
                Reply::KeptAlive { missing }
            }
            Command::Acquire { session, sequence, key, wait } => match self.admit(at, *session, *sequence) {
                // The number is used up: a late repetition must not do later what was denied now.
                Admission::New if !self.may_acquire(*session, key) => Reply::Denied,
                Admission::New => self.acquire(at, *session, *sequence, key, *wait, events),
                Admission::Repeated(sequence) => self.acquired_before(*session, sequence, key),
                Admission::NoSession => Reply::NoSession,
            },
            Command::AcquireOnce { opening, key, wait } => {
                if !self.access.permits(&opening.principal, Right::Acquire, key.as_str()) {
                    return Reply::Denied;
                }
                if !wait && let Some(lock) = self.locks.get(key) {
                    return self.held(lock);
                }
                let session = self.open(at, opening, true);
                self.acquire(at, session, None, key, *wait, events)
            }
            Command::Release { session, sequence, key, claim } => match self.admit(at, *session, *sequence) {
                Admission::New => self.release(at, *session, key, *claim, events),
                Admission::Repeated(_) => Reply::Gone,
                Admission::NoSession => Reply::NoSession,
            },
            Command::Break { key, principal, .. } if !self.access.permits(principal, Right::Break, key.as_str()) => {
                Reply::Denied
            }
            Command::Break { key, token, .. } => self.break_grant(at, key, *token, events),
            Command::SetAccess { principal, revision, rules } => {
                self.access.replace(principal, *revision, rules.as_ref())
            }
        }
    }

    /// Whether the access rules in force permit an existing session to acquire the key.
    pub(super) fn may_acquire(&self, id: SessionId, key: &Key) -> bool {
        !self.access.is_enabled() || self.access.permits(&self.sessions[&id].principal, Right::Acquire, key.as_str())
    }

    /// The session, if it can act at `at`.
    fn live(&mut self, at: Stamp, id: SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&id).filter(|session| !session.is_due(at))
    }

    /// Exactly once (§6.3): an operation is new if its number is greater than all earlier numbers
    /// of its session.
    fn admit(&mut self, at: Stamp, session: SessionId, sequence: Option<Sequence>) -> Admission {
        let Some(session) = self.live(at, session) else { return Admission::NoSession };
        match sequence {
            Some(sequence) if session.last >= Some(sequence) => Admission::Repeated(sequence),
            Some(sequence) => {
                session.last = Some(sequence);
                Admission::New
            }
            None => Admission::New,
        }
    }

    fn open(&mut self, at: Stamp, opening: &Opening, once: bool) -> SessionId {
        let id = SessionId { number: self.next_session, proof: opening.proof };
        self.next_session += 1;
        let deadline = at.plus(opening.ttl.0);
        let Opening { owner, principal, ttl, .. } = opening.clone();
        let session = Session { owner, principal, ttl, deadline, last: None, once, claims: Claims::None };
        self.sessions.insert(id, session);
        self.deadlines.insert((deadline, id), ());
        id
    }

    /// Sets the session's deadline to a full time-to-live from `at`, if the session lives.
    fn renew(&mut self, at: Stamp, id: SessionId) -> bool {
        let Some(session) = self.live(at, id) else { return false };
        let (last, next) = (session.deadline, at.plus(session.ttl.0));
        session.deadline = next;
        self.deadlines.remove(&(last, id));
        self.deadlines.insert((next, id), ());
        if let Some(locks) = self.contended.remove(&(last, id)) {
            self.contended.insert((next, id), locks);
        }
        true
    }

    /// A live session acquires `key`. An existing claim is kept and takes the number of this
    /// request. An acquire without `wait` gives up the session's queue position.
    fn acquire(
        &mut self,
        at: Stamp,
        id: SessionId,
        sequence: Option<Sequence>,
        key: &Key,
        wait: bool,
        events: &mut Vec<Event>,
    ) -> Reply {
        let Some(lock) = self.locks.get_mut(key) else {
            let token = self.grant(at, id, sequence, key, VecDeque::new(), events);
            return Reply::Granted { session: id, token };
        };
        if lock.holder.session == id {
            lock.holder.sequence = sequence.or(lock.holder.sequence);
            let token = lock.holder.token;
            self.renew(at, id);
            return Reply::Granted { session: id, token };
        }
        let (holder, had_waiters) = (lock.holder.session, !lock.queue.is_empty());
        let session = self.sessions.get_mut(&id).expect("who acquires was admitted");
        // Only a session that claims the key can be in the queue: the others need no search.
        let place = if session.claims_key(key) { lock.queue_position(id) } else { None };
        if !wait {
            if let Some(place) = place {
                self.withdraw(at, id, key, place, events);
            }
            return self.held(&self.locks[key]);
        }
        let ahead = match place {
            Some(place) => {
                let waiter = &mut lock.queue[place];
                waiter.sequence = sequence.or(waiter.sequence);
                place
            }
            None => {
                session.claims.add(key);
                lock.queue.push_back(Waiter { session: id, sequence });
                lock.queue.len() - 1
            }
        };
        self.has_waiters(holder, had_waiters, true);
        Reply::Queued { session: id, ahead: ahead as u64 }
    }

    /// Answers a repeated acquire from the state: what is left of its claim.
    fn acquired_before(&self, id: SessionId, sequence: Sequence, key: &Key) -> Reply {
        let Some(lock) = self.locks.get(key) else { return Reply::Gone };
        if lock.holder.session == id && lock.holder.sequence == Some(sequence) {
            return Reply::Granted { session: id, token: lock.holder.token };
        }
        match lock.queue_position(id) {
            Some(place) if lock.queue[place].sequence == Some(sequence) => {
                Reply::Queued { session: id, ahead: place as u64 }
            }
            _ => Reply::Gone,
        }
    }

    fn held(&self, lock: &Lock) -> Reply {
        let Holder { session, token, .. } = lock.holder;
        let owner = self.sessions[&session].owner.clone();
        Reply::Held { holder: session, owner, token, queue: lock.queue.len() as u64 }
    }

    /// Drops a live session's claim on `key`, if that is the named claim.
    fn release(&mut self, at: Stamp, id: SessionId, key: &Key, claim: Claim, events: &mut Vec<Event>) -> Reply {
        let Some(lock) = self.locks.get_mut(key) else { return Reply::NotHolder };
        if lock.holder.session == id {
            match claim {
                Claim::Held(token) if token != lock.holder.token => return Reply::NotHolder,
                Claim::Waiting => return Reply::NotHolder,
                Claim::Held(_) | Claim::Either => {}
            }
            self.drop_claim(id, key);
            self.grant_next(at, key, events);
            self.end_if_done(at, id, events);
        } else {
            let place = lock.queue_position(id);
            let (Some(place), Claim::Waiting | Claim::Either) = (place, claim) else { return Reply::NotHolder };
            self.withdraw(at, id, key, place, events);
        }
        Reply::Released
    }

    /// Takes `key` from its holder, if that holds it by the grant of this token. A session without
    /// another claim ends: its client learns from its next keepalive that it holds nothing.
    fn break_grant(&mut self, at: Stamp, key: &Key, token: Token, events: &mut Vec<Event>) -> Reply {
        let named = self.locks.get(key).filter(|lock| lock.holder.token == token);
        let Some(session) = named.map(|lock| lock.holder.session) else { return Reply::NotHolder };
        let principal = self.sessions[&session].principal.clone();
        events.push(Event::Broken { key: key.clone(), session, token });
        if self.sessions[&session].claims().len() > 1 {
            self.drop_claim(session, key);
            self.grant_next(at, key, events);
        } else {
            self.end(at, &[session], events);
        }
        Reply::Broken { session, principal }
    }

    /// Removes a waiter from the queue.
    fn withdraw(&mut self, at: Stamp, id: SessionId, key: &Key, place: usize, events: &mut Vec<Event>) {
        let lock = self.locks.get_mut(key).expect("who waits, waits for a held lock");
        lock.queue.remove(place);
        let (holder, has_waiters) = (lock.holder.session, !lock.queue.is_empty());
        self.has_waiters(holder, true, has_waiters);
        self.leave_queue(at, id, key, events);
    }

    /// Drops the claim of a session that has left the queue without a grant.
    pub(super) fn leave_queue(&mut self, at: Stamp, id: SessionId, key: &Key, events: &mut Vec<Event>) {
        self.drop_claim(id, key);
        events.push(Event::Withdrawn { key: key.clone(), session: id });
        self.end_if_done(at, id, events);
    }

    /// Ends a session that was opened for one lock, once it has no claim left.
    fn end_if_done(&mut self, at: Stamp, id: SessionId, events: &mut Vec<Event>) {
        let session = &self.sessions[&id];
        if session.once && session.claims().is_empty() {
            self.end(at, &[id], events);
        }
    }

    fn drop_claim(&mut self, id: SessionId, key: &Key) {
        self.sessions.get_mut(&id).expect("who has a claim lives").claims.drop(key);
    }

    /// Grants a free lock to a live session, with a new token and a full time-to-live.
    pub(super) fn grant(
        &mut self,
        at: Stamp,
        id: SessionId,
        sequence: Option<Sequence>,
        key: &Key,
        queue: VecDeque<Waiter>,
        events: &mut Vec<Event>,
    ) -> Token {
        let token = self.next_token;
        self.next_token = Token(token.0 + 1);
        self.sessions.get_mut(&id).expect("locks go to live sessions").claims.add(key);
        self.renew(at, id);
        self.has_waiters(id, false, !queue.is_empty());
        self.locks.insert(key.clone(), Lock { holder: Holder { session: id, token, sequence }, queue });
        events.push(Event::Granted { key: key.clone(), session: id, token });
        token
    }

    /// Updates the index of contended sessions: whether a lock of this holder had waiters before,
    /// and has waiters after.
    pub(super) fn has_waiters(&mut self, holder: SessionId, before: bool, after: bool) {
        let Some(session) = self.sessions.get(&holder) else { return };
        let entry = (session.deadline, holder);
        let locks = self.contended.get(&entry).copied().unwrap_or(0) + u64::from(after) - u64::from(before);
        if before != after && locks == 0 {
            self.contended.remove(&entry);
        } else if before != after {
            self.contended.insert(entry, locks);
        }
    }
}

/// The result of checking an operation against its session's exactly-once window.
enum Admission {
    /// The operation has not been done.
    New,
    /// The operation has been done before.
    Repeated(Sequence),
    /// The session does not exist or is due.
    NoSession,
}

/// The parts that the invariants compare.
#[cfg(test)]
pub(crate) struct Parts<'a> {
    pub(crate) next_token: &'a mut Token,
    pub(crate) sessions: &'a mut SharedMap<SessionId, Session>,
    pub(crate) deadlines: &'a mut SharedMap<(Stamp, SessionId), ()>,
    pub(crate) contended: &'a mut SharedMap<(Stamp, SessionId), u64>,
    pub(crate) locks: &'a mut SharedMap<Key, Lock>,
    pub(crate) access: &'a mut Access,
}

#[cfg(test)]
impl Parts<'_> {
    pub(crate) fn claims(&mut self, session: SessionId) -> &mut Claims {
        &mut self.sessions.get_mut(&session).expect("it lives").claims
    }
}

#[cfg(test)]
mod tests {
    use super::{LockTable, SharedMap, Stored};
    use crate::invariants::states::{acquire, key, table};
    use crate::lock::Token;
    use crate::raft::{MAX_NUMBER, Stamp, StateMachine};

    /// A table is read back as it was written; its index of sessions with waiters is computed from
    /// the queues, whatever the file or the peer says about it.
    #[test]
    fn a_stored_table_is_read_back_whole() {
        let mut table = table(3);
        for (session, key) in [(1, "contended"), (2, "contended"), (3, "free")] {
            table.apply(Stamp(0), &acquire(session, 0, key));
        }
        assert!(table.contended.len() == 1 && table.locks.len() == 2);
        let LockTable { sweep, next_session, next_token, sessions, deadlines, locks, access, .. } = table.clone();
        let _contended = SharedMap::new();
        let stored = Stored { sweep, next_session, next_token, sessions, deadlines, _contended, locks, access };
        assert_eq!(LockTable::from(stored), table);
    }

    /// A table's next numbers may be as large as the largest number of the protocol, and no larger.
    #[test]
    fn both_next_numbers_of_a_table_are_limited() {
        for (next_session, next_token, is_in_range) in
            [(MAX_NUMBER, MAX_NUMBER, true), (MAX_NUMBER + 1, MAX_NUMBER, false), (MAX_NUMBER, MAX_NUMBER + 1, false)]
        {
            let table = LockTable { next_session, next_token: Token(next_token), ..table(1) };
            assert_eq!(table.in_range(), is_in_range, "{next_session}, {next_token}");
        }
    }

    /// The old cluster may have granted them after the backup was made.
    #[test]
    fn skipped_tokens_are_never_granted() {
        let mut table = table(2);
        table.apply(Stamp(0), &acquire(1, 0, "k"));
        table.skip_tokens(1000);
        table.apply(Stamp(0), &acquire(2, 0, "l"));
        let token = |name| table.lock(&key(name)).unwrap().holder.token;
        assert_eq!((token("k"), token("l"), table.next_token()), (Token(1), Token(1002), Token(1003)));
    }
}
