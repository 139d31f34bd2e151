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
//! - The server opens a session for each such request that it carries out (docs/api.md, "Without
//!   `session`"). The answer names this session, and no other request can name it before. A
//!   follower that redirects a request (307) does not carry it out. A repeated request opens
//!   another session, and no answer names the first one (docs/protocol.md, "Exactly once"). All
//!   sendings of an operation follow its invocation.
//! - The Rust client takes a session from its pool. One claim at a time uses the session, which
//!   returns to the pool when it certainly has no claim: a release or a withdrawal was answered,
//!   under a number above that of the acquire, so that a delayed acquire changes nothing
//!   (`palisade_client`, `engine/claim`).
//!
//! So the invocation of this acquire is a bound, whatever happened to earlier requests without a
//! session.
//!
//! **An acquire with a session may find an earlier claim** of that session on the key, made by an
//! acquire that was open at the same time or has an unknown end. So the bound is the earliest
//! invocation in that chain. If a read showed a session that no recorded operation was given, an
//! unanswered acquire without a session may have opened it: then the bound is the earlier of the
//! chain's invocation and that of the first such acquire.
//!
//! **A grant that is in no acquire's answer** was made by an acquire that was not answered, or that
//! was sent more than once (`unheard`): by one of the session that was shown with the grant, or of
//! any session if only a refusal showed it.

use std::collections::HashMap;

use super::intervals::Intervals;
use crate::event::DEFAULT_TTL_MS;
use crate::operation::OperationIndex;
use crate::{Answer, Call, History, Key, Note, Operation, Refusal, Session, Time};

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
    pub(super) key: usize,
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
    /// Since when each acquire was certainly in the queue.
    pub(super) queued: Vec<Option<Time>>,
    /// No waiter was denied the lock before this time.
    pub(super) denies_since: Time,
    session_names: HashMap<&'h Session, usize>,
    key_names: HashMap<&'h Key, usize>,
    claims: HashMap<(usize, usize), Claims>,
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
            queued: Vec::new(),
            denies_since: Time::NEVER,
            session_names: HashMap::new(),
            key_names: HashMap::new(),
            claims: HashMap::new(),
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

    pub(super) fn operation(&self, place: OperationIndex) -> &'h Operation {
        &self.history.operations[place]
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

    /// The token in an acquire's answer.
    pub(super) fn granted(&self, place: OperationIndex) -> Option<u64> {
        match self.operation(place).answer() {
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

    /// Whether an acquire with an unknown session may have been carried out for `session` by
    /// `moment`.
    pub(super) fn may_be_nameless(&self, session: usize, key: usize, moment: Time) -> bool {
        let unopened = self.sessions[session].borrowed || self.sessions[session].ttl.is_none();
        unopened && self.nameless.get(&key).is_some_and(|(first, _)| *first <= moment)
    }

    fn session(&mut self, name: &'h Session) -> usize {
        *self.session_names.entry(name).or_insert_with(|| {
            self.sessions.push(SessionFacts {
                name,
                ttl: None,
                last_sign: None,
                close_asked: Time::NEVER,
                borrowed: false,
                dropped: Time::NEVER,
                broken: Time::NEVER,
                gone: None,
                closed: None,
            });
            self.sessions.len() - 1
        })
    }

    fn key(&mut self, name: &'h Key) -> usize {
        *self.key_names.entry(name).or_insert_with(|| {
            self.keys.push(name);
            self.keys.len() - 1
        })
    }

    fn learn_sessions(&mut self) {
        let history = self.history;
        for (place, operation) in history.operations.iter().enumerate() {
            if let Some(key) = operation.call.key() {
                self.key(key);
            }
            let named = operation.call.session().map(|name| self.session(name));
            let (invoked, completed) = (operation.invoked, operation.completed());
            let possible = operation.refusal().is_none();
            match (&operation.call, operation.answer(), named) {
                (Call::OpenSession { ttl_ms }, Some(Answer::Opened { session }), _) => {
                    let session = self.session(session);
                    self.sessions[session].ttl = Some(history.at_least(*ttl_ms));
                    self.shows_life(session, invoked);
                }
                (Call::Acquire { session: None, ttl_ms, .. }, Some(Answer::Granted { session, .. }), _) => {
                    let session = self.session(session);
                    let ttl = history.at_least(ttl_ms.unwrap_or(DEFAULT_TTL_MS));
                    let facts = &mut self.sessions[session];
                    facts.ttl = Some(facts.ttl.map_or(ttl, |other| other.min(ttl)));
                    facts.borrowed = true;
                    self.shows_life(session, invoked);
                }
                (Call::Acquire { .. } | Call::KeepAlive { .. }, Some(_), Some(session)) => {
                    self.shows_life(session, invoked);
                }
                (Call::CloseSession { .. }, answer, Some(session)) if possible => {
                    let facts = &mut self.sessions[session];
                    facts.close_asked = facts.close_asked.min(invoked);
                    if answer.is_some() {
                        earlier(&mut facts.gone, (completed, place));
                        earlier(&mut facts.closed, (completed, place));
                    }
                }
                (Call::Release { .. } | Call::Withdraw { .. }, _, Some(session)) if possible => {
                    let facts = &mut self.sessions[session];
                    facts.dropped = facts.dropped.min(invoked);
                }
                _ => {}
            }
            if let (Some(Refusal::NoSession), Some(session)) = (operation.refusal(), named) {
                earlier(&mut self.sessions[session].gone, (completed, place));
            }
        }
    }

    fn shows_life(&mut self, session: usize, at: Time) {
        let sign = &mut self.sessions[session].last_sign;
        *sign = (*sign).max(Some(at));
    }

    fn learn_claims(&mut self) {
        let history = self.history;
        for (place, operation) in history.operations.iter().enumerate() {
            let Some(key) = operation.call.key().map(|key| self.key_names[key]) else { continue };
            let session = self.session_of(operation);
            let asked = (operation.invoked, place);
            let once_answered = operation.answer().is_some() && !operation.was_disconnected();
            let is_unheard = operation.refusal().is_none() && !once_answered;
            match (&operation.call, session) {
                (Call::Acquire { .. }, Some(session)) => {
                    let claims = self.claims.entry((session, key)).or_default();
                    claims.acquires.add(operation, place);
                    if is_unheard && operation.call.session().is_none() {
                        // Another sending opened another session.
                        first(&mut self.nameless, key, asked);
                    }
                    if is_unheard {
                        earlier(&mut claims.unheard, asked);
                        first(&mut self.unheard, key, asked);
                    }
                }
                (Call::Acquire { .. }, None) => {
                    first(&mut self.nameless, key, asked);
                    if is_unheard {
                        first(&mut self.unheard, key, asked);
                    }
                }
                (Call::Withdraw { .. }, Some(session)) if operation.refusal().is_none() => {
                    self.claims.entry((session, key)).or_default().withdrawals.add(operation, place);
                }
                _ => {}
            }
        }
        for claims in self.claims.values_mut() {
            claims.acquires.sort();
            claims.withdrawals.sort();
        }
    }

    fn learn_grants(&mut self) {
        let history = self.history;
        for (place, operation) in history.operations.iter().enumerate() {
            let Some(key) = operation.call.key().map(|key| self.key_names[key]) else { continue };
            let session = self.session_of(operation);
            let (begun, done) = ((operation.invoked, place), (operation.completed(), place));
            match (&operation.call, operation.answer(), operation.refusal()) {
                (Call::Acquire { .. }, Some(Answer::Granted { token, .. }), _) => {
                    if let Some(grant) = self.sight(*token, key, session, done) {
                        grant.acquire.get_or_insert(place);
                        if operation.call.session().is_none() {
                            later(&mut grant.own, begun);
                        }
                        later(&mut grant.held, begun);
                        grant.active = grant.active.max(Some(begun.0));
                    }
                }
                (Call::Acquire { .. }, _, Some(Refusal::Held { token })) => {
                    if let Some(grant) = self.sight(*token, key, None, done) {
                        later(&mut grant.held, begun);
                        grant.active = grant.active.max(Some(begun.0));
                    }
                }
                (Call::Release { token, .. }, Some(_), _) => {
                    if let Some(grant) = self.sight(*token, key, session, done) {
                        later(&mut grant.held, begun);
                        grant.active = grant.active.max(Some(begun.0));
                        earlier(&mut grant.ended, done);
                    }
                }
                // A break finds a holder that is past its deadline, too.
                (Call::Break { token, .. }, Some(Answer::Broken { session }), _) => {
                    let session = self.session(session);
                    if let Some(grant) = self.sight(*token, key, Some(session), done) {
                        later(&mut grant.held, begun);
                        earlier(&mut grant.ended, done);
                    }
                }
                (Call::Read { stale: false, .. }, Some(Answer::Lock { holder: Some(holder), .. }), _) => {
                    let session = self.session(&holder.session);
                    if let Some(grant) = self.sight(holder.token, key, Some(session), done) {
                        later(&mut grant.held, begun);
                    }
                }
                _ => {}
            }
        }
        self.learn_from_stale_reads();
    }

    /// A stale read shows a past state: any grant that it shows had been made when it was answered.
    fn learn_from_stale_reads(&mut self) {
        let history = self.history;
        for (place, operation) in history.operations.iter().enumerate() {
            let (Call::Read { key, stale: true }, Some(Answer::Lock { holder: Some(holder), .. })) =
                (&operation.call, operation.answer())
            else {
                continue;
            };
            if self.grant_of(holder.token).is_some_and(|grant| grant.acquire.is_some()) {
                let (key, session) = (self.key_names[key], self.session(&holder.session));
                self.sight(holder.token, key, Some(session), (operation.completed(), place));
            }
        }
    }

    /// What operators may have done: a break of a grant whose holder is unknown may have been of any
    /// session's grant.
    fn learn_operators(&mut self) {
        for operation in self.history.operations.iter().filter(|operation| operation.refusal().is_none()) {
            match &operation.call {
                Call::SetAccess { .. } => self.denies_since = self.denies_since.min(operation.invoked),
                Call::Break { token, .. } => {
                    let holder = self.grant_of(*token).and_then(|grant| grant.session);
                    let range = holder.map_or(0..self.sessions.len(), |session| session..session + 1);
                    for session in &mut self.sessions[range] {
                        session.broken = session.broken.min(operation.invoked);
                    }
                }
                _ => {}
            }
        }
    }

    /// Records that an operation showed a grant. `None`, and a contradiction, if the token belongs
    /// to another grant.
    fn sight(&mut self, token: u64, key: usize, session: Option<usize>, done: Sighting) -> Option<&mut Grant> {
        let place = *self.grants_by_token.entry(token).or_insert_with(|| {
            self.grants.push(Grant {
                token,
                key,
                session,
                acquire: None,
                own: None,
                asked: None,
                not_before: Time(0),
                seen: done,
                held: None,
                active: None,
                may_end: Time::NEVER,
                ended: None,
            });
            self.grants.len() - 1
        });
        let grant = &mut self.grants[place];
        let same_session = session.is_none() || grant.session.is_none() || grant.session == session;
        if grant.key != key || !same_session {
            self.contradictions.push((token, done.1));
            return None;
        }
        grant.session = grant.session.or(session);
        grant.seen = grant.seen.min(done);
        Some(grant)
    }

    /// Derives the grants' bounds from the claims.
    fn bound_grants(&mut self) {
        let mut releases: HashMap<u64, Time> = HashMap::new();
        for operation in &self.history.operations {
            if let (Call::Release { token, .. } | Call::Break { token, .. }, None) =
                (&operation.call, operation.refusal())
            {
                let first = releases.entry(*token).or_insert(Time::NEVER);
                *first = (*first).min(operation.invoked);
            }
        }
        let mut grants = std::mem::take(&mut self.grants);
        for grant in &mut grants {
            grant.may_end = Time(0);
            if let Some(session) = grant.session {
                let SessionFacts { closed, gone, .. } = self.sessions[session];
                if let Some(closed) = closed {
                    earlier(&mut grant.ended, closed);
                }
                // Only live sessions are granted locks, and no grant ends before it begins.
                grant.seen = [gone, grant.ended].into_iter().flatten().fold(grant.seen, Sighting::min);
            }
            if let Some((asked, acquire)) = self.first_asked(grant) {
                grant.not_before = asked;
                grant.asked = Some(acquire);
            }
            let Some(session) = grant.session else { continue };
            if grant.acquire.is_none() && self.may_be_nameless(session, grant.key, grant.seen.0) {
                // An acquire that its client had given up may have been granted, and its release is
                // not on record.
                continue;
            }
            let facts = &self.sessions[session];
            let claims = self.claims.get(&(session, grant.key));
            let released = releases.get(&grant.token).copied().unwrap_or(Time::NEVER);
            let withdrawn = claims.map_or(Time::NEVER, |claims| claims.withdrawals.earliest_open_at(grant.not_before));
            grant.may_end = released.min(withdrawn).min(facts.close_asked).min(facts.may_expire());
        }
        grants.sort_by_key(|grant| grant.token);
        let places = grants.iter().enumerate().map(|(place, grant)| (grant.token, place));
        self.grants_by_token = places.collect();
        self.grants = grants;
    }

    /// The earliest acquire that can have made a grant, and its invocation; `None` if no recorded
    /// acquire can.
    fn first_asked(&self, grant: &Grant) -> Option<Sighting> {
        if grant.own.is_some() {
            return grant.own;
        }
        let Some(session) = grant.session else { return self.unheard.get(&grant.key).copied() };
        let claims = self.claims.get(&(session, grant.key));
        let named = match grant.acquire {
            None => claims.and_then(|claims| claims.unheard),
            Some(acquire) => {
                // The claim may have been made by any acquire that was open at the same time, and
                // so on back.
                let mut asked = self.operation(acquire).invoked;
                while let Some(earlier) = claims.map(|claims| claims.acquires.earliest_open_at(asked))
                    && earlier < asked
                {
                    asked = earlier;
                }
                Some((asked, acquire))
            }
        };
        let nameless = self.nameless.get(&grant.key).filter(|_| self.may_be_nameless(session, grant.key, grant.seen.0));
        named.into_iter().chain(nameless.copied()).min()
    }

    fn learn_queues(&mut self) {
        let mut queued = vec![None; self.history.operations.len()];
        for (place, operation) in self.history.operations.iter().enumerate() {
            let note = operation.notes.iter().find(|(_, note)| matches!(note, Note::Queued { .. }));
            if let Some((time, _)) = note {
                keep_earliest(&mut queued[place], *time);
            }
            for waiter in self.waiters(operation).into_iter().flatten() {
                keep_earliest(&mut queued[waiter], operation.completed());
            }
        }
        self.queued = queued;
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

    /// A session that was in the queue and then withdrew successfully was granted the lock before
    /// that or not at all.
    fn end_by_withdrawals(&mut self) {
        let mut grants = std::mem::take(&mut self.grants);
        for grant in &mut grants {
            let (Some(acquire), Some(session)) = (grant.acquire, grant.session) else { continue };
            let operation = self.operation(acquire);
            let (Some(queued), Some(claims)) = (self.queued[acquire], self.claims(session, grant.key)) else {
                continue;
            };
            let alone = claims.acquires.one_overlaps(operation.invoked, operation.completed());
            if operation.was_disconnected() || !alone || self.may_be_nameless(session, grant.key, grant.seen.0) {
                continue;
            }
            for withdrawal in claims.withdrawals.overlapping(queued, operation.completed()) {
                let withdrawal_of = self.operation(withdrawal);
                if withdrawal_of.invoked > queued && withdrawal_of.answer().is_some() {
                    let done = (withdrawal_of.completed(), withdrawal);
                    grant.seen = grant.seen.min(done);
                    earlier(&mut grant.ended, done);
                }
            }
        }
        self.grants = grants;
    }
}

fn first(known: &mut HashMap<usize, Sighting>, key: usize, new: Sighting) {
    let known = known.entry(key).or_insert(new);
    *known = new.min(*known);
}

fn earlier(known: &mut Option<Sighting>, new: Sighting) {
    *known = Some(known.map_or(new, |known| known.min(new)));
}

fn later(known: &mut Option<Sighting>, new: Sighting) {
    *known = Some(known.map_or(new, |known| known.max(new)));
}

fn keep_earliest(known: &mut Option<Time>, new: Time) {
    *known = Some(known.map_or(new, |known| known.min(new)));
}
