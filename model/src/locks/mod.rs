//! The lock table by itself, behind a perfect log: what clients do to it, in every order, with every request late,
//! repeated or lost, and sessions that expire at any moment.
//!
//! A numbered operation that was ever sent may be applied at any later time and any number of times; one that never is
//! was lost. No order is kept: a client's later operation may overtake an earlier one, which then arrives late. What has no
//! number may be asked by anybody at any moment (`requests.rs`).

mod answers;
mod judge;
mod properties;
mod requests;
mod show;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use palisade_spec::invariants::Violation;
use palisade_spec::lock::{Claim, Command, Event, Key, LockTable, Outcome, Reply, Sequence, SessionId, Token};
use palisade_spec::raft::{Input, Payload, Stamp, StateMachine};
use serde::Serialize;
use smallvec::SmallVec;
use stateright::{Model, Path, Property};

pub(crate) use self::judge::require;
pub use self::judge::{execute, judge};
use self::requests::Requests;
pub use self::requests::{Request, Start};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::world::digest::Renaming;
use crate::world::intern::{Interner, Ref};
use crate::world::memo::Memo;

/// What is explored.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// How many sessions there are at the beginning, each with a client that numbers its operations.
    pub sessions: u64,
    /// How sessions begin later.
    pub openings: &'static [Start],
    /// How many sessions there are in all, at once or one after the other.
    pub opened: u64,
    /// How many keys.
    pub keys: usize,
    /// How many numbered operations a client sends.
    pub operations: usize,
    /// What numbered operations there are.
    pub numbered: &'static [Operation],
    /// What there is without a number, for every session, at any moment and any number of times.
    pub unnumbered: &'static [Operation],
    /// How many grants there are.
    pub grants: u64,
    /// How long sessions live without a sign of life, in ticks.
    pub ttl: u64,
    /// How many ticks there are.
    pub ticks: u64,
    /// How many sessions and claims a sweep ends.
    pub sweep: u64,
}

/// What can be done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Operation {
    /// Acquire, and wait if it is held.
    Wait,
    /// Acquire, if it is free.
    Try,
    /// Release what was granted: a numbered operation means what its client was told of last, or a token that there
    /// never was if it was told of none; without a number, any grant that there ever was.
    Release,
    /// Drop the claim, held or waiting.
    Withdraw,
    /// Give up the place in the queue, but not the lock.
    Leave,
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
    /// How many sessions were ever opened.
    pub opened: u64,
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
    Send(usize, Operation, usize),
    /// An operation that was sent is applied: for the first time, or again.
    Apply(usize, usize),
    /// A request without a number is applied.
    Ask(Request),
    /// Time passes.
    Tick,
    /// An idle leader's no-op.
    Noop,
}

/// The model.
pub struct Locks {
    /// What is explored.
    pub bounds: Bounds,
    keys: Vec<Key>,
    names: Vec<Renaming>,
    tables: Interner<LockTable>,
    clients: Interner<Client>,
    payloads: Interner<Payload<Command>>,
    requests: Requests,
    entries: Memo<Entry>,
}

/// What an entry did.
struct Entry {
    table: Ref<LockTable>,
    /// The number of the session that came to be.
    opened: Option<u64>,
    outcome: Outcome,
    greatest: Token,
    violation: Option<&'static Violation>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.table.digest(0));
        self.clients.iter().for_each(|client| state.write_u64(client.digest(0)));
        (self.opened, self.now, self.greatest, self.violation.map(|violation| violation.property)).hash(state);
    }
}

/// A table, for people.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&show::table(self), f)
    }
}

impl Locks {
    /// The model within these bounds.
    pub fn new(bounds: Bounds) -> Locks {
        let keys: Vec<Key> = ["k", "l", "m"][..bounds.keys].iter().map(|&key| Key::from(key)).collect();
        let (names, payloads) = (vec![Vec::new()], Interner::default());
        let requests = Requests::new(&bounds, &keys, |command| payloads.intern(Payload::Command(command), &names));
        // Without operations that were sent there is hardly a table that two states share.
        let entries = Memo::new(if bounds.operations > 0 { 1 << 18 } else { 1 });
        Locks {
            bounds,
            keys,
            names,
            tables: Interner::default(),
            clients: Interner::default(),
            payloads,
            requests,
            entries,
        }
    }

    fn entry(&self, state: &State, payload: Ref<Payload<Command>>) -> Arc<Entry> {
        self.entries.get([state.table.key(), payload.key(), state.now.0, state.greatest.0], || {
            let mut table = (*state.table).clone();
            let mut greatest = state.greatest;
            let outcome = execute(&mut table, state.now, &payload);
            let violation = judge(&state.table, state.now, &payload, &outcome, &table, &mut greatest).err().map(leak);
            let is_new = |id: &&SessionId| state.table.session(**id).is_none();
            let opened = table.sessions().keys().filter(is_new).last().map(|id| id.number);
            let table = if table == *state.table { state.table } else { self.tables.intern(table, &self.names) };
            Entry { table, opened, outcome, greatest, violation }
        })
    }

    /// The session of a client.
    fn session(&self, client: usize) -> SessionId {
        requests::session(&self.bounds, client as u64 + 1)
    }

    /// What a client sends.
    fn command(&self, number: usize, client: &Client, operation: Operation, key: usize) -> Command {
        let (session, sequence) = (self.session(number), Some(Sequence(client.sent.len() as u64 + 1)));
        let token = client.granted[key].unwrap_or(Token(u64::MAX));
        let key = self.keys[key].clone();
        match operation {
            Operation::Wait => Command::Acquire { session, sequence, key, wait: true },
            Operation::Try => Command::Acquire { session, sequence, key, wait: false },
            Operation::Release => Command::Release { session, sequence, key, claim: Claim::Held(token) },
            Operation::Withdraw => Command::Release { session, sequence, key, claim: Claim::Either },
            Operation::Leave => Command::Release { session, sequence, key, claim: Claim::Waiting },
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

    /// An entry is applied, and whoever was granted a lock is told. Beyond the bounds nothing is followed.
    fn apply(&self, state: &State, payload: Ref<Payload<Command>>) -> Option<State> {
        let entry = self.entry(state, payload);
        let mut next = state.clone();
        (next.table, next.greatest, next.violation) = (entry.table, entry.greatest, entry.violation);
        if let Some(number) = entry.opened {
            next.violation = next.violation.or_else(|| came_again(number, state.opened).map(leak));
            next.opened = state.opened.max(number);
        }
        let is_within = next.greatest.0 <= self.bounds.grants && next.opened <= self.bounds.opened;
        if !is_within && next.violation.is_none() {
            return None;
        }
        for event in &entry.outcome.events {
            let Event::Granted { key, session, token } = event else { continue };
            let place = self.keys.iter().position(|known| known == key).expect("only these keys are used");
            if let Some(number) = usize::try_from(session.number - 1).ok().filter(|&at| at < next.clients.len()) {
                self.change(&mut next, number, |client| client.granted[place] = Some(*token));
            }
        }
        Some(next)
    }
}

/// A session's number never comes back: else a late request of the earlier session would be done for the later one.
fn came_again(number: u64, opened: u64) -> Option<Violation> {
    let detail = || format!("session {number} was opened after session {opened}");
    (number <= opened).then(|| Violation { property: "exactly once", detail: detail() })
}

/// Nothing happens after a violation, so there are few.
fn leak(violation: Violation) -> &'static Violation {
    Box::leak(Box::new(violation))
}

impl Model for Locks {
    type State = State;
    type Action = Action;

    fn properties(&self) -> Vec<Property<Locks>> {
        properties::properties(self)
    }

    fn init_states(&self) -> Vec<State> {
        let mut table = LockTable::sweeping(self.bounds.sweep);
        for client in 1..=self.bounds.sessions {
            let opening = requests::opening(&self.bounds, client);
            let outcome = table.apply(Stamp(0), &Command::Open { opening });
            assert!(matches!(outcome.reply, Some(Reply::Opened { .. })));
        }
        // Whoever numbers nothing needs to remember nothing.
        let clients = if self.bounds.operations > 0 { self.bounds.sessions } else { 0 };
        let client = Client { sent: Vec::new(), granted: vec![None; self.bounds.keys] };
        let count = usize::try_from(clients).expect("few sessions");
        vec![State {
            table: self.tables.intern(table, &self.names),
            clients: vec![self.clients.intern(client, &self.names); count].into(),
            opened: self.bounds.sessions,
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
                    actions.extend(self.bounds.numbered.iter().map(|&operation| Action::Send(number, operation, key)));
                }
            }
            actions.extend((0..client.sent.len()).map(|operation| Action::Apply(number, operation)));
        }
        actions.extend(self.requests.possible(state).map(Action::Ask));
        if state.now.0 < self.bounds.ticks {
            actions.push(Action::Tick);
        }
        actions.push(Action::Noop);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let next = match action {
            Action::Send(number, operation, key) => {
                let mut next = last.clone();
                let command =
                    self.payload(Payload::Command(self.command(number, &last.clients[number], operation, key)));
                self.change(&mut next, number, |client| client.sent.push(command));
                next
            }
            Action::Apply(number, operation) => self.apply(last, last.clients[number].sent[operation])?,
            Action::Ask(request) => self.apply(last, request)?,
            Action::Tick => State { now: last.now.plus(1), ..last.clone() },
            Action::Noop => self.apply(last, self.payload(Payload::Noop))?,
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
        Some(show::table(&self.next_state(last, action)?).since(&show::table(last)).join("\n"))
    }

    fn as_svg(&self, path: Path<State, Action>) -> Option<String> {
        self.draw(&path.into_vec()).map(|diagram| diagram.svg())
    }
}

impl Presentation for Locks {
    /// There are hundreds of requests that may be applied at any moment; time must pass among them.
    fn weight(action: &Action) -> u32 {
        match action {
            Action::Tick => 12,
            Action::Send(..) => 4,
            Action::Apply(..) | Action::Ask(_) | Action::Noop => 1,
        }
    }

    fn sentence(&self, last: &State, action: &Action) -> String {
        self.tell_in(last, action)
    }

    fn event(&self, last: &State, action: &Action) -> serde_json::Value {
        self.recount(last, action)
    }

    /// As a cluster of one server, whose log is as perfect as the model's: it leads, and whatever is applied was proposed to
    /// it.
    fn setting(&self, initial: &State) -> serde_json::Value {
        let campaign = serde_json::json!({ "input": Input::<LockTable>::ElectionTimeout, "done": true });
        let turn = serde_json::json!({ "server": 1, "stimulus": "election timeout", "inputs": [campaign] });
        serde_json::json!({
            "bounds": format!("{:?}", self.bounds),
            "founders": 1,
            "joiners": 0,
            "batch": 64,
            "machine": *initial.table,
            "starts": [],
            "prelude": [{ "kind": "election timeout", "server": 1, "turns": [turn] }],
        })
    }

    fn diagram(&self, way: &Way<Locks>) -> Option<Diagram> {
        self.draw(way)
    }
}
