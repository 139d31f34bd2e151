//! Requests of the clients and operators of a generated history.

use std::sync::Arc;

use palisade_history::{self as history, Call, Change, Condition, Key, Keys, RecordChange};
use palisade_spec::lock::{self, Prefix, Right, Rights, Rule, Rules, SessionId, Subject};
use rand::Rng;

use super::{Claims, Granted, World, name, principal, session_name};

impl World {
    pub(super) fn request(&mut self) {
        let client = self.random.random_range(0..self.clients.len());
        if self.clients[client].open >= 2 {
            return;
        }
        if self.size.operators && self.random.random_bool(0.12) {
            let call = self.order();
            return self.invoke(client, call, None);
        }
        let key = name(self.random.random_range(0..self.size.keys));
        let (keys, mode) = self.claim(&key);
        let sessions = self.clients[client].sessions.len();
        let session = match sessions {
            0 => None,
            sessions => Some(self.clients[client].sessions[self.random.random_range(0..sessions)].0),
        };
        let wait_ms = if self.random.random_bool(0.6) { self.random.random_range(1..40) } else { 0 };
        let max_queue = (self.size.claims != Claims::Exclusive && self.random.random_bool(0.2)).then_some(1);
        let reentrant = self.size.claims != Claims::Exclusive && self.random.random_bool(0.2);
        let value = (self.size.claims == Claims::All && self.random.random_bool(0.4)).then(|| self.new_text());
        let ttl_ms = self.size.ttl_ms;
        let (kind, grants) = (self.random.random_range(0..100), self.clients[client].grants.len());
        let call = match (kind, session) {
            (0..4, _) => Call::OpenSession { ttl_ms },
            (10..14, _) if self.size.claims == Claims::All => Call::ReadRecord { record: key, stale: false },
            (14..16, _) if self.size.claims == Claims::All => {
                let (change, session) = (self.change(&key), session.filter(|_| self.random.random()));
                return self.write(client, key, change, None, session);
            }
            (4..10, _) => {
                let ttl_ms = Some(ttl_ms);
                Call::Acquire {
                    keys,
                    session: None,
                    number: None,
                    wait_ms,
                    ttl_ms,
                    mode,
                    max_queue,
                    reentrant: false,
                    value,
                }
            }
            (10..25, _) => Call::Read { key, stale: self.size.resource && self.random.random_bool(0.3) },
            (25..60, _) if grants > 0 => {
                let grant = self.random.random_range(0..grants);
                let Granted { session, keys, token, mode } = self.clients[client].grants[grant].clone();
                if self.size.claims == Claims::All && self.random.random_bool(0.3) {
                    let record = keys.as_slice()[self.random.random_range(0..keys.as_slice().len())].clone();
                    let (change, session) =
                        (self.change(&record), Some(session).filter(|_| self.random.random_bool(0.7)));
                    return self.write(client, record, change, Some(token), session);
                }
                if self.size.claims == Claims::All && self.random.random_bool(0.3) {
                    let key = keys.as_slice()[self.random.random_range(0..keys.as_slice().len())].clone();
                    let (name, value) = (session_name(session), self.new_text());
                    let call = Call::Proclaim { key, session: name, token, value, number: None };
                    return self.invoke(client, call, Some(session));
                }
                // Permits of a semaphore fence nothing.
                let fences = matches!(mode, history::Mode::Exclusive | history::Mode::Shared);
                if self.size.resource && fences && self.random.random_bool(0.4) {
                    let key = keys.as_slice()[self.random.random_range(0..keys.as_slice().len())].clone();
                    let reads = mode == history::Mode::Shared;
                    return self.invoke(client, Call::Access { key, token, reads }, None);
                }
                if self.random.random_bool(0.8) {
                    self.clients[client].grants.swap_remove(grant);
                }
                let call = Call::Release { keys, session: session_name(session), token, number: None };
                return self.invoke(client, call, Some(session));
            }
            (60..66, Some(session)) => Call::KeepAlive { session: session_name(session) },
            (66..68, Some(session)) => Call::CloseSession { session: session_name(session) },
            (68..73, Some(session)) => Call::Withdraw { keys, session: session_name(session), number: None },
            (_, Some(session)) => {
                let session = Some(session_name(session));
                Call::Acquire { keys, session, number: None, wait_ms, ttl_ms: None, mode, max_queue, reentrant, value }
            }
            (_, None) => Call::OpenSession { ttl_ms },
        };
        let session = session.filter(|_| call.session().is_some());
        self.invoke(client, call, session);
    }

    /// Changes a record, sometimes together with another one, and sometimes under further conditions: a version, mostly
    /// the present one, of one of the two; another grant of the client.
    fn write(&mut self, client: usize, record: Key, change: Change, token: Option<u64>, session: Option<SessionId>) {
        let (mut also, mut conditions) = (Vec::new(), Vec::new());
        let other = name(self.random.random_range(0..self.size.keys));
        if other != record && self.random.random_bool(0.4) {
            also.push(RecordChange { record: other.clone(), change: self.change(&other) });
        }
        if self.random.random_bool(0.4) {
            let key = if self.random.random_bool(0.2) { other } else { record.clone() };
            let present = self.table.record(&lock::Key::from(&*key.0)).map_or(0, |record| record.version.0);
            let version = match self.random.random_range(0..8) {
                0 => 0,
                1 => present.saturating_sub(1),
                _ => present,
            };
            conditions.push(Condition::Version { key, version });
        }
        let grants = self.clients[client].grants.len();
        if token.is_some() && grants > 0 && self.random.random_bool(0.3) {
            let Granted { keys, token, .. } = &self.clients[client].grants[self.random.random_range(0..grants)];
            conditions.push(Condition::Held { lock: keys.as_slice()[0].clone(), token: *token });
        }
        let name = session.map(session_name);
        let call = Call::WriteRecord { record, change, also, token, conditions, session: name, number: None };
        self.invoke(client, call, session);
    }

    /// A text that nothing else has.
    fn new_text(&self) -> Arc<str> {
        format!("{};", self.next).as_str().into()
    }

    /// No two changes write the same text, also those of one transaction.
    fn change(&mut self, record: &Key) -> Change {
        let text = format!("{record}.{}", self.new_text()).as_str().into();
        match self.random.random_range(0..20) {
            0 => Change::Delete,
            1..4 => Change::Put(text),
            _ => Change::Append(text),
        }
    }

    /// The keys and the mode of an acquire of this key, perhaps with another one.
    fn claim(&mut self, key: &Key) -> (Keys, history::Mode) {
        let one = (Keys::from(key.clone()), history::Mode::Exclusive);
        if self.size.claims == Claims::Exclusive {
            return one;
        }
        let mode = match self.random.random_range(0..10) {
            0..4 => history::Mode::Exclusive,
            4..8 => history::Mode::Shared,
            8 => history::Mode::Semaphore { permits: 1, of: 3 },
            _ => history::Mode::Semaphore { permits: 2, of: 3 },
        };
        let other = name(self.random.random_range(0..self.size.keys));
        let several = (self.size.claims == Claims::All && self.random.random_bool(0.3))
            .then(|| Keys::new(vec![key.clone(), other]))
            .flatten();
        (several.unwrap_or(one.0), mode)
    }

    /// What an operator asks for: most breaks name the holder's token, the others the one before or
    /// after it.
    fn order(&mut self) -> Call {
        if self.random.random_bool(0.25) {
            let current = self.table.access().revision().0;
            return Call::SetAccess { revision: current.saturating_sub(u64::from(self.random.random_bool(0.2))) };
        }
        let key = name(self.random.random_range(0..self.size.keys));
        let lock = self.table.lock(&lock::Key::from(&*key.0));
        let holder = lock.and_then(lock::Lock::first_holder).map(|holder| holder.token.0);
        let token = match (holder, self.random.random_range(0..6)) {
            (Some(token), 0) => token + 1,
            (Some(token), 1) => token - 1,
            (Some(token), _) => token,
            (None, _) => self.table.next_token().0 - 1,
        };
        Call::Break { key, token }
    }

    /// No rules, or rules that deny one client everything, or every client one key.
    pub(super) fn rules(&mut self) -> Option<Arc<Rules>> {
        let (denied, key) =
            (self.random.random_range(0..self.size.clients), self.random.random_range(0..self.size.keys));
        let rule = |prefix: &str, subject, rights: &[Right]| Rule {
            prefix: Prefix::from(prefix),
            subject,
            rights: Rights::of(rights.iter().copied()),
        };
        let all = rule("", Subject::Everyone, &[Right::Acquire, Right::Break, Right::Write]);
        let but = match self.random.random_range(0..3) {
            0 => return None,
            1 => {
                let subject = |client| Subject::Principal(principal(client));
                let others = (0..self.size.clients).filter(|client| *client != denied);
                return Some(Arc::new(Rules::new(
                    vec![],
                    others.map(|client| rule("", subject(client), &[Right::Acquire])).collect(),
                )));
            }
            _ => rule(&name(key).0, Subject::Everyone, &[Right::Read]),
        };
        Some(Arc::new(Rules::new(vec![], vec![all, but])))
    }
}
