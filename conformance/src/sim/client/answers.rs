//! Applies answers to a client, and reports them to the judge.

use std::time::Duration;

use palisade::core::session_id;
use palisade_client::wire::{self, Answer, Code, Consistency, Failure, LeaderView, LockView};
use palisade_history::{self as history, Change, Refusal};
use palisade_spec::invariants::Property;
use palisade_spec::lock::{Key, Mode, Revision, Sequence, Token};
use palisade_spec::raft::{Index, NodeId};
use palisade_spec::violated;
use rand::Rng;

use super::super::call::CallId;
use super::super::client_facts::{HolderState, LockState, RecordState, WaiterState};
use super::super::clock::slowest;
use super::super::history_recorder;
use super::super::host::Reply;
use super::super::tally::Tally;
use super::lock_spec::{LockSpec, wire_keys};
use super::{Client, Environment, Held, Operation, PendingOperation, Renewal, Sent, Session};

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
            self.beside.take_if(|beside| beside.session == session.id);
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
            (Operation::Acquire { spec, .. } | Operation::Once { spec, .. }, Answer::Acquired(acquired)) => {
                let (session, token) = (acquired.session, Token(acquired.token));
                let holder = self.identity(session);
                judge.client_leased(holder, pending.begun, slowest(self.ttl));
                count_grant(spec, env.tally);
                let waited = waited(pending, spec)
                    .map_or(Ok(()), |(number, max_queue)| judge.clients.client_waited(holder, number, max_queue));
                let again = self.held.as_ref().filter(|held| held.token == token && held.spec.is_same_claim(spec));
                let holds = again.map_or(Some(1), |held| held.holds.map(|holds| holds + 1));
                env.tally.holds_added += u64::from(again.is_some());
                let until = env.now + Duration::from_millis(env.rng.random_range(1..600));
                let spec = spec.clone();
                let check = waited.and_then(|()| {
                    if acquired.keys != wire_keys(&spec.keys) {
                        let detail = format!("an acquire of {} was answered as one of {}", spec.keys, acquired.keys);
                        return violated!(Property::AnswersMatchRequests, "{detail}");
                    }
                    let value = spec.value.as_ref();
                    judge.clients.client_granted(&spec.keys, spec.mode, value, holder, token, pending.since)
                });
                if matches!(pending.operation, Operation::Once { .. })
                    && self.session.is_none()
                    && env.rng.random_bool(0.8)
                {
                    // It goes on with the session that its acquire has opened.
                    let renew_at = env.now + self.ttl / 3;
                    self.session = Some(Session { id: session, number: 0, alive: pending.begun, renew_at });
                }
                if let Some(held) = self.held.take_if(|held| !held.spec.shares_a_key(&spec)) {
                    env.tally.claims_beside += 1;
                    self.beside = Some(held);
                }
                self.former = Some((spec.keys.first().clone(), token));
                self.held = Some(Held { spec, token, session, holds, until, access_at: env.now });
                check
            }
            (Operation::Release { keys, token, .. }, answer @ (Answer::Released | Answer::StillHeld { .. })) => {
                let left = if let Answer::StillHeld { holds } = answer { holds } else { 0 };
                let expected = self.held.as_ref().and_then(|held| held.holds).map(|holds| holds - 1);
                if left == 0 {
                    env.tally.releases_heard += 1;
                    self.held = self.beside.take();
                } else if let Some(held) = &mut self.held {
                    env.tally.holds_dropped += 1;
                    held.holds = Some(left);
                }
                // A repetition may come after the end of the grant, which the judge knows.
                let may_have_ended = left == 0 && pending.in_doubt;
                if !may_have_ended && expected.is_some_and(|expected| expected != left) {
                    let detail =
                        format!("a release of {keys} with token {token} leaves {left} holds, not {expected:?}");
                    violated!(Property::AnswersMatchRequests, "{detail}")
                } else if left > 0 {
                    judge.clients.client_holds(keys, *token, left, pending.since)
                } else {
                    judge.clients.client_released(keys, *token)
                }
            }
            (Operation::Close, Answer::SessionClosed) => {
                let closed = self.session.take();
                self.drop_renewal(env);
                closed.map_or(Ok(()), |session| judge.client_closed(self.identity(session.id)))
            }
            (Operation::Read { key, consistency }, answer) => {
                env.tally.reads += 1;
                match (consistency, answer) {
                    (Consistency::Linearizable, Answer::Lock(view)) => {
                        let holders = &view.holders;
                        let shown = (!holders.is_empty()).then(|| env.rng.random_range(0..holders.len()));
                        self.shown = shown.map(|shown| (key.clone(), Token(holders[shown].token)));
                        judge.clients.client_read(key, pending.since, &lock_state(&view), !env.has_access_control)
                    }
                    (Consistency::Stale, Answer::StaleLock(stale)) => {
                        judge.clients.client_read(key, Index(0), &lock_state(&stale.view), !env.has_access_control)
                    }
                    (consistency, other) => {
                        let detail = format!("a {consistency:?} read was answered with {other:?}");
                        violated!(Property::ClientMessagesDecode, "{detail}")
                    }
                }
            }
            (Operation::Proclaim { key, token, value, .. }, Answer::Proclaimed) => {
                env.tally.proclaimed += 1;
                judge.clients.client_proclaimed(key, *token, value, pending.since)
            }
            (Operation::Write { transaction, .. }, Answer::Written { version }) => {
                env.tally.writes += 1;
                env.tally.writes_of_holders += u64::from(transaction.must_hold().next().is_some());
                env.tally.writes_of_several += u64::from(transaction.changes().count() > 1);
                env.tally.writes_compared += u64::from(transaction.must_have().next().is_some());
                for (record, change) in transaction.changes() {
                    let version = if *change == Change::Delete { 0 } else { version };
                    self.versions.insert(Key::from(&*record.0), version);
                }
                judge.clients.client_wrote(transaction, version, pending.since)
            }
            (Operation::ReadRecord { record, .. }, answer) => {
                env.tally.reads_of_records += 1;
                let (since, view) = match answer {
                    Answer::Record(view) => (pending.since, view),
                    Answer::StaleRecord(stale) => (Index(0), stale.view),
                    other => unreachable!("a read of a record was answered with {other:?}"),
                };
                self.versions.insert(record.clone(), view.version);
                let seen = RecordState { version: view.version, fence: view.fence, content: view.value.0 };
                judge.clients.client_read_record(record, since, Some(&seen))
            }
            (Operation::Break { key, token }, Answer::Broken(broken)) => {
                env.tally.breaks += 1;
                judge.clients.client_broke(key, broken.session, *token)
            }
            (Operation::SetAccess { rules, .. }, Answer::Access(shown)) => {
                env.tally.rules_set += 1;
                judge.clients.client_set_rules(rules.as_ref(), Revision(shown.revision), pending.since)
            }
            (Operation::Withdraw { keys }, Answer::Withdrawn) => {
                // The client may have lost its session meanwhile.
                let session = self.session.as_ref().map(|session| self.identity(session.id));
                session.map_or(Ok(()), |session| judge.client_withdrew(keys, session))
            }
            // No client withdraws what it has acquired twice.
            (Operation::Withdraw { keys }, Answer::StillHeld { holds }) => violated!(
                Property::AnswersMatchRequests,
                "a withdrawal of {keys} was answered with {holds} holds that are left"
            ),
            (operation, answer) => unreachable!("{operation:?} was answered with {answer:?}"),
        };
        judge.note(check);
    }

    /// A read found no record.
    fn find_none(&mut self, pending: &PendingOperation, env: &mut Environment<'_>) {
        let Operation::ReadRecord { record, consistency } = &pending.operation else {
            return env.judge.lock().note(violated!(
                Property::ClientMessagesDecode,
                "{:?} was answered as a read of a record that does not exist",
                pending.operation
            ));
        };
        env.tally.reads_of_records += 1;
        env.history.ok(pending.op, env.now, history::Answer::NoRecord);
        self.versions.insert(record.clone(), 0);
        let since = if *consistency == Consistency::Stale { Index(0) } else { pending.since };
        let mut judge = env.judge.lock();
        let check = judge.clients.client_read_record(record, since, None);
        judge.note(check);
    }

    fn fail(&mut self, mut pending: PendingOperation, failure: &Failure, env: &mut Environment<'_>) {
        if failure.error == Code::NoRecord {
            return self.find_none(&pending, env);
        }
        match history_recorder::refusal(failure) {
            // An earlier attempt whose answer was lost may have done it: then nothing was left to
            // do, or the access rules were changed since.
            Some(Refusal::NotHolder | Refusal::NoSession | Refusal::NotTaken { .. }) if pending.in_doubt => {
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
        self.doubt_holds(&pending);
        match failure.error {
            Code::Held => self.check_held(&pending, failure, env),
            Code::Invalid => self.check_other_claim(&pending, failure, env),
            Code::Timeout => self.check_wait(&pending, env),
            Code::Withdrawn => self.check_withdrawn(&pending, env),
            Code::Gone | Code::AccessChanged => {}
            Code::NotHolder if matches!(pending.operation, Operation::Break { .. }) => env.tally.breaks_missed += 1,
            Code::NotHolder => self.held = self.beside.take(),
            Code::Denied => self.check_denied(&pending, env),
            Code::StaleToken => env.tally.writes_refused += 1,
            Code::OtherVersion => self.learn_version(&pending, failure, env),
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
                if pending.is_sent_once() && in_doubt {
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

/// The checks of refusals.
impl Client {
    /// A transaction compared another version than the record's, which the client knows now.
    fn learn_version(&mut self, pending: &PendingOperation, failure: &Failure, env: &mut Environment<'_>) {
        env.tally.versions_refused += 1;
        let compared = match &pending.operation {
            Operation::Write { transaction, .. } => transaction.must_have().next(),
            _ => None,
        };
        let mut judge = env.judge.lock();
        let check = match (compared, failure.version) {
            (Some((record, compared)), Some(version)) if version != compared => {
                let record = Key::from(&*record.0);
                let check = judge.clients.client_refused_for_a_version(&record, version, pending.since);
                self.versions.insert(record, version);
                check
            }
            (_, version) => violated!(
                Property::AnswersMatchRequests,
                "{:?} was refused because of version {version:?} of a record",
                pending.operation
            ),
        };
        judge.note(check);
    }

    /// If an acquire of what the client holds fails, an earlier attempt may have added a hold.
    fn doubt_holds(&mut self, pending: &PendingOperation) {
        if let (Operation::Acquire { spec, .. }, Some(held)) = (&pending.operation, &mut self.held)
            && pending.in_doubt
            && *spec == held.spec
        {
            held.holds = None;
        }
    }

    /// An acquire that waits is refused only where the queue is longer than it permits.
    fn check_held(&self, pending: &PendingOperation, failure: &Failure, env: &mut Environment<'_>) {
        let (Operation::Acquire { spec, wait } | Operation::Once { spec, wait }) = &pending.operation else { return };
        if wait.is_zero() {
            return;
        }
        let is_long = spec.max_queue.is_some_and(|max_queue| failure.queue >= Some(max_queue.into()));
        if is_long {
            env.tally.short_queues += 1;
        } else {
            let detail = format!("{spec:?} was refused with a queue of {:?}, and waits", failure.queue);
            env.judge.lock().note(violated!(Property::AnswersMatchRequests, "{detail}"));
        }
    }

    /// An acquire is invalid only because of another claim: on the lock, or of its session.
    fn check_other_claim(&self, pending: &PendingOperation, failure: &Failure, env: &mut Environment<'_>) {
        env.tally.other_claims += 1;
        let mut judge = env.judge.lock();
        let check = match (&pending.operation, &self.session, pending.number) {
            (Operation::Acquire { .. }, Some(session), Some(number)) => {
                judge.clients.client_refused_for_another_claim(self.identity(session.id), number)
            }
            // The client has lost its session meanwhile, by which the judge would know the acquire.
            (Operation::Acquire { .. }, None, Some(_)) => Ok(()),
            // An acquire that opens its session has no number.
            (Operation::Once { .. }, ..) => Ok(()),
            (operation, ..) => {
                violated!(Property::ClientMessagesDecode, "{operation:?} was refused as invalid: {}", failure.message)
            }
        };
        judge.note(check);
    }

    fn check_withdrawn(&self, pending: &PendingOperation, env: &mut Environment<'_>) {
        if let (Operation::Acquire { .. }, Some(session)) = (&pending.operation, &self.session) {
            let mut judge = env.judge.lock();
            let check = judge.clients.client_withdrawn(self.identity(session.id), pending.since);
            judge.note(check);
        }
    }

    /// Without access control nothing is denied.
    fn check_denied(&self, pending: &PendingOperation, env: &mut Environment<'_>) {
        env.tally.denials += 1;
        if !env.has_access_control {
            let detail = format!("{:?} was denied, and there is no access control", pending.operation);
            env.judge.lock().note(violated!(Property::AnswersMatchRequests, "{detail}"));
        }
    }

    /// A wait that ran out lasted as long as the request that was answered had asked, by the fastest clock.
    fn check_wait(&self, pending: &PendingOperation, env: &mut Environment<'_>) {
        let (Operation::Acquire { spec, .. } | Operation::Once { spec, .. }) = &pending.operation else {
            let detail = format!("{:?} was answered as a wait that ran out", pending.operation);
            return env.judge.lock().note(violated!(Property::ClientMessagesDecode, "{detail}"));
        };
        if let Some(Sent { at, wait, .. }) = pending.sent
            && env.now < at + slowest(wait)
        {
            let detail = format!("a wait for {} ran out after {:?}, and was to last {wait:?}", spec.keys, env.now - at);
            env.judge.lock().note(violated!(Property::AnswersMatchRequests, "{detail}"));
        }
        if let (Some((number, max_queue)), Some(session)) = (waited(pending, spec), &self.session) {
            let mut judge = env.judge.lock();
            let check = judge.clients.client_waited(self.identity(session.id), number, max_queue);
            judge.note(check);
        }
    }
}

/// The number of an acquire that waits in a bounded queue only, and the bound.
fn waited(pending: &PendingOperation, spec: &LockSpec) -> Option<(Sequence, u32)> {
    Some((pending.number?, spec.max_queue?))
}

fn count_grant(spec: &LockSpec, tally: &mut Tally) {
    tally.grants_heard += 1;
    tally.grants_shared += u64::from(spec.mode == Mode::SHARED);
    tally.grants_of_permits += u64::from(spec.mode.as_semaphore().is_some());
    tally.grants_of_several += u64::from(spec.keys.count() > 1);
    tally.grants_with_value += u64::from(spec.value.is_some());
}

fn lock_state(view: &LockView) -> LockState {
    let holders = view.holders.iter().map(|holder| HolderState {
        session: holder.session,
        token: Token(holder.token),
        mode: mode(holder.mode, holder.permits, holder.of),
        holds: holder.holds,
        value: holder.value.clone(),
        keys: holder.keys.clone(),
    });
    let queue = view.queue.iter().map(|waiter| WaiterState {
        session: waiter.session,
        mode: mode(waiter.mode, waiter.permits, waiter.of),
        keys: waiter.keys.clone(),
    });
    LockState { holders: holders.collect(), queue: queue.collect() }
}

fn mode(mode: wire::Mode, permits: Option<u32>, of: Option<u32>) -> Mode {
    match mode {
        wire::Mode::Exclusive => Mode::EXCLUSIVE,
        wire::Mode::Shared => Mode::SHARED,
        wire::Mode::Semaphore => permits
            .zip(of)
            .and_then(|(permits, of)| Mode::semaphore(permits, of))
            .expect("a semaphore is shown with its permits"),
    }
}
