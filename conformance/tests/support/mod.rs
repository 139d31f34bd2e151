//! Generates correct histories: what clients ask for (`requests.rs`), a network that delays, loses and
//! repeats (here), and the lock table of `spec` (`service.rs`).
//!
//! Every request is applied to the one table at a moment between its sending and its answer, so a
//! history is linearizable by construction. The same seed generates the same history.

mod requests;
mod service;

use std::collections::BTreeMap;

use palisade_history::{
    self as history, Answer, Call, Client, Event, History, Key, Keys, Note, OpId, Refusal, Session, Time,
};
use palisade_spec::lock::{LockTable, Principal, Proof, Sequence, SessionId};
use palisade_spec::raft::Stamp;
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
            0..28 => self.request(),
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

    /// Another sending of the same request; no client reads its answer.
    fn copy(&mut self, index: usize) {
        let Request { op, client, call, session, sequence, sent, .. } = &self.requests[index];
        let (call, session, sequence) = (call.clone(), *session, *sequence);
        let (op, client, sent, state) = (*op, *client, *sent, RequestState::Sent);
        let (lost, copy, resent) = (true, true, false);
        self.requests.push(Request { op, client, call, session, sequence, sent, state, lost, copy, resent });
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
                // An earlier sending may have been executed; an acquire with a number is answered with that.
                let is_certain = request.sequence.is_some()
                    && match &request.call {
                        Call::Acquire { .. } => !matches!(error, Refusal::NoSession | Refusal::NotTaken { .. }),
                        Call::WriteRecord { .. } => {
                            matches!(error, Refusal::StaleToken | Refusal::OtherVersion { .. })
                        }
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
    /// its answer, is lost or late. Without a number each sending that arrives is executed.
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
}

fn id(session: &Session) -> SessionId {
    SessionId { number: session.0[1..].parse().unwrap(), proof: Proof::default() }
}
