//! What answers do to a client, and what they tell the judge.

use std::time::Duration;

use palisade::core::session_id;
use palisade_client::wire::{Answer, Code, Consistency, Failure, LeaderView, LockView};
use palisade_history::{self as history, Refusal};
use palisade_spec::invariants::Property;
use palisade_spec::lock::Token;
use palisade_spec::raft::{Index, NodeId};
use palisade_spec::violated;
use rand::Rng;

use super::super::call::CallId;
use super::super::client_facts::LockState;
use super::super::clock::slowest;
use super::super::history_recorder;
use super::super::host::Reply;
use super::{Client, Environment, Held, Operation, PendingOperation, Renewal, Session};

impl Client {
    /// An answer arrives.
    pub(in crate::sim) fn receive(&mut self, call: CallId, reply: Reply, env: &mut Environment<'_>) {
        if let Some(renewal) = self.renewal.take_if(|renewal| renewal.sent.call == call) {
            return self.receive_renewal(renewal, &reply, env);
        }
        let Some(pending) = self.pending.take_if(|pending| pending.sent.is_some_and(|sent| sent.call == call)) else {
            return;
        };
        match reply {
            Ok(answer) => self.succeed(&pending, answer, env),
            Err(failure) => self.fail(pending, &failure, env),
        }
    }

    fn receive_renewal(&mut self, Renewal { op, sent }: Renewal, reply: &Reply, env: &mut Environment<'_>) {
        match reply {
            Ok(_) => env.history.ok(op, env.now, history::Answer::KeptAlive),
            Err(Failure { error: Code::NoSession, .. }) => env.history.fail(op, env.now, Refusal::NoSession),
            Err(failure) => env.history.info(op, env.now, &failure.message),
        }
        let Some(session) = &mut self.session else { return };
        match reply {
            Ok(_) => {
                session.alive = session.alive.max(sent.at);
                let id = session_id(session.id, self.principal.as_str());
                env.judge.lock().client_leased(id, sent.at, slowest(self.ttl));
            }
            Err(Failure { error: Code::NoSession, .. }) => self.lose_session(env),
            Err(failure) => {
                session.renew_at = env.now + Duration::from_millis(env.rng.random_range(5..100));
                self.follow(failure, env);
            }
        }
    }

    fn lose_session(&mut self, env: &mut Environment<'_>) {
        if let Some(session) = self.session.take() {
            env.tally.sessions_lost += 1;
            self.held.take_if(|held| held.session == session.id);
            self.drop_renewal(env);
        }
    }

    fn drop_renewal(&mut self, env: &mut Environment<'_>) {
        if let Some(renewal) = self.renewal.take() {
            env.history.info(renewal.op, env.now, "the session is lost meanwhile");
        }
    }

    /// Picks the leader that a refusal names, or a random node.
    fn follow(&mut self, failure: &Failure, env: &mut Environment<'_>) {
        let nodes = env.nodes;
        self.leader = match &failure.leader {
            Some(LeaderView { id, .. }) => {
                let generations = nodes.iter().filter(|node| node.number() == *id);
                generations.max().copied().unwrap_or(NodeId::new(*id, 0))
            }
            None => nodes[env.rng.random_range(0..nodes.len())],
        };
    }

    fn succeed(&mut self, pending: &PendingOperation, answer: Answer, env: &mut Environment<'_>) {
        let sent = pending.sent.map_or(pending.begun, |sent| sent.at);
        env.history.ok(pending.op, env.now, history_recorder::answer(&answer));
        let mut judge = env.judge.lock();
        let check = match (&pending.operation, answer) {
            (Operation::Open, Answer::Session(lease)) => {
                let id = lease.session;
                judge.client_leased(self.identity(id), sent, slowest(self.ttl));
                let renew_at = env.now + self.ttl / 3;
                self.session = Some(Session { id, number: 0, alive: sent, renew_at });
                Ok(())
            }
            (Operation::Acquire { key, .. } | Operation::Once { key, .. }, Answer::Acquired(acquired)) => {
                let (session, token) = (acquired.session, Token(acquired.token));
                let holder = self.identity(session);
                judge.client_leased(holder, pending.begun, slowest(self.ttl));
                env.tally.grants_heard += 1;
                let until = env.now + Duration::from_millis(env.rng.random_range(1..600));
                self.held = Some(Held { key: key.clone(), token, session, until, access_at: env.now });
                judge.clients.client_granted(key, holder, token)
            }
            (Operation::Release { key, token, .. }, Answer::Released) => {
                env.tally.releases_heard += 1;
                self.held = None;
                judge.clients.client_released(key, *token)
            }
            (Operation::Close, Answer::SessionClosed) => {
                self.session = None;
                self.drop_renewal(env);
                Ok(())
            }
            (Operation::Read { key, consistency }, answer) => {
                env.tally.reads += 1;
                match (consistency, answer) {
                    (Consistency::Linearizable, Answer::Lock(view)) => {
                        self.shown = view.holder.as_ref().map(|holder| (key.clone(), Token(holder.token)));
                        judge.clients.client_read(key, pending.since, &lock_state(&view))
                    }
                    (Consistency::Stale, Answer::StaleLock(stale)) => {
                        judge.clients.client_read(key, Index(0), &lock_state(&stale.view))
                    }
                    (consistency, other) => {
                        let detail = format!("a {consistency:?} read was answered with {other:?}");
                        violated!(Property::ClientMessagesDecode, "{detail}")
                    }
                }
            }
            (Operation::Break { key, token }, Answer::Broken(broken)) => {
                env.tally.breaks += 1;
                judge.clients.client_broke(key, broken.session, *token)
            }
            (Operation::SetAccess { .. }, Answer::Access(_)) => {
                env.tally.rules_set += 1;
                Ok(())
            }
            (Operation::Withdraw { .. }, Answer::Withdrawn) => Ok(()),
            (operation, answer) => unreachable!("{operation:?} was answered with {answer:?}"),
        };
        judge.note(check);
    }

    fn fail(&mut self, mut pending: PendingOperation, failure: &Failure, env: &mut Environment<'_>) {
        match history_recorder::refusal(failure) {
            // An earlier attempt whose answer was lost may have done it: then nothing was left to
            // do, or the access rules were changed since.
            Some(Refusal::NotHolder | Refusal::NoSession) if pending.in_doubt => {
                env.history.info(pending.op, env.now, &failure.message);
            }
            Some(Refusal::Denied) if pending.in_doubt && !matches!(pending.operation, Operation::Acquire { .. }) => {
                env.history.info(pending.op, env.now, &failure.message);
            }
            Some(refusal) => env.history.fail(pending.op, env.now, refusal),
            None if matches!(failure.error, Code::Gone | Code::AccessChanged) => {
                env.history.info(pending.op, env.now, &failure.message);
            }
            None => {}
        }
        match failure.error {
            Code::Held | Code::Timeout | Code::Withdrawn | Code::Gone | Code::AccessChanged => {}
            Code::NotHolder if matches!(pending.operation, Operation::Break { .. }) => env.tally.breaks_missed += 1,
            Code::NotHolder => self.held = None,
            Code::Denied => env.tally.denials += 1,
            Code::NoSession => self.lose_session(env),
            Code::NotLeader
            | Code::NoLeader
            | Code::LeadershipLost
            | Code::ShuttingDown
            | Code::Overloaded
            | Code::NoSpace => {
                self.follow(failure, env);
                let in_doubt = matches!(failure.error, Code::LeadershipLost | Code::ShuttingDown);
                pending.in_doubt |= in_doubt;
                if matches!(pending.operation, Operation::Once { .. }) && in_doubt {
                    return env.history.info(pending.op, env.now, &failure.message);
                }
                let pause = if failure.leader.is_some() { 2..20 } else { 20..200 };
                pending.again = env.now + Duration::from_millis(env.rng.random_range(pause));
                pending.sent = None;
                self.pending = Some(pending);
            }
            other => {
                let detail = format!("{:?} was refused with {other:?}: {}", pending.operation, failure.message);
                env.judge.lock().note(violated!(Property::ClientMessagesDecode, "{detail}"));
            }
        }
    }
}

fn lock_state(view: &LockView) -> LockState {
    LockState {
        holder: view.holder.as_ref().map(|holder| (holder.session, Token(holder.token))),
        queue: view.queue.iter().map(|waiter| waiter.session).collect(),
    }
}
