//! Certain facts about sessions and grants in a history, collected once for all fast checkers.
//!
//! The service handles each operation at a moment between its invocation and its completion. So
//! each relevant event has bounds: it was not before, or not after, some moment of the history.
//!
//! **A grant** of token t happens at a moment g and ends at a moment e > g.
//!
//! - g is not before the invocation of an acquire that can have made the grant (`not_before`, see
//!   below);
//! - g is not after the completion of any operation that showed the grant (`seen`);
//! - e is not before the invocation of any operation that still found the grant (`held`);
//! - e is not before the first event that can have ended the grant (`may_end`): a requested
//!   release, withdrawal, close or break, answered or not, or the end of the session's time-to-live;
//! - e is not after the completion of an operation that certainly ended the grant (`ended`).
//!
//! **A session** lives on for its time-to-live after each sign of life. Every answered sign
//! precedes the session's end, because the service accepts none after it. So the session cannot
//! expire before *the last sign's* invocation plus the time-to-live: this one bound is enough,
//! whatever came in between. The session also ends with its last claim if an operator breaks that
//! (`broken`).
//!
//! **Access rules** are not on record. From the first change of the rules on, any acquire may be
//! denied: at once, or when its turn comes (`denies_since`). A grant stays when the rules change.
//!
//! # Which acquire can have made a grant
//!
//! **An acquire without a session makes the grant in its answer.** Two kinds of service handle such
//! a request, and neither answers it with the grant of another request:
//!
//! - The server opens a session for each such request that it executes (docs/api.md, "Without
//!   `session`"). The answer names this session, and no other request can name it before. A
//!   follower that redirects a request (307) does not execute it. A repeated request opens
//!   another session, and no answer names the first one (docs/protocol.md, "Exactly once"). All
//!   sendings of an operation follow its invocation. Once it is answered, the client may name the
//!   session in further acquires, and so have several claims of it at a time.
//! - The Rust client takes a session from its pool. One claim of the Rust client at a time uses the
//!   session, which returns to the pool when it certainly has no claim: a release or a withdrawal was
//!   answered, under a number above that of the acquire, so that a delayed acquire changes nothing
//!   (`palisade_client`, `engine/claim`).
//!
//! So the invocation of this acquire is a bound, whatever happened to earlier requests without a
//! session.
//!
//! **An acquire with a session may find an earlier claim** of that session on the key, made by an
//! acquire that was open at the same time or has an unknown end. So the bound is the earliest
//! invocation in that chain. If a read showed a session that no recorded operation was given, an
//! unanswered acquire without a session may have opened it: then the bound is the earlier of the
//! chain's invocation and that of the first such acquire. A session that the answer to an acquire
//! without one named, and that another acquire names, is not of the Rust client's pool: the server
//! opened it for that acquire alone (`named`). A reentrant acquire does not show that: guards of the
//! Rust client hold again what they hold.
//!
//! # Several keys, several holders
//!
//! A grant is of all keys of its claim, under one token. An acquire's answer and a release name all of
//! them; a read, a refusal and a break show one. So a grant has the keys that it was shown with, and
//! knows whether these are all (`is_whole`). A grant that two keys showed, and no acquire or release, is
//! possible only if an acquire of both may have been granted (`contradictions`).
//!
//! A grant has the mode of its acquire, or the one that a read showed. If neither is known, it takes as
//! little of its lock as any acquire of that key that may have been granted (`least_mode`).
//!
//! A release that was answered with the holds that are left has ended nothing, unless it was sent more
//! than once without a number: then each sending may have dropped a hold.
//!
//! **A grant that is in no acquire's answer** was made by an acquire that was not answered, or that
//! was sent more than once (`unheard`): by one of the session that was shown with the grant, or of
//! any session if only a refusal showed it.

mod learning;

use std::collections::HashMap;

use super::intervals::Intervals;
use crate::operation::OperationIndex;
use crate::{Answer, Call, History, Key, Mode, Operation, Session, Time};

/// A moment, and the operation that it comes from.
pub(super) type Sighting = (Time, OperationIndex);

/// The facts about one session.
#[derive(Clone, Debug)]
pub(super) struct SessionFacts<'h> {
    pub(super) name: &'h Session,
    /// Time-to-live in nanoseconds; `None` if the opening is not recorded: then the session may
    /// expire at any time.
    ttl: Option<u64>,
    last_sign: Option<Time>,
    /// When a client first asked to close the session.
    close_asked: Time,
    /// Whether the session came with an acquire that named none: then it may end with its claim,
    /// and other acquires may use it.
    pub(super) borrowed: bool,
    /// Whether an acquire that is not reentrant names the session. Then it is not of the Rust client's pool,
    /// and every acquire without a session has another one.
    named: bool,
    /// For a borrowed session: when its claim may first have been dropped.
    dropped: Time,
    /// When a grant of the session may first have been broken: with its last claim it ends.
    broken: Time,
    /// Since when the session is certainly gone for every request: a close was answered, or a
    /// request was refused because it is gone.
    pub(super) gone: Option<Sighting>,
    /// When a close was answered: from then on reads do not show the session either.
    pub(super) closed: Option<Sighting>,
}

impl SessionFacts<'_> {
    /// The session cannot have ended before this time.
    pub(super) fn may_end(&self) -> Time {
        let dropped = if self.borrowed { self.dropped } else { Time::NEVER };
        self.may_expire().min(self.close_asked).min(dropped).min(self.broken)
    }

    /// No grant of the session can have been broken before this time.
    pub(super) fn may_be_broken(&self) -> Time {
        self.broken
    }

    /// The session cannot have expired before this time.
    pub(super) fn may_expire(&self) -> Time {
        match (self.ttl, self.last_sign) {
            (Some(ttl), Some(sign)) => Time(sign.0.saturating_add(ttl)),
            _ => Time(0),
        }
    }
}

/// The facts about one grant.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) token: u64,
    /// The keys that it was shown with, in order.
    pub(super) keys: Vec<usize>,
    /// Whether these are all its keys.
    pub(super) is_whole: bool,
    /// An operation that showed a further key, and not all of them.
    spread: Option<OperationIndex>,
    /// How much of each lock it takes, if that was shown.
    mode: Option<Mode>,
    /// The holder; `None` if only a refusal showed the grant.
    pub(super) session: Option<usize>,
    /// The first acquire that has the grant in its answer.
    pub(super) acquire: Option<OperationIndex>,
    /// The last acquire without a session that has the grant in its answer: that acquire made it.
    own: Option<Sighting>,
    /// The earliest acquire that can have made the grant.
    pub(super) asked: Option<OperationIndex>,
    pub(super) not_before: Time,
    pub(super) seen: Sighting,
    pub(super) held: Option<Sighting>,
    /// As `held`, but without reads: they still show a holder that is past its deadline
    /// (docs/protocol.md, "Expiry").
    pub(super) active: Option<Time>,
    pub(super) may_end: Time,
    pub(super) ended: Option<Sighting>,
}

impl Grant {
    /// The grant cannot have ended before this time.
    pub(super) fn lasts(&self) -> Time {
        self.held.map_or(Time(0), |(time, _)| time).max(self.may_end).max(self.not_before)
    }

    /// The holder was able to act until this time, unless it gave up the lock.
    pub(super) fn acts(&self) -> Time {
        self.active.unwrap_or(Time(0)).max(self.may_end).max(self.not_before)
    }
}

/// The operations that may have made or dropped a claim of one session on one key.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pub(super) acquires: Intervals,
    /// Withdrawals that were not refused.
    pub(super) withdrawals: Intervals,
    /// The first acquire that may have been granted without an answer that shows it.
    unheard: Option<Sighting>,
}

/// The facts that the fast checkers share.
#[derive(Debug)]
pub(super) struct Facts<'h> {
    pub(super) history: &'h History,
    pub(super) sessions: Vec<SessionFacts<'h>>,
    pub(super) keys: Vec<&'h Key>,
    /// The grants, in the order of their tokens.
    pub(super) grants: Vec<Grant>,
    /// Tokens that were shown with another key or session than at first, and the operation that
    /// showed them so.
    pub(super) contradictions: Vec<(u64, OperationIndex)>,
    /// Tokens that were shown with another mode than at first, and the operation that showed them so.
    pub(super) other_modes: Vec<(u64, OperationIndex)>,
    /// Since when each acquire was certainly in the queue.
    pub(super) queued: Vec<Option<Time>>,
    /// No waiter was denied the lock before this time.
    pub(super) denies_since: Time,
    session_names: HashMap<&'h Session, usize>,
    key_names: HashMap<&'h Key, usize>,
    claims: HashMap<(usize, usize), Claims>,
    /// Whether any acquire is of several keys: otherwise every grant has the one key that it was shown with.
    pub(super) has_several: bool,
    /// Of each key: the acquires that may have been granted take at least so much of it; `None` if they
    /// disagree about its size.
    least_modes: HashMap<usize, Option<Mode>>,
    /// The first acquire of each key with an unknown session.
    nameless: HashMap<usize, Sighting>,
    /// The first acquire of each key that may have been granted without an answer that shows it.
    unheard: HashMap<usize, Sighting>,
    grants_by_token: HashMap<u64, usize>,
}

impl<'h> Facts<'h> {
    pub(super) fn of(history: &'h History) -> Facts<'h> {
        let mut facts = Facts {
            history,
            sessions: Vec::new(),
            keys: Vec::new(),
            grants: Vec::new(),
            contradictions: Vec::new(),
            other_modes: Vec::new(),
            queued: Vec::new(),
            denies_since: Time::NEVER,
            session_names: HashMap::new(),
            key_names: HashMap::new(),
            claims: HashMap::new(),
            has_several: history.operations.iter().any(is_of_several),
            least_modes: HashMap::new(),
            nameless: HashMap::new(),
            unheard: HashMap::new(),
            grants_by_token: HashMap::new(),
        };
        facts.learn_sessions();
        facts.learn_claims();
        facts.learn_grants();
        facts.learn_operators();
        facts.bound_grants();
        facts.learn_queues();
        facts.end_by_withdrawals();
        facts
    }

    pub(super) fn operation(&self, index: OperationIndex) -> &'h Operation {
        &self.history.operations[index]
    }

    pub(super) fn claims(&self, session: usize, key: usize) -> Option<&Claims> {
        self.claims.get(&(session, key))
    }

    pub(super) fn session_named(&self, name: &Session) -> Option<usize> {
        self.session_names.get(name).copied()
    }

    pub(super) fn key_named(&self, name: &Key) -> Option<usize> {
        self.key_names.get(name).copied()
    }

    pub(super) fn grant_of(&self, token: u64) -> Option<&Grant> {
        self.grants_by_token.get(&token).map(|&grant| &self.grants[grant])
    }

    /// The grants of each key, in the order of their tokens.
    pub(super) fn grants_by_key(&self) -> Vec<Vec<&Grant>> {
        let mut by_key: Vec<Vec<&Grant>> = self.keys.iter().map(|_| Vec::new()).collect();
        for grant in &self.grants {
            for &key in &grant.keys {
                by_key[key].push(grant);
            }
        }
        by_key
    }

    /// The indexes of the keys that an operation names, in order.
    pub(super) fn keys_of(&self, operation: &Operation) -> Vec<usize> {
        operation.call.keys().iter().filter_map(|key| self.key_named(key)).collect()
    }

    /// The keys of a grant, for people.
    pub(super) fn names(&self, grant: &Grant) -> String {
        let names: Vec<String> = grant.keys.iter().map(|&key| self.keys[key].to_string()).collect();
        names.join(" and ")
    }

    /// How much of its lock on this key a grant takes at least, and how much there is; `None` if not even
    /// the lock's size is known.
    pub(super) fn share(&self, grant: &Grant, key: usize) -> Option<(u64, u64)> {
        let least = || self.least_modes.get(&key).copied().flatten();
        grant.mode.or_else(least).map(Mode::share)
    }

    /// Whether a grant is certainly an exclusive one.
    pub(super) fn is_exclusive(&self, grant: &Grant) -> bool {
        self.share(grant, grant.keys[0]).is_some_and(|(takes, of)| takes == of)
    }

    /// Whether an acquire may have been granted a grant of these keys, in this mode.
    pub(super) fn may_have_made(&self, acquire: &Operation, grant: &Grant) -> bool {
        let Call::Acquire { mode, .. } = &acquire.call else { return false };
        let keys = self.keys_of(acquire);
        let fits = if grant.is_whole { keys == grant.keys } else { grant.keys.iter().all(|key| keys.contains(key)) };
        fits && grant.mode.is_none_or(|shown| shown == *mode) && acquire.refusal().is_none()
    }

    /// The token in an acquire's answer.
    pub(super) fn granted(&self, index: OperationIndex) -> Option<u64> {
        match self.operation(index).answer() {
            Some(Answer::Granted { token, .. }) => Some(*token),
            _ => None,
        }
    }

    /// An operation's session: the one that it names, or the one that it was given.
    pub(super) fn session_of(&self, operation: &Operation) -> Option<usize> {
        let given = match operation.answer() {
            Some(Answer::Granted { session, .. } | Answer::Opened { session }) => Some(session),
            _ => None,
        };
        self.session_named(operation.call.session().or(given)?)
    }

    /// Whether an acquire with an unknown session may have been executed for `session` by
    /// `moment`.
    pub(super) fn may_be_nameless(&self, session: usize, key: usize, moment: Time) -> bool {
        let SessionFacts { borrowed, named, ttl, .. } = self.sessions[session];
        let unopened = ttl.is_none() || (borrowed && !named);
        unopened && self.nameless.get(&key).is_some_and(|(first, _)| *first <= moment)
    }

    /// The same for any of a grant's keys.
    pub(super) fn grant_may_be_nameless(&self, session: usize, grant: &Grant, moment: Time) -> bool {
        grant.keys.iter().any(|&key| self.may_be_nameless(session, key, moment))
    }

    /// For each session in a read's queue, its acquire, if that is certain.
    pub(super) fn waiters(&self, read: &Operation) -> Vec<Option<OperationIndex>> {
        let (Call::Read { key, stale: false }, Some(Answer::Lock { queue, .. })) = (&read.call, read.answer()) else {
            return Vec::new();
        };
        let Some(key) = self.key_named(key) else { return Vec::new() };
        queue.iter().map(|session| self.waiter(session, key, read)).collect()
    }

    fn waiter(&self, session: &Session, key: usize, read: &Operation) -> Option<OperationIndex> {
        let session = self.session_named(session)?;
        let (from, to) = (read.invoked, read.completed());
        if self.may_be_nameless(session, key, to) {
            return None;
        }
        let mut candidates = self.claims(session, key)?.acquires.overlapping(from, to);
        let waiter = candidates.next()?;
        candidates.next().is_none().then_some(waiter)
    }
}

fn is_of_several(operation: &Operation) -> bool {
    matches!(operation.call, Call::Acquire { .. }) && operation.call.keys().len() > 1
}
