//! The lock table by itself, behind a perfect log: what clients do to it, in every order, with every request late,
//! repeated or lost, and sessions that expire at any moment.
//!
//! A request that was ever sent may be applied at any later time and any number of times; one that never is was lost. No
//! order is kept: a client's later operation may overtake an earlier one, which then arrives late.

mod judge;
mod properties;
mod show;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use palisade_spec::invariants::Violation;
use palisade_spec::lock::{
    Claim, Command, Event, Key, LockTable, Opening, Outcome, Owner, Reply, Sequence, SessionId, Token, Ttl,
};
use palisade_spec::raft::{Payload, Stamp, StateMachine};
use serde::Serialize;
use smallvec::SmallVec;
use stateright::{Model, Path, Property};

pub use self::judge::{execute, judge};
use crate::diagram::Diagram;
use crate::readable::{Readable, Way};
use crate::world::Legible;
use crate::world::digest::Renaming;
use crate::world::intern::{Interner, Ref};
use crate::world::memo::Memo;

/// What is explored.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// How many sessions there are at the beginning.
    pub sessions: u64,
    /// How many keys.
    pub keys: usize,
    /// How many numbered operations a session sends.
    pub operations: usize,
    /// How many acquires without a session are sent.
    pub once: usize,
    /// How long sessions live without a sign of life, in ticks.
    pub ttl: u64,
    /// How many ticks there are.
    pub ticks: u64,
    /// What operations there are.
    pub alphabet: &'static [Deed],
}

/// What a client can do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Deed {
    /// Acquire, and wait if it is held.
    Wait,
    /// Acquire, if it is free.
    Try,
    /// Release what it was granted; if it was granted nothing yet, a token that it never had.
    Release,
    /// Drop the claim, held or waiting.
    Withdraw,
}

/// A client: its operations, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Client {
    /// What it sent.
    pub sent: Vec<Ref<Payload<Command>>>,
    /// The last grant it was told of, on each key.
    pub granted: Vec<Option<Token>>,
}

/// A table, its clients, and the time.
#[derive(Clone, PartialEq)]
pub struct State {
    /// The table.
    pub table: Ref<LockTable>,
    /// The clients.
    pub clients: SmallVec<[Ref<Client>; 3]>,
    /// The acquires without a session that were sent.
    pub once: SmallVec<[Ref<Payload<Command>>; 2]>,
    /// Cluster time.
    pub now: Stamp,
    /// The greatest token that was ever granted.
    pub greatest: Token,
    /// What went wrong.
    pub violation: Option<&'static Violation>,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A client sends its next operation.
    Send(usize, Deed, usize),
    /// Somebody sends an acquire without a session.
    SendOnce(usize),
    /// An operation that was sent is applied: for the first time, or again.
    Apply(usize, usize),
    /// An acquire without a session is applied.
    ApplyOnce(usize),
    /// A session is kept alive.
    KeepAlive(usize),
    /// A session is closed.
    Close(usize),
    /// Time passes.
    Tick,
    /// An idle leader's no-op.
    Noop,
}

/// How many sessions there may be, those of acquires without one included.
const SESSIONS: usize = 5;

/// The model.
pub struct Locks {
    /// What is explored.
    pub bounds: Bounds,
    keys: Vec<Key>,
    names: Vec<Renaming>,
    tables: Interner<LockTable>,
    clients: Interner<Client>,
    payloads: Interner<Payload<Command>>,
    entries: Memo<Entry>,
}

/// What an entry did.
struct Entry {
    table: Ref<LockTable>,
    outcome: Outcome,
    greatest: Token,
    violation: Option<&'static Violation>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.table.digest(0));
        self.clients.iter().for_each(|client| state.write_u64(client.digest(0)));
        self.once.iter().for_each(|command| state.write_u64(command.digest(0)));
        (self.now, self.greatest, self.violation.map(|violation| violation.property)).hash(state);
    }
}

/// A table, for people.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&show::facts(self), f)
    }
}

impl Locks {
    /// The model within these bounds.
    pub fn new(bounds: Bounds) -> Locks {
        let keys = ["k", "l", "m"][..bounds.keys].iter().map(|&key| Key::from(key)).collect();
        Locks {
            bounds,
            keys,
            names: vec![Vec::new()],
            tables: Interner::default(),
            clients: Interner::default(),
            payloads: Interner::default(),
            entries: Memo::new(1 << 18),
        }
    }

    /// The session of a client.
    pub fn session(client: usize) -> SessionId {
        SessionId { number: client as u64 + 1, nonce: 0 }
    }

    fn entry(&self, state: &State, payload: Ref<Payload<Command>>) -> Arc<Entry> {
        self.entries.get([state.table.key(), payload.key(), state.now.0, state.greatest.0], || {
            let mut table = (*state.table).clone();
            let mut greatest = state.greatest;
            let outcome = execute(&mut table, state.now, &payload);
            let judged = judge(&state.table, state.now, &payload, &outcome, &table, &mut greatest);
            let violation = judged.err().map(|violation| &*Box::leak(Box::new(violation)));
            Entry { table: self.tables.intern(table, &self.names), outcome, greatest, violation }
        })
    }

    /// What a client sends.
    fn command(&self, number: usize, client: &Client, deed: Deed, key: usize) -> Command {
        let (session, sequence) = (Locks::session(number), Some(Sequence(client.sent.len() as u64 + 1)));
        let token = client.granted[key].unwrap_or(Token(u64::MAX));
        let key = self.keys[key].clone();
        match deed {
            Deed::Wait => Command::Acquire { session, sequence, key, wait: true },
            Deed::Try => Command::Acquire { session, sequence, key, wait: false },
            Deed::Release => Command::Release { session, sequence, key, claim: Claim::Held(token) },
            Deed::Withdraw => Command::Release { session, sequence, key, claim: Claim::Either },
        }
    }

    fn payload(&self, payload: Payload<Command>) -> Ref<Payload<Command>> {
        self.payloads.intern(payload, &self.names)
    }

    fn change(&self, state: &mut State, number: usize, change: impl FnOnce(&mut Client)) {
        let mut client = (*state.clients[number]).clone();
        change(&mut client);
        if client != *state.clients[number] {
            state.clients[number] = self.clients.intern(client, &self.names);
        }
    }

    /// An entry is applied, and whoever was granted a lock is told.
    fn apply(&self, state: &State, payload: Ref<Payload<Command>>) -> State {
        let entry = self.entry(state, payload);
        let mut next = state.clone();
        (next.table, next.greatest, next.violation) = (entry.table, entry.greatest, entry.violation);
        for event in &entry.outcome.events {
            let Event::Granted { key, session, token } = event else { continue };
            let place = self.keys.iter().position(|known| known == key).expect("only these keys are used");
            if let Some(number) = usize::try_from(session.number - 1).ok().filter(|&at| at < next.clients.len()) {
                self.change(&mut next, number, |client| client.granted[place] = Some(*token));
            }
        }
        next
    }
}

impl Model for Locks {
    type State = State;
    type Action = Action;

    fn properties(&self) -> Vec<Property<Locks>> {
        properties::properties(self)
    }

    fn init_states(&self) -> Vec<State> {
        let mut table = LockTable::default();
        for _ in 0..self.bounds.sessions {
            let opening = Opening { nonce: 0, owner: Owner::from(""), ttl: Ttl(self.bounds.ttl) };
            let outcome = table.apply(Stamp(0), &Command::Open { opening });
            assert!(matches!(outcome.reply, Some(Reply::Opened { .. })));
        }
        let client = Client { sent: Vec::new(), granted: vec![None; self.bounds.keys] };
        let count = usize::try_from(self.bounds.sessions).expect("few sessions");
        vec![State {
            table: self.tables.intern(table, &self.names),
            clients: vec![self.clients.intern(client, &self.names); count].into(),
            once: SmallVec::new(),
            now: Stamp(0),
            greatest: Token(0),
            violation: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.violation.is_some() {
            return;
        }
        for (number, client) in state.clients.iter().enumerate() {
            if client.sent.len() < self.bounds.operations {
                for key in 0..self.bounds.keys {
                    actions.extend(self.bounds.alphabet.iter().map(|&deed| Action::Send(number, deed, key)));
                }
            }
            actions.extend((0..client.sent.len()).map(|operation| Action::Apply(number, operation)));
            actions.extend([Action::KeepAlive(number), Action::Close(number)]);
        }
        if state.once.len() < self.bounds.once {
            actions.extend((0..self.bounds.keys).map(Action::SendOnce));
        }
        actions.extend((0..state.once.len()).map(Action::ApplyOnce));
        if state.now.0 < self.bounds.ticks {
            actions.push(Action::Tick);
        }
        actions.push(Action::Noop);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let next = match action {
            Action::Send(number, deed, key) => {
                let mut next = last.clone();
                let command = self.payload(Payload::Command(self.command(number, &last.clients[number], deed, key)));
                self.change(&mut next, number, |client| client.sent.push(command));
                next
            }
            Action::SendOnce(key) => {
                let opening = Opening { nonce: 1, owner: Owner::from(""), ttl: Ttl(self.bounds.ttl) };
                let command = Command::AcquireOnce { opening, key: self.keys[key].clone(), wait: true };
                let mut next = last.clone();
                next.once.push(self.payload(Payload::Command(command)));
                next
            }
            Action::Apply(number, operation) => self.apply(last, last.clients[number].sent[operation]),
            // Each repetition opens another session; the table's own bound is how often that is followed.
            Action::ApplyOnce(_) if last.table.sessions().len() >= SESSIONS => return None,
            Action::ApplyOnce(place) => self.apply(last, last.once[place]),
            Action::KeepAlive(number) => {
                let sessions = vec![Locks::session(number)];
                self.apply(last, self.payload(Payload::Command(Command::KeepAlive { sessions })))
            }
            Action::Close(number) => {
                let session = Locks::session(number);
                self.apply(last, self.payload(Payload::Command(Command::Close { session })))
            }
            Action::Tick => State { now: last.now.plus(1), ..last.clone() },
            Action::Noop => self.apply(last, self.payload(Payload::Noop)),
        };
        if let Some(violation) = next.violation {
            // Nothing happens after a violation: one that no property asks for would hide all that lies behind it.
            let named = self.properties().iter().any(|property| property.name == violation.property);
            assert!(named, "no property asks for {violation}");
        }
        (next != *last).then_some(next)
    }

    fn format_action(&self, action: &Action) -> String {
        self.tell(action)
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        Some(show::facts(&self.next_state(last, action)?).since(&show::facts(last)).join("\n"))
    }

    fn as_svg(&self, path: Path<State, Action>) -> Option<String> {
        self.draw(&path.into_vec()).map(|diagram| diagram.svg())
    }
}

impl Readable for Locks {
    fn sentence(&self, last: &State, action: &Action) -> String {
        self.tell_in(last, action)
    }

    fn event(&self, last: &State, action: &Action) -> serde_json::Value {
        self.recount(last, action)
    }

    fn setting(&self, initial: &State) -> serde_json::Value {
        serde_json::json!({ "bounds": format!("{:?}", self.bounds), "table": initial.table.data() })
    }

    fn diagram(&self, way: &Way<Locks>) -> Option<Diagram> {
        self.draw(way)
    }
}
