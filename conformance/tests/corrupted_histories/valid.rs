//! A valid history, and the facts that its corruptions need.
//!
//! The code reads operations only. It shares nothing with the checkers, so that it does not share
//! their mistakes.

use std::collections::{BTreeMap, BTreeSet};

use palisade_history::event::DEFAULT_TTL_MS;
use palisade_history::{Answer, Call, History, Key, Keys, Mode, Operation, Session, Time};

/// A valid history and the facts that its corruptions need.
pub(crate) struct Valid<'h> {
    pub(super) history: &'h History,
    /// Answered acquires, the first for each token, in the order of their invocations; without grants
    /// that a break names, which may have ended at any time after it.
    pub(super) grants: Vec<Grant<'h>>,
    /// Sessions whose opening was answered.
    pub(super) opened: BTreeSet<&'h Session>,
}

/// An acquire that was answered with a token.
#[derive(Clone, Copy)]
pub(super) struct Grant<'h> {
    pub(super) index: usize,
    pub(super) operation: &'h Operation,
    pub(super) keys: &'h Keys,
    pub(super) mode: Mode,
    pub(super) session: &'h Session,
    pub(super) token: u64,
    /// The grant's only release, if that succeeded.
    pub(super) release: Option<(usize, &'h Operation)>,
    /// Whether only a request sent after this acquire's invocation can have made the grant.
    pub(super) is_fresh: bool,
}

impl Grant<'_> {
    pub(super) fn is_of_any(&self, keys: &Keys) -> bool {
        self.keys.as_slice().iter().any(|key| keys.as_slice().contains(key))
    }

    /// Whether the two grants have a key in common.
    pub(super) fn meets(&self, other: &Grant<'_>) -> bool {
        self.is_of_any(other.keys)
    }

    /// Whether the two grants cannot be held at the same time.
    pub(super) fn excludes(&self, other: &Grant<'_>) -> bool {
        let fits = match (self.mode, other.mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Semaphore { permits, of }, Mode::Semaphore { permits: others, of: size }) => {
                of == size && permits + others <= of
            }
            _ => false,
        };
        self.meets(other) && !fits
    }
}

impl<'h> Valid<'h> {
    pub(crate) fn new(history: &'h History) -> Valid<'h> {
        let mut valid = Valid { history, grants: Vec::new(), opened: BTreeSet::new() };
        let mut releases: BTreeMap<u64, Vec<(usize, &Operation)>> = BTreeMap::new();
        for (index, operation) in history.operations.iter().enumerate() {
            if let Some(Answer::Opened { session }) = operation.answer() {
                valid.opened.insert(session);
            }
            if let (Call::Release { token, .. }, None) = (&operation.call, operation.refusal()) {
                releases.entry(*token).or_default().push((index, operation));
            }
        }
        let mut tokens: BTreeSet<&u64> = BTreeSet::new();
        tokens.extend(history.operations.iter().filter_map(|operation| match &operation.call {
            Call::Break { token, .. } => Some(token),
            _ => None,
        }));
        for (index, operation) in history.operations.iter().enumerate() {
            let (Call::Acquire { keys, mode, .. }, Some(Answer::Granted { session, token })) =
                (&operation.call, operation.answer())
            else {
                continue;
            };
            if tokens.insert(token) {
                // One with a number that was sent again is answered so, too, if it found nothing.
                let has_found_it = |release: &Operation| {
                    let is_numbered = matches!(release.call, Call::Release { number: Some(_), .. });
                    release.answer() == Some(&Answer::Released) && !(is_numbered && release.was_disconnected())
                };
                let release = match releases.get(token).map(Vec::as_slice) {
                    Some([only]) if has_found_it(only.1) => Some(*only),
                    _ => None,
                };
                let is_fresh = valid.is_fresh(index);
                let mode = *mode;
                valid.grants.push(Grant { index, operation, keys, mode, session, token: *token, release, is_fresh });
            }
        }
        valid
    }

    /// An acquire with a session may be answered with a claim that an earlier request of the
    /// session made, if that request was not answered or was sent more than once; an acquire
    /// without a session is answered with its own claim only.
    fn is_fresh(&self, index: usize) -> bool {
        let operation = &self.history.operations[index];
        let Call::Acquire { session: Some(session), .. } = &operation.call else { return true };
        let shares_keys = |of: &Keys| of.as_slice().iter().any(|key| operation.call.keys().contains(key));
        self.history.operations.iter().enumerate().all(|(other_index, other)| {
            let same = match &other.call {
                Call::Acquire { keys: of, session: Some(other), .. } => shares_keys(of) && other == session,
                // The session of an unanswered acquire may be unknown.
                Call::Acquire { keys: of, session: None, .. } => {
                    shares_keys(of) && other.answer().is_none() && !self.opened.contains(session)
                }
                _ => false,
            };
            let over = other.completed() < operation.invoked && !other.was_disconnected();
            !same || other_index == index || over || other.invoked > operation.completed()
        })
    }

    pub(super) fn fresh(&self) -> impl Iterator<Item = &Grant<'h>> {
        self.grants.iter().filter(|grant| grant.is_fresh)
    }

    /// The grants that were acknowledged before another one was requested.
    pub(super) fn before(&self, later: &Grant<'h>) -> impl Iterator<Item = &Grant<'h>> {
        self.grants.iter().filter(|first| first.operation.completed() < later.operation.invoked)
    }

    /// Pairs of grants of which the first was acknowledged before the second was requested.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (&Grant<'h>, &Grant<'h>)> {
        self.fresh().flat_map(|later| {
            self.before(later).filter(|first| first.token < later.token).map(move |first| (first, later))
        })
    }

    /// The next grant, by token, that was answered and for which this one leaves no room.
    pub(super) fn next_of_key(&self, grant: &Grant<'_>) -> Option<&Grant<'h>> {
        let later = self.grants.iter().filter(|other| other.token > grant.token && other.excludes(grant));
        later.min_by_key(|other| other.token)
    }

    /// The answered linearizable reads of a key, with their indexes.
    pub(super) fn reads(&self, of: &Key) -> impl Iterator<Item = (usize, &'h Operation)> {
        let is_read = move |operation: &Operation| {
            matches!(&operation.call, Call::Read { key, stale: false } if key == of) && operation.answer().is_some()
        };
        self.history.operations.iter().enumerate().filter(move |(_, operation)| is_read(operation))
    }

    /// The answered linearizable reads of any key of a grant.
    pub(super) fn reads_of(&self, grant: &Grant<'h>) -> impl Iterator<Item = (usize, &'h Operation)> {
        grant.keys.as_slice().iter().flat_map(|key| self.reads(key))
    }

    /// The time until which a session certainly lives: its last acknowledged sign of life plus its
    /// time-to-live. `None` if something may have ended the session before.
    pub(super) fn lives_until(&self, of: &Session) -> Option<Time> {
        let (mut ttl, mut last) = (None, Time(0));
        for operation in &self.history.operations {
            let given = match operation.answer() {
                Some(Answer::Opened { session } | Answer::Granted { session, .. }) => Some(session),
                _ => None,
            };
            if given.or(operation.call.session()) != Some(of) {
                continue;
            }
            match (&operation.call, operation.answer()) {
                (Call::CloseSession { .. } | Call::Withdraw { .. }, _) => return None,
                (Call::OpenSession { ttl_ms }, Some(_)) => ttl = Some(*ttl_ms),
                (Call::Acquire { session: None, ttl_ms, .. }, Some(_)) => {
                    let ttl_ms = ttl_ms.unwrap_or(DEFAULT_TTL_MS);
                    ttl = Some(ttl.map_or(ttl_ms, |known: u64| known.min(ttl_ms)));
                }
                (Call::Acquire { .. } | Call::KeepAlive { .. }, Some(_)) => {}
                _ => continue,
            }
            last = last.max(operation.invoked);
        }
        Some(Time(last.0 + self.history.at_least(ttl?)))
    }

    /// Pairs of acquires of one key of which a read showed the first in the queue before the second
    /// was invoked.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (&Grant<'h>, &Grant<'h>)> {
        let known = |grant: &Grant<'_>| {
            grant.is_fresh && self.opened.contains(grant.session) && !grant.operation.was_disconnected()
        };
        self.fresh().flat_map(move |later| {
            let rivals = self.grants.iter().filter(move |first| {
                first.meets(later)
                    && first.token < later.token
                    && first.operation.completed() > later.operation.invoked
                    && known(first)
            });
            let seen = rivals.filter(move |first| {
                let queues = first.keys.as_slice().iter().filter(|key| later.keys.as_slice().contains(key));
                queues.flat_map(|key| self.reads(key)).any(|(_, read)| {
                    let shown =
                        matches!(read.answer(), Some(Answer::Lock { queue, .. }) if queue.contains(first.session));
                    shown && read.completed() < later.operation.invoked && read.invoked > first.operation.invoked
                })
            });
            seen.map(move |first| (first, later))
        })
    }
}
