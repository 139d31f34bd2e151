//! Clients: they open sessions, acquire and release locks in all modes, wait, withdraw, write records under
//! the locks that they hold or no longer hold, repeat unanswered requests, pause while they hold a lock, and
//! die. Some act as operators: they break the grant that a read has shown, and, in a cluster with access
//! control, set access rules.
//!
//! A client has one operation at a time, besides keeping its session alive. It repeats a numbered
//! operation under the same number, on a new connection and at the node that it takes for the
//! leader, until it knows the outcome; the exactly-once rule requires that (docs/protocol.md).

mod answers;
mod lock_spec;
mod requests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use palisade::core::{ConnectionId, Request, Secret, session_id};
use palisade_client::wire::{Consistency, SessionId};
use palisade_history::{self as history, Call, Change, Condition, Note, OpId, RecordChange, Refusal};
use palisade_spec::lock::{
    self, Key, Keys, Prefix, Principal, Revision, Right, Rights, Rule, Rules, Sequence, Subject, Token, Value,
};
use palisade_spec::raft::{Index, NodeId};
use rand::Rng;
use rand::rngs::SmallRng;

use super::call::{CallId, ClientId};
use super::history_recorder::{self, HistoryRecorder};
use super::judge::SharedJudge;
use super::resource::Resource;
use super::tally::Tally;
use crate::shown;
use lock_spec::{LockSpec, any_key};

/// Time that a client waits for an answer beyond the requested wait.
const PATIENCE: Duration = Duration::from_millis(700);
/// The clients' names in a cluster with access control: several clients share one.
const NAMES: [&str; 3] = ["ann", "bob", "carol"];
/// Has the certificate of an administrator.
pub(super) const ADMINISTRATOR: &str = "admin/root";

/// A client's environment.
pub(super) struct Environment<'a> {
    pub(super) now: Duration,
    pub(super) rng: &'a mut SmallRng,
    pub(super) judge: &'a SharedJudge,
    pub(super) resource: &'a mut Resource,
    pub(super) tally: &'a mut Tally,
    pub(super) history: &'a mut HistoryRecorder,
    /// The nodes that clients know.
    pub(super) nodes: &'a [NodeId],
    /// The cluster has access control.
    pub(super) has_access_control: bool,
    /// Clients begin nothing new.
    pub(super) closing: bool,
}

/// A client's effect on the world.
#[derive(Debug)]
pub(super) enum ClientAction {
    /// It sends a request to a node.
    Request(NodeId, CallId, Request),
    /// It closes a connection; the node may notice late.
    HangUp(NodeId, ConnectionId),
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    id: ClientId,
    /// The client's name in the history.
    name: history::Client,
    /// The name that it has proved.
    principal: Principal,
    ttl: Duration,
    session: Option<Session>,
    /// The last grant that a read has shown.
    shown: Option<(Key, Token)>,
    held: Option<Held>,
    /// An earlier grant of the same session, beside the one that it holds.
    beside: Option<Held>,
    /// The last grant that it has had.
    former: Option<(Key, Token)>,
    /// The last version that it knows of each record; 0: there is none.
    versions: BTreeMap<Key, u64>,
    pending: Option<PendingOperation>,
    renewal: Option<Renewal>,
    /// The presumed leader.
    leader: NodeId,
    connection: u64,
    calls: u64,
    /// When it may begin its next operation.
    idle_until: Duration,
    /// The client is paused until then.
    pub(super) paused_until: Duration,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    number: u64,
    /// When the latest request was sent that is known to have kept the session alive.
    alive: Duration,
    renew_at: Duration,
}

#[derive(Debug)]
struct Held {
    spec: LockSpec,
    token: Token,
    session: SessionId,
    /// How many releases give it up; `None` if that is not certain.
    holds: Option<u32>,
    until: Duration,
    access_at: Duration,
}

/// The client's present operation.
#[derive(Debug)]
struct PendingOperation {
    op: OpId,
    operation: Operation,
    number: Option<Sequence>,
    /// When the operation began.
    begun: Duration,
    /// The commit index at that time.
    since: Index,
    sent: Option<Sent>,
    /// The outcome of an earlier attempt is unknown.
    in_doubt: bool,
    /// When the client repeats the request, or gives up waiting.
    again: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    call: CallId,
    at: Duration,
    /// How long the request may wait in a queue.
    wait: Duration,
}

/// A keepalive in flight.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    op: OpId,
    sent: Sent,
}

#[derive(Clone, Debug, PartialEq)]
enum Operation {
    Open,
    Close,
    Acquire {
        spec: LockSpec,
        wait: Duration,
    },
    Once {
        spec: LockSpec,
        wait: Duration,
    },
    Release {
        keys: Keys,
        token: Token,
        session: SessionId,
    },
    Withdraw {
        keys: Keys,
    },
    Read {
        key: Key,
        consistency: Consistency,
    },
    Proclaim {
        key: Key,
        token: Token,
        session: SessionId,
        value: Value,
    },
    /// The transaction as the history has it, but for its number.
    Write {
        transaction: Call,
        session: Option<SessionId>,
    },
    ReadRecord {
        record: Key,
        consistency: Consistency,
    },
    Break {
        key: Key,
        token: Token,
    },
    SetAccess {
        principal: Principal,
        revision: Revision,
        rules: Option<Arc<Rules>>,
    },
}

impl Client {
    pub(super) fn new(id: ClientId, has_access_control: bool, rng: &mut SmallRng) -> Client {
        let name = if has_access_control { NAMES[usize::from(id.0) % NAMES.len()] } else { "" };
        Client::with_life(id, 0, Principal::from(name), rng)
    }

    fn with_life(id: ClientId, life: u64, principal: Principal, rng: &mut SmallRng) -> Client {
        Client {
            id,
            principal,
            shown: None,
            former: None,
            versions: BTreeMap::new(),
            name: history::Client::from(format!("c{}.{life}", id.0).as_str()),
            ttl: Duration::from_millis(rng.random_range(400..4000)),
            session: None,
            held: None,
            beside: None,
            pending: None,
            renewal: None,
            leader: NodeId(1),
            connection: 0,
            calls: 0,
            idle_until: Duration::from_millis(rng.random_range(0..2000)),
            paused_until: Duration::ZERO,
        }
    }

    /// Whether the client has no operation and no lock.
    pub(super) fn is_done(&self) -> bool {
        self.held.is_none() && self.pending.is_none()
    }

    /// Kills the client and replaces it by a new one without its state. The node may never learn of
    /// it.
    pub(super) fn die(&mut self, env: &mut Environment<'_>) -> Option<ClientAction> {
        let open = self.pending.iter().map(|pending| pending.op).chain(self.renewal.iter().map(|renewal| renewal.op));
        for op in open {
            env.history.note(op, env.now, Note::Disconnected);
            env.history.info(op, env.now, "the client died");
        }
        let rng = &mut *env.rng;
        let connection = self.connection_id();
        self.connection += 1;
        let (id, connections, calls) = (self.id, self.connection, self.calls);
        let notice = rng.random::<bool>().then_some(ClientAction::HangUp(self.leader, connection));
        let principal = self.principal.clone();
        *self = Client { connection: connections, calls, ..Client::with_life(id, connections, principal, rng) };
        notice
    }

    /// Time of the client's next action.
    pub(super) fn next(&self) -> Duration {
        let mut next = match &self.pending {
            Some(pending) => pending.again,
            None => self.held.as_ref().map_or(self.idle_until, |held| held.until.min(held.access_at)),
        };
        if let Some(session) = &self.session {
            next = next.min(self.renewal.map_or(session.renew_at, |renewal| renewal.sent.at + PATIENCE));
        }
        next.max(self.paused_until)
    }

    /// Performs the actions that are due.
    pub(super) fn act(&mut self, env: &mut Environment<'_>, actions: &mut Vec<ClientAction>) {
        let now = env.now;
        if let Some(renewal) = self.renewal.take_if(|renewal| renewal.sent.at + PATIENCE <= now) {
            env.history.info(renewal.op, now, "not answered in time");
            self.hang_up(env, actions);
        }
        if let Some(session) = &mut self.session
            && self.renewal.is_none()
            && session.renew_at <= now
        {
            session.renew_at = now + self.ttl / 3;
            let id = session.id;
            let op = env.history.invoke(&self.name, now, Call::KeepAlive { session: shown::session(id) });
            let request = Request::KeepAlive { session: self.identity(id), secret: Secret::of(id), grant: None };
            let sent = self.send(request, now, Duration::ZERO, actions);
            self.renewal = Some(Renewal { op, sent });
        }
        if let Some(held) = &mut self.held
            && held.access_at <= now
        {
            held.access_at = now + env.rng.random_range(5..120) * Duration::from_millis(1);
            if let Some(reads) = held.spec.access_reads() {
                let keys = held.spec.keys.as_slice();
                let key = &keys[env.rng.random_range(0..keys.len())];
                let call = Call::Access { key: history_recorder::key(key), token: held.token.0, reads };
                let op = env.history.invoke(&self.name, now, call);
                if env.resource.access(key, held.token, reads, env.tally) {
                    env.history.ok(op, now, history::Answer::Accepted);
                } else {
                    env.history.fail(op, now, Refusal::Refused);
                }
            }
        }
        if self.pending.as_ref().is_some_and(|pending| pending.again <= now) {
            self.send_or_give_up(env, actions);
        } else if self.pending.is_none()
            && let Some(operation) = self.next_operation(env)
        {
            self.begin(operation, env, actions);
        }
    }

    /// Draws the next operation, if any.
    fn next_operation(&mut self, env: &mut Environment<'_>) -> Option<Operation> {
        let (now, rng) = (env.now, &mut *env.rng);
        if let Some(held) = &self.held {
            if held.until > now && !env.closing {
                return match rng.random_range(0..10) {
                    0..3 => Some(self.write_as_holder(rng)),
                    3 => Some(self.proclaim(rng)),
                    _ => self.acquire_again(rng),
                };
            }
            let Held { spec, token, session, .. } = held;
            return Some(Operation::Release { keys: spec.keys.clone(), token: *token, session: *session });
        }
        if self.idle_until > now {
            return None;
        }
        self.idle_until = now + Duration::from_millis(rng.random_range(1..400));
        if env.closing {
            self.idle_until = now + Duration::from_secs(1);
            return None;
        }
        let (key, spec) = (any_key(rng), LockSpec::draw(rng));
        let wait = |rng: &mut SmallRng| Duration::from_millis(rng.random_range(100..6000));
        let operation = match rng.random_range(0..if env.has_access_control { 27 } else { 26 }) {
            23..=24 => self.write_late_or_without_a_lock(rng),
            25 => {
                let consistency = [Consistency::Linearizable, Consistency::Stale][usize::from(rng.random_bool(0.2))];
                Operation::ReadRecord { record: key, consistency }
            }
            20..=21 => match self.shown.take() {
                Some((key, token)) => Operation::Break { key, token: mistaken(token, rng) },
                None => Operation::Read { key, consistency: Consistency::Linearizable },
            },
            26 => self.change_of_rules(env),
            22 => Operation::ReadRecord { record: key, consistency: Consistency::Linearizable },
            0 => Operation::Once { spec, wait: wait(rng) },
            1 => Operation::Once { spec, wait: Duration::ZERO },
            2 => Operation::Read { key, consistency: Consistency::Stale },
            3..=4 => Operation::Read { key, consistency: Consistency::Linearizable },
            // Mostly it goes on with the session that the acquire opens.
            _ if self.session.is_none() && rng.random_bool(0.4) => Operation::Once { spec, wait: wait(rng) },
            _ if self.session.is_none() => Operation::Open,
            5 => Operation::Close,
            6..=8 => Operation::Acquire { spec, wait: Duration::ZERO },
            _ => Operation::Acquire { spec, wait: wait(rng) },
        };
        Some(operation)
    }

    /// Sometimes a holder acquires what it holds once more, or as it may not, or another lock beside it.
    fn acquire_again(&self, rng: &mut SmallRng) -> Option<Operation> {
        let held = self.held.as_ref().filter(|held| self.session.as_ref().is_some_and(|own| own.id == held.session))?;
        let (spec, wait) = match rng.random_range(0..20) {
            0..3 if held.spec.reentrant => (held.spec.with_any_value(rng), Duration::ZERO),
            3 => (held.spec.conflicting(), Duration::ZERO),
            // Two clients may wait for each other: the bound ends that.
            4..8 if self.beside.is_none() => {
                let (other, wait) = (LockSpec::draw(rng), Duration::from_millis(rng.random_range(0..1500)));
                (Some(other).filter(|other| !other.shares_a_key(&held.spec))?, wait)
            }
            _ => return None,
        };
        Some(Operation::Acquire { spec, wait })
    }

    /// Another value of the grant that it holds.
    fn proclaim(&self, rng: &mut SmallRng) -> Operation {
        let Held { spec, token, session, .. } = self.held.as_ref().expect("it holds a lock");
        let keys = spec.keys.as_slice();
        let key = keys[rng.random_range(0..keys.len())].clone();
        Operation::Proclaim { key, token: *token, session: *session, value: Value::from(self.new_text().as_str()) }
    }

    /// A change of the record of a lock that it holds, perhaps together with that of another one that it holds.
    fn write_as_holder(&self, rng: &mut SmallRng) -> Operation {
        let held = self.held.as_ref().expect("it holds a lock");
        let grants = [Some(held), self.beside.as_ref()];
        let locks = grants.into_iter().flatten().flat_map(|held| held.spec.keys.iter().map(|key| (key, held.token)));
        let record = held.spec.keys.as_slice()[rng.random_range(0..held.spec.keys.count())].clone();
        let others: Vec<(&Key, Token)> = locks.filter(|(key, _)| **key != record).collect();
        let session = self.session.as_ref().map(|own| own.id).filter(|own| *own == held.session);
        self.draw_transaction(&record, Some(held.token), &others, session, rng)
    }

    /// A change by a client that holds no lock: under its former token, with or without a number, or under
    /// none.
    fn write_late_or_without_a_lock(&self, rng: &mut SmallRng) -> Operation {
        let session = self.session.as_ref().map(|own| own.id).filter(|_| rng.random());
        match &self.former.as_ref().filter(|_| rng.random_bool(0.7)) {
            Some((record, token)) => self.draw_transaction(record, Some(*token), &[], session, rng),
            None => self.draw_transaction(&any_key(rng), None, &[], session, rng),
        }
    }

    /// A change of this record, under a token of its lock; sometimes together with another record, mostly under one of
    /// these other locks; and sometimes if it has the version that the client knows, or a wrong one.
    fn draw_transaction(
        &self,
        record: &Key,
        token: Option<Token>,
        others: &[(&Key, Token)],
        session: Option<SessionId>,
        rng: &mut SmallRng,
    ) -> Operation {
        let (mut also, mut conditions) = (Vec::new(), Vec::new());
        if rng.random_bool(0.3) {
            let other = (!others.is_empty() && rng.random_bool(0.7)).then(|| others[rng.random_range(0..others.len())]);
            conditions.extend(other.map(|(lock, token)| {
                let lock = history_recorder::key(lock);
                Condition::Held { lock, token: token.0 }
            }));
            let other = other.map_or_else(|| any_key(rng), |(lock, _)| lock.clone());
            if other != *record {
                also.push(RecordChange {
                    record: history_recorder::key(&other),
                    change: self.draw_change(&other, rng),
                });
            }
        }
        if rng.random_bool(0.4) {
            let known = self.versions.get(record).copied().unwrap_or(0);
            let version = match rng.random_range(0..10) {
                0 => known + 1,
                1 => known.saturating_sub(1),
                _ => known,
            };
            conditions.push(Condition::Version { key: history_recorder::key(record), version });
        }
        let transaction = Call::WriteRecord {
            record: history_recorder::key(record),
            change: self.draw_change(record, rng),
            also,
            token: token.map(|token| token.0),
            conditions,
            session: session.map(shown::session),
            number: None,
        };
        Operation::Write { transaction, session }
    }

    /// A text that no other operation has.
    fn new_text(&self) -> String {
        format!("{}.{};", self.id.0, self.calls)
    }

    /// No two changes write the same text, also those of one transaction.
    fn draw_change(&self, record: &Key, rng: &mut SmallRng) -> Change {
        let text = format!("{}.{}", record.as_str(), self.new_text());
        match rng.random_range(0..20) {
            0 => Change::Delete,
            1..4 => Change::Put(text.into()),
            _ => Change::Append(text.into()),
        }
    }

    /// A change of the access rules, mostly by an administrator that has read the present revision.
    fn change_of_rules(&self, env: &mut Environment<'_>) -> Operation {
        let judge = env.judge.lock();
        let known = judge.checker.reference().map_or(0, |agreed| agreed.machine().access().revision().0);
        drop(judge);
        let rng = &mut *env.rng;
        let principal = if rng.random_bool(0.2) { self.principal.clone() } else { Principal::from(ADMINISTRATOR) };
        let revision = Revision(if rng.random_bool(0.2) { known.saturating_sub(1) } else { known });
        // Without rules, or with many, the other operations have effects.
        let rules = rng.random_bool(0.6).then(|| {
            let rules = (0..rng.random_range(1..6)).map(|_| Rule {
                prefix: Prefix::from(["", "", "ledger", "mail"][rng.random_range(0..4)]),
                subject: match rng.random_range(0..2 * NAMES.len()) {
                    name if name < NAMES.len() => Subject::Principal(Principal::from(NAMES[name])),
                    _ => Subject::Everyone,
                },
                rights: Rights::of(Right::ALL.into_iter().filter(|_| rng.random_bool(0.7))),
            });
            Arc::new(Rules::new(Vec::new(), rules.collect()))
        });
        Operation::SetAccess { principal, revision, rules }
    }

    fn begin(&mut self, operation: Operation, env: &mut Environment<'_>, actions: &mut Vec<ClientAction>) {
        let own = match &operation {
            Operation::Acquire { .. } | Operation::Withdraw { .. } => self.session.as_mut(),
            Operation::Release { session, .. }
            | Operation::Proclaim { session, .. }
            | Operation::Write { session: Some(session), .. } => self.session.as_mut().filter(|own| own.id == *session),
            _ => None,
        };
        let number = own.and_then(|session| {
            session.number += 1;
            Sequence::new(session.number)
        });
        let since = env.judge.lock().last();
        env.tally.operations += 1;
        let call = self.call(&operation, number);
        let op = env.history.invoke(&self.name, env.now, call);
        let (begun, again) = (env.now, env.now);
        self.pending =
            Some(PendingOperation { op, operation, number, begun, since, sent: None, in_doubt: false, again });
        self.send_or_give_up(env, actions);
    }

    /// Sends the request, or repeats it, or gives up waiting.
    fn send_or_give_up(&mut self, env: &mut Environment<'_>, actions: &mut Vec<ClientAction>) {
        let Some(mut pending) = self.pending.take() else { return };
        let now = env.now;
        if pending.sent.take().is_some() {
            if !matches!(pending.operation, Operation::Write { .. }) || !pending.is_sent_once() {
                env.history.note(pending.op, now, Note::Disconnected);
            }
            self.hang_up(env, actions);
            if pending.is_sent_once() {
                return env.history.info(pending.op, now, "not answered in time");
            }
            pending.in_doubt = true;
            env.tally.repetitions += 1;
        }
        if let Operation::Acquire { spec, wait } = &pending.operation
            && !wait.is_zero()
            && now > pending.begun
            && now >= pending.begun + *wait
        {
            env.history.info(pending.op, now, "not answered in time, and given up");
            return self.begin(Operation::Withdraw { keys: spec.keys.clone() }, env, actions);
        }
        let Some((request, wait)) = self.build_request(&pending, env) else {
            return env.history.info(pending.op, now, "the session is lost");
        };
        let sent = self.send(request, now, wait, actions);
        // Some hang up while they wait, and repeat the request under the same number: they find the wait, or the
        // grant of which they were not told. Those that hold another lock meanwhile have more to lose, and do it more
        // often.
        let waits = matches!(pending.operation, Operation::Acquire { .. }) && !wait.is_zero();
        let impatience = if self.held.is_some() { 0.6 } else { 0.2 };
        let is_impatient = waits && env.rng.random_bool(impatience);
        let patience = if is_impatient { wait.mul_f64(env.rng.random()) } else { wait + PATIENCE };
        pending.again = now + patience;
        pending.sent = Some(sent);
        self.pending = Some(pending);
    }

    fn send(&mut self, request: Request, now: Duration, wait: Duration, actions: &mut Vec<ClientAction>) -> Sent {
        self.calls += 1;
        let call = CallId { client: self.id, number: self.calls, connection: self.connection_id() };
        actions.push(ClientAction::Request(self.leader, call, request));
        Sent { call, at: now, wait }
    }

    /// A session of the client as the lock table knows it.
    fn identity(&self, credential: SessionId) -> lock::SessionId {
        session_id(credential, self.principal.as_str())
    }

    fn connection_id(&self) -> ConnectionId {
        ConnectionId(u64::from(self.id.0) << 32 | self.connection)
    }

    /// Closes the connection and picks another node.
    fn hang_up(&mut self, env: &mut Environment<'_>, actions: &mut Vec<ClientAction>) {
        actions.push(ClientAction::HangUp(self.leader, self.connection_id()));
        self.connection += 1;
        self.leader = env.nodes[env.rng.random_range(0..env.nodes.len())];
        if let Some(pending) = &mut self.pending {
            pending.again = env.now;
        }
    }
}

impl PendingOperation {
    /// Each sending of such an operation would be executed by itself, so it is not repeated: its outcome
    /// stays unknown, and a session that it has opened expires.
    fn is_sent_once(&self) -> bool {
        matches!(self.operation, Operation::Once { .. })
            || matches!(self.operation, Operation::Write { .. }) && self.number.is_none()
    }
}

/// The token that an operator names: sometimes the one before, or the next one.
fn mistaken(token: Token, rng: &mut SmallRng) -> Token {
    match rng.random_range(0..8) {
        0 => Token(token.0 - 1),
        1 => Token(token.0 + 1),
        _ => token,
    }
}
