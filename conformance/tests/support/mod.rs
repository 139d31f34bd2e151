//! Generates correct histories: clients, a network that delays, loses and repeats, and the lock
//! table of `spec`.
//!
//! Every request is applied to the one table at a moment between its sending and its answer, so a
//! history is linearizable by construction. The same seed generates the same history.

mod asks;

use std::collections::BTreeMap;

use palisade_history::{
    self as history, Answer, Call, Change, Client, Event, History, Holder, Key, Keys, Note, OpId, Refusal, Session,
    Time,
};
use palisade_spec::lock::{
    self, Claim, Command, Condition, LockRequest, LockTable, Mode, Opening, Outcome, Owner, Principal, Proof, Reply,
    Revision, Sequence, SessionId, Token, Transaction, Ttl, Value, Writer,
};
use palisade_spec::raft::{Stamp, StateMachine};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Size of a history.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    /// Approximate number of operations.
    pub(crate) operations: u64,
    pub(crate) ttl_ms: u64,
    /// Whether clients access the resource and make stale reads.
    pub(crate) resource: bool,
    /// Whether operators break grants and change the access rules.
    pub(crate) operators: bool,
    /// How locks are asked for.
    pub(crate) claims: Claims,
}

/// How the clients of a history ask for locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claims {
    /// In exclusive mode, one key at a time, with any queue.
    #[allow(dead_code, reason = "each test uses some of these")]
    Exclusive,
    /// In all modes, one key at a time, also with a bound on the queue, and again what is held (reentrant).
    #[allow(dead_code, reason = "each test uses some of these")]
    OneKey,
    /// The same, and several keys together, values and records.
    #[allow(dead_code, reason = "each test uses some of these")]
    All,
}

/// Generates a correct history.
pub(crate) fn correct(seed: u64, size: Size) -> History {
    let mut world = World {
        random: StdRng::seed_from_u64(seed),
        size,
        table: LockTable::default(),
        now: 0,
        next: 0,
        clients: (0..size.clients).map(|_| Member::default()).collect(),
        requests: Vec::new(),
        events: Vec::new(),
        past: BTreeMap::new(),
        highest: BTreeMap::new(),
    };
    // Every client begins with a session.
    for client in 0..size.clients {
        world.invoke(client, Call::OpenSession { ttl_ms: size.ttl_ms }, None);
        let last = world.requests.len() - 1;
        world.apply(last);
        world.now += 1_000;
        world.complete(last);
    }
    while world.next < size.operations {
        world.turn();
    }
    // Some pending requests are answered, and a client makes a final read.
    for _ in 0..3 * world.requests.len() {
        world.deliver();
        world.answer();
    }
    for key in 0..size.keys {
        world.invoke(0, Call::Read { key: name(key), stale: false }, None);
        let last = world.requests.len() - 1;
        world.apply(last);
        world.complete(last);
    }
    History::from_events(world.events).expect("generated events are a valid history")
}

#[derive(Default)]
struct Member {
    sessions: Vec<(SessionId, u64)>,
    grants: Vec<Granted>,
    open: usize,
}

#[derive(Clone)]
struct Granted {
    session: SessionId,
    keys: Keys,
    token: u64,
    mode: history::Mode,
}

struct Request {
    op: OpId,
    client: usize,
    call: Call,
    session: Option<SessionId>,
    sequence: Option<Sequence>,
    sent: u64,
    state: RequestState,
    /// The client has given up and ignores the answer.
    lost: bool,
    /// Another sending of an operation; its answer is ignored.
    copy: bool,
    /// Whether it was sent more than once.
    resent: bool,
}

enum RequestState {
    Sent,
    Waits(SessionId),
    Answered(Result<Answer, Refusal>),
    Unknown,
}

struct World {
    random: StdRng,
    size: Size,
    table: LockTable,
    /// Time in nanoseconds.
    now: u64,
    next: u64,
    clients: Vec<Member>,
    requests: Vec<Request>,
    events: Vec<Event>,
    past: BTreeMap<Key, Vec<Answer>>,
    /// The highest token of any access, and of a write.
    highest: BTreeMap<Key, (u64, u64)>,
}

fn name(key: usize) -> Key {
    Key::from(format!("k{key}").as_str())
}

fn principal(client: usize) -> Principal {
    Principal::from(format!("c{client}").as_str())
}

fn session_name(session: SessionId) -> Session {
    Session::from(format!("s{}", session.number).as_str())
}

impl World {
    fn turn(&mut self) {
        self.now += self.random.random_range(50_000..900_000);
        match self.random.random_range(0..100) {
            0..28 => self.ask(),
            28..58 => self.deliver(),
            58..88 => self.answer(),
            88..90 => self.lose(),
            90..92 => self.disconnect(),
            92..93 => self.send_again(),
            93..95 => self.time_out(),
            95..98 => self.sweep(),
            _ => {
                let most = self.size.ttl_ms * 1_000_000;
                self.now += self.random.random_range(0..most);
            }
        }
    }

    fn stamp(&self) -> Stamp {
        Stamp(self.now / 1_000_000)
    }

    fn pick(&mut self, fits: impl Fn(&Request) -> bool) -> Option<usize> {
        let from = self.random.random_range(0..self.requests.len().max(1));
        let indices = (from..self.requests.len()).chain(0..from.min(self.requests.len()));
        indices.into_iter().find(|&index| fits(&self.requests[index]))
    }

    fn invoke(&mut self, client: usize, mut call: Call, session: Option<SessionId>) {
        let mut sequence = None;
        // A session uses its next number when the outcome of the previous one is known.
        let alone = self.clients[client].open == 0;
        let member = &mut self.clients[client];
        if let Some((_, last)) = member.sessions.iter_mut().find(|(known, _)| Some(*known) == session)
            && alone
            && let Call::Acquire { number, .. }
            | Call::Release { number, .. }
            | Call::Withdraw { number, .. }
            | Call::Proclaim { number, .. }
            | Call::WriteRecord { number, .. } = &mut call
        {
            *last += 1;
            *number = Some(*last);
            sequence = Sequence::new(*last);
        }
        member.open += 1;
        self.next += 1;
        let (op, time) = (OpId(self.next), Time(self.now));
        let name = Client::from(format!("c{client}").as_str());
        self.events.push(Event::Invoke { op, client: name, time, call: call.clone() });
        let (sent, state) = (self.now, RequestState::Sent);
        let (lost, copy, resent) = (false, false, false);
        self.requests.push(Request { op, client, call, session, sequence, sent, state, lost, copy, resent });
    }

    fn deliver(&mut self) {
        if let Some(index) = self.pick(|request| matches!(request.state, RequestState::Sent)) {
            self.apply(index);
        }
    }

    fn apply(&mut self, index: usize) {
        let request = &self.requests[index];
        let (session, sequence, copy) = (request.session, request.sequence, request.copy);
        let principal = principal(request.client);
        let opening = |ttl_ms| Opening {
            proof: Proof::default(),
            owner: Owner::from(""),
            principal: principal.clone(),
            ttl: Ttl(ttl_ms),
        };
        let of = |key: &Key| lock::Key::from(&*key.0);
        let all =
            |keys: &Keys| lock::Keys::new(keys.as_slice().iter().map(of).collect()).expect("each key occurs once");
        let (command, waits) = match request.call.clone() {
            Call::OpenSession { ttl_ms } => (Command::Open { opening: opening(ttl_ms) }, false),
            Call::KeepAlive { .. } => (Command::KeepAlive { sessions: session.into_iter().collect() }, false),
            Call::CloseSession { .. } => (Command::Close { session: session.unwrap() }, false),
            Call::Acquire { keys, wait_ms, ttl_ms, mode, max_queue, reentrant, value, .. } => {
                let wait = wait_ms > 0;
                let max_queue = if wait { max_queue.unwrap_or(LockRequest::ANY_QUEUE) } else { 0 };
                let (keys, mode, value) = (all(&keys), table_mode(mode), value.as_deref().map(Value::from));
                let request = LockRequest { keys, mode, max_queue, reentrant, value };
                let command = match session {
                    Some(session) => Command::Acquire { session, sequence, request },
                    None => Command::AcquireOnce { opening: opening(ttl_ms.unwrap()), request },
                };
                (command, wait)
            }
            Call::Withdraw { keys, .. } => {
                let (session, keys) = (session.unwrap(), all(&keys));
                (Command::Release { session, sequence, keys, claim: Claim::Either }, false)
            }
            Call::Release { keys, token, .. } => {
                let (session, keys) = (session.unwrap(), all(&keys));
                (Command::Release { session, sequence, keys, claim: Claim::Held(Token(token)) }, false)
            }
            Call::Proclaim { key, token, value, .. } => {
                let (session, key, value) = (session.unwrap(), of(&key), Value::from(&*value));
                (Command::Proclaim { session, sequence, key, token: Token(token), value }, false)
            }
            Call::Break { key, token } => {
                (Command::Break { key: of(&key), token: Token(token), principal: principal.clone() }, false)
            }
            Call::SetAccess { revision } => {
                let (principal, revision) = (Principal::from("admin/root"), Revision(revision));
                (Command::SetAccess { principal, revision, rules: self.rules() }, false)
            }
            Call::Read { key, stale } => {
                let past = self.past.get(&key).map_or(&[][..], Vec::as_slice);
                let old = stale && !past.is_empty();
                let view = if old { past[self.random.random_range(0..past.len())].clone() } else { self.view(&key) };
                self.requests[index].state = RequestState::Answered(Ok(view));
                return;
            }
            Call::Access { key, token, reads } => {
                let (of_all, of_writes) = self.highest.entry(key).or_default();
                let passes = token >= if reads { *of_writes } else { *of_all };
                *of_all = token.max(*of_all);
                if !reads {
                    *of_writes = token.max(*of_writes);
                }
                self.requests[index].state =
                    RequestState::Answered(if passes { Ok(Answer::Accepted) } else { Err(Refusal::Refused) });
                return;
            }
            Call::WriteRecord { record, change, token, .. } => {
                let writer = match session {
                    Some(session) => Writer::Session { session, sequence },
                    None => Writer::Client(principal.clone()),
                };
                let (record, bytes) = (of(&record), |text: &str| lock::Bytes::from(text));
                let held = token.map(|token| Condition::Held { lock: record.clone(), token: Token(token) });
                let change = match change {
                    Change::Put(text) => lock::Change::Put { record, bytes: bytes(&text) },
                    Change::Append(text) => lock::Change::Append { record, bytes: bytes(&text) },
                    Change::Delete => lock::Change::Delete { record },
                };
                let (conditions, limit) = (held.into_iter().collect(), u64::MAX);
                (
                    Command::Transact { writer, transaction: Transaction { conditions, changes: vec![change], limit } },
                    false,
                )
            }
            Call::ReadRecord { record, .. } => {
                let view = self.table.record(&of(&record)).map_or(Answer::NoRecord, |record| {
                    let value = std::str::from_utf8(record.bytes.as_slice()).expect("texts are written").into();
                    Answer::Record { version: record.version.0, value }
                });
                self.requests[index].state = RequestState::Answered(Ok(view));
                return;
            }
            Call::NoteLoss { .. } => unreachable!("generated clients make no notes"),
        };
        let outcome = self.table.apply(self.stamp(), &command);
        let state = self.state(index, outcome.reply.clone().unwrap());
        if !copy {
            if waits
                && matches!(state, RequestState::Waits(_))
                && self.random.random_bool(0.6)
                && !self.requests[index].lost
            {
                let ahead = match outcome.reply {
                    Some(Reply::Queued { ahead, .. }) if self.random.random_bool(0.5) => Some(ahead),
                    _ => None,
                };
                self.note(index, Note::Queued { ahead });
            }
            self.requests[index].state = state;
        } else {
            self.requests[index].state = RequestState::Unknown;
        }
        self.notify_waiters(outcome);
        self.remember();
        // A request with a number may arrive again.
        if sequence.is_some() && !copy && self.random.random_bool(0.1) {
            self.copy(index);
        }
    }

    /// Another sending of the same request; no client reads its answer.
    fn copy(&mut self, index: usize) {
        let Request { op, client, call, session, sequence, sent, .. } = &self.requests[index];
        let (call, session, sequence) = (call.clone(), *session, *sequence);
        let (op, client, sent, state) = (*op, *client, *sent, RequestState::Sent);
        let (lost, copy, resent) = (true, true, false);
        self.requests.push(Request { op, client, call, session, sequence, sent, state, lost, copy, resent });
    }

    fn state(&mut self, index: usize, reply: Reply) -> RequestState {
        let request = &self.requests[index];
        let answered = match (&request.call, reply) {
            (_, Reply::Opened { session }) => Ok(Answer::Opened { session: session_name(session) }),
            (Call::KeepAlive { .. }, Reply::KeptAlive { missing }) if missing.is_empty() => Ok(Answer::KeptAlive),
            (Call::KeepAlive { .. }, _) => Err(Refusal::NoSession),
            (_, Reply::Closed) => Ok(Answer::Closed),
            (_, Reply::Granted { session, token }) => {
                Ok(Answer::Granted { session: session_name(session), token: token.0 })
            }
            (_, Reply::Queued { session, .. }) => return RequestState::Waits(session),
            (_, Reply::Held { token, .. }) => Err(Refusal::Held { token: token.map(|token| token.0) }),
            (_, Reply::OtherSize { .. } | Reply::OtherClaim { .. }) => {
                Err(Refusal::NotTaken { message: "another claim".to_owned() })
            }
            (_, Reply::StillHeld { holds }) => Ok(Answer::StillHeld { holds }),
            (Call::Withdraw { .. }, _) => Ok(Answer::Withdrawn),
            (Call::Release { .. }, Reply::Released | Reply::Gone) => Ok(Answer::Released),
            (Call::Release { .. }, _) => Err(Refusal::NotHolder),
            (Call::Acquire { .. } | Call::Proclaim { .. } | Call::WriteRecord { .. }, Reply::NoSession) => {
                Err(Refusal::NoSession)
            }
            (_, Reply::Written { version }) => Ok(Answer::Written { version: version.0 }),
            (_, Reply::NotHeld { .. } | Reply::Fenced { .. }) => Err(Refusal::StaleToken),
            (_, Reply::Broken { session, .. }) => Ok(Answer::Broken { session: session_name(session) }),
            (_, Reply::Proclaimed) => Ok(Answer::Proclaimed),
            (Call::Proclaim { .. } | Call::Break { .. }, Reply::NotHolder) => Err(Refusal::NotHolder),
            (_, Reply::AccessSet { revision }) => Ok(Answer::AccessSet { revision: revision.0 }),
            (_, Reply::Denied) => Err(Refusal::Denied),
            // A sending of this acquire was applied before, and its claim is gone: the outcome is
            // unknown.
            _ => return RequestState::Unknown,
        };
        RequestState::Answered(answered)
    }

    /// Tells waiters of changes to their claims.
    fn notify_waiters(&mut self, outcome: Outcome) {
        for event in outcome.events {
            let (key, session, answer) = match event {
                lock::Event::Granted { key, session, token, .. } => {
                    let name = session_name(session);
                    (Some(key), session, Ok(Answer::Granted { session: name, token: token.0 }))
                }
                lock::Event::Withdrawn { key, session } => {
                    let lives = self.table.session(session).is_some();
                    (Some(key), session, Err(if lives { Refusal::Withdrawn } else { Refusal::NoSession }))
                }
                lock::Event::Expired { session, .. } | lock::Event::Closed { session } => {
                    (None, session, Err(Refusal::NoSession))
                }
                // The withdrawal of this waiter follows, and finds no request that waits.
                lock::Event::Denied { key, session, .. } => (Some(key), session, Err(Refusal::Denied)),
                lock::Event::Released { .. }
                | lock::Event::Broken { .. }
                | lock::Event::Proclaimed { .. }
                | lock::Event::Put { .. }
                | lock::Event::Deleted { .. }
                | lock::Event::Queued { .. }
                | lock::Event::Overdue { .. } => continue,
            };
            for request in &mut self.requests {
                let waits = matches!(request.state, RequestState::Waits(waiting) if waiting == session);
                let same = key.as_ref().is_none_or(|key| request.call.keys().iter().any(|of| &*of.0 == key.as_str()));
                if waits && same {
                    // An acquire without a known session can only learn that its claim is gone.
                    let answer = match &answer {
                        Err(Refusal::NoSession) if request.session.is_none() => Err(Refusal::Withdrawn),
                        answer => answer.clone(),
                    };
                    request.state = RequestState::Answered(answer);
                }
            }
        }
    }

    fn answer(&mut self) {
        let ready = |request: &Request| matches!(request.state, RequestState::Answered(_) | RequestState::Unknown);
        if let Some(index) = self.pick(ready) {
            self.complete(index);
        }
    }

    fn complete(&mut self, index: usize) {
        let request = self.requests.swap_remove(index);
        let (op, time) = (request.op, Time(self.now));
        if request.lost || request.copy {
            return;
        }
        let member = &mut self.clients[request.client];
        member.open -= 1;
        let event = match request.state {
            RequestState::Answered(Ok(value)) => {
                match &value {
                    Answer::Opened { session } => member.sessions.push((id(session), 0)),
                    Answer::Granted { session, token } => {
                        let Call::Acquire { keys, mode, .. } = &request.call else { unreachable!("it was granted") };
                        let (session, keys) = (id(session), keys.clone());
                        member.grants.push(Granted { session, keys, token: *token, mode: *mode });
                    }
                    _ => {}
                }
                Event::Ok { op, time, value }
            }
            RequestState::Answered(Err(error)) => {
                if let (Refusal::NoSession, Some(session)) = (&error, request.session)
                    && self.random.random_bool(0.7)
                {
                    member.sessions.retain(|(known, _)| *known != session);
                }
                // An earlier sending may have been carried out; an acquire with a number is answered with that.
                let is_certain = request.sequence.is_some()
                    && match &request.call {
                        Call::Acquire { .. } => !matches!(error, Refusal::NoSession | Refusal::NotTaken { .. }),
                        Call::WriteRecord { .. } => error == Refusal::StaleToken,
                        _ => false,
                    };
                if request.resent && !is_certain {
                    Event::Info { op, time, why: format!("refused, and sent before: {error}") }
                } else {
                    Event::Fail { op, time, error }
                }
            }
            _ => Event::Info { op, time, why: "its claim is gone".to_string() },
        };
        self.events.push(event);
    }

    /// A client gives up; its request goes on.
    fn lose(&mut self) {
        if let Some(index) = self.pick(|request| !request.lost && !request.copy) {
            let request = &mut self.requests[index];
            request.lost = true;
            let (op, client) = (request.op, request.client);
            self.clients[client].open -= 1;
            let why = "the connection broke".to_string();
            self.events.push(Event::Info { op, time: Time(self.now), why });
        }
    }

    fn note(&mut self, index: usize, note: Note) {
        let (op, time) = (self.requests[index].op, Time(self.now));
        self.events.push(Event::Note { op, time, note });
    }

    /// A waiter's connection breaks, and it sends its acquire again; the service may drop the old
    /// queue position.
    fn disconnect(&mut self) {
        let Some(index) = self.pick(|request| matches!(request.state, RequestState::Waits(_)) && !request.copy) else {
            return;
        };
        let RequestState::Waits(session) = self.requests[index].state else { return };
        if self.requests[index].session.is_none() {
            return;
        }
        let withdrawn = self.random.random_bool(0.7);
        // A client that has given up does not repeat the request.
        if self.requests[index].lost {
            self.requests[index].state = RequestState::Unknown;
        } else {
            self.note(index, Note::Disconnected);
            self.requests[index].state = RequestState::Sent;
            self.requests[index].resent = true;
        }
        if withdrawn {
            self.give_up(session, index);
        }
    }

    /// A client waits in vain for the answer to a request that does not wait, and sends it again. The first sending, or
    /// its answer, is lost or late. Without a number each sending that arrives is carried out.
    fn send_again(&mut self) {
        let is_one = |request: &Request| {
            let gives_back_or_writes = matches!(
                request.call,
                Call::Release { .. } | Call::Withdraw { .. } | Call::Proclaim { .. } | Call::WriteRecord { .. }
            );
            gives_back_or_writes && !request.lost && !request.copy
        };
        let Some(index) = self.pick(is_one) else { return };
        if matches!(self.requests[index].state, RequestState::Sent) && self.random.random() {
            self.copy(index);
        }
        self.note(index, Note::Disconnected);
        (self.requests[index].state, self.requests[index].resent) = (RequestState::Sent, true);
    }

    fn give_up(&mut self, session: SessionId, index: usize) {
        let keys = self.requests[index].call.keys().iter().map(|key| lock::Key::from(&*key.0)).collect();
        let keys = lock::Keys::new(keys).expect("each key occurs once");
        let command = Command::Release { session, sequence: None, keys, claim: Claim::Waiting };
        let outcome = self.table.apply(self.stamp(), &command);
        self.notify_waiters(outcome);
        self.remember();
    }

    fn time_out(&mut self) {
        let now = self.now;
        let over = |request: &Request| match request.call {
            Call::Acquire { wait_ms, .. } => {
                matches!(request.state, RequestState::Waits(_)) && now > request.sent + wait_ms * 1_000_000
            }
            _ => false,
        };
        let Some(index) = self.pick(over) else { return };
        let RequestState::Waits(session) = self.requests[index].state else { return };
        self.give_up(session, index);
        if let RequestState::Answered(answer @ Err(Refusal::Withdrawn)) = &mut self.requests[index].state {
            *answer = Err(Refusal::Timeout);
        }
    }

    fn sweep(&mut self) {
        let outcome = self.table.advance(self.stamp());
        self.notify_waiters(outcome);
        self.remember();
    }

    fn view(&self, key: &Key) -> Answer {
        let (mut holders, mut queue) = (Vec::new(), Vec::new());
        if let Some(lock) = self.table.lock(&lock::Key::from(&*key.0)) {
            let shown = |holder: &lock::Holder| {
                let (session, token) = (session_name(holder.session), holder.token.0);
                let value = holder.value().map(|value| value.as_str().into());
                Holder { session, token, mode: history_mode(holder.mode), value }
            };
            holders = lock.holders.iter().map(shown).collect();
            queue = lock.queue.iter().map(|waiter| session_name(waiter.session)).collect();
        }
        Answer::Lock { holders, queue, age_ms: None }
    }

    fn remember(&mut self) {
        if self.size.resource && self.past.values().map(Vec::len).sum::<usize>() < 1_000 {
            for key in (0..self.size.keys).map(name) {
                let view = self.view(&key);
                self.past.entry(key).or_default().push(view);
            }
        }
    }
}

fn id(session: &Session) -> SessionId {
    SessionId { number: session.0[1..].parse().unwrap(), proof: Proof::default() }
}

fn table_mode(mode: history::Mode) -> Mode {
    match mode {
        history::Mode::Exclusive => Mode::EXCLUSIVE,
        history::Mode::Shared => Mode::SHARED,
        history::Mode::Semaphore { permits, of } => {
            Mode::semaphore(permits, of).expect("the clients' semaphores exist")
        }
    }
}

fn history_mode(mode: Mode) -> history::Mode {
    match mode.as_semaphore() {
        Some((permits, of)) => history::Mode::Semaphore { permits, of },
        None if mode == Mode::SHARED => history::Mode::Shared,
        None => history::Mode::Exclusive,
    }
}
