//! Queues and sessions: the lock table behind a leader with a running clock, without end.
//!
//! Clients open sessions, acquire, wait, add holds, release, withdraw, close, stop for good, and return
//! with a new session. Cluster time passes, and the leader's no-ops sweep. Every step is a command or
//! a no-op of the real [`LockTable`].
//!
//! The graph is finite without a bound on time, grants or sessions, because states are compared by
//! what affects the future: the order of the sessions instead of their numbers, the distance of
//! deadlines from the present, only the order of deadlines that have passed, and no tokens (a
//! holder releases what it holds). The table's indexes are compared, too. A test checks that merged
//! states have the same future.
//!
//! # Assumptions
//!
//! - A client that has not stopped keeps its session alive in time: time does not pass the deadline
//!   of such a client. A client that fails to do so counts as stopped.
//! - Weak fairness: time passes; a live client sends keepalives; the leader appends a no-op while a
//!   deadline has passed; a holder gives up a lock by a release, by closing its session, or by
//!   stopping. It adds at most one hold to a grant, and each release takes one.
//! - If a sweep ends a single session ([`Bounds::sweep`] of 1), strong fairness of sweeps that find
//!   no due session whose lock others wait for. Sweeps end such sessions first; if these come due
//!   as fast as sweeps end them, no other session is ever swept. No waiter depends on those others;
//!   they only use memory.

use std::fmt;
use std::hash::{Hash, Hasher};

use palisade_spec::lock::{
    Claim, Command, Holder, Key, Lock, LockRequest, LockTable, Opening, Owner, Principal, Proof, Session, SessionId,
    Ttl, Waiter,
};
use palisade_spec::raft::{Stamp, StateMachine};
use stateright::{Model, Property};

use super::{Class, Fairness, Live, Response};
use crate::locks::{Wanted, requests_for};
use crate::presentation::Presentation;
use crate::state_table::StateTable;

/// The limits of one configuration. Infinite behaviour is not limited.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Number of clients. Each has one session at a time.
    pub clients: usize,
    /// Number of keys.
    pub keys: usize,
    /// The claims that clients ask for; if there are none, an exclusive claim on each key.
    pub wanted: &'static [Wanted],
    /// Time-to-live of a session, in ticks.
    pub ttl: u64,
    /// Maximum number of sessions and claims that a sweep ends.
    pub sweep: u64,
    /// Whether an acquire may open a session of its own.
    pub once: bool,
    /// Whether sweeps that find no contended session are strongly fair.
    pub sweeps_catch_up: bool,
    /// A flaw, to test that the checks find it.
    pub flaw: Option<Flaw>,
}

/// Flaws of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A release moves the first waiter behind the other waiters.
    SkipsFirstWaiter,
    /// The leader appends no no-op for a session without a lock.
    IgnoresIdleSessions,
}

/// The mode of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mode {
    /// The client has no session.
    Away,
    /// The client keeps its session alive.
    Lives,
    /// The client does nothing. When its session has ended, it may return.
    Stopped,
}

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    mode: Mode,
    /// The claims that it has requested and not given up, a bit each.
    wants: u64,
    /// The grants to which it has added a hold, a bit each.
    added: u64,
}

impl Client {
    /// A client in this mode, without a claim.
    fn without_claims(mode: Mode) -> Client {
        Client { mode, wants: 0, added: 0 }
    }
}

/// A table, its clients, and the time.
#[derive(Clone, PartialEq)]
pub struct State {
    table: LockTable,
    now: Stamp,
    clients: Vec<Client>,
    keys: usize,
}

/// An action. Clients and claims are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client opens a session.
    Open(usize),
    /// A client without a session makes a claim, and waits for its turn.
    AcquireOnce(usize, usize),
    /// A client makes a claim, and waits for its turn.
    Acquire(usize, usize),
    /// A holder adds a hold.
    Add(usize, usize),
    /// A holder releases its grant, or a hold of it.
    Release(usize, usize),
    /// A waiter withdraws.
    Withdraw(usize, usize),
    /// A client closes its session.
    Close(usize),
    /// A client sends a keepalive.
    KeepAlive(usize),
    /// A client stops for good.
    Stop(usize),
    /// Cluster time passes.
    Tick,
    /// The leader appends a no-op.
    Sweep,
}

/// The model.
pub struct Queue {
    /// The limits.
    pub bounds: Bounds,
    keys: Vec<Key>,
    /// The requests for the claims that clients ask for.
    claims: Vec<LockRequest>,
}

impl Queue {
    /// Clients without sessions, and an empty table.
    pub fn new(bounds: Bounds) -> Queue {
        let keys: Vec<Key> = ["a", "b", "c"][..bounds.keys].iter().map(|&name| Key::from(name)).collect();
        let claims = requests_for(bounds.wanted, &keys);
        Queue { bounds, keys, claims }
    }

    /// The class of the actions by which a client gives up a claim.
    fn lets_go(&self, client: usize, claim: usize) -> usize {
        2 + self.bounds.clients + client * self.claims.len() + claim
    }

    fn opening(&self, client: usize) -> Opening {
        Opening {
            proof: proof(client),
            owner: Owner::from(""),
            principal: Principal::default(),
            ttl: Ttl(self.bounds.ttl),
        }
    }

    fn command(&self, state: &State, action: Action) -> Option<Command> {
        let session = |client| state.session(client).map(|(id, _)| id);
        let keys = |claim: usize| self.claims[claim].keys.clone();
        Some(match action {
            Action::Open(client) => Command::Open { opening: self.opening(client) },
            Action::AcquireOnce(client, claim) => {
                Command::AcquireOnce { opening: self.opening(client), request: self.claims[claim].clone() }
            }
            Action::Acquire(client, claim) | Action::Add(client, claim) => {
                Command::Acquire { session: session(client)?, sequence: None, request: self.claims[claim].clone() }
            }
            Action::Release(client, claim) => {
                let (session, keys) = (session(client)?, keys(claim));
                let held = Claim::Held(state.table.lock(keys.first())?.holder(session)?.token);
                Command::Release { session, sequence: None, keys, claim: held }
            }
            Action::Withdraw(client, claim) => {
                Command::Release { session: session(client)?, sequence: None, keys: keys(claim), claim: Claim::Waiting }
            }
            Action::Close(client) => Command::Close { session: session(client)? },
            Action::KeepAlive(client) => Command::KeepAlive { sessions: vec![session(client)?] },
            Action::Stop(_) | Action::Tick | Action::Sweep => return None,
        })
    }

    /// Whether the leader appends a no-op for a due session.
    fn may_sweep(&self, state: &State) -> bool {
        let is_due = state.table.next_deadline().is_some_and(|deadline| deadline < state.now);
        is_due
            && (self.bounds.flaw != Some(Flaw::IgnoresIdleSessions) || {
                let due = state.table.sessions().values().filter(|session| session.is_due(state.now));
                let holds = |session: &Session| !session.claims().is_empty();
                due.into_iter().any(holds)
            })
    }

    /// The flaw that serves the second waiter first.
    fn skip_the_first(&self, state: &mut State, claim: usize) {
        let request = self.claims[claim].clone();
        let queue = state.table.lock(request.keys.first()).map(|lock| lock.queue.clone()).unwrap_or_default();
        if let (Some(first), true) = (queue.front(), queue.len() > 1) {
            let (session, keys, claim) = (first.session, request.keys.clone(), Claim::Waiting);
            state.table.apply(state.now, &Command::Release { session, sequence: None, keys, claim });
            state.table.apply(state.now, &Command::Acquire { session, sequence: None, request });
        }
    }

    fn holds(&self, state: &State, client: usize, claim: usize) -> bool {
        let LockRequest { keys, mode, .. } = &self.claims[claim];
        let is_it = |holder: &Holder| {
            holder.session.proof == proof(client)
                && holder.mode == *mode
                && holder.all_keys(keys.first()) == keys.as_slice()
        };
        state.table.lock(keys.first()).is_some_and(|lock| lock.holders.iter().any(is_it))
    }

    fn waits(&self, state: &State, client: usize, claim: usize) -> bool {
        let LockRequest { keys, mode, .. } = &self.claims[claim];
        let is_it = |waiter: &Waiter| {
            waiter.session.proof == proof(client)
                && waiter.mode == *mode
                && waiter.all_keys(keys.first()) == keys.as_slice()
        };
        state.table.lock(keys.first()).is_some_and(|lock| lock.queue.iter().any(is_it))
    }

    /// Whether a request that bounds the queue was rightly refused: the client has no claim, and a queue is full.
    /// Refused for no reason, it counts as one that waits and is never granted the lock.
    fn is_refused(&self, after: &State, client: usize, claim: usize) -> bool {
        let LockRequest { keys, max_queue, .. } = &self.claims[claim];
        let is_full = |lock: &Lock| lock.queue.len() as u64 >= u64::from(*max_queue);
        let has_claim = self.holds(after, client, claim) || self.waits(after, client, claim);
        !has_claim && keys.iter().filter_map(|key| after.table.lock(key)).any(is_full)
    }

    /// Whether a client adds a hold to its grant: once to each, so that releases end it.
    fn may_add(&self, state: &State, client: usize, claim: usize) -> bool {
        let has_added = state.clients[client].added & (1 << claim) != 0;
        self.claims[claim].reentrant && !has_added && self.holds(state, client, claim)
    }

    /// What a live client does about a claim. It has one claim on a key at a time.
    fn action(&self, state: &State, client: usize, id: SessionId, claim: usize) -> Option<Action> {
        let has_claim = |lock: &Lock| lock.holder(id).is_some() || lock.queue_position(id).is_some();
        let keys = &self.claims[claim].keys;
        if self.holds(state, client, claim) {
            Some(Action::Release(client, claim))
        } else if self.waits(state, client, claim) {
            Some(Action::Withdraw(client, claim))
        } else {
            let is_free = !keys.iter().filter_map(|key| state.table.lock(key)).any(has_claim);
            is_free.then_some(Action::Acquire(client, claim))
        }
    }

    /// The keys of a claim, and how much of each lock it takes.
    fn name(&self, claim: usize) -> String {
        let LockRequest { keys, mode, .. } = &self.claims[claim];
        let names: Vec<&str> = keys.iter().map(Key::as_str).collect();
        let names = names.join(" and ");
        if *mode == palisade_spec::lock::Mode::EXCLUSIVE { names } else { format!("{names} ({mode})") }
    }

    fn table(&self, state: &State) -> StateTable {
        let mut table = StateTable::default();
        for key in &self.keys {
            let who = |id: SessionId| format!("client {}", u128::from(id.proof) + 1);
            let (holder, queue) = state.table.lock(key).map_or_else(Default::default, |lock| {
                let queue: Vec<String> = lock.queue.iter().map(|waiter| who(waiter.session)).collect();
                let held = |holder: &Holder| match holder.holds {
                    1 => who(holder.session),
                    holds => format!("{} ({holds} holds)", who(holder.session)),
                };
                let holders: Vec<String> = lock.holders.iter().map(held).collect();
                (holders.join(", "), queue.join(", "))
            });
            table.fields(format!("key {key}"), [("held by", holder), ("queue", queue)]);
        }
        for (number, client) in state.clients.iter().enumerate() {
            let mode = match client.mode {
                Mode::Away => "no session",
                Mode::Lives => "lives",
                Mode::Stopped => "has stopped",
            };
            let left = state.session(number).map_or(String::new(), |(_, session)| match session.is_due(state.now) {
                true => "is due".to_string(),
                false => format!("has {} left", session.deadline.0 - state.now.0),
            });
            table.fields(format!("client {}", number + 1), [("", mode.to_string()), ("session", left)]);
        }
        table
    }
}

/// The proof that identifies a client in all its sessions.
fn proof(client: usize) -> Proof {
    Proof::from(client as u128)
}

impl State {
    /// The client's session, identified by its proof.
    fn session(&self, client: usize) -> Option<(SessionId, &Session)> {
        let mut sessions = self.table.sessions().iter();
        sessions.find(|(id, _)| id.proof == proof(client)).map(|(id, session)| (*id, session))
    }

    /// The distance of a deadline; for a passed deadline, only its rank.
    fn distances(&self) -> impl Fn(Stamp) -> u64 {
        let now = self.now;
        let sessions = self.table.sessions().values().map(|session| session.deadline);
        let indexes = self.table.deadlines().keys().chain(self.table.contended().keys()).map(|(deadline, _)| *deadline);
        let mut passed: Vec<Stamp> = sessions.chain(indexes).filter(|deadline| *deadline < now).collect();
        passed.sort_unstable();
        passed.dedup();
        move |deadline| match deadline < now {
            true => passed.iter().position(|other| *other == deadline).map_or(0, |index| index as u64) << 32,
            false => 1 + deadline.0 - now.0,
        }
    }
}

/// States of one hash have the same future.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let distance = self.distances();
        self.clients.hash(hasher);
        for (id, session) in self.table.sessions().iter() {
            (id.proof, distance(session.deadline), session.once).hash(hasher);
            session.claims().hash(hasher);
        }
        u64::MAX.hash(hasher);
        for (key, lock) in self.table.locks().iter() {
            key.hash(hasher);
            for holder in lock.holders.iter() {
                (holder.session.proof, holder.mode, holder.holds, holder.all_keys(key)).hash(hasher);
            }
            u64::MAX.hash(hasher);
            for waiter in lock.queue.iter() {
                (waiter.session.proof, waiter.mode, waiter.all_keys(key)).hash(hasher);
            }
            u64::MAX.hash(hasher);
        }
        for (deadline, id) in self.table.deadlines().keys() {
            (distance(*deadline), id.proof).hash(hasher);
        }
        u64::MAX.hash(hasher);
        for ((deadline, id), locks) in self.table.contended().iter() {
            (distance(*deadline), id.proof, *locks).hash(hasher);
        }
    }
}

/// A table of the state, for people.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = Bounds {
            clients: self.clients.len(),
            keys: self.keys,
            wanted: &[],
            ttl: 0,
            sweep: 0,
            once: false,
            sweeps_catch_up: false,
            flaw: None,
        };
        fmt::Display::fmt(&Queue::new(bounds).table(self), f)
    }
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    /// The layer [`locks`](crate::locks) checks safety.
    fn properties(&self) -> Vec<Property<Queue>> {
        Vec::new()
    }

    fn init_states(&self) -> Vec<State> {
        let client = Client::without_claims(Mode::Away);
        let Bounds { clients, keys, sweep, .. } = self.bounds;
        vec![State { table: LockTable::sweeping(sweep), now: Stamp(0), clients: vec![client; clients], keys }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let claims = 0..self.claims.len();
        for (client, Client { mode, .. }) in state.clients.iter().enumerate() {
            match mode {
                Mode::Away => {
                    actions.push(Action::Open(client));
                    if self.bounds.once {
                        actions.extend(claims.clone().map(|claim| Action::AcquireOnce(client, claim)));
                    }
                }
                Mode::Lives => {
                    let Some((id, session)) = state.session(client) else { continue };
                    actions.extend(claims.clone().filter_map(|claim| self.action(state, client, id, claim)));
                    let adds = claims.clone().filter(|claim| self.may_add(state, client, *claim));
                    actions.extend(adds.map(|claim| Action::Add(client, claim)));
                    actions.extend([Action::Close(client), Action::Stop(client)]);
                    if session.deadline < state.now.plus(session.ttl.0) {
                        actions.push(Action::KeepAlive(client));
                    }
                }
                Mode::Stopped => {}
            }
        }
        let lives = |index: &usize| state.clients[*index].mode == Mode::Lives;
        let mut deadlines = (0..state.clients.len()).filter(lives).filter_map(|client| state.session(client));
        if deadlines.all(|(_, session)| session.deadline > state.now) {
            actions.push(Action::Tick);
        }
        if self.may_sweep(state) {
            actions.push(Action::Sweep);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Tick => {
                // Time changes only the remaining time of live sessions.
                let changes = last.table.sessions().values().any(|session| !session.is_due(last.now));
                if !changes {
                    return None;
                }
                next.now = last.now.plus(1);
            }
            Action::Sweep => {
                next.table.advance(last.now);
            }
            Action::Stop(client) => next.clients[client] = Client::without_claims(Mode::Stopped),
            Action::Open(client) => next.clients[client].mode = Mode::Lives,
            Action::AcquireOnce(client, claim) => {
                next.clients[client] = Client { wants: 1 << claim, ..Client::without_claims(Mode::Lives) }
            }
            Action::Acquire(client, claim) => next.clients[client].wants |= 1 << claim,
            Action::Add(client, claim) => next.clients[client].added |= 1 << claim,
            // Its claim is given up below, with the last hold.
            Action::Release(..) => {}
            Action::Withdraw(client, claim) => next.clients[client].wants &= !(1 << claim),
            Action::Close(client) => next.clients[client].wants = 0,
            Action::KeepAlive(_) => {}
        }
        if let (Action::Release(_, claim), Some(Flaw::SkipsFirstWaiter)) = (action, self.bounds.flaw) {
            self.skip_the_first(&mut next, claim);
        }
        if let Some(command) = self.command(last, action) {
            next.table.apply(last.now, &command);
        }
        match action {
            Action::Release(client, claim) if !self.holds(&next, client, claim) => {
                let Client { wants, added, .. } = &mut next.clients[client];
                (*wants, *added) = (*wants & !(1 << claim), *added & !(1 << claim));
            }
            Action::Acquire(client, claim) if self.is_refused(&next, client, claim) => {
                if next.table == last.table {
                    return None;
                }
                next.clients[client].wants &= !(1 << claim);
            }
            _ => {}
        }
        for client in 0..next.clients.len() {
            if next.session(client).is_none() {
                next.clients[client] = Client::without_claims(Mode::Away);
            }
        }
        Some(next)
    }

    fn format_action(&self, action: &Action) -> String {
        match action {
            Action::Open(client) => format!("client {} opens a session", client + 1),
            Action::AcquireOnce(client, claim) => {
                let name = self.name(*claim);
                format!("client {} acquires {name} with a session of its own, and waits for it", client + 1)
            }
            Action::Acquire(client, claim) => {
                format!("client {} acquires {}, and waits for it", client + 1, self.name(*claim))
            }
            Action::Add(client, claim) => format!("client {} acquires {} once more", client + 1, self.name(*claim)),
            Action::Release(client, claim) => format!("client {} releases {}", client + 1, self.name(*claim)),
            Action::Withdraw(client, claim) => {
                format!("client {} waits for {} no longer", client + 1, self.name(*claim))
            }
            Action::Close(client) => format!("client {} closes its session", client + 1),
            Action::KeepAlive(client) => format!("client {} keeps its session alive", client + 1),
            Action::Stop(client) => format!("client {} stops for good", client + 1),
            Action::Tick => "time passes".to_string(),
            Action::Sweep => "the leader's no-op sweeps".to_string(),
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        let next = self.next_state(last, action)?;
        Some(self.table(&next).since(&self.table(last)).join("\n"))
    }
}

impl Presentation for Queue {}

impl Live for Queue {
    fn classes(&self) -> Vec<Class> {
        let weak = |name: String| Class { name, fairness: Fairness::Weak };
        let mut classes = vec![weak("time passes".to_string()), weak("the leader sweeps".to_string())];
        let clients = 0..self.bounds.clients;
        classes.extend(clients.clone().map(|client| weak(format!("client {} keeps its session alive", client + 1))));
        for client in clients {
            let claims = 0..self.claims.len();
            classes.extend(claims.map(|claim| weak(format!("client {} lets go of {}", client + 1, self.name(claim)))));
        }
        if self.bounds.sweeps_catch_up {
            let name = "the leader sweeps sessions that nothing waits for".to_string();
            classes.push(Class { name, fairness: Fairness::Strong });
        }
        classes
    }

    fn classes_of(&self, state: &State, action: &Action) -> u64 {
        let lets_go = |client: usize, claims: std::ops::Range<usize>| {
            let held = claims.filter(|claim| self.holds(state, client, *claim));
            held.fold(0, |bits, claim| bits | 1 << self.lets_go(client, claim))
        };
        match *action {
            Action::Tick => 1,
            Action::Sweep => {
                let contended = state.table.contended().keys().any(|(deadline, _)| *deadline < state.now);
                let catches_up = self.bounds.sweeps_catch_up && !contended;
                2 | u64::from(catches_up) << self.lets_go(self.bounds.clients, 0)
            }
            Action::KeepAlive(client) => 1 << (2 + client),
            Action::Release(client, claim) => lets_go(client, claim..claim + 1),
            Action::Close(client) | Action::Stop(client) => lets_go(client, 0..self.claims.len()),
            Action::Open(_)
            | Action::AcquireOnce(..)
            | Action::Acquire(..)
            | Action::Add(..)
            | Action::Withdraw(..) => 0,
        }
    }

    /// For each client and each claim, two labels: the client wants it and does not hold it; the
    /// opposite. For each client, four labels: its session is due; the opposite; it has stopped
    /// and has a session; the opposite.
    fn labels(&self, state: &State) -> u64 {
        let mut truths = Vec::new();
        for (number, client) in state.clients.iter().enumerate() {
            let waits = |claim: usize| client.wants & (1 << claim) != 0 && !self.holds(state, number, claim);
            truths.extend((0..self.claims.len()).map(waits));
            truths.push(state.session(number).is_some_and(|(_, session)| session.is_due(state.now)));
            truths.push(client.mode == Mode::Stopped);
        }
        let bits = truths.into_iter().enumerate();
        bits.fold(0, |labels, (index, truth)| labels | 1 << (2 * index + usize::from(!truth)))
    }

    fn responses(&self) -> Vec<Response> {
        let (clients, claims) = (self.bounds.clients, self.claims.len());
        let own = u32::try_from(claims).expect("few claims") + 2;
        let response = |property, client: usize, index: u32, of: String| {
            let label = 2 * (u32::try_from(client).expect("few clients") * own + index);
            Response { property, of, pending: label, served: label + 1 }
        };
        let waiter = |client: usize, claim: usize| {
            let of = format!("client {} on {}", client + 1, self.name(claim));
            response(GRANTED, client, u32::try_from(claim).expect("few claims"), of)
        };
        let mut all: Vec<Response> =
            (0..clients).flat_map(|client| (0..claims).map(move |claim| waiter(client, claim))).collect();
        for (property, index) in [(DUE_ENDS, own - 2), (STOPPED_ENDS, own - 1)] {
            all.extend((0..clients).map(|client| response(property, client, index, format!("client {}", client + 1))));
        }
        all
    }
}

/// A waiter that does not give up is granted the lock.
pub const GRANTED: &str = "every waiter is granted the lock";
/// A session whose deadline has passed ends.
pub const DUE_ENDS: &str = "every due session ends";
/// A session that is kept alive no longer ends.
pub const STOPPED_ENDS: &str = "the session of a stopped client ends";
