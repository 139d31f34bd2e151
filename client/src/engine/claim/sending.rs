//! Decides which request a claim sends next, and when.

use std::time::Duration;

use super::{Claim, DAY_MS, Doing, GuardRequest, Leftover, PendingRequest, State};
use crate::Error;
use crate::clock::BootInstant;
use crate::engine::exchange::Pace;
use crate::engine::link::{Link, Part};
use crate::engine::pool::Kind;
use crate::engine::{Surroundings, Task, Write, millis};
use crate::lease::Session;
use crate::options::Share;
use crate::wire::{self, Condition, Mode, Op, SessionId};

impl Claim {
    pub(super) fn keep_deadlines(&mut self, now: BootInstant, link: &mut Link, around: &Surroundings) {
        if let Some(fail_at) = self.fail_at.filter(|at| self.acquirer.is_some() && now >= *at) {
            let stands_in_queue = self.waits && self.step.is_open() && !matches!(self.state, State::Opening);
            let error = match self.refusal.take() {
                _ if stands_in_queue => self.timed_out(),
                Some(refusal) => Error::Refused(refusal),
                None => around.unreachable(fail_at - self.began),
            };
            self.answer_acquirer(Err(error));
            self.give_back(now, link, around);
        }
        if self.refusal_is_final_at().is_some_and(|at| now >= at)
            && let Some(refusal) = self.refusal.take()
        {
            self.acquire_refused_for_good(now, refusal, link, around);
        }
        if self.give_up_at.is_some_and(|at| now >= at) {
            self.released(Err(around.unreachable(around.options.request_timeout)), Leftover::Nothing);
        }
        match &mut self.state {
            // A late keep-alive answer loses the lease, and moves the session's end into the future.
            State::With(session, Doing::Held { lease, pending, .. })
                if now >= session.trusted_until() || lease.is_lost() =>
            {
                lease.lose();
                pending.clear();
                self.step.restart(link, None);
                self.keepalive.restart(link, None);
            }
            State::With(_, Doing::Held { pending, .. }) => {
                let is_overdue = |request: &PendingRequest| request.answer_by().is_some_and(|at| now >= at);
                if pending.iter().any(is_overdue) {
                    let late = around.unreachable(around.options.request_timeout);
                    // Only the first is under way.
                    let was_sent = self.step.first_sent().is_some();
                    for (place, request) in pending.iter_mut().enumerate() {
                        if is_overdue(request) {
                            let may_be_done = place == 0 && was_sent && request.changes_records();
                            request.fail(match may_be_done {
                                true => Error::UnknownOutcome { trouble: late.to_string() },
                                false => late.clone(),
                            });
                        }
                    }
                    self.give_up_writes(link);
                }
            }
            // The release itself goes on.
            State::With(_, Doing::Releasing { answer_by, .. }) if now >= *answer_by => {
                self.answer_releasers(&Err(around.unreachable(around.options.request_timeout)));
            }
            _ => {}
        }
    }

    /// Whether the state waits for an answer that is to be asked for (again).
    fn has_step(&self, now: BootInstant) -> bool {
        match &self.state {
            // An acquire is not repeated when its wait is over: that would ask for a wait of nothing.
            State::With(_, Doing::Acquiring { granted }) => {
                let next = self.step.again_at().map_or(now, |at| at.max(now));
                let in_time = self.wait_until.is_none_or(|until| next < until);
                granted.is_none() && (self.step.attempts() == 0 || in_time)
            }
            State::Opening => self.acquirer.is_some(),
            State::With(_, Doing::Releasing { .. } | Doing::Withdrawing) => true,
            State::With(_, Doing::Held { pending, .. }) => !pending.is_empty(),
            State::Lost | State::Ended(_) => false,
        }
    }

    /// The error when the caller's wait ends without a grant. It names the configured wait: the end is noticed a little later.
    pub(super) fn timed_out(&self) -> Error {
        Error::TimedOut { after: self.wait_until.map_or(Duration::ZERO, |until| until - self.began) }
    }

    /// When the last refusal of an acquire is its answer: at the end of the wait, if no attempt is under way then.
    fn refusal_is_final_at(&self) -> Option<BootInstant> {
        let acquiring = matches!(self.state, State::With(_, Doing::Acquiring { granted: None }));
        let refused = self.refusal.is_some() && self.step.attempts() > 0 && !self.step.is_open();
        self.wait_until.filter(|_| self.acquirer.is_some() && acquiring && refused)
    }

    pub(super) fn send_step(&mut self, now: BootInstant, link: &mut Link, around: &Surroundings) {
        if !self.has_step(now) {
            return;
        }
        let pace = match &self.state {
            State::With(_, Doing::Acquiring { .. }) if self.waits => Pace::Patient(around.options.ask_again),
            _ => Pace::Prompt(around.options.attempt_timeout),
        };
        let mut step = std::mem::take(&mut self.step);
        step.send_if_due(now, link, (Task::Claim(self.id), Part::Step), pace, || self.step_op(now));
        self.step = step;
    }

    /// What the state asks for, under the number that its operation has.
    fn step_op(&self, now: BootInstant) -> Op {
        let State::With(Session { id, number, .. }, doing) = &self.state else {
            let Kind { ttl_ms, owner } = self.kind.clone();
            return Op::OpenSession(wire::OpenSession { ttl_ms, owner });
        };
        let (keys, session, number) = (self.spec.keys.clone(), *id, Some(*number));
        match doing {
            Doing::Releasing { token, .. } => {
                Op::Release { keys, grant: wire::Release { session, token: *token }, number }
            }
            Doing::Withdrawing => Op::Withdraw { keys, session, number },
            Doing::Held { token, pending, .. } => {
                let (token, key) = (*token, keys.iter().next().cloned().unwrap_or_default());
                match pending.front().map(|front| &front.request) {
                    Some(GuardRequest::Write { what: Write::Value(value), .. }) => {
                        let proclamation = wire::Proclaim { session, token, value: value.clone() };
                        Op::Proclaim { key, proclamation, number }
                    }
                    Some(GuardRequest::Write { what: Write::Records(transaction), .. }) => {
                        let mut transaction = transaction.clone();
                        transaction.session = Some(session);
                        transaction.conditions.insert(0, Condition::Held { lock: key, token });
                        Op::Transact { transaction, number }
                    }
                    Some(GuardRequest::Release { .. }) => {
                        Op::Release { keys, grant: wire::Release { session, token }, number }
                    }
                    Some(GuardRequest::Hold { .. }) | None => {
                        let options = wire::Acquire { reentrant: true, ..self.acquire(session) };
                        Op::Acquire { keys, options, number }
                    }
                }
            }
            Doing::Acquiring { .. } => {
                let left = self.wait_until.map_or(DAY_MS, |until| millis(until.saturating_duration_since(now)));
                let wait_ms = if self.waits { left.min(DAY_MS) } else { 0 };
                let (max_queue, value) = (self.spec.max_queue, self.spec.value.clone());
                let options = wire::Acquire { wait_ms, max_queue, value, ..self.acquire(session) };
                Op::Acquire { keys, options, number }
            }
        }
    }

    /// What every acquire of this claim says. One of what the session holds already changes no value.
    fn acquire(&self, session: SessionId) -> wire::Acquire {
        let (mode, permits, of) = match self.spec.share {
            Share::Exclusive => (Mode::Exclusive, None, None),
            Share::Shared => (Mode::Shared, None, None),
            Share::Permits { permits, of } => (Mode::Semaphore, Some(permits), Some(of)),
        };
        wire::Acquire { session: Some(session), mode, permits, of, ..wire::Acquire::default() }
    }

    /// When the session is to be kept alive, if it is: a third of its time-to-live after it was last renewed.
    ///
    /// An acquire that was just sent will renew it by itself if it is granted at once, as most are.
    fn keepalive_due(&self) -> Option<BootInstant> {
        let State::With(session, doing) = &self.state else { return None };
        let due = session.good_until.saturating_sub(session.ttl * 2 / 3);
        match doing {
            Doing::Acquiring { granted: Some(_) } => Some(due.min(self.began)),
            Doing::Acquiring { granted: None } => {
                Some(self.step.first_sent().map_or(due, |sent| due.max(sent + session.ttl / 12)))
            }
            Doing::Held { lease, .. } => (!lease.is_lost()).then_some(due),
            Doing::Releasing { .. } | Doing::Withdrawing => None,
        }
    }

    pub(super) fn send_keepalive(&mut self, now: BootInstant, link: &mut Link, around: &Surroundings) {
        if self.keepalive_due().is_none_or(|due| now < due) {
            return;
        }
        let State::With(Session { id, ttl, .. }, _) = &self.state else { return };
        let session = *id;
        let pace = Pace::Prompt(patience(*ttl).min(around.options.attempt_timeout));
        let task = (Task::Claim(self.id), Part::KeepAlive);
        self.keepalive.send_if_due(now, link, task, pace, || Op::KeepAlive { session });
    }

    pub(super) fn next_wake(&self, now: BootInstant, link: &Link) -> Option<BootInstant> {
        let mut wakes = [None; 6];
        wakes[0] = self.fail_at.filter(|_| self.acquirer.is_some());
        wakes[1] = self.give_up_at;
        if link.is_up() {
            wakes[2] = self.step.again_at().filter(|_| self.has_step(now));
            wakes[3] = self.keepalive_due().map(|due| self.keepalive.again_at().map_or(due, |at| at.max(due)));
        }
        wakes[4] = match &self.state {
            State::With(session, Doing::Held { lease, pending, .. }) if !lease.is_lost() => {
                pending.iter().filter_map(PendingRequest::answer_by).chain([session.trusted_until()]).min()
            }
            State::With(_, Doing::Releasing { answer_by, .. }) if !self.releasers.is_empty() => Some(*answer_by),
            _ => None,
        };
        wakes[5] = self.refusal_is_final_at();
        wakes.into_iter().flatten().min()
    }
}

/// How long a keep-alive is waited for, or with: several attempts must fit into the lease.
pub(super) fn patience(ttl: Duration) -> Duration {
    (ttl / 8).clamp(Duration::from_millis(20), Duration::from_secs(1))
}
