//! A fenced FIFO lock of any mode on one key, as a sequential specification: what each operation may do and
//! answer if operations happen one at a time.
//!
//! It is written from docs/protocol.md, "The lock table", and shares no code with the
//! implementation that it judges.
//!
//! It differs from an ordinary object:
//!
//! - **Several holders.** Claims take permits, and the holders have at most all of them. A waiter that
//!   does not fit lets none pass. Claims on several keys are left out: [`steps`](super::steps) does not
//!   search for an order of such keys.
//! - **Holds.** A grant has one hold, and one more for each reentrant acquire of its holder; a release
//!   takes one.
//! - **Waiting.** An acquire that waits has two steps: its request, and the answer with its grant.
//!   The grant itself lies in between, as a part of the step that passed the lock on.
//! - **Time.** Sessions expire on their own. That a session is past its deadline and that it is
//!   then swept are separate steps, possible from the earliest time of the deadline on, and never
//!   required.
//! - **Tokens.** The specification chooses a grant's token: any number greater than all before. The
//!   acquire's answer fixes it, or else the first answer that shows it.
//! - **Unknown outcomes.** A step with an unknown outcome may happen at any time, also after all
//!   others, where it changes no answer.
//!
//! # Memory for the search
//!
//! [`LinearizabilityTester`](stateright::semantics::LinearizabilityTester) tries orders depth
//! first, and asks a copy of this object whether a step fits. Two orders of the same steps that
//! lead to the same state have the same future, so the copies share a memory of visited states and
//! refuse to visit one again (Lowe, "Testing for linearizability", 2017). That turns n! orders into
//! at most as many as there are different states. The memory is bounded: when it is full, no step
//! fits any more and the search ends undecided.
//!
//! Two kinds of steps need not be tried everywhere. A step with an unknown outcome that changes
//! nothing here can as well happen after all others. And if a step that only looks (usually a read)
//! fits, it can happen at once: any order in which it comes later works as well with the step here,
//! so the other steps need not be tried from here (`settled`). That does not hold for a withdrawal
//! that finds no claim: later it may find one.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use stateright::semantics::SequentialSpec;

use super::step::{Act, Adds, Party, Seen, Set, Shown, Step, bit};
use crate::Mode;
use crate::operation::OperationIndex;

/// What all orders have in common.
#[derive(Debug, Default)]
pub(super) struct SearchContext {
    /// The token in each acquire's answer.
    pub(super) tokens: Vec<Option<u64>>,
    /// Parties that are acquires with an unknown session.
    pub(super) nameless: Set,
    /// Parties that may end with their claim.
    pub(super) borrowed: Set,
    /// Parties that a client was told are gone.
    pub(super) reported_gone: Set,
    /// The steps with a known outcome.
    pub(super) seen: Set,
    /// The steps with which each acquire arrives.
    pub(super) arrivals: Vec<Set>,
    /// The steps with which each acquire is refused: after them none of its sendings has an effect.
    pub(super) refusals: Vec<Set>,
    /// Of each request that was sent again: the steps with which it may arrive again, and how many of them may.
    pub(super) sent_again: Vec<(Set, usize)>,
    /// The step of each release or withdrawal with a number that was sent again.
    pub(super) sent_again_by_number: HashMap<OperationIndex, u8>,
    visited: RefCell<HashSet<(Set, State)>>,
    settled: RefCell<HashSet<(Set, State)>>,
    /// Number of states that the memory has room for.
    pub(super) budget: Cell<usize>,
}

impl SearchContext {
    /// With the acquires' tokens; the rest is empty.
    pub(super) fn new(tokens: Vec<Option<u64>>) -> SearchContext {
        let (arrivals, refusals) = (vec![0; tokens.len()], vec![0; tokens.len()]);
        SearchContext { tokens, arrivals, refusals, ..SearchContext::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    party: Party,
    /// Of a party that is an acquire with an unknown session: the session that an answer has shown.
    shown_as: Option<Party>,
    mode: Mode,
    /// How often it was acquired and not released.
    holds: u32,
    /// The acquires that the claim answers.
    acquires: Set,
    token: Option<u64>,
    /// While the token of a grant is unknown: the least and the greatest that it can be.
    bounds: (u64, u64),
}

impl Claim {
    fn show(&mut self, shown: &Shown, context: &SearchContext) {
        if context.nameless & bit(self.party) != 0 {
            self.shown_as = shown.party;
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    /// In the order of their grants.
    holders: Vec<Claim>,
    queue: Vec<Claim>,
    /// The last grant's token is at least this.
    floor: u64,
    due: Set,
    ended: Set,
    granted: Set,
}

/// The lock.
#[derive(Clone, Debug)]
pub(super) struct FencedLock {
    context: Rc<SearchContext>,
    state: State,
    done: Set,
}

/// The step does not fit.
struct Misfit;

impl FencedLock {
    pub(super) fn new(context: Rc<SearchContext>) -> FencedLock {
        FencedLock { context, state: State::default(), done: 0 }
    }

    fn fits(&mut self, step: &Step, seen: &Seen) -> bool {
        self.done |= bit(step.index);
        let all_seen = self.done & self.context.seen == self.context.seen;
        // Once every known outcome is explained, unknown outcomes need no explanation.
        if *seen == Seen::Unknown && all_seen {
            return true;
        }
        let arrives_too_often = |&(steps, most): &(Set, usize)| {
            steps & bit(step.index) != 0 && (self.done & steps).count_ones() as usize > most
        };
        if self.context.sent_again.iter().any(arrives_too_often) {
            return false;
        }
        let before = (self.done & !bit(step.index), self.state.clone());
        if self.context.settled.borrow().contains(&before) {
            return false;
        }
        if self.context.budget.get() == 0 || self.act(&step.act, seen).is_err() {
            return false;
        }
        // A step with an unknown outcome that changes nothing here can as well happen after all
        // others.
        let changes = self.state != before.1;
        if *seen == Seen::Unknown && !changes {
            return false;
        }
        let is_new = self.context.visited.borrow_mut().insert((self.done, self.state.clone()));
        self.context.budget.set(self.context.budget.get().saturating_sub(usize::from(is_new)));
        if !changes && step.act.is_read_only() {
            self.context.settled.borrow_mut().insert(before);
        }
        is_new
    }

    fn act(&mut self, act: &Act, seen: &Seen) -> Result<(), Misfit> {
        match (act, seen) {
            (Act::Acquire { acquire, .. }, Seen::Unknown)
                if self.done & self.context.refusals[usize::from(*acquire)] != 0 =>
            {
                Ok(())
            }
            (Act::Acquire { party, acquire, mode, max_queue, adds, is_own }, seen) => {
                require(!is_own || !self.has_claim(*party))?;
                self.acquire(*party, *acquire, (*mode, *adds), *max_queue, seen)
            }
            (Act::Granted { acquire }, _) => require(self.state.granted & bit(*acquire) != 0),
            (Act::GiveUp { acquire }, _) => {
                require(self.done & self.context.arrivals[usize::from(*acquire)] != 0)?;
                require(self.state.granted & bit(*acquire) == 0)?;
                self.leave(*acquire)
            }
            (Act::RefuseGone { party, acquire }, _) => {
                require(self.may_be_gone(*party) && self.state.granted & bit(*acquire) == 0)
            }
            (Act::Abandon { acquire }, _) => self.leave(*acquire),
            (Act::Deny { acquire }, _) => {
                require(self.state.granted & bit(*acquire) == 0)?;
                self.leave(*acquire)
            }
            (Act::Release { party, token, .. }, seen) => self.release(*party, *token, seen),
            (Act::Holds { party, token, holds, operation }, _) => {
                let step = self.context.sent_again_by_number.get(operation).ok_or(Misfit)?;
                require(self.done & bit(*step) != 0)?;
                self.holds(*party, *token, *holds)
            }
            (Act::Break { token, holder }, seen) => self.break_grant(*token, holder.as_ref(), seen),
            // As with a deadline, it matters only if a client was told that the session is gone.
            (Act::EndBroken { party }, _)
                if !self.has_claim(*party) && self.context.reported_gone & bit(*party) != 0 =>
            {
                self.state.ended |= bit(*party);
                Ok(())
            }
            (Act::Withdraw { party, .. }, seen) => self.withdraw(*party, seen),
            (Act::Close { party }, _) => {
                self.state.ended |= bit(*party);
                self.drop_claim(*party)
            }
            (Act::Look { party }, Seen::Lives(lives)) => {
                require(if *lives { !self.is_gone(*party) } else { self.may_be_gone(*party) })
            }
            // For a session without a claim, the deadline matters only if a client was told that
            // the session is gone.
            (Act::Due { party }, _) if self.has_claim(*party) || self.context.reported_gone & bit(*party) != 0 => {
                self.state.due |= bit(*party);
                Ok(())
            }
            (Act::Sweep { party }, _) => {
                if self.state.due & bit(*party) != 0 {
                    self.drop_claim(*party)?;
                }
                Ok(())
            }
            (Act::Read, Seen::Lock(holders, queue)) => self.read(holders, queue),
            (Act::Seen { acquires }, _) => require(self.state.granted & acquires == *acquires),
            (Act::Never | Act::Look { .. } | Act::Read | Act::Due { .. } | Act::EndBroken { .. }, _) => Err(Misfit),
        }
    }

    fn is_gone(&self, party: Party) -> bool {
        (self.state.due | self.state.ended) & bit(party) != 0
    }

    /// A session that was opened for a claim may have ended with it.
    fn may_be_gone(&self, party: Party) -> bool {
        self.is_gone(party) || (self.is_borrowed(party) && !self.has_claim(party))
    }

    fn is_borrowed(&self, party: Party) -> bool {
        self.context.borrowed & bit(party) != 0
    }

    fn has_claim(&self, party: Party) -> bool {
        self.state.holders.iter().chain(&self.state.queue).any(|claim| claim.party == party)
    }

    fn acquire(
        &mut self,
        party: Party,
        acquire: u8,
        (mode, adds): (Mode, Adds),
        max_queue: u32,
        seen: &Seen,
    ) -> Result<(), Misfit> {
        // An acquire of a key whose holders are due first ends them.
        self.end_due_holders()?;
        if self.is_gone(party) {
            return require(*seen == Seen::Unknown);
        }
        let is_its = |claim: &Claim| claim.party == party;
        let (shown_as, holds, acquires) = (None, 1, bit(acquire));
        let claim = || Claim { party, shown_as, mode, holds, acquires, token: None, bounds: (0, u64::MAX) };
        let mut claims = self.state.holders.iter().chain(&self.state.queue);
        // Claims of another size, and another claim of the session, are refused, which changes nothing.
        let is_other = |other: &Claim| other.mode.size() != mode.size() || (is_its(other) && other.mode != mode);
        if claims.any(is_other) {
            return require(*seen == Seen::Unknown);
        }
        if let Some(index) = self.state.holders.iter().position(is_its) {
            let holder = &mut self.state.holders[index];
            let is_first = holder.acquires & bit(acquire) == 0;
            holder.holds += u32::from(adds == Adds::Each || (adds == Adds::Once && is_first));
            holder.acquires |= bit(acquire);
            self.state.granted |= bit(acquire);
            if let Some(token) = self.context.tokens[usize::from(acquire)] {
                self.claim_has(index, token)?;
            }
        } else if let Some(index) = self.state.queue.iter().position(is_its) {
            if max_queue > 0 {
                self.state.queue[index].acquires |= bit(acquire);
            } else {
                self.state.queue.remove(index);
                self.pass_on()?;
            }
        } else if self.state.queue.is_empty() && self.admits(mode) {
            self.grant(claim())?;
        } else if self.state.queue.len() < max_queue as usize {
            self.state.queue.push(claim());
        }
        let is_granted = self.state.granted & bit(acquire) != 0;
        let position = self.state.queue.iter().position(|claim| claim.acquires & bit(acquire) != 0);
        match seen {
            Seen::Done => require(is_granted || position.is_some()),
            Seen::Held(token) => {
                require(!is_granted && position.is_none())?;
                match token {
                    Some(token) => self.claim_has(0, *token),
                    None => require(self.state.holders.is_empty()),
                }
            }
            Seen::Queued(ahead) => {
                // Due waiters may have been swept already.
                let before = &self.state.queue[..position.ok_or(Misfit)?];
                let living = before.iter().filter(|claim| !self.is_gone(claim.party)).count();
                require((living as u64..=before.len() as u64).contains(ahead))
            }
            _ => Ok(()),
        }
    }

    fn admits(&self, mode: Mode) -> bool {
        let (takes, of) = mode.share();
        let taken: u64 = self.state.holders.iter().map(|holder| holder.mode.share().0).sum();
        taken + takes <= of
    }

    /// The holder that `may_be` the one that is meant, and whose token may be this one.
    fn holder_with(&self, token: u64, may_be: impl Fn(&Claim) -> bool) -> Option<usize> {
        let named = (0..).zip(&self.state.holders).filter(|(_, holder)| may_be(holder));
        let known = named.clone().find(|(_, holder)| holder.token == Some(token));
        let mut unknown = named.filter(|(_, holder)| holder.token.is_none());
        let (found, other) = known.map_or_else(|| (unknown.next(), unknown.next()), |known| (Some(known), None));
        if other.is_some() {
            // Either of two is meant: the search cannot try both.
            self.context.budget.set(0);
        }
        found.map(|(index, _)| index)
    }

    fn release(&mut self, party: Option<Party>, token: u64, seen: &Seen) -> Result<(), Misfit> {
        self.end_due_holders()?;
        let mut held = self.holder_with(token, |holder| self.may_be_of(holder, party));
        if *seen == Seen::DoneIfHeld {
            // A later sending found its session.
            require(party.is_none_or(|party| !self.is_gone(party)))?;
            held = held.filter(|&index| self.may_have(index, token));
        }
        self.is_named(held, token, seen)?;
        self.take_hold(held.filter(|_| *seen != Seen::NotHolder), seen)
    }

    /// Whether a holder may be this session.
    fn may_be_of(&self, holder: &Claim, party: Option<Party>) -> bool {
        let nameless =
            party.is_none_or(|party| self.is_borrowed(party)) && self.context.nameless & bit(holder.party) != 0;
        Some(holder.party) == party || (nameless && holder.shown_as.is_none_or(|shown| Some(shown) == party))
    }

    /// Whether the holder at this index may have this token.
    fn may_have(&self, index: usize, token: u64) -> bool {
        let Claim { token: known, bounds: (least, greatest), .. } = &self.state.holders[index];
        known.map_or((*least..=*greatest).contains(&token), |known| known == token)
    }

    /// Whether the session may have so many holds; of a release, by the grant with its token.
    fn holds(&mut self, party: Option<Party>, token: Option<u64>, holds: u32) -> Result<(), Misfit> {
        let is_gone = |holder: &Claim| self.is_gone(holder.party);
        let may_be = |holder: &Claim| self.may_be_of(holder, party) && !is_gone(holder);
        let held = match token {
            Some(token) => self.holder_with(token, may_be).filter(|&index| self.may_have(index, token)),
            None => self.state.holders.iter().position(may_be),
        };
        match (held, token) {
            (None, _) => require(holds == 0),
            // It may be another grant, or a grant of another session.
            (Some(index), _) if holds == 0 => {
                let holder = &self.state.holders[index];
                require(token.is_some() && holder.token.is_none() || Some(holder.party) != party)
            }
            (Some(index), token) => {
                require(self.state.holders[index].holds == holds)?;
                token.map_or(Ok(()), |token| self.claim_has(index, token))
            }
        }
    }

    /// A withdrawal of a waiter, or of a holder: it takes a hold then. A due session cannot act: it keeps its queue
    /// position until it is swept.
    fn withdraw(&mut self, party: Party, seen: &Seen) -> Result<(), Misfit> {
        self.end_due_holders()?;
        let held = self.state.holders.iter().position(|holder| holder.party == party && !self.is_gone(party));
        match held {
            Some(_) => self.take_hold(held, seen),
            None => {
                require(matches!(seen, Seen::DoneIfHeld | Seen::Unknown | Seen::Left(0)))?;
                if self.is_gone(party) { Ok(()) } else { self.drop_claim(party) }
            }
        }
    }

    /// Takes a hold of this holder; its grant ends with the last one.
    fn take_hold(&mut self, held: Option<usize>, seen: &Seen) -> Result<(), Misfit> {
        let Some(index) = held else { return Ok(()) };
        let holder = &mut self.state.holders[index];
        holder.holds -= 1;
        if let Seen::Left(holds) = seen {
            require(holder.holds == *holds)?;
        }
        if holder.holds == 0 {
            self.state.holders.remove(index);
        }
        self.pass_on()
    }

    /// A break names one grant, of a session that is due or not.
    fn break_grant(&mut self, token: u64, shown: Option<&Shown>, seen: &Seen) -> Result<(), Misfit> {
        let may_be = |holder: &Claim| shown.map_or(*seen != Seen::Done, |shown| self.shows(holder, shown));
        let held = self.holder_with(token, may_be);
        self.is_named(held, token, seen)?;
        let Some(index) = held.filter(|_| *seen != Seen::NotHolder) else { return Ok(()) };
        self.state.holders.remove(index);
        self.pass_on()
    }

    /// Whether a release or a break with this token that was answered so can have found this holder.
    fn is_named(&mut self, held: Option<usize>, token: u64, seen: &Seen) -> Result<(), Misfit> {
        match (held, seen) {
            (Some(index), Seen::NotHolder) => require(self.state.holders[index].token != Some(token)),
            (None, Seen::Done | Seen::Left(_)) => Err(Misfit),
            (None, _) => Ok(()),
            (Some(index), _) => self.claim_has(index, token),
        }
    }

    /// Whether the session that an answer showed may be that of the claim.
    fn shows(&self, claim: &Claim, shown: &Shown) -> bool {
        let is_nameless = self.context.nameless & bit(claim.party) != 0;
        let may_be = || shown.may_be_nameless && claim.shown_as.is_none_or(|before| Some(before) == shown.party);
        shown.party == Some(claim.party) || (is_nameless && may_be())
    }

    fn read(&mut self, holders: &[(Shown, u64, Mode)], queue: &[Shown]) -> Result<(), Misfit> {
        let mut shown = queue.iter().peekable();
        for index in 0..self.state.queue.len() {
            let waiter = &self.state.queue[index];
            match shown.next_if(|shown| self.shows(waiter, shown)) {
                Some(shown) => self.state.queue[index].show(shown, &self.context),
                // A due waiter may have been swept already.
                None => require(self.is_gone(waiter.party))?,
            }
        }
        require(shown.next().is_none() && holders.len() == self.state.holders.len())?;
        for (index, (session, token, mode)) in holders.iter().enumerate() {
            let holder = &self.state.holders[index];
            require(self.shows(holder, session) && holder.mode == *mode)?;
            self.state.holders[index].show(session, &self.context);
            self.claim_has(index, *token)?;
        }
        Ok(())
    }

    /// A client was shown the token of this holder.
    fn claim_has(&mut self, index: usize, token: u64) -> Result<(), Misfit> {
        let holder = self.state.holders.get_mut(index).ok_or(Misfit)?;
        if let Some(known) = holder.token {
            return require(known == token);
        }
        let (least, greatest) = holder.bounds;
        require((least..=greatest).contains(&token))?;
        (holder.token, holder.bounds) = (Some(token), (0, 0));
        self.state.floor = self.state.floor.max(token);
        self.narrow(index, token)
    }

    /// The grant at this index has this token: earlier ones have lower tokens, and later ones higher.
    fn narrow(&mut self, index: usize, token: u64) -> Result<(), Misfit> {
        for (other, holder) in self.state.holders.iter_mut().enumerate().filter(|(_, holder)| holder.token.is_none()) {
            let (least, greatest) = &mut holder.bounds;
            if other < index {
                *greatest = (*greatest).min(token.checked_sub(1).ok_or(Misfit)?);
            } else {
                *least = (*least).max(token + 1);
            }
            require(least <= greatest)?;
        }
        Ok(())
    }

    fn grant(&mut self, mut claim: Claim) -> Result<(), Misfit> {
        let acquires = (0..).zip(&self.context.tokens).filter(|(acquire, _)| claim.acquires & bit(*acquire) != 0);
        let mut known = acquires.filter_map(|(_, token)| *token);
        claim.token = known.next();
        require(known.all(|other| Some(other) == claim.token))?;
        self.state.granted |= claim.acquires;
        match claim.token {
            Some(token) => {
                require(token > self.state.floor)?;
                self.state.floor = token;
                claim.bounds = (0, 0);
                self.state.holders.push(claim);
                self.narrow(self.state.holders.len() - 1, token)
            }
            None => {
                self.state.floor += 1;
                claim.bounds = (self.state.floor, u64::MAX);
                self.state.holders.push(claim);
                Ok(())
            }
        }
    }

    /// Grants the lock to the live sessions in the queue, as long as the holders leave room for the first.
    fn pass_on(&mut self) -> Result<(), Misfit> {
        while self.state.queue.first().is_some_and(|first| self.admits(first.mode)) {
            let next = self.state.queue.remove(0);
            if !self.is_gone(next.party) {
                self.grant(next)?;
            }
        }
        Ok(())
    }

    fn end_due_holders(&mut self) -> Result<(), Misfit> {
        let gone = self.state.due | self.state.ended;
        self.state.holders.retain(|holder| gone & bit(holder.party) == 0);
        self.pass_on()
    }

    fn drop_claim(&mut self, party: Party) -> Result<(), Misfit> {
        self.state.queue.retain(|claim| claim.party != party);
        self.state.holders.retain(|holder| holder.party != party);
        self.pass_on()
    }

    fn leave(&mut self, acquire: u8) -> Result<(), Misfit> {
        self.state.queue.retain(|claim| claim.acquires & bit(acquire) == 0);
        self.pass_on()
    }
}

fn require(condition: bool) -> Result<(), Misfit> {
    if condition { Ok(()) } else { Err(Misfit) }
}

impl SequentialSpec for FencedLock {
    type Op = Step;
    type Ret = Seen;

    /// The tester gives every step a return, so it never asks for a step's answer.
    fn invoke(&mut self, step: &Step) -> Seen {
        unreachable!("{step:?} has no end")
    }

    fn is_valid_step(&mut self, step: &Step, seen: &Seen) -> bool {
        self.fits(step, seen)
    }
}
