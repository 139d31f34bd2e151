//! The answers that clients received, noted on receipt, and the operations that they have begun
//! since.
//!
//! Between the two lies all that a crash may decide: a release that was sent and not answered may
//! have happened or not. Everything else must be in the replicated state exactly as it stands here.

use std::collections::{BTreeMap, BTreeSet};

use palisade_client::Guard;
use palisade_client::wire::LockView;

/// A grant that a client was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) session: u64,
    pub(crate) token: u64,
}

impl Grant {
    pub(crate) fn of(guard: &Guard) -> Grant {
        Grant { session: guard.session().number(), token: guard.token() }
    }
}

/// Whether the holder has released the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantState {
    Held,
    /// A release was sent.
    Releasing,
    /// A release was acknowledged.
    Released,
}

/// The holder and the waiters of one key.
#[derive(Clone, Debug, Default)]
struct Line {
    /// Their names, the holder first, as a linearizable read has shown them, less those that are
    /// done.
    sessions: Vec<String>,
    /// The first one's grant, once it was told.
    grant: Option<Grant>,
    change: Option<Change>,
}

/// What may or may not have happened to a line.
#[derive(Clone, Debug)]
enum Change {
    /// A client asked for a position at its end.
    Joining(String),
    /// The first one releases the lock.
    Leaving,
}

/// All answers to all clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    tokens: BTreeSet<u64>,
    grants: BTreeMap<u64, (String, Grant, GrantState)>,
    lines: BTreeMap<String, Line>,
    acknowledgements: usize,
}

/// How much a crash could have destroyed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stakes {
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    pub(crate) released: usize,
}

impl Journal {
    /// How many answers clients have received.
    pub(crate) fn acknowledgements(&self) -> usize {
        self.acknowledgements
    }

    fn token(&mut self, token: u64) {
        self.acknowledgements += 1;
        assert!(self.tokens.insert(token), "token {token} was issued twice");
    }

    // Locks that come and go.

    pub(crate) fn granted(&mut self, key: &str, guard: &Guard) {
        let grant = Grant::of(guard);
        self.token(grant.token);
        self.grants.insert(grant.token, (key.to_string(), grant, GrantState::Held));
    }

    pub(crate) fn releasing(&mut self, guard: &Guard) {
        self.grants.get_mut(&guard.token()).expect("a grant").2 = GrantState::Releasing;
    }

    pub(crate) fn released(&mut self, token: u64) {
        self.acknowledgements += 1;
        self.grants.get_mut(&token).expect("a grant").2 = GrantState::Released;
    }

    // Lines.

    fn line(&mut self, key: &str) -> &mut Line {
        self.lines.entry(key.to_string()).or_default()
    }

    /// How many hold and wait.
    pub(crate) fn length(&self, key: &str) -> usize {
        self.lines.get(key).map_or(0, |line| line.sessions.len())
    }

    pub(crate) fn joining(&mut self, key: &str, name: &str) {
        self.line(key).change = Some(Change::Joining(name.to_string()));
    }

    /// Whether a linearizable read shows the joining session in the line; if so, notes it.
    pub(crate) fn joined(&mut self, key: &str, read: &LockView) -> bool {
        let line = self.line(key);
        let Some(Change::Joining(name)) = &line.change else { panic!("no session joins {key}") };
        if names(read).last() != Some(name) {
            return false;
        }
        line.sessions.push(name.clone());
        line.change = None;
        assert_eq!(names(read), line.sessions, "{key}: the sessions stand in the order of their arrival");
        self.acknowledgements += 1;
        true
    }

    /// The first in the line received its grant.
    pub(crate) fn leads(&mut self, key: &str, guard: &Guard) {
        let grant = Grant::of(guard);
        self.token(grant.token);
        self.line(key).grant = Some(grant);
    }

    pub(crate) fn leaving(&mut self, key: &str) {
        self.line(key).change = Some(Change::Leaving);
    }

    pub(crate) fn left(&mut self, key: &str) {
        self.acknowledgements += 1;
        let line = self.line(key);
        line.sessions.remove(0);
        (line.grant, line.change) = (None, None);
    }

    /// Compares the replicated state after a crash with the answers before it.
    pub(crate) fn check(&self, state: &[LockView]) -> Stakes {
        let mut stakes = Stakes::default();
        let by_key: BTreeMap<&str, &LockView> = state.iter().map(|lock| (lock.key.as_str(), lock)).collect();
        let holder = |key: &str| {
            let holder = by_key.get(key)?.holder.as_ref()?;
            Some(Grant { session: holder.session, token: holder.token })
        };
        let held: BTreeSet<u64> = by_key.keys().filter_map(|key| Some(holder(key)?.token)).collect();
        for (key, grant, state) in self.grants.values() {
            match state {
                GrantState::Held => {
                    assert_eq!(holder(key), Some(*grant), "{key}: what was granted is still held");
                    stakes.held += 1;
                }
                GrantState::Releasing => {
                    let found = holder(key).filter(|found| found.token == grant.token);
                    assert!(found.is_none_or(|found| found == *grant), "{key}: {found:?} has the token of {grant:?}");
                }
                GrantState::Released => {
                    assert!(!held.contains(&grant.token), "{key}: {grant:?} was released, and is held again");
                    stakes.released += 1;
                }
            }
        }
        for (key, line) in &self.lines {
            let found = by_key.get(key.as_str()).map_or(Vec::new(), |lock| names(lock));
            stakes.waiting += line.check(key, &found, holder(key));
        }
        stakes
    }
}

impl Line {
    fn check(&self, key: &str, found: &[String], holder: Option<Grant>) -> usize {
        let known = self.sessions.as_slice();
        let mut possible = vec![known.to_vec()];
        match &self.change {
            None => {}
            Some(Change::Joining(name)) => possible.push([known, std::slice::from_ref(name)].concat()),
            Some(Change::Leaving) => possible.push(known[1..].to_vec()),
        }
        assert!(possible.iter().any(|line| line == found), "{key}: {found:?} is none of {possible:?}");
        if let Some(grant) = self.grant {
            let first_is_there = found.first() == known.first();
            assert!(!first_is_there || holder == Some(grant), "{key}: {holder:?} is not {grant:?}");
        }
        known.len().saturating_sub(1)
    }
}

/// The names of the holder and of the waiters, in order.
fn names(lock: &LockView) -> Vec<String> {
    let holder = lock.holder.iter().map(|holder| holder.owner.clone());
    holder.chain(lock.queue.iter().map(|waiter| waiter.owner.clone())).collect()
}
