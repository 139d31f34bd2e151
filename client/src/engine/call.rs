//! A call outside any claim: a read, or the end of a session that is not needed any more.

use tokio::sync::oneshot;

use super::exchange::{Exchange, Pace};
use super::link::{Link, Part};
use super::{Surroundings, Task};
use crate::Error;
use crate::clock::BootInstant;
use crate::wire::{Answer, Code, Condition, Op, Outcome, Transaction};

/// Where the answer goes.
pub(super) type AnswerSender = oneshot::Sender<Result<Answer, Error>>;

/// One such call: a request to the server, until its answer or its deadline.
pub(super) struct Call {
    pub(super) op: Op,
    /// `None`: no caller waits, because the engine itself sent the request or the caller has its answer.
    pub(super) reply: Option<AnswerSender>,
    pub(super) began: BootInstant,
    pub(super) fail_at: BootInstant,
    pub(super) exchange: Exchange,
    /// A connection was lost before the answer: the request may be done, or will be.
    may_be_done: bool,
    /// When it stands in the engine's timers.
    pub(super) wake: Option<BootInstant>,
}

impl Call {
    pub(super) fn new(op: Op, reply: Option<AnswerSender>, began: BootInstant, fail_at: BootInstant) -> Call {
        Call { op, reply, began, fail_at, exchange: Exchange::default(), may_be_done: false, wake: None }
    }

    /// Sends what is due and says when to come back; `None` when it is over.
    pub(super) fn drive(
        &mut self,
        now: BootInstant,
        task: Task,
        link: &mut Link,
        around: &Surroundings,
    ) -> Option<BootInstant> {
        let is_late = self.reply.as_ref().is_some_and(oneshot::Sender::is_closed) || now >= self.fail_at;
        if is_late || self.may_be_done && !may_be_repeated(&self.op) {
            let is_unknown = is_transaction(&self.op) && (self.may_be_done || self.exchange.is_open());
            let late = around.unreachable(self.fail_at - self.began);
            self.finish(Err(match is_unknown {
                true if is_late => Error::UnknownOutcome { trouble: late.to_string() },
                true => Error::UnknownOutcome { trouble: "the connection was lost before the answer".to_owned() },
                false => late,
            }));
            self.exchange.restart(link, None);
            return None;
        }
        let repeats = !counts_twice(&self.op);
        if repeats || !self.exchange.is_open() {
            let pace = Pace::Prompt(around.options.attempt_timeout);
            self.exchange.send_if_due(now, link, (task, Part::Step), pace, || self.op.clone());
        }
        let again_at = self.exchange.again_at().filter(|_| repeats && link.is_up());
        Some(again_at.map_or(self.fail_at, |again_at| again_at.min(self.fail_at)))
    }

    pub(super) fn answered(&mut self, outcome: Outcome, link: &mut Link) {
        let is_repetition = self.may_be_done || self.exchange.attempts() > 1;
        self.exchange.restart(link, None);
        self.finish(match outcome {
            Outcome::Ok(answer) => Ok(answer),
            // The refusal is about the repetition alone: an attempt whose answer was lost may have done it.
            Outcome::Error(failure) if is_repetition && is_refused_when_done(&self.op, failure.error) => {
                Err(Error::UnknownOutcome { trouble: format!("the server refused a repetition: {failure}") })
            }
            Outcome::Error(failure) => Err(Error::Refused(failure)),
        });
    }

    /// A node refused the attempt on this connection before it had any effect.
    pub(super) fn turned_away(&mut self, link: &mut Link) {
        self.exchange.restart(link, None);
    }

    /// The connection is gone.
    pub(super) fn disconnected(&mut self) {
        self.may_be_done |= self.exchange.is_open();
        self.exchange.disconnected();
    }

    /// It has no use any more to wait for an answer.
    pub(super) fn fail(&mut self, now: BootInstant, error: Error) {
        self.finish(Err(error));
        self.fail_at = now;
    }

    fn finish(&mut self, result: Result<Answer, Error>) {
        if let Some(reply) = self.reply.take() {
            // The caller may have gone.
            let _ = reply.send(result);
        }
    }
}

fn is_transaction(op: &Op) -> bool {
    matches!(op, Op::Transact { number: None, .. })
}

/// Whether the operation is refused in this way if it was done before: nothing is left then to release or to break.
fn is_refused_when_done(op: &Op, code: Code) -> bool {
    match op {
        Op::Transact { number: None, .. } => true,
        Op::Release { number: None, .. } | Op::Break { .. } => matches!(code, Code::NotHolder | Code::NoSession),
        _ => false,
    }
}

/// Whether the operation may be sent again after its answer was lost. A transaction without a number may be if it changes
/// a record whose version it compares: the version does not come back. Version 0, of a record that is not there, does.
fn may_be_repeated(op: &Op) -> bool {
    let Op::Transact { transaction: Transaction { conditions, changes, .. }, number: None } = op else { return true };
    conditions.iter().any(|condition| match condition {
        Condition::Version { key, version } => *version > 0 && changes.iter().any(|change| change.key() == key),
        Condition::Held { .. } => false,
    })
}

/// Whether the operation may change more when it is done twice: an append adds twice, a release takes two holds of a
/// reentrant grant, and a write that is done late undoes another client's. While its connection lives, its answer is
/// only late, and it is not sent again.
fn counts_twice(op: &Op) -> bool {
    matches!(op, Op::Transact { number: None, .. } | Op::Release { number: None, .. })
}
