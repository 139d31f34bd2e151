//! A call outside any claim: a read, or the end of a session that is not needed any more.

use tokio::sync::oneshot;

use super::exchange::{Exchange, Pace};
use super::link::{Link, Part};
use super::{Surroundings, Task};
use crate::Error;
use crate::clock::BootInstant;
use crate::wire::{Answer, Op, Outcome};

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
    /// When it stands in the engine's timers.
    pub(super) wake: Option<BootInstant>,
}

impl Call {
    pub(super) fn new(op: Op, reply: Option<AnswerSender>, began: BootInstant, fail_at: BootInstant) -> Call {
        Call { op, reply, began, fail_at, exchange: Exchange::default(), wake: None }
    }

    /// Sends what is due and says when to come back; `None` when it is over.
    pub(super) fn drive(
        &mut self,
        now: BootInstant,
        task: Task,
        link: &mut Link,
        around: &Surroundings,
    ) -> Option<BootInstant> {
        if self.reply.as_ref().is_some_and(oneshot::Sender::is_closed) || now >= self.fail_at {
            self.finish(Err(around.unreachable(self.fail_at - self.began)));
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
        self.exchange.restart(link, None);
        self.finish(match outcome {
            Outcome::Ok(answer) => Ok(answer),
            Outcome::Error(failure) => Err(Error::Refused(failure)),
        });
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

/// Whether the operation may change more when it is done twice: an append adds twice, a release takes two holds of a
/// reentrant grant, and a write that is done late undoes another client's. While its connection lives, its answer is
/// only late, and it is not sent again. When the connection is lost, it is: the answer may be lost, too.
fn counts_twice(op: &Op) -> bool {
    matches!(op, Op::Transact { number: None, .. } | Op::Release { number: None, .. })
}
