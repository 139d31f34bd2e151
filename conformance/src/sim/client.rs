//! Clients: they open sessions, take locks, wait, give up, give back, repeat what was not answered, fall asleep with a
//! lock in their hands, and die.
//!
//! A client does one thing at a time, beside keeping its session alive. Whatever is numbered it repeats under its number,
//! on a new connection and at whatever node it thinks leads, until it knows what came of it; that is what the exactly-once
//! rule asks of it (docs/protocol.md).

use std::time::Duration;

use crate::history::{self, Call, Note, OpId, Refusal};
use palisade::core::{Acquirer, ConnectionId, Query, Request};
use palisade_client::wire::{Answer, Code, Consistency, Failure, LeaderView, LockView};
use palisade_spec::lock::{Claim, Key, Opening, Owner, Sequence, SessionId, Token, Ttl};
use palisade_spec::raft::{Index, NodeId};
use rand::Rng;
use rand::rngs::SmallRng;

use super::call::{CallId, ClientId};
use super::clock::slowest;
use super::history_recorder::{self, HistoryRecorder};
use super::host::Reply;
use super::judge::SharedJudge;
use super::reference_state::Line;
use super::resource::Resource;
use super::tally::Tally;

/// How long a client waits for an answer that should come at once.
const PATIENCE: Duration = Duration::from_millis(700);
/// The keys that there are.
const KEYS: [&str; 3] = ["ledger", "mailbox", "printer"];

/// What is around a client.
pub(super) struct Surroundings<'a> {
    pub(super) now: Duration,
    pub(super) rng: &'a mut SmallRng,
    pub(super) judge: &'a SharedJudge,
    pub(super) resource: &'a mut Resource,
    pub(super) tally: &'a mut Tally,
    pub(super) history: &'a mut HistoryRecorder,
    /// The nodes that a client knows.
    pub(super) nodes: &'a [NodeId],
    /// Nothing new is begun.
    pub(super) closing: bool,
}

/// What a client does to the world.
#[derive(Debug)]
pub(super) enum ClientAction {
    /// It asks a node.
    Request(NodeId, CallId, Request),
    /// It drops a connection, which the node may hear of late.
    HangUp(NodeId, ConnectionId),
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    id: ClientId,
    /// As its history calls it.
    name: history::Client,
    ttl: Duration,
    session: Option<Session>,
    held: Option<Held>,
    errand: Option<Errand>,
    renewal: Option<Renewal>,
    /// Where it thinks that the leader is.
    leader: NodeId,
    connection: u64,
    calls: u64,
    /// When it thinks of something to do.
    idle_until: Duration,
    /// It stands still until then.
    pub(super) asleep_until: Duration,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    number: u64,
    /// When the last request was sent of which it knows that it kept the session alive.
    alive: Duration,
    renew_at: Duration,
}

#[derive(Debug)]
struct Held {
    key: Key,
    token: Token,
    session: SessionId,
    until: Duration,
    access_at: Duration,
}

/// What it is about.
#[derive(Debug)]
struct Errand {
    op: OpId,
    wish: Wish,
    number: Option<Sequence>,
    /// When it was first asked for.
    begun: Duration,
    /// What was committed then.
    since: Index,
    sent: Option<Sent>,
    /// Nobody knows what came of an earlier attempt.
    in_doubt: bool,
    /// When it asks again, or gives up waiting.
    again: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    call: CallId,
    at: Duration,
}

/// A keepalive under way.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    op: OpId,
    sent: Sent,
}

#[derive(Clone, Debug, PartialEq)]
enum Wish {
    Open,
    Close,
    Acquire { key: Key, wait: Duration },
    Once { key: Key, wait: Duration },
    Release { key: Key, token: Token, session: SessionId },
    Withdraw { key: Key },
    Read { key: Key, consistency: Consistency },
}

impl Client {
    pub(super) fn new(id: ClientId, rng: &mut SmallRng) -> Client {
        Client::reborn(id, 0, rng)
    }

    fn reborn(id: ClientId, life: u64, rng: &mut SmallRng) -> Client {
        Client {
            id,
            name: history::Client::from(format!("c{}.{life}", id.0).as_str()),
            ttl: Duration::from_millis(rng.random_range(400..4000)),
            session: None,
            held: None,
            errand: None,
            renewal: None,
            leader: NodeId(1),
            connection: 0,
            calls: 0,
            idle_until: Duration::from_millis(rng.random_range(0..2000)),
            asleep_until: Duration::ZERO,
        }
    }

    /// Whether there is nothing that it still wants or has.
    pub(super) fn is_done(&self) -> bool {
        self.held.is_none() && self.errand.is_none()
    }

    /// It dies, and another one takes its place, which knows of nothing. A node may never hear of it.
    pub(super) fn die(&mut self, around: &mut Surroundings<'_>) -> Option<ClientAction> {
        let open = self.errand.iter().map(|errand| errand.op).chain(self.renewal.iter().map(|renewal| renewal.op));
        for op in open {
            around.history.note(op, around.now, Note::Disconnected);
            around.history.info(op, around.now, "the client died");
        }
        let rng = &mut *around.rng;
        let connection = self.connection_id();
        self.connection += 1;
        let (id, connections, calls) = (self.id, self.connection, self.calls);
        let told = rng.random::<bool>().then_some(ClientAction::HangUp(self.leader, connection));
        *self = Client { connection: connections, calls, ..Client::reborn(id, connections, rng) };
        told
    }

    /// When it has something to do by itself.
    pub(super) fn next(&self) -> Duration {
        let mut next = match &self.errand {
            Some(errand) => errand.again,
            None => self.held.as_ref().map_or(self.idle_until, |held| held.until.min(held.access_at)),
        };
        if let Some(session) = &self.session {
            next = next.min(self.renewal.map_or(session.renew_at, |renewal| renewal.sent.at + PATIENCE));
        }
        next.max(self.asleep_until)
    }

    /// Does what is due.
    pub(super) fn act(&mut self, around: &mut Surroundings<'_>, deeds: &mut Vec<ClientAction>) {
        let now = around.now;
        if let Some(renewal) = self.renewal.take_if(|renewal| renewal.sent.at + PATIENCE <= now) {
            around.history.info(renewal.op, now, "not answered in time");
            self.hang_up(around, deeds);
        }
        if let Some(session) = &mut self.session
            && self.renewal.is_none()
            && session.renew_at <= now
        {
            session.renew_at = now + self.ttl / 3;
            let id = session.id;
            let op = around.history.invoke(&self.name, now, Call::KeepAlive { session: history_recorder::session(id) });
            let sent = self.send(Request::KeepAlive(id), now, deeds);
            self.renewal = Some(Renewal { op, sent });
        }
        if let Some(held) = &mut self.held
            && held.access_at <= now
        {
            held.access_at = now + around.rng.random_range(5..120) * Duration::from_millis(1);
            let call = Call::Access { key: history_recorder::key(&held.key), token: held.token.0 };
            let op = around.history.invoke(&self.name, now, call);
            if around.resource.access(&held.key, held.token, around.tally) {
                around.history.ok(op, now, history::Answer::Accepted);
            } else {
                around.history.fail(op, now, Refusal::Refused);
            }
        }
        if self.errand.as_ref().is_some_and(|errand| errand.again <= now) {
            self.press_on(around, deeds);
        } else if self.errand.is_none()
            && let Some(wish) = self.wish(around)
        {
            self.begin(wish, around, deeds);
        }
    }

    /// What it wants next, if anything.
    fn wish(&mut self, around: &mut Surroundings<'_>) -> Option<Wish> {
        let (now, rng) = (around.now, &mut *around.rng);
        if let Some(held) = &self.held {
            if held.until > now && !around.closing {
                return None;
            }
            let Held { key, token, session, .. } = held;
            return Some(Wish::Release { key: key.clone(), token: *token, session: *session });
        }
        if self.idle_until > now {
            return None;
        }
        self.idle_until = now + Duration::from_millis(rng.random_range(1..400));
        if around.closing {
            self.idle_until = now + Duration::from_secs(1);
            return None;
        }
        let key = Key::from(KEYS[rng.random_range(0..KEYS.len())]);
        let wait = |rng: &mut SmallRng| Duration::from_millis(rng.random_range(100..6000));
        let wish = match rng.random_range(0..20) {
            0 => Wish::Once { key, wait: wait(rng) },
            1 => Wish::Once { key, wait: Duration::ZERO },
            2 => Wish::Read { key, consistency: Consistency::Stale },
            3..=4 => Wish::Read { key, consistency: Consistency::Linearizable },
            _ if self.session.is_none() => Wish::Open,
            5 => Wish::Close,
            6..=8 => Wish::Acquire { key, wait: Duration::ZERO },
            _ => Wish::Acquire { key, wait: wait(rng) },
        };
        Some(wish)
    }

    fn begin(&mut self, wish: Wish, around: &mut Surroundings<'_>, deeds: &mut Vec<ClientAction>) {
        let numbered = matches!(wish, Wish::Acquire { .. } | Wish::Release { .. } | Wish::Withdraw { .. });
        let own = match &wish {
            Wish::Release { session, .. } => self.session.as_mut().filter(|own| own.id == *session),
            _ => self.session.as_mut(),
        };
        let number = own.filter(|_| numbered).map(|session| {
            session.number += 1;
            Sequence(session.number)
        });
        let since = around.judge.lock().reference.last();
        around.tally.operations += 1;
        let call = self.call(&wish, number);
        let op = around.history.invoke(&self.name, around.now, call);
        let (begun, again) = (around.now, around.now);
        self.errand = Some(Errand { op, wish, number, begun, since, sent: None, in_doubt: false, again });
        self.press_on(around, deeds);
    }

    /// Asks, or asks again; or gives up waiting.
    fn press_on(&mut self, around: &mut Surroundings<'_>, deeds: &mut Vec<ClientAction>) {
        let Some(mut errand) = self.errand.take() else { return };
        let now = around.now;
        if errand.sent.take().is_some() {
            errand.in_doubt = true;
            around.tally.repetitions += 1;
            around.history.note(errand.op, now, Note::Disconnected);
            self.hang_up(around, deeds);
            if let Wish::Once { .. } = &errand.wish {
                // Whatever came of it, nobody can know; it ends by itself.
                return around.history.info(errand.op, now, "not answered in time");
            }
        }
        if let Wish::Acquire { key, wait } = &errand.wish
            && !wait.is_zero()
            && now > errand.begun
            && now >= errand.begun + *wait
        {
            around.history.info(errand.op, now, "not answered in time, and given up");
            return self.begin(Wish::Withdraw { key: key.clone() }, around, deeds);
        }
        let Some((ask, wait)) = self.ask(&errand, around) else {
            return around.history.info(errand.op, now, "the session is lost");
        };
        let sent = self.send(ask, now, deeds);
        errand.again = now + wait + PATIENCE;
        errand.sent = Some(sent);
        self.errand = Some(errand);
    }

    /// What its history calls it.
    fn call(&self, wish: &Wish, number: Option<Sequence>) -> Call {
        let own =
            || history_recorder::session(self.session.as_ref().map_or(SessionId { number: 0, nonce: 0 }, |own| own.id));
        let (number, ttl_ms) = (number.map(|number| number.0), history_recorder::milliseconds(self.ttl));
        match wish {
            Wish::Open => Call::OpenSession { ttl_ms },
            Wish::Close => Call::CloseSession { session: own() },
            Wish::Acquire { key, wait } => Call::Acquire {
                key: history_recorder::key(key),
                session: Some(own()),
                number,
                wait_ms: history_recorder::milliseconds(*wait),
                ttl_ms: None,
            },
            Wish::Once { key, wait } => Call::Acquire {
                key: history_recorder::key(key),
                session: None,
                number: None,
                wait_ms: history_recorder::milliseconds(*wait),
                ttl_ms: Some(ttl_ms),
            },
            Wish::Release { key, token, session } => {
                let (key, session) = (history_recorder::key(key), history_recorder::session(*session));
                Call::Release { key, session, token: token.0, number }
            }
            Wish::Withdraw { key } => Call::Withdraw { key: history_recorder::key(key), session: own(), number },
            Wish::Read { key, consistency } => {
                Call::Read { key: history_recorder::key(key), stale: *consistency == Consistency::Stale }
            }
        }
    }

    /// The request, and how long it may stand in a queue; `None` if it has no meaning any more.
    fn ask(&self, errand: &Errand, around: &mut Surroundings<'_>) -> Option<(Request, Duration)> {
        let session = self.session.as_ref().map(|session| session.id);
        let sequence = errand.number;
        let opening = |rng: &mut SmallRng, ttl: Duration| {
            let ttl = Ttl(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            Opening { nonce: rng.random(), owner: Owner::from("client"), ttl }
        };
        let ask = match errand.wish.clone() {
            Wish::Open => Request::Open(opening(around.rng, self.ttl)),
            Wish::Close => Request::Close(session?),
            Wish::Acquire { key, wait } => {
                let left = (errand.begun + wait).saturating_sub(around.now);
                return Some((
                    Request::Acquire { session: Acquirer::Session(session?, sequence), key, wait: left },
                    left,
                ));
            }
            Wish::Once { key, wait } => {
                let asker = Acquirer::Once(opening(around.rng, self.ttl));
                return Some((Request::Acquire { session: asker, key, wait }, wait));
            }
            Wish::Release { key, token, session } => {
                Request::Release { session, sequence, key, claim: Claim::Held(token) }
            }
            Wish::Withdraw { key } => Request::Release { session: session?, sequence, key, claim: Claim::Either },
            Wish::Read { key, consistency } => Request::Read(Query::Lock(key), consistency),
        };
        Some((ask, Duration::ZERO))
    }

    fn send(&mut self, ask: Request, now: Duration, deeds: &mut Vec<ClientAction>) -> Sent {
        self.calls += 1;
        let call = CallId { client: self.id, number: self.calls, connection: self.connection_id() };
        deeds.push(ClientAction::Request(self.leader, call, ask));
        Sent { call, at: now }
    }

    fn connection_id(&self) -> ConnectionId {
        ConnectionId(u64::from(self.id.0) << 32 | self.connection)
    }

    /// Nobody answers here: on to another node.
    fn hang_up(&mut self, around: &mut Surroundings<'_>, deeds: &mut Vec<ClientAction>) {
        deeds.push(ClientAction::HangUp(self.leader, self.connection_id()));
        self.connection += 1;
        self.leader = around.nodes[around.rng.random_range(0..around.nodes.len())];
        if let Some(errand) = &mut self.errand {
            errand.again = around.now;
        }
    }

    /// An answer comes.
    pub(super) fn hear(&mut self, call: CallId, reply: Reply, around: &mut Surroundings<'_>) {
        if let Some(renewal) = self.renewal.take_if(|renewal| renewal.sent.call == call) {
            return self.hear_of_renewal(renewal, &reply, around);
        }
        let Some(errand) = self.errand.take_if(|errand| errand.sent.is_some_and(|sent| sent.call == call)) else {
            return;
        };
        match reply {
            Ok(answer) => self.succeed(&errand, answer, around),
            Err(failure) => self.fail(errand, &failure, around),
        }
    }

    fn hear_of_renewal(&mut self, Renewal { op, sent }: Renewal, reply: &Reply, around: &mut Surroundings<'_>) {
        match reply {
            Ok(_) => around.history.ok(op, around.now, history::Answer::KeptAlive),
            Err(Failure { error: Code::NoSession, .. }) => around.history.fail(op, around.now, Refusal::NoSession),
            Err(failure) => around.history.info(op, around.now, &failure.message),
        }
        let Some(session) = &mut self.session else { return };
        match reply {
            Ok(_) => {
                session.alive = session.alive.max(sent.at);
                around.judge.lock().reference.told_lease(session.id, sent.at, slowest(self.ttl));
            }
            Err(Failure { error: Code::NoSession, .. }) => self.lose_session(around),
            Err(failure) => {
                session.renew_at = around.now + Duration::from_millis(around.rng.random_range(5..100));
                self.follow(failure, around);
            }
        }
    }

    fn lose_session(&mut self, around: &mut Surroundings<'_>) {
        if let Some(session) = self.session.take() {
            around.tally.sessions_lost += 1;
            self.held.take_if(|held| held.session == session.id);
            self.drop_renewal(around);
        }
    }

    fn drop_renewal(&mut self, around: &mut Surroundings<'_>) {
        if let Some(renewal) = self.renewal.take() {
            around.history.info(renewal.op, around.now, "the session is lost meanwhile");
        }
    }

    /// Goes where it was sent.
    fn follow(&mut self, failure: &Failure, around: &mut Surroundings<'_>) {
        let nodes = around.nodes;
        self.leader = match &failure.leader {
            Some(LeaderView { id, .. }) => {
                let generations = nodes.iter().filter(|node| node.number() == *id);
                generations.max().copied().unwrap_or(NodeId::new(*id, 0))
            }
            None => nodes[around.rng.random_range(0..nodes.len())],
        };
    }

    fn succeed(&mut self, errand: &Errand, answer: Answer, around: &mut Surroundings<'_>) {
        let sent = errand.sent.map_or(errand.begun, |sent| sent.at);
        around.history.ok(errand.op, around.now, history_recorder::answer(&answer));
        let mut judge = around.judge.lock();
        let check = match (&errand.wish, answer) {
            (Wish::Open, Answer::Session(lease)) => {
                let id = spec_session(lease.session);
                judge.reference.told_lease(id, sent, slowest(self.ttl));
                let renew_at = around.now + self.ttl / 3;
                self.session = Some(Session { id, number: 0, alive: sent, renew_at });
                Ok(())
            }
            (Wish::Acquire { key, .. } | Wish::Once { key, .. }, Answer::Acquired(acquired)) => {
                let (session, token) = (spec_session(acquired.session), Token(acquired.token));
                judge.reference.told_lease(session, errand.begun, slowest(self.ttl));
                around.tally.grants_heard += 1;
                let until = around.now + Duration::from_millis(around.rng.random_range(1..600));
                self.held = Some(Held { key: key.clone(), token, session, until, access_at: around.now });
                judge.reference.told_grant(key, session, token)
            }
            (Wish::Release { key, token, .. }, Answer::Released) => {
                around.tally.releases_heard += 1;
                self.held = None;
                judge.reference.told_release(key, *token)
            }
            (Wish::Close, Answer::SessionClosed) => {
                self.session = None;
                self.drop_renewal(around);
                Ok(())
            }
            (Wish::Read { key, consistency }, answer) => {
                around.tally.reads += 1;
                match (consistency, answer) {
                    (Consistency::Linearizable, Answer::Lock(view)) => {
                        judge.reference.told_line(key, errand.since, &line(&view))
                    }
                    (Consistency::Stale, Answer::StaleLock(stale)) => {
                        judge.reference.told_line(key, Index(0), &line(&stale.view))
                    }
                    (consistency, other) => {
                        let detail = format!("a {consistency:?} read was answered with {other:?}");
                        super::reference_state::broken("client messages decode", detail)
                    }
                }
            }
            (Wish::Withdraw { .. }, Answer::Withdrawn) => Ok(()),
            (wish, answer) => unreachable!("{wish:?} was answered with {answer:?}"),
        };
        judge.note(check);
    }

    fn fail(&mut self, mut errand: Errand, failure: &Failure, around: &mut Surroundings<'_>) {
        match history_recorder::refusal(failure) {
            // It may have been done before, by an attempt whose answer was lost: then there was nothing left to do.
            Some(Refusal::NotHolder | Refusal::NoSession) if errand.in_doubt => {
                around.history.info(errand.op, around.now, &failure.message);
            }
            Some(refusal) => around.history.fail(errand.op, around.now, refusal),
            None if failure.error == Code::Gone => around.history.info(errand.op, around.now, &failure.message),
            None => {}
        }
        match failure.error {
            Code::Held | Code::Timeout | Code::Withdrawn | Code::Gone => {}
            Code::NotHolder => self.held = None,
            Code::NoSession => self.lose_session(around),
            Code::NotLeader
            | Code::NoLeader
            | Code::LeadershipLost
            | Code::ShuttingDown
            | Code::Overloaded
            | Code::NoSpace => {
                self.follow(failure, around);
                let in_doubt = matches!(failure.error, Code::LeadershipLost | Code::ShuttingDown);
                errand.in_doubt |= in_doubt;
                if matches!(errand.wish, Wish::Once { .. }) && in_doubt {
                    return around.history.info(errand.op, around.now, &failure.message);
                }
                let pause = if failure.leader.is_some() { 2..20 } else { 20..200 };
                errand.again = around.now + Duration::from_millis(around.rng.random_range(pause));
                errand.sent = None;
                self.errand = Some(errand);
            }
            other => {
                let detail = format!("{:?} was refused with {other:?}: {}", errand.wish, failure.message);
                around.judge.lock().note(super::reference_state::broken("client messages decode", detail));
            }
        }
    }
}

fn spec_session(id: palisade_client::wire::SessionId) -> SessionId {
    let (number, nonce) = id.as_u64_pair();
    SessionId { number, nonce }
}

fn line(view: &LockView) -> Line {
    Line {
        holder: view.holder.as_ref().map(|holder| (spec_session(holder.session), Token(holder.token))),
        queue: view.queue.iter().map(|waiter| spec_session(waiter.session)).collect(),
    }
}
