//! A small lock table: sessions with numbers and deadlines, queues, tokens.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use palisade_client::wire::{Code, Failure, HeldBy, HolderView, LockView, SessionId, WaiterView};
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct Table {
    /// The number of sessions that were ever opened.
    opened: u64,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    pub(crate) locks: BTreeMap<String, Lock>,
    /// Every grant: key, session, token.
    pub(crate) grants: Vec<(String, SessionId, u64)>,
    /// Every release of a held lock, by its token.
    pub(crate) releases: Vec<u64>,
    /// The number of claims that were granted or ended.
    pub(crate) changes: u64,
}

pub(crate) struct Session {
    pub(crate) ttl_ms: u64,
    pub(crate) deadline: Instant,
    pub(crate) last: u64,
}

pub(crate) struct Lock {
    pub(crate) holder: SessionId,
    pub(crate) number: u64,
    pub(crate) token: u64,
    pub(crate) holds: u32,
    pub(crate) queue: VecDeque<(SessionId, u64)>,
}

/// The result of an acquire.
pub(crate) enum Found {
    Granted { token: u64, ttl_ms: u64 },
    Queued,
    Refused(Failure),
}

impl Table {
    pub(crate) fn open(&mut self, now: Instant, ttl_ms: u64) -> SessionId {
        self.opened += 1;
        let session = SessionId::new(self.opened, rand::random()).expect("few sessions");
        let deadline = now + Duration::from_millis(ttl_ms);
        self.sessions.insert(session, Session { ttl_ms, deadline, last: 0 });
        session
    }

    pub(crate) fn renew(&mut self, now: Instant, session: SessionId) -> Option<u64> {
        let session = self.sessions.get_mut(&session)?;
        session.deadline = now + Duration::from_millis(session.ttl_ms);
        Some(session.ttl_ms)
    }

    /// Whether the operation is new; `None` without a session.
    pub(crate) fn begin(&mut self, session: SessionId, number: u64) -> Option<bool> {
        let session = self.sessions.get_mut(&session)?;
        let new = number > session.last;
        session.last = session.last.max(number);
        Some(new)
    }

    pub(crate) fn acquire(
        &mut self,
        now: Instant,
        key: &str,
        session: SessionId,
        number: u64,
        wait: bool,
        reentrant: bool,
    ) -> Found {
        let Some(new) = self.begin(session, number) else {
            return Found::Refused(Failure::new(Code::NoSession, "there is no such session"));
        };
        let ttl_ms = self.sessions[&session].ttl_ms;
        let Some(lock) = self.locks.get_mut(key) else {
            if !new {
                return Found::Refused(Failure::new(Code::Gone, "done before, and gone"));
            }
            let token = self.grant(now, key, session, number, VecDeque::new());
            return Found::Granted { token, ttl_ms };
        };
        if lock.holder == session && (new || lock.number == number) {
            lock.number = number;
            lock.holds += u32::from(new && reentrant);
            let token = lock.token;
            if new {
                self.renew(now, session);
            }
            return Found::Granted { token, ttl_ms };
        }
        if let Some(waiting) = lock.queue.iter_mut().find(|(waiter, of)| *waiter == session && (new || *of == number)) {
            waiting.1 = number;
            return Found::Queued;
        }
        if !new {
            return Found::Refused(Failure::new(Code::Gone, "done before, and gone"));
        }
        if wait {
            lock.queue.push_back((session, number));
            return Found::Queued;
        }
        let mut failure = Failure::new(Code::Held, "the lock is held");
        failure.holder = Some(HeldBy { owner: String::new(), token: lock.token });
        failure.queue = Some(lock.queue.len() as u64);
        Found::Refused(failure)
    }

    fn grant(
        &mut self,
        now: Instant,
        key: &str,
        holder: SessionId,
        number: u64,
        queue: VecDeque<(SessionId, u64)>,
    ) -> u64 {
        let token = self.grants.len() as u64 + 1;
        self.renew(now, holder);
        self.changes += 1;
        self.grants.push((key.to_owned(), holder, token));
        self.locks.insert(key.to_owned(), Lock { holder, number, token, holds: 1, queue });
        token
    }

    /// Gives a hold back, and returns how many are left; `None` if the session does not hold the lock.
    pub(crate) fn release(&mut self, now: Instant, key: &str, session: SessionId, token: u64) -> Option<u32> {
        let left = self.holds_of(key, session, token)? - 1;
        if left == 0 {
            self.releases.push(token);
            self.pass_on(now, key);
        } else if let Some(lock) = self.locks.get_mut(key) {
            lock.holds = left;
        }
        Some(left)
    }

    /// How many holds the grant has, if it is the present one.
    pub(crate) fn holds_of(&self, key: &str, session: SessionId, token: u64) -> Option<u32> {
        let lock = self.locks.get(key).filter(|lock| lock.holder == session && lock.token == token)?;
        Some(lock.holds)
    }

    fn pass_on(&mut self, now: Instant, key: &str) {
        let Some(Lock { mut queue, .. }) = self.locks.remove(key) else { return };
        while let Some((session, number)) = queue.pop_front() {
            if self.sessions.contains_key(&session) {
                self.grant(now, key, session, number, queue);
                return;
            }
        }
    }

    /// Removes a waiter from the queue, but does not release a lock.
    pub(crate) fn withdraw(&mut self, key: &str, session: SessionId) {
        self.changes += 1;
        if let Some(lock) = self.locks.get_mut(key) {
            lock.queue.retain(|(waiter, _)| *waiter != session);
        }
    }

    pub(crate) fn withdraw_or_release(&mut self, now: Instant, key: &str, session: SessionId) {
        self.withdraw(key, session);
        if self.holds(key, session) {
            self.releases.push(self.locks[key].token);
            self.pass_on(now, key);
        }
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        let due: Vec<SessionId> =
            self.sessions.iter().filter(|(_, session)| session.deadline < now).map(|(&id, _)| id).collect();
        due.into_iter().for_each(|session| self.close(session));
    }

    pub(crate) fn close(&mut self, session: SessionId) {
        self.changes += 1;
        self.sessions.remove(&session);
        let held: Vec<String> =
            self.locks.iter().filter(|(_, lock)| lock.holder == session).map(|(key, _)| key.clone()).collect();
        held.iter().for_each(|key| self.pass_on(Instant::now(), key));
        self.locks.values_mut().for_each(|lock| lock.queue.retain(|(waiter, _)| *waiter != session));
    }

    pub(crate) fn lives(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    pub(crate) fn holds(&self, key: &str, session: SessionId) -> bool {
        self.locks.get(key).is_some_and(|lock| lock.holder == session)
    }

    pub(crate) fn queues(&self, key: &str, session: SessionId) -> bool {
        self.locks.get(key).is_some_and(|lock| lock.queue.iter().any(|(waiter, _)| *waiter == session))
    }

    /// Number of waiters for `key`.
    pub(crate) fn queue(&self, key: &str) -> usize {
        self.locks.get(key).map_or(0, |lock| lock.queue.len())
    }

    pub(crate) fn grant_of(&self, key: &str) -> (u64, u64) {
        let lock = &self.locks[key];
        (lock.token, self.sessions[&lock.holder].ttl_ms)
    }

    pub(crate) fn show(&self, key: &str) -> LockView {
        let lock = self.locks.get(key);
        let holder = lock.map(|lock| HolderView {
            session: lock.holder.number(),
            token: lock.token,
            holds: lock.holds,
            ..HolderView::default()
        });
        LockView {
            key: key.to_owned(),
            held: lock.is_some(),
            holders: holder.iter().cloned().collect(),
            holder,
            queue: lock
                .into_iter()
                .flat_map(|lock| &lock.queue)
                .map(|&(session, _)| WaiterView { session: session.number(), ..WaiterView::default() })
                .collect(),
        }
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<LockView> {
        self.locks.keys().filter(|key| key.starts_with(prefix)).map(|key| self.show(key)).collect()
    }
}
