//! The steps of the operations on one key, each with its time interval and its known outcome: the
//! input of [`FencedLock`](super::fenced_lock::FencedLock).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::facts::Facts;
use super::fenced_lock::SearchContext;
use super::step::{Act, Adds, Party, Seen, Set, Shown, Step, bit};
use crate::event::DEFAULT_TTL_MS;
use crate::operation::OperationIndex;
use crate::{Answer, Call, End, Note, Operation, Refusal, Session, Time};

/// Maximum number of steps, sessions and acquires of one key.
pub(super) const LONGEST: usize = 128;

/// A step and when it happens: after `from`, before `to`.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) from: Time,
    pub(super) to: Time,
    pub(super) step: Step,
    pub(super) seen: Seen,
}

/// The operations of each key, found once for all searches.
#[derive(Debug)]
pub(super) struct Index {
    /// The operations on each key.
    keys: Vec<Vec<OperationIndex>>,
    /// For each session, its operations on no key.
    sessions: Vec<Vec<OperationIndex>>,
    /// The sessions that appear with each key, and those that appear with none.
    parties: Vec<BTreeSet<usize>>,
    untouched: BTreeSet<usize>,
    /// Whether each key is within what the sequential lock knows.
    known: Vec<bool>,
    /// Whether grants of each key may have several holds.
    reentrant: Vec<bool>,
}

impl Index {
    pub(super) fn of(facts: &Facts<'_>) -> Index {
        let mut keys = vec![Vec::new(); facts.keys.len()];
        let mut sessions = vec![Vec::new(); facts.sessions.len()];
        let mut parties = vec![BTreeSet::new(); facts.keys.len()];
        let mut known = vec![true; facts.keys.len()];
        let mut reentrant = vec![false; facts.keys.len()];
        for (operation_index, operation) in facts.history.operations.iter().enumerate() {
            let session = facts.session_of(operation);
            let named = facts.keys_of(operation);
            if named.is_empty() {
                session.into_iter().for_each(|session| sessions[session].push(operation_index));
            }
            for &key in &named {
                known[key] &= is_known(operation);
                reentrant[key] |= matches!(operation.call, Call::Acquire { reentrant: true, .. });
                if !matches!(operation.call, Call::Access { .. }) {
                    keys[key].push(operation_index);
                }
                parties[key].extend(session);
                if let Some(Answer::Broken { session }) = operation.answer() {
                    parties[key].extend(facts.session_named(session));
                }
                if let Some(Answer::Lock { holders, queue, .. }) = operation.answer() {
                    let shown = holders.iter().map(|holder| &holder.session).chain(queue);
                    parties[key].extend(shown.filter_map(|session| facts.session_named(session)));
                }
            }
        }
        let touched: BTreeSet<usize> = parties.iter().flatten().copied().collect();
        let untouched = (0..facts.sessions.len()).filter(|session| !touched.contains(session)).collect();
        Index { keys, sessions, parties, untouched, known, reentrant }
    }

    /// Whether the sequential lock knows all operations on a key, or on none.
    pub(super) fn is_known(&self, key: Option<usize>) -> bool {
        key.is_none_or(|key| self.known[key])
    }
}

/// Whether the sequential lock knows such an operation: it has one key.
fn is_known(operation: &Operation) -> bool {
    match &operation.call {
        Call::Acquire { keys, .. } | Call::Withdraw { keys, .. } | Call::Release { keys, .. } => {
            keys.single().is_some()
        }
        _ => true,
    }
}

/// The steps of one key, or of the sessions without a key.
#[derive(Debug)]
pub(super) struct Steps<'f, 'h> {
    facts: &'f Facts<'h>,
    parties: BTreeMap<PartyId, u8>,
    acquires: HashMap<OperationIndex, u8>,
    /// Of answered acquires, the sendings other than the answered one: each may be granted a token
    /// that no client is told.
    echoes: HashMap<OperationIndex, u8>,
    /// Whether grants may have several holds.
    is_reentrant: bool,
    /// Of acquires with an echo: their index and that of the echo, and how often they were sent again.
    sent_again: Vec<([u8; 2], usize)>,
    timed: Vec<(Time, Time, Act, Seen)>,
}

/// A session by its index in the facts, or an acquire without a known session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PartyId {
    Session(usize),
    Nameless(OperationIndex),
}

impl<'f, 'h> Steps<'f, 'h> {
    /// The steps, in the order of their beginnings, and what the lock needs to know of them; `None`
    /// if there are more than [`LONGEST`].
    pub(super) fn of(facts: &'f Facts<'h>, index: &Index, key: Option<usize>) -> Option<(Vec<Timed>, SearchContext)> {
        let (of_key, sessions) = match key {
            Some(key) => (index.keys[key].as_slice(), &index.parties[key]),
            None => (&[][..], &index.untouched),
        };
        if of_key.len() > LONGEST || sessions.len() > LONGEST {
            return None;
        }
        let of_sessions: usize = sessions.iter().map(|&session| index.sessions[session].len()).sum();
        if of_sessions > LONGEST {
            return None;
        }
        let acquires = of_key
            .iter()
            .filter(|&&operation_index| matches!(facts.operation(operation_index).call, Call::Acquire { .. }));
        let acquires: Vec<OperationIndex> = acquires.copied().collect();
        let echoes: Vec<OperationIndex> =
            acquires.iter().copied().filter(|&operation_index| has_echo(facts.operation(operation_index))).collect();
        let nameless = acquires.iter().filter(|&&operation_index| {
            let operation = facts.operation(operation_index);
            facts.session_of(operation).is_none() || (operation.call.session().is_none() && has_echo(operation))
        });
        let parties = sessions.iter().map(|&session| PartyId::Session(session));
        let parties: Vec<PartyId> =
            parties.chain(nameless.map(|&operation_index| PartyId::Nameless(operation_index))).collect();
        if parties.len() > LONGEST || acquires.len() + echoes.len() > LONGEST {
            return None;
        }
        let mut steps = Steps {
            facts,
            parties: parties.into_iter().zip(0..).collect(),
            acquires: acquires.iter().copied().zip(0..).collect(),
            echoes: echoes.iter().copied().zip((0..).skip(acquires.len())).collect(),
            is_reentrant: key.is_some_and(|key| index.reentrant[key]),
            sent_again: Vec::new(),
            timed: Vec::new(),
        };
        for &operation_index in sessions.iter().flat_map(|&session| &index.sessions[session]).chain(of_key) {
            steps.operation(operation_index);
        }
        steps.expiry();
        let tokens = acquires.iter().map(|&operation_index| facts.granted(operation_index));
        steps.finish(tokens.chain(echoes.iter().map(|_| None)).collect())
    }

    fn party(&self, id: PartyId) -> Option<Party> {
        self.parties.get(&id).copied()
    }

    fn session(&self, name: &Session) -> Option<Party> {
        self.party(PartyId::Session(self.facts.session_named(name)?))
    }

    fn add(&mut self, from: Time, to: Time, act: Act, seen: Seen) {
        self.timed.push((from, to, act, seen));
    }

    fn operation(&mut self, operation_index: OperationIndex) {
        let operation = self.facts.operation(operation_index);
        if let Some(Refusal::NotTaken { .. }) = operation.refusal() {
            return;
        }
        let (from, to) = (operation.invoked, operation.completed());
        let done = if to == Time::NEVER { Seen::Unknown } else { Seen::Done };
        match &operation.call {
            Call::OpenSession { .. }
            | Call::SetAccess { .. }
            | Call::Proclaim { .. }
            | Call::WriteRecord { .. }
            | Call::ReadRecord { .. }
            | Call::Access { .. }
            | Call::NoteLoss { .. } => {}
            Call::KeepAlive { session } => {
                let lives = operation.answer().map(|_| true).or(operation.refusal().map(|_| false));
                if let (Some(lives), Some(party)) = (lives, self.session(session)) {
                    self.add(from, to, Act::Look { party }, Seen::Lives(lives));
                }
            }
            Call::CloseSession { session } => {
                if let Some(party) = self.session(session) {
                    self.add(from, to, Act::Close { party }, done);
                }
            }
            Call::Withdraw { session, .. } => {
                if let Some(party) = self.session(session) {
                    self.give_back(operation, Some(party), None, Act::Withdraw { party, operation: operation_index });
                }
            }
            Call::Release { session, token, .. } => {
                let (party, token) = (self.session(session), *token);
                let act = Act::Release { party, token, operation: operation_index };
                self.give_back(operation, party, Some(token), act);
            }
            Call::Break { token, .. } => {
                let (holder, seen) = match (operation.answer(), operation.refusal()) {
                    (_, Some(Refusal::Denied)) => return,
                    (_, Some(_)) => (None, Seen::NotHolder),
                    (Some(Answer::Broken { session }), None) => (Some(self.shown(session)), Seen::Done),
                    (_, None) => (None, Seen::Unknown),
                };
                self.add(from, to, Act::Break { token: *token, holder }, seen);
            }
            Call::Acquire { .. } => self.acquire(operation_index, operation),
            Call::Read { stale, .. } => {
                let Some(Answer::Lock { holders, queue, .. }) = operation.answer() else { return };
                if holders.iter().any(|holder| self.contradicts(&holder.session, holder.token)) {
                    self.add(from, to, Act::Never, Seen::Done);
                } else if *stale {
                    let granted = holders.iter().map(|holder| self.acquires_with(holder.token));
                    let acquires = granted.fold(0, |all, granted| all | granted);
                    self.add(from, to, Act::Seen { acquires }, Seen::Done);
                } else {
                    let holders = holders.iter().map(|holder| (self.shown(&holder.session), holder.token, holder.mode));
                    let (holders, queue) =
                        (holders.collect(), queue.iter().map(|session| self.shown(session)).collect());
                    self.add(from, to, Act::Read, Seen::Lock(holders, queue));
                }
            }
        }
    }

    /// A release or a withdrawal. With a number it is done once. Each other sending is answered with the holds that are
    /// left *then*, or with the end of the claim, whatever ended it; the first one may have found none. Without a number
    /// each sending takes a hold, or drops what the session asked for meanwhile.
    fn give_back(&mut self, operation: &Operation, party: Option<Party>, token: Option<u64>, act: Act) {
        let (from, to) = (operation.invoked, operation.completed());
        let is_repeated = operation.was_repeated_by_number();
        let seen = match (operation.answer(), operation.refusal()) {
            (_, Some(_)) => Seen::NotHolder,
            (Some(_), _) if is_repeated => Seen::DoneIfHeld,
            (Some(Answer::StillHeld { holds }), _) => Seen::Left(*holds),
            (Some(_), _) => Seen::Left(0),
            (None, None) => Seen::Unknown,
        };
        if operation.call.number().is_none() && (self.is_reentrant || matches!(act, Act::Withdraw { .. })) {
            for _ in 0..operation.repetitions() {
                self.add(from, Time::NEVER, act.clone(), Seen::Unknown);
            }
        }
        if let (Act::Release { operation, .. } | Act::Withdraw { operation, .. }, Seen::DoneIfHeld) = (&act, &seen) {
            let operation = *operation;
            let holds = match self.facts.operation(operation).answer() {
                Some(Answer::StillHeld { holds }) => *holds,
                _ => 0,
            };
            self.add(from, to, Act::Holds { party, token, holds, operation }, Seen::Done);
        }
        self.add(from, to, act, seen);
    }

    /// Whether an acquire was answered with this token for another session.
    fn contradicts(&self, session: &Session, token: u64) -> bool {
        let grant = self.facts.grant_of(token).filter(|grant| grant.acquire.is_some());
        grant.is_some_and(|grant| grant.session != self.facts.session_named(session))
    }

    /// The acquire with this token in its answer, if there is one.
    fn acquires_with(&self, token: u64) -> Set {
        let operation_index = self.facts.grant_of(token).and_then(|grant| grant.acquire);
        operation_index
            .and_then(|operation_index| self.acquires.get(&operation_index))
            .map_or(0, |&acquire| bit(acquire))
    }

    fn shown(&self, session: &Session) -> Shown {
        let facts = self.facts.session_named(session).map(|session| &self.facts.sessions[session]);
        let may_be_nameless = facts.is_none_or(|facts| facts.borrowed || facts.may_expire() == Time(0));
        Shown { party: self.session(session), may_be_nameless }
    }

    fn acquire(&mut self, operation_index: OperationIndex, operation: &Operation) {
        let Call::Acquire { wait_ms, mode, max_queue, reentrant, number, .. } = operation.call else { return };
        let acquire = self.acquires[&operation_index];
        let session =
            self.facts.session_of(operation).map(PartyId::Session).unwrap_or(PartyId::Nameless(operation_index));
        let party = self.party(session).expect("the session of an acquire is a party of its key");
        let (from, to) = (operation.invoked, operation.completed());
        if let (Some(Refusal::Denied), 0) = (operation.refusal(), wait_ms) {
            // It was denied when it arrived, and had no effect.
            return;
        }
        let max_queue = if wait_ms > 0 { max_queue.unwrap_or(u32::MAX) } else { 0 };
        let is_own =
            operation.call.session().is_none() && operation.answer().is_some() && !operation.was_disconnected();
        let adds = match (reentrant, number) {
            (false, _) => Adds::Nothing,
            (true, Some(_)) => Adds::Once,
            (true, None) => Adds::Each,
        };
        let arrival = Act::Acquire { party, acquire, mode, max_queue, adds, is_own };
        let queued = operation.notes.iter().find_map(|(time, note)| match note {
            Note::Queued { ahead } => Some((*time, ahead.map_or(Seen::Done, Seen::Queued))),
            Note::Disconnected => None,
        });
        let gives_up = Time(from.0.saturating_add(self.facts.history.at_least(wait_ms)));
        let end = operation.end.as_ref().map(|(_, end)| end);
        let (asked, seen) = match (queued, end) {
            (Some((time, seen)), _) => (time.min(to), seen),
            (None, Some(End::Fail(Refusal::Held { token }))) => (to, Seen::Held(*token)),
            (None, Some(End::Fail(Refusal::NoSession | Refusal::Denied) | End::Info(_)) | None) => {
                (Time::NEVER, Seen::Unknown)
            }
            (None, Some(End::Ok(_) | End::Fail(_))) => (to, Seen::Done),
        };
        self.add(from, asked, arrival.clone(), seen);
        match end {
            Some(End::Ok(_)) if wait_ms > 0 => self.add(from, to, Act::Granted { acquire }, Seen::Done),
            Some(End::Fail(Refusal::Timeout)) => self.add(gives_up.min(to), to, Act::GiveUp { acquire }, Seen::Done),
            Some(End::Fail(Refusal::Withdrawn)) => self.add(from, to, Act::GiveUp { acquire }, Seen::Done),
            Some(End::Fail(Refusal::Denied)) => self.add(from, to, Act::Deny { acquire }, Seen::Done),
            Some(End::Fail(Refusal::NoSession)) => {
                self.add(from, to, Act::RefuseGone { party, acquire }, Seen::Done);
            }
            Some(End::Info(_)) if wait_ms > 0 => self.add(from, Time::NEVER, Act::Abandon { acquire }, Seen::Unknown),
            None if wait_ms > 0 => {
                let leaves = gives_up.min(self.facts.denies_since).max(from);
                self.add(leaves, Time::NEVER, Act::Abandon { acquire }, Seen::Unknown);
            }
            _ => {}
        }
        // Where each arrival may add a hold, it arrives as often as it was sent: for the answered claim, or for another.
        let again = if self.is_reentrant { operation.repetitions() } else { 1 };
        if operation.was_disconnected() {
            self.add(from, Time::NEVER, Act::Abandon { acquire }, Seen::Unknown);
            for _ in 0..again {
                self.add(from, Time::NEVER, arrival.clone(), Seen::Unknown);
            }
        }
        if let Some(&echo) = self.echoes.get(&operation_index) {
            let other = operation.call.session().is_none().then_some(PartyId::Nameless(operation_index));
            let party = other.and_then(|other| self.party(other)).unwrap_or(party);
            let arrival = Act::Acquire { party, acquire: echo, mode, max_queue, adds, is_own: false };
            for _ in 0..again {
                self.add(from, Time::NEVER, arrival.clone(), Seen::Unknown);
            }
            self.add(from, Time::NEVER, Act::Abandon { acquire: echo }, Seen::Unknown);
            if self.is_reentrant {
                self.sent_again.push(([acquire, echo], again));
            }
        }
    }

    /// Lets sessions pass their deadlines and be swept from the earliest time on, and lets those end
    /// whose grants may have been broken, if that is before the last answer.
    fn expiry(&mut self) {
        let ends = self.timed.iter().map(|(_, to, _, _)| *to).filter(|to| *to < Time::NEVER);
        let last = ends.max().unwrap_or(Time(0));
        let parties: Vec<_> = self.parties.keys().copied().collect();
        for id in parties {
            let party = self.party(id).expect("the party is listed");
            if let PartyId::Session(session) = id {
                let broken = self.facts.sessions[session].may_be_broken();
                if broken <= last {
                    self.add(broken, Time::NEVER, Act::EndBroken { party }, Seen::Unknown);
                }
            }
            let due = match id {
                PartyId::Session(session) => self.facts.sessions[session].may_expire(),
                PartyId::Nameless(operation_index) => {
                    let operation = self.facts.operation(operation_index);
                    let Call::Acquire { ttl_ms, .. } = operation.call else { continue };
                    let ttl = self.facts.history.at_least(ttl_ms.unwrap_or(DEFAULT_TTL_MS));
                    Time(operation.invoked.0.saturating_add(ttl))
                }
            };
            if due <= last {
                self.add(due, Time::NEVER, Act::Due { party }, Seen::Unknown);
                self.add(due, Time::NEVER, Act::Sweep { party }, Seen::Unknown);
            }
        }
    }

    fn finish(mut self, tokens: Vec<Option<u64>>) -> Option<(Vec<Timed>, SearchContext)> {
        if self.timed.len() > LONGEST {
            return None;
        }
        self.timed.sort_by_key(|(from, ..)| *from);
        let mut context = SearchContext::new(tokens);
        for (id, &party) in &self.parties {
            let party = bit(party);
            match id {
                PartyId::Nameless(_) => context.nameless |= party,
                PartyId::Session(session) if self.facts.sessions[*session].borrowed => context.borrowed |= party,
                PartyId::Session(_) => {}
            }
        }
        context.sent_again = self.sent_again.iter().map(|&(_, most)| (0, most)).collect();
        let mut timed = Vec::new();
        for (index, (from, to, act, seen)) in (0..).zip(self.timed) {
            if seen != Seen::Unknown {
                context.seen |= bit(index);
            }
            match act {
                Act::Acquire { acquire, .. } => {
                    let group = self.sent_again.iter().position(|(indices, _)| indices.contains(&acquire));
                    if let (Some(group), Seen::Unknown) = (group, &seen) {
                        context.sent_again[group].0 |= bit(index);
                    }
                    context.arrivals[usize::from(acquire)] |= bit(index);
                    if let Seen::Held(_) = seen {
                        context.refusals[usize::from(acquire)] |= bit(index);
                    }
                }
                Act::GiveUp { acquire } | Act::Deny { acquire } => {
                    context.refusals[usize::from(acquire)] |= bit(index);
                }
                Act::RefuseGone { party, acquire } => {
                    context.refusals[usize::from(acquire)] |= bit(index);
                    context.reported_gone |= bit(party);
                }
                Act::Look { party } if seen == Seen::Lives(false) => context.reported_gone |= bit(party),
                Act::Release { operation, .. } | Act::Withdraw { operation, .. } if seen == Seen::DoneIfHeld => {
                    context.sent_again_by_number.insert(operation, index);
                }
                _ => {}
            }
            timed.push(Timed { from, to, step: Step { index, act }, seen });
        }
        Some((timed, context))
    }
}

/// Without a number each sending of an acquire may be granted, and the answer covers only one.
fn has_echo(operation: &Operation) -> bool {
    operation.was_disconnected() && operation.answer().is_some() && operation.call.number().is_none()
}
