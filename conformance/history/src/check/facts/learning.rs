//! Collects the facts of a history, step by step.

use std::collections::HashMap;

use super::{Facts, Grant, SessionFacts, Sighting};
use crate::event::DEFAULT_TTL_MS;
use crate::{Answer, Call, Holder, Key, Mode, Note, Operation, Refusal, Session, Time};

impl<'h> Facts<'h> {
    fn session(&mut self, name: &'h Session) -> usize {
        *self.session_names.entry(name).or_insert_with(|| {
            self.sessions.push(SessionFacts {
                name,
                ttl: None,
                last_sign: None,
                close_asked: Time::NEVER,
                borrowed: false,
                named: false,
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

    pub(super) fn learn_sessions(&mut self) {
        let history = self.history;
        for (operation_index, operation) in history.operations.iter().enumerate() {
            for key in operation.call.keys() {
                self.key(key);
            }
            let named = operation.call.session().map(|name| self.session(name));
            let (invoked, completed) = (operation.invoked, operation.completed());
            let possible = operation.refusal().is_none();
            if let (Call::Acquire { reentrant: false, .. }, Some(session)) = (&operation.call, named) {
                self.sessions[session].named = true;
            }
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
                        earlier(&mut facts.gone, (completed, operation_index));
                        earlier(&mut facts.closed, (completed, operation_index));
                    }
                }
                (Call::Release { .. } | Call::Withdraw { .. }, _, Some(session)) if possible => {
                    let facts = &mut self.sessions[session];
                    facts.dropped = facts.dropped.min(invoked);
                }
                _ => {}
            }
            if let (Some(Refusal::NoSession), Some(session)) = (operation.refusal(), named) {
                earlier(&mut self.sessions[session].gone, (completed, operation_index));
            }
        }
    }

    fn shows_life(&mut self, session: usize, at: Time) {
        let sign = &mut self.sessions[session].last_sign;
        *sign = (*sign).max(Some(at));
    }

    pub(super) fn learn_claims(&mut self) {
        let history = self.history;
        for (operation_index, operation) in history.operations.iter().enumerate() {
            let session = self.session_of(operation);
            let asked = (operation.invoked, operation_index);
            let once_answered = operation.answer().is_some() && !operation.was_disconnected();
            let is_unheard = operation.refusal().is_none() && !once_answered;
            for key in self.keys_of(operation) {
                match (&operation.call, session) {
                    (Call::Acquire { .. }, Some(session)) => {
                        let claims = self.claims.entry((session, key)).or_default();
                        claims.acquires.add(operation, operation_index);
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
                        self.claims.entry((session, key)).or_default().withdrawals.add(operation, operation_index);
                    }
                    _ => {}
                }
                if let Call::Acquire { mode, .. } = &operation.call
                    && operation.refusal().is_none()
                {
                    let least = self.least_modes.entry(key).or_insert(Some(*mode));
                    *least = least.and_then(|least| lesser(least, *mode));
                }
            }
        }
        for claims in self.claims.values_mut() {
            claims.acquires.sort();
            claims.withdrawals.sort();
        }
    }

    pub(super) fn learn_grants(&mut self) {
        let history = self.history;
        for (operation_index, operation) in history.operations.iter().enumerate() {
            let keys = self.keys_of(operation);
            let session = self.session_of(operation);
            let (begun, done) = ((operation.invoked, operation_index), (operation.completed(), operation_index));
            let shown = |token: u64| Shown { token, keys: &keys, is_whole: true, session, mode: None };
            match (&operation.call, operation.answer(), operation.refusal()) {
                (Call::Acquire { mode, .. }, Some(Answer::Granted { token, .. }), _) => {
                    if let Some(grant) = self.sight(Shown { mode: Some(*mode), ..shown(*token) }, done) {
                        grant.acquire.get_or_insert(operation_index);
                        if operation.call.session().is_none() {
                            later(&mut grant.own, begun);
                        }
                        later(&mut grant.held, begun);
                        grant.active = grant.active.max(Some(begun.0));
                    }
                }
                (Call::Acquire { .. }, _, Some(Refusal::Held { token: Some(token) })) if keys.len() == 1 => {
                    // Of many due holders that share a lock, a refusal may name one.
                    let is_exclusive = self.least_modes.get(&keys[0]) == Some(&Some(Mode::Exclusive));
                    if let Some(grant) = self.sight(Shown { is_whole: false, session: None, ..shown(*token) }, done) {
                        later(&mut grant.held, begun);
                        if is_exclusive {
                            grant.active = grant.active.max(Some(begun.0));
                        }
                    }
                }
                // It is answered so also if the first sending found nothing: see below.
                (Call::Release { .. }, Some(Answer::Released), _) if operation.was_repeated_by_number() => {}
                (Call::Release { token, .. }, Some(answer), _) => {
                    if let Some(grant) = self.sight(shown(*token), done) {
                        later(&mut grant.held, begun);
                        grant.active = grant.active.max(Some(begun.0));
                        if *answer == Answer::Released {
                            earlier(&mut grant.ended, done);
                        }
                    }
                }
                (Call::Proclaim { token, .. }, Some(_), _) => {
                    if let Some(grant) = self.sight(Shown { is_whole: false, ..shown(*token) }, done) {
                        later(&mut grant.held, begun);
                        grant.active = grant.active.max(Some(begun.0));
                    }
                }
                // A break finds a holder that is past its deadline, too.
                (Call::Break { token, .. }, Some(Answer::Broken { session }), _) => {
                    let session = Some(self.session(session));
                    if let Some(grant) = self.sight(Shown { is_whole: false, session, ..shown(*token) }, done) {
                        later(&mut grant.held, begun);
                        earlier(&mut grant.ended, done);
                    }
                }
                (Call::Read { stale: false, .. }, Some(Answer::Lock { holders, .. }), _) => {
                    for holder in holders {
                        let shown = self.shown(holder, &keys);
                        if let Some(grant) = self.sight(shown, done) {
                            later(&mut grant.held, begun);
                        }
                    }
                }
                _ => {}
            }
        }
        self.learn_from_repeated_releases();
        self.learn_from_stale_reads();
        self.learn_from_refusals_of_several();
        self.check_spread();
    }

    /// A holder, as a read of a key shows it.
    fn shown<'k>(&mut self, holder: &'h Holder, keys: &'k [usize]) -> Shown<'k> {
        let session = Some(self.session(&holder.session));
        Shown { token: holder.token, keys, is_whole: false, session, mode: Some(holder.mode) }
    }

    /// A release with a number that was sent again and found nothing left shows no grant. A grant that something else
    /// showed has ended, if the release was of all of it.
    fn learn_from_repeated_releases(&mut self) {
        let history = self.history;
        for (operation_index, operation) in history.operations.iter().enumerate() {
            let (Call::Release { token, .. }, Some(Answer::Released)) = (&operation.call, operation.answer()) else {
                continue;
            };
            let (keys, session) = (self.keys_of(operation), self.session_of(operation));
            let Some(&index) = self.grants_by_token.get(token).filter(|_| operation.was_repeated_by_number()) else {
                continue;
            };
            let grant = &mut self.grants[index];
            if grant.is_whole && grant.keys == keys && grant.session == session {
                earlier(&mut grant.ended, (operation.completed(), operation_index));
            }
        }
    }

    /// A stale read shows a past state: any grant that it shows had been made when it was answered.
    fn learn_from_stale_reads(&mut self) {
        let history = self.history;
        for (operation_index, operation) in history.operations.iter().enumerate() {
            let (Call::Read { stale: true, .. }, Some(Answer::Lock { holders, .. })) =
                (&operation.call, operation.answer())
            else {
                continue;
            };
            let keys = self.keys_of(operation);
            for holder in holders {
                if self.grant_of(holder.token).is_some_and(|grant| grant.acquire.is_some()) {
                    let shown = self.shown(holder, &keys);
                    self.sight(shown, (operation.completed(), operation_index));
                }
            }
        }
    }

    /// The refusal of an acquire of several keys names a holder of one of them: which one is known only if
    /// something else showed the grant.
    fn learn_from_refusals_of_several(&mut self) {
        let history = self.history;
        for (operation_index, operation) in history.operations.iter().enumerate() {
            let Some(Refusal::Held { token: Some(token) }) = operation.refusal() else { continue };
            let keys = self.keys_of(operation);
            let Some(&index) = self.grants_by_token.get(token).filter(|_| keys.len() > 1) else { continue };
            let grant = &mut self.grants[index];
            if keys.iter().any(|key| grant.keys.contains(key)) {
                grant.seen = grant.seen.min((operation.completed(), operation_index));
                later(&mut grant.held, (operation.invoked, operation_index));
            } else if grant.is_whole {
                self.contradictions.push((*token, operation_index));
            }
        }
    }

    /// A grant that was shown at several keys was made by an acquire of all of them.
    fn check_spread(&mut self) {
        for grant in &self.grants {
            let Some(operation_index) = grant.spread.filter(|_| !grant.is_whole) else { continue };
            if !self.history.operations.iter().any(|operation| self.may_have_made(operation, grant)) {
                self.contradictions.push((grant.token, operation_index));
            }
        }
    }

    /// What operators may have done: a break of a grant whose holder is unknown may have been of any
    /// session's grant.
    pub(super) fn learn_operators(&mut self) {
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
    fn sight(&mut self, shown: Shown<'_>, done: Sighting) -> Option<&mut Grant> {
        let Shown { token, keys, is_whole, session, mode } = shown;
        let grant_index = *self.grants_by_token.entry(token).or_insert_with(|| {
            self.grants.push(Grant {
                token,
                keys: keys.to_vec(),
                is_whole,
                spread: None,
                mode,
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
        let grant = &mut self.grants[grant_index];
        let same_session = session.is_none() || grant.session.is_none() || grant.session == session;
        let within = |part: &[usize], whole: &[usize]| part.iter().all(|key| whole.contains(key));
        let same_keys = match (grant.is_whole, is_whole) {
            (true, true) => grant.keys == keys,
            (true, false) => within(keys, &grant.keys),
            (false, true) => within(&grant.keys, keys),
            (false, false) => true,
        };
        if !same_keys || !same_session {
            self.contradictions.push((token, done.1));
            return None;
        }
        if grant.mode.is_some() && mode.is_some() && grant.mode != mode {
            self.other_modes.push((token, done.1));
        }
        if is_whole {
            (grant.is_whole, grant.keys) = (true, keys.to_vec());
        } else if !within(keys, &grant.keys) {
            grant.spread = Some(done.1);
            grant.keys.extend(keys);
            grant.keys.sort_unstable();
        }
        grant.mode = grant.mode.or(mode);
        grant.session = grant.session.or(session);
        grant.seen = grant.seen.min(done);
        Some(grant)
    }

    /// Derives the grants' bounds from the claims.
    pub(super) fn bound_grants(&mut self) {
        let mut releases: HashMap<u64, Time> = HashMap::new();
        for operation in &self.history.operations {
            if let (Call::Release { token, .. } | Call::Break { token, .. }, None) =
                (&operation.call, operation.refusal())
                && !has_dropped_one_hold(operation)
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
            if grant.acquire.is_none() && self.grant_may_be_nameless(session, grant, grant.seen.0) {
                // An acquire that its client had given up may have been granted, and its release is
                // not on record.
                continue;
            }
            let facts = &self.sessions[session];
            let claims = self.claims.get(&(session, grant.keys[0]));
            let released = releases.get(&grant.token).copied().unwrap_or(Time::NEVER);
            let withdrawn = claims.map_or(Time::NEVER, |claims| claims.withdrawals.earliest_open_at(grant.not_before));
            grant.may_end = released.min(withdrawn).min(facts.close_asked).min(facts.may_expire());
        }
        grants.sort_by_key(|grant| grant.token);
        let grant_indices = grants.iter().enumerate().map(|(grant_index, grant)| (grant.token, grant_index));
        self.grants_by_token = grant_indices.collect();
        self.grants = grants;
    }

    /// The earliest acquire that can have made a grant, and its invocation; `None` if no recorded
    /// acquire can.
    fn first_asked(&self, grant: &Grant) -> Option<Sighting> {
        if grant.own.is_some() {
            return grant.own;
        }
        // An acquire that makes the grant names all its keys: the first stands for all.
        let key = grant.keys[0];
        let Some(session) = grant.session else { return self.unheard.get(&key).copied() };
        let claims = self.claims.get(&(session, key));
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
        let nameless = self.nameless.get(&key).filter(|_| self.may_be_nameless(session, key, grant.seen.0));
        named.into_iter().chain(nameless.copied()).min()
    }

    pub(super) fn learn_queues(&mut self) {
        let mut queued = vec![None; self.history.operations.len()];
        for (operation_index, operation) in self.history.operations.iter().enumerate() {
            let note = operation.notes.iter().find(|(_, note)| matches!(note, Note::Queued { .. }));
            if let Some((time, _)) = note {
                keep_earliest(&mut queued[operation_index], *time);
            }
            for waiter in self.waiters(operation).into_iter().flatten() {
                keep_earliest(&mut queued[waiter], operation.completed());
            }
        }
        self.queued = queued;
    }

    /// A session that was in the queue and then withdrew successfully was granted the lock before
    /// that or not at all. That holds for a withdrawal that was sent again, too: its answer says that the claim
    /// is gone, and the grant was before that.
    pub(super) fn end_by_withdrawals(&mut self) {
        let mut grants = std::mem::take(&mut self.grants);
        for grant in &mut grants {
            let (Some(acquire), Some(session)) = (grant.acquire, grant.session) else { continue };
            let operation = self.operation(acquire);
            let (Some(queued), Some(claims)) = (self.queued[acquire], self.claims(session, grant.keys[0])) else {
                continue;
            };
            let alone = claims.acquires.one_overlaps(operation.invoked, operation.completed());
            if operation.was_disconnected() || !alone || self.grant_may_be_nameless(session, grant, grant.seen.0) {
                continue;
            }
            for withdrawal in claims.withdrawals.overlapping(queued, operation.completed()) {
                let withdrawal_of = self.operation(withdrawal);
                let is_of_claim = self.keys_of(withdrawal_of) == self.keys_of(operation);
                if is_of_claim && withdrawal_of.invoked > queued && withdrawal_of.answer() == Some(&Answer::Withdrawn) {
                    let done = (withdrawal_of.completed(), withdrawal);
                    grant.seen = grant.seen.min(done);
                    earlier(&mut grant.ended, done);
                }
            }
        }
        self.grants = grants;
    }
}

/// What an operation shows of a grant.
#[derive(Clone, Copy)]
struct Shown<'k> {
    token: u64,
    keys: &'k [usize],
    /// Whether these are all its keys.
    is_whole: bool,
    session: Option<usize>,
    mode: Option<Mode>,
}

/// The mode that takes less of a lock; `None` if the two are of locks of different sizes.
fn lesser(one: Mode, other: Mode) -> Option<Mode> {
    let ((takes, of), (takes_too, of_too)) = (one.share(), other.share());
    (of == of_too).then_some(if takes <= takes_too { one } else { other })
}

/// Whether a release has certainly left the grant in place.
fn has_dropped_one_hold(operation: &Operation) -> bool {
    let is_numbered = matches!(operation.call, Call::Release { number: Some(_), .. });
    let is_left = matches!(operation.answer(), Some(Answer::StillHeld { .. }));
    is_left && (is_numbered || !operation.was_disconnected())
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
