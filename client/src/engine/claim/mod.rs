//! One claim: the life of one [`crate::Client::lock`] call, from the request until its lock is given back.
//!
//! ```text
//!  Opening ──► Acquiring ──► Held ──► Releasing ──► (session back to the pool)
//!     ▲            │  │        └────► Lost (the session is gone; waits for the guard's end)
//!     └────────────┘  └─► Withdrawing ──► (session back to the pool)
//!     session gone        the caller has gone or got an error
//! ```
//!
//! A claim has its session for itself, and at most one numbered operation is under way: the next one begins when the
//! last one is answered, or *replaces* it. Replacing is what makes giving up safe: a withdrawal has a greater number
//! than the acquire, so when the withdrawal is done, an acquire that arrives late is a repetition and changes nothing.
//! That holds only for what was done: so a claim whose acquire was refused without being done (an overloaded node, a
//! limit), but was sent more than once, is withdrawn too, because the other attempt may still be accepted.

mod answers;
mod sending;

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::call::AnswerSender;
use super::exchange::Exchange;
use super::link::Link;
use super::pool::Kind;
use super::{Command, LockSpec, Surroundings, Write};
use crate::clock::{BootInstant, Clock};
use crate::lease::{LeaseWriter, Session};
use crate::wire::{Broken, Failure, Keys, SessionId};
use crate::{Error, Guard, Options, Wait};

/// The longest wait that a server is asked for at once, and the longest time-to-live there is, in milliseconds.
const DAY_MS: u64 = 86_400_000;

/// The caller that acquires the lock: it gets the guard.
pub(in crate::engine) struct Acquirer {
    pub(in crate::engine) reply: oneshot::Sender<Result<Guard, Error>>,
    /// For the guard, to release itself with.
    pub(in crate::engine) commands: mpsc::UnboundedSender<Command>,
}

/// What becomes of the session when a claim has ended.
pub(in crate::engine) enum Leftover {
    /// There is none, or it is left to expire.
    Nothing,
    /// It certainly has no claim.
    Reusable(Session),
    /// It is unknown what the session holds: it should be closed.
    Unclear(SessionId),
}

/// What a claim needs after it was driven.
pub(in crate::engine) enum Next {
    /// To be driven again then, if not earlier.
    Wake(Option<BootInstant>),
    /// Nothing: it has ended.
    Ended(Leftover),
}

enum State {
    /// A session is being opened.
    Opening,
    /// The session is open and the claim uses it.
    With(Session, Doing),
    /// The session is gone while a guard lives.
    Lost,
    /// The claim has ended.
    Ended(Leftover),
}

enum Doing {
    /// Asks for the lock, or waits for it. `granted`: it has the token already, but the lease must be renewed before a
    /// guard can be handed out.
    Acquiring { granted: Option<Granted> },
    /// Guards hold the lock, and share its lease. `guards`: the number of guards that hold the lock. `pending`: their
    /// requests to the server, in order; the first is under way.
    Held { token: u64, lease: LeaseWriter, guards: u32, pending: VecDeque<PendingRequest> },
    /// The last guard releases the lock, until it has no hold left.
    Releasing { token: u64, answer_by: BootInstant },
    /// The caller has gone or got an error: the claim is withdrawn.
    Withdrawing,
}

/// A grant: its keys as the server orders them, its token, and the signed forms if the node signs.
struct Granted {
    keys: Keys,
    token: u64,
    signed: Vec<String>,
}

/// A guard's request to the server while others may hold the lock with it. Dropping a reply tells the caller that the
/// lock is lost; without a reply the caller has its answer.
pub(in crate::engine) enum GuardRequest {
    /// To write something under the grant.
    Write { what: Write, reply: Option<AnswerSender> },
    /// One more hold, which this guard gives back.
    Hold { guard: Guard, reply: Option<oneshot::Sender<Result<Guard, Error>>> },
    /// To give one of several holds back.
    Release { reply: Option<oneshot::Sender<Result<(), Error>>> },
}

/// A guard's request, and when its caller learns that no server has answered.
struct PendingRequest {
    request: GuardRequest,
    answer_by: BootInstant,
}

impl PendingRequest {
    /// Whether no caller waits for its outcome, and it may be left undone. Holds are counted, so those are done whether a
    /// caller waits or not.
    fn is_abandoned(&self) -> bool {
        let GuardRequest::Write { reply, .. } = &self.request else { return false };
        reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn changes_records(&self) -> bool {
        matches!(self.request, GuardRequest::Write { what: Write::Records(_), .. })
    }

    /// When its caller has waited long enough; `None`: the caller has its answer.
    fn answer_by(&self) -> Option<BootInstant> {
        let is_awaited = match &self.request {
            GuardRequest::Write { reply, .. } => reply.is_some(),
            GuardRequest::Hold { reply, .. } => reply.is_some(),
            GuardRequest::Release { reply } => reply.is_some(),
        };
        is_awaited.then_some(self.answer_by)
    }

    fn fail(&mut self, error: Error) {
        match &mut self.request {
            GuardRequest::Write { reply, .. } => answer(reply.take(), Err(error)),
            GuardRequest::Hold { reply, .. } => answer(reply.take(), Err(error)),
            GuardRequest::Release { reply } => answer(reply.take(), Err(error)),
        }
    }
}

/// Answers a caller, who may have gone.
fn answer<T>(reply: Option<oneshot::Sender<T>>, answer: T) {
    let _ = reply.map(|reply| reply.send(answer));
}

/// A claim on a lock.
pub(in crate::engine) struct Claim {
    id: u64,
    spec: LockSpec,
    kind: Kind,
    /// For the guard's lease.
    clock: Clock,
    /// `None`: the caller has gone, or has its answer (a guard or an error).
    acquirer: Option<Acquirer>,
    /// The callers that wait for the outcome of the release: those of the last guard, and of others that released theirs
    /// just before.
    releasers: Vec<oneshot::Sender<Result<(), Error>>>,
    began: BootInstant,
    waits: bool,
    /// The end of the wait in the queue; `None` with `waits`: there is none.
    wait_until: Option<BootInstant>,
    /// When the caller learns that it failed.
    fail_at: Option<BootInstant>,
    /// When the background stops trying to give the claim back.
    give_up_at: Option<BootInstant>,
    state: State,
    step: Exchange,
    keepalive: Exchange,
    /// How often the lock had to be asked for anew, for reasons that a pause may help against.
    setbacks: u32,
    /// Why a node last refused to open the session or to grant the lock, for the moment.
    refusal: Option<Failure>,
    /// How often in a row the keep-alive was refused.
    refusals: u32,
    /// When it stands in the engine's timers.
    pub(in crate::engine) wake: Option<BootInstant>,
}

impl Claim {
    #[expect(clippy::too_many_arguments, reason = "one caller, which has them in this form")]
    pub(in crate::engine) fn new(
        now: BootInstant,
        id: u64,
        spec: LockSpec,
        kind: Kind,
        wait: Wait,
        acquirer: Acquirer,
        session: Option<Session>,
        around: &Surroundings,
    ) -> Claim {
        let Options { request_timeout, attempt_timeout, .. } = around.options;
        let (waits, wait_until, patience) = match wait {
            Wait::No | Wait::For(Duration::ZERO) => (false, None, Some(request_timeout)),
            Wait::For(wait) => (true, now.checked_add(wait), Some(wait.saturating_add(attempt_timeout))),
            Wait::Forever => (true, None, None),
        };
        let state = match session {
            Some(session) => State::With(begin(session), Doing::Acquiring { granted: None }),
            None => State::Opening,
        };
        Claim {
            id,
            spec,
            kind,
            clock: around.clock,
            acquirer: Some(acquirer),
            releasers: Vec::new(),
            began: now,
            waits,
            wait_until,
            fail_at: patience.and_then(|patience| now.checked_add(patience)),
            give_up_at: None,
            state,
            step: Exchange::default(),
            keepalive: Exchange::default(),
            setbacks: 0,
            refusal: None,
            refusals: 0,
            wake: None,
        }
    }

    pub(in crate::engine) fn into_kind(self) -> Kind {
        self.kind
    }

    /// Whether it has something to say to the server, now or by and by.
    pub(in crate::engine) fn wants_connection(&self) -> bool {
        match &self.state {
            State::With(_, Doing::Held { lease, .. }) => !lease.is_lost(),
            State::With(..) => true,
            State::Opening => self.acquirer.is_some(),
            State::Lost | State::Ended(_) => false,
        }
    }

    /// The public number of the session with which it waits for the lock on `key`, if it does.
    pub(in crate::engine) fn session_waiting_for(&self, key: &str) -> Option<u64> {
        match &self.state {
            State::With(session, Doing::Acquiring { .. }) if self.is_on(key) => Some(session.id.number()),
            _ => None,
        }
    }

    /// Whether it has the lock by this grant, with a guard or before it could make one.
    pub(in crate::engine) fn has(&self, grant: &Broken) -> bool {
        let State::With(session, Doing::Held { token, .. } | Doing::Acquiring { granted: Some(Granted { token, .. }) }) =
            &self.state
        else {
            return false;
        };
        (session.id.number(), *token) == (grant.session, grant.token) && self.is_on(&grant.key)
    }

    fn is_on(&self, key: &str) -> bool {
        self.spec.keys.iter().any(|wanted| wanted == key)
    }

    /// Whether its next move is the guard's.
    pub(in crate::engine) fn is_guarded(&self) -> bool {
        matches!(self.state, State::Lost | State::With(_, Doing::Held { .. }))
    }

    /// Whether it has nothing to finish in the background: no hold is acquired or given back.
    pub(in crate::engine) fn is_settled(&self) -> bool {
        match &self.state {
            State::With(_, Doing::Held { pending, .. }) => {
                pending.iter().all(|request| matches!(request.request, GuardRequest::Write { .. }))
            }
            _ => self.is_guarded(),
        }
    }

    pub(in crate::engine) fn disconnected(&mut self) {
        self.step.disconnected();
        self.keepalive.disconnected();
    }

    /// Sends what is due, gives up what is overdue.
    pub(in crate::engine) fn drive(&mut self, now: BootInstant, link: &mut Link, around: &Surroundings) -> Next {
        self.keep_deadlines(now, link, around);
        if let State::Ended(_) = self.state {
            self.step.restart(link, None);
            self.keepalive.restart(link, None);
            if let State::Ended(leftover) = std::mem::replace(&mut self.state, State::Ended(Leftover::Nothing)) {
                return Next::Ended(leftover);
            }
        }
        self.send_step(now, link, around);
        self.send_keepalive(now, link, around);
        Next::Wake(self.next_wake(now, link))
    }

    /// The client is closed: a caller that still waits for the lock, or for another hold, gets an error.
    pub(in crate::engine) fn close(&mut self, now: BootInstant, link: &mut Link, around: &Surroundings) {
        if self.acquirer.is_some() {
            self.answer_acquirer(Err(Error::Closed));
            self.give_back(now, link, around);
        }
        if let State::With(_, Doing::Held { pending, .. }) = &mut self.state {
            let holds = pending.iter_mut().filter(|request| matches!(request.request, GuardRequest::Hold { .. }));
            holds.for_each(|hold| hold.fail(Error::Closed));
        }
    }

    /// Its caller dropped the `lock` future.
    pub(in crate::engine) fn abandon(&mut self, now: BootInstant, link: &mut Link, around: &Surroundings) {
        // A claim that was granted meanwhile is released by its guard.
        if self.acquirer.take().is_some() {
            self.give_back(now, link, around);
        }
    }

    /// A guard ends: the last one releases the lock, another one a hold.
    pub(in crate::engine) fn release(
        &mut self,
        now: BootInstant,
        reply: Option<oneshot::Sender<Result<(), Error>>>,
        link: &mut Link,
        around: &Surroundings,
    ) {
        if let State::With(_, Doing::Held { guards, .. }) = &mut self.state
            && *guards > 1
        {
            *guards -= 1;
            return self.enqueue(now, GuardRequest::Release { reply }, link, around);
        }
        self.releasers.extend(reply);
        match self.take_state() {
            State::With(session, Doing::Held { token, lease, pending, .. }) => {
                // No guard is left that waits for anything else: this operation has a greater number, and takes all holds.
                self.releasers.extend(pending.into_iter().filter_map(|PendingRequest { request, .. }| match request {
                    GuardRequest::Release { reply } => reply,
                    GuardRequest::Write { .. } | GuardRequest::Hold { .. } => None,
                }));
                lease.release();
                self.give_up_at = Some(now.max(session.good_until) + around.options.request_timeout);
                let answer_by = now + around.options.request_timeout;
                self.step.restart(link, None);
                self.keepalive.restart(link, None);
                self.state = State::With(begin(session), Doing::Releasing { token, answer_by });
            }
            // There is nothing to give back.
            _ => self.released(Err(Error::Lost), Leftover::Nothing),
        }
    }

    /// Queues a guard's request to the server: after what is under way, except for writes that no caller waits for. The
    /// claim gives these up, because this operation has a greater number.
    pub(in crate::engine) fn enqueue(
        &mut self,
        now: BootInstant,
        request: GuardRequest,
        link: &mut Link,
        around: &Surroundings,
    ) {
        self.give_up_writes(link);
        let State::With(_, Doing::Held { lease, pending, .. }) = &mut self.state else { return };
        if !lease.is_lost() {
            pending.push_back(PendingRequest { request, answer_by: now + around.options.request_timeout });
            if pending.len() == 1 {
                self.start_next(link);
            }
        }
    }

    /// Gives up the writes that no caller waits for.
    fn give_up_writes(&mut self, link: &mut Link) {
        let State::With(_, Doing::Held { pending, .. }) = &mut self.state else { return };
        let is_under_way = pending.front().is_some_and(PendingRequest::is_abandoned);
        pending.retain(|request| !request.is_abandoned());
        if is_under_way {
            self.start_next(link);
        }
    }

    /// The request that was under way is done, or given up: the next of the guards' requests begins, if there is one.
    fn start_next(&mut self, link: &mut Link) {
        self.step.restart(link, None);
        if let State::With(session, Doing::Held { pending, .. }) = &mut self.state
            && !pending.is_empty()
        {
            session.number += 1;
        }
    }

    // What several events lead to.

    /// The lock is no longer wanted (the caller has gone, or got an error): the claim, as far as there is one, is
    /// withdrawn.
    fn give_back(&mut self, now: BootInstant, link: &mut Link, around: &Surroundings) {
        let patience = around.options.request_timeout;
        match self.take_state() {
            State::Opening if self.step.is_open() => {
                // If the session still comes, it can be used for the next claim.
                self.give_up_at = Some(now + around.options.attempt_timeout);
                self.state = State::Opening;
            }
            State::With(session, Doing::Acquiring { granted: None }) if self.step.attempts() == 0 => {
                self.state = State::Ended(Leftover::Reusable(session));
            }
            State::With(session, Doing::Acquiring { .. }) => {
                self.give_up_at = Some(now.max(session.good_until) + patience);
                self.step.restart(link, None);
                self.keepalive.restart(link, None);
                self.state = State::With(begin(session), Doing::Withdrawing);
            }
            _ => self.state = State::Ended(Leftover::Nothing),
        }
    }

    fn end_without_claim(&mut self, error: Error) {
        self.answer_acquirer(Err(error));
        if let State::With(session, _) = self.take_state() {
            self.state = State::Ended(Leftover::Reusable(session));
        }
    }

    fn refused(&mut self, error: Error, leftover: Leftover) {
        self.answer_acquirer(Err(error));
        self.state = State::Ended(leftover);
    }

    fn released(&mut self, result: Result<(), Error>, leftover: Leftover) {
        self.answer_releasers(&result);
        self.state = State::Ended(leftover);
    }

    fn answer_releasers(&mut self, result: &Result<(), Error>) {
        for releaser in self.releasers.drain(..) {
            answer(Some(releaser), result.clone());
        }
    }

    fn answer_acquirer(&mut self, outcome: Result<Guard, Error>) {
        answer(self.acquirer.take().map(|acquirer| acquirer.reply), outcome);
    }

    fn take_state(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Ended(Leftover::Nothing))
    }
}

/// The session begins its next operation.
fn begin(mut session: Session) -> Session {
    session.number += 1;
    session
}
