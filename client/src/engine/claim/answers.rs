//! Applies the server's answers to a claim.

use std::collections::VecDeque;
use std::time::Duration;

use super::sending::patience;
use super::{Acquirer, Claim, DAY_MS, Doing, Granted, GuardRequest, Leftover, PendingRequest, State, answer, begin};
use crate::clock::BootInstant;
use crate::engine::Surroundings;
use crate::engine::link::Link;
use crate::error::unexpected;
use crate::lease;
use crate::lease::Session;
use crate::route::{backoff, backoff_within};
use crate::wire::{Acquired, Answer, Code, Failure, Outcome};
use crate::{Error, Guard};

/// The longest pause before a node is asked again that has no disk space, or that has heard too many requests of this
/// client in this second. Space is freed by people and by snapshots, and a second goes by, so there is no hurry: each pause
/// is at least half as long.
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);

impl Claim {
    /// Its keep-alive was answered.
    pub(in crate::engine) fn kept_alive(
        &mut self,
        now: BootInstant,
        sent: BootInstant,
        outcome: Outcome,
        link: &mut Link,
    ) {
        match (&mut self.state, outcome) {
            (State::With(session, doing), Outcome::Ok(Answer::Session(_))) => {
                session.renewed(sent);
                self.keepalive.restart(link, None);
                self.refusals = 0;
                match doing {
                    Doing::Held { lease, .. } => lease.extend(session.trusted_until()),
                    Doing::Acquiring { granted: Some(_) } => self.hand_over(now),
                    _ => {}
                }
            }
            (State::With(..), Outcome::Error(Failure { error: Code::NoSession, .. })) => {
                self.session_is_gone(now, link)
            }
            // Refused for now, or nonsense: either way another attempt is all that can be done. Several fit into what is
            // left of the lease, but a node that has too much to do is not asked ever faster.
            (State::With(session, _), _) => {
                let pause = backoff_within(self.refusals, patience(session.ttl));
                self.refusals = self.refusals.saturating_add(1);
                self.keepalive.restart(link, Some(now + pause));
            }
            _ => self.keepalive.restart(link, None),
        }
    }

    /// The request that its state waits for was answered.
    pub(in crate::engine) fn answered(
        &mut self,
        now: BootInstant,
        sent: BootInstant,
        outcome: Outcome,
        link: &mut Link,
        around: &Surroundings,
    ) {
        match &self.state {
            State::Opening => self.open_answered(now, sent, outcome, link),
            State::With(_, Doing::Acquiring { .. }) => self.acquire_answered(now, outcome, link, around),
            State::With(_, Doing::Releasing { .. } | Doing::Withdrawing) => self.drop_answered(now, outcome, link),
            State::With(_, Doing::Held { .. }) => self.guard_request_answered(now, outcome, link),
            State::Lost | State::Ended(_) => {}
        }
    }

    /// An operator has broken its grant: a guard is lost, and without a guard the lock is asked for anew.
    pub(in crate::engine) fn lose(&mut self, now: BootInstant, link: &mut Link) {
        match &mut self.state {
            State::With(session, Doing::Acquiring { granted }) => {
                *granted = None;
                session.number += 1;
                self.try_anew(now, link);
            }
            _ => self.session_is_gone(now, link),
        }
    }

    // What answers lead to.

    fn open_answered(&mut self, now: BootInstant, sent: BootInstant, outcome: Outcome, link: &mut Link) {
        self.step.restart(link, None);
        match outcome {
            Outcome::Ok(Answer::Session(lease)) => {
                self.refusal = None;
                let ttl = Duration::from_millis(lease.ttl_ms.min(DAY_MS));
                let session = Session { id: lease.session, ttl, number: 0, good_until: sent + ttl };
                self.state = match self.acquirer {
                    Some(_) => State::With(begin(session), Doing::Acquiring { granted: None }),
                    None => State::Ended(Leftover::Reusable(session)),
                };
            }
            Outcome::Ok(other) => self.refused(Error::Refused(unexpected(&other)), Leftover::Nothing),
            // No session was opened, so at an overloaded node there is nothing to hurry for either.
            Outcome::Error(failure) => match self.pause_after(now, failure.error, &[Code::Overloaded]) {
                Some(pause) => {
                    self.refusal = Some(failure);
                    self.step.restart(link, Some(now + pause));
                }
                None => self.refused(Error::Refused(failure), Leftover::Nothing),
            },
        }
    }

    fn acquire_answered(&mut self, now: BootInstant, outcome: Outcome, link: &mut Link, around: &Surroundings) {
        match outcome {
            Outcome::Ok(Answer::Acquired(grant)) => {
                let first_sent = self.step.first_sent();
                if let (State::With(session, Doing::Acquiring { granted }), Some(first_sent)) =
                    (&mut self.state, first_sent)
                {
                    session.renewed(first_sent);
                    *granted = Some(Granted { keys: grant.keys, token: grant.token, signed: grant.signed });
                }
                self.step.restart(link, None);
                self.hand_over(now);
            }
            Outcome::Ok(other) => {
                self.answer_acquirer(Err(Error::Refused(unexpected(&other))));
                self.give_back(now, link, around);
            }
            Outcome::Error(failure) => self.acquire_refused(now, failure, link, around),
        }
    }

    fn acquire_refused(&mut self, now: BootInstant, failure: Failure, link: &mut Link, around: &Surroundings) {
        let wait_is_over = self.wait_until.is_some_and(|until| now >= until);
        if let Some(pause) = self.pause_after(now, failure.error, &[]) {
            self.refusal = Some(failure);
            return self.step.put_off(link, now + pause);
        }
        match failure.error {
            Code::NoSession => self.session_is_gone(now, link),
            // The table has done this number, and it left no claim.
            Code::Held if !self.waits || self.spec.max_queue.is_some() => {
                let queue = failure.queue.unwrap_or(0);
                self.end_without_claim(Error::Held { holder: failure.holder, queue });
            }
            Code::Held | Code::Timeout | Code::Gone | Code::Withdrawn if wait_is_over => {
                self.end_without_claim(self.timed_out());
            }
            Code::Held | Code::Timeout | Code::Gone | Code::Withdrawn => {
                if let State::With(session, _) = &mut self.state {
                    session.number += 1;
                }
                self.try_anew(now, link);
            }
            // A waiting acquire retries at an overloaded node, under the same number: the queue position belongs to it, if
            // an earlier attempt was queued.
            Code::Overloaded if self.waits && !wait_is_over => {
                self.refusal = Some(failure);
                self.put_off(now, link);
            }
            _ => self.acquire_refused_for_good(now, failure, link, around),
        }
    }

    /// Its last attempt was refused.
    pub(super) fn acquire_refused_for_good(
        &mut self,
        now: BootInstant,
        failure: Failure,
        link: &mut Link,
        around: &Surroundings,
    ) {
        // An earlier attempt may still be applied.
        if self.step.attempts() > 1 {
            self.answer_acquirer(Err(Error::Refused(failure)));
            self.give_back(now, link, around);
        } else {
            self.end_without_claim(Error::Refused(failure));
        }
    }

    /// A release or a withdrawal was answered.
    fn drop_answered(&mut self, now: BootInstant, outcome: Outcome, link: &mut Link) {
        self.step.restart(link, None);
        let State::With(session, doing) = self.take_state() else { return };
        let (result, leftover) = match outcome {
            Outcome::Ok(Answer::Released | Answer::Withdrawn) => (Ok(()), Leftover::Reusable(session)),
            // A hold that no guard has: its acquire was given up, or refused after an attempt that was done.
            Outcome::Ok(Answer::StillHeld { .. }) => {
                self.state = State::With(begin(session), doing);
                return;
            }
            Outcome::Ok(other) => (Err(Error::Refused(unexpected(&other))), Leftover::Unclear(session.id)),
            Outcome::Error(failure) => match failure.error {
                // An acquire of another hold that was given up may have become a new grant.
                Code::NotHolder if matches!(doing, Doing::Releasing { .. }) => {
                    (Err(Error::Lost), Leftover::Unclear(session.id))
                }
                Code::NotHolder | Code::Gone => (Err(Error::Lost), Leftover::Reusable(session)),
                Code::NoSession => (Err(Error::Lost), Leftover::Nothing),
                Code::Overloaded | Code::Limit => {
                    // The node refused it, and the number is not used up. It must not be another operation: an earlier
                    // attempt may still be done, and then this one would find nothing to give back.
                    self.state = State::With(session, doing);
                    return self.try_anew(now, link);
                }
                _ => (Err(Error::Refused(failure)), Leftover::Unclear(session.id)),
            },
        };
        self.released(result, leftover);
    }

    /// The first of the guards' requests was answered.
    fn guard_request_answered(&mut self, now: BootInstant, outcome: Outcome, link: &mut Link) {
        let State::With(session, Doing::Held { token, lease, guards, pending }) = &mut self.state else { return };
        let Some(PendingRequest { request, .. }) = pending.front() else { return };
        let result = match outcome {
            Outcome::Ok(answer) => {
                self.setbacks = 0;
                Ok(answer)
            }
            Outcome::Error(failure) => match (failure.error, request) {
                // An earlier attempt may have done it: only an answer under this number tells whether it did.
                (Code::Limit | Code::NoSpace, GuardRequest::Hold { .. } | GuardRequest::Write { .. })
                    if self.step.attempts() > 1 =>
                {
                    return self.put_off(now, link);
                }
                (Code::NotHolder | Code::NoSession, _)
                | (Code::Held | Code::Gone, GuardRequest::Hold { .. } | GuardRequest::Release { .. }) => {
                    return self.session_is_gone(now, link);
                }
                // It is this grant's token that is not valid any more.
                (Code::StaleToken, _) if failure.got == Some(*token) => return self.session_is_gone(now, link),
                // The number is not used up, and an earlier attempt may still be done.
                (Code::Overloaded | Code::TooSoon, _) | (Code::Limit, GuardRequest::Release { .. }) => {
                    return self.put_off(now, link);
                }
                _ => Err(Error::Refused(failure)),
            },
        };
        let Some(PendingRequest { request, answer_by }) = pending.pop_front() else { return };
        match (request, result) {
            (GuardRequest::Write { reply, .. }, result) => answer(reply, result),
            (GuardRequest::Hold { mut guard, reply }, Ok(Answer::Acquired(Acquired { token: granted, .. }))) => {
                if granted != *token {
                    // The session had lost its grant, and has another one, which no guard has.
                    lease.lose();
                    self.state = State::Ended(Leftover::Unclear(session.id));
                    return;
                }
                if let Some(first_sent) = self.step.first_sent() {
                    session.renewed(first_sent);
                    lease.extend(session.trusted_until());
                }
                if let Some(reply) = reply.filter(|reply| !reply.is_closed() && !lease.is_lost()) {
                    *guards += 1;
                    guard.released = false;
                    answer(Some(reply), Ok(guard));
                } else {
                    // No guard gets the hold: the claim gives it back.
                    pending.push_back(PendingRequest { request: GuardRequest::Release { reply: None }, answer_by });
                }
            }
            (GuardRequest::Hold { reply, .. }, result) => answer(reply, Err(refusal(result))),
            (GuardRequest::Release { reply }, Ok(Answer::StillHeld { .. })) => answer(reply, Ok(())),
            // The other holds are gone.
            (GuardRequest::Release { .. }, Ok(Answer::Released)) => return self.session_is_gone(now, link),
            (GuardRequest::Release { reply }, result) => answer(reply, Err(refusal(result))),
        }
        self.start_next(link);
    }

    /// The server says that the session does not exist.
    fn session_is_gone(&mut self, now: BootInstant, link: &mut Link) {
        self.keepalive.restart(link, None);
        match self.take_state() {
            State::With(_, Doing::Acquiring { .. }) => {
                self.state = State::Opening;
                self.try_anew(now, link);
            }
            State::With(_, Doing::Held { lease, .. }) => {
                self.step.restart(link, None);
                lease.lose();
                self.state = State::Lost;
            }
            other => self.state = other,
        }
    }

    /// Makes a guard of a grant, unless so much time has gone by that the lease must be renewed first.
    fn hand_over(&mut self, now: BootInstant) {
        let State::With(session, doing) = &mut self.state else { return };
        let Doing::Acquiring { granted: granted @ Some(_) } = doing else { return };
        let trusted_until = session.trusted_until();
        if trusted_until <= now {
            return;
        }
        let Some(Acquirer { reply, commands }) = self.acquirer.take() else { return };
        let Some(Granted { keys, token, signed }) = granted.take() else { return };
        let (lease, watched) = lease::lease(self.clock, trusted_until);
        *doing = Doing::Held { token, lease, guards: 1, pending: VecDeque::new() };
        let (claim, session) = (self.id, session.id);
        // If the caller is gone, the guard is dropped here, which releases the lock.
        let guard = Guard { claim, keys, token, signed, session, lease: watched, commands, released: false };
        let _ = reply.send(Ok(guard));
    }

    /// How long to wait before a node is asked again that has no disk space, or refuses more requests of this client for
    /// the moment, or refuses it for one of these other reasons: only a caller that waits for the lock waits for that too,
    /// and only while another attempt fits into the wait. All others are told.
    fn pause_after(&mut self, now: BootInstant, error: Code, others: &[Code]) -> Option<Duration> {
        let is_slow = matches!(error, Code::NoSpace | Code::TooSoon);
        let pause = backoff_within(if is_slow { u32::MAX } else { self.setbacks }, REFUSAL_PAUSE);
        let in_time = self.wait_until.is_none_or(|until| now + pause < until);
        let passes = is_slow || others.contains(&error);
        if !passes || !self.waits || !in_time {
            return None;
        }
        self.setbacks = self.setbacks.saturating_add(1);
        Some(pause)
    }

    /// Sends the state's request again after a pause, under its number.
    fn put_off(&mut self, now: BootInstant, link: &mut Link) {
        let pause = backoff(self.setbacks);
        self.setbacks = self.setbacks.saturating_add(1);
        self.step.put_off(link, now + pause);
    }

    /// Begins the state's request anew; after the first time with a pause.
    fn try_anew(&mut self, now: BootInstant, link: &mut Link) {
        let pause = (self.setbacks > 0).then(|| now + backoff(self.setbacks));
        self.setbacks = self.setbacks.saturating_add(1);
        self.step.restart(link, pause);
    }
}

/// The error for an unexpected answer.
fn refusal(result: Result<Answer, Error>) -> Error {
    result.map_or_else(|error| error, |answer| Error::Refused(unexpected(&answer)))
}
