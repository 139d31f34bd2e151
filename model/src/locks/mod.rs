//! The lock table alone, behind a perfect log: all client operations in every order, with every
//! request late, repeated or lost, and sessions that expire at any moment.
//!
//! A numbered operation that was sent may be applied at any later time and any number of times; one
//! that is never applied was lost. There is no order among a client's operations: a later one may
//! overtake an earlier one, which then arrives late. A request without a number may arrive at any
//! moment, and so may a stranger's request in the name of a session (`requests.rs`).

mod denials;
mod properties;
mod requests;
mod show;
mod writes;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use palisade_spec::checker::{Checked, Execution, check_lock_entry, execute};
use palisade_spec::invariants::{self, Check, Violation};
use palisade_spec::lock::{
    Claim, Command, Event, Key, Keys, LockRequest, LockTable, Mode, Outcome, Reply, Sequence, SessionId, Token, Value,
    Writer,
};
use palisade_spec::raft::{Input, Payload, Stamp, StateMachine};
use palisade_spec::require;
use serde::Serialize;
use smallvec::SmallVec;
use stateright::{Model, Path, Property};

use self::requests::Requests;
pub use self::requests::{Request, Start};
pub use self::writes::{Compared, What, Write};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::world::digest::Renaming;
use crate::world::intern::{Interner, Ref};
use crate::world::leak;
use crate::world::memo::Memo;

/// The limits of the exploration.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The number of initial sessions, each with a client that numbers its operations.
    pub sessions: u64,
    /// The ways in which later sessions are opened.
    pub openings: &'static [Start],
    /// The total number of sessions, at once or one after the other.
    pub opened: u64,
    /// The number of keys, at most 3.
    pub keys: usize,
    /// The claims that sessions ask for; if there are none, an exclusive claim on each key.
    pub wanted: &'static [Wanted],
    /// The number of numbered operations that a client sends.
    pub operations: usize,
    /// The kinds of numbered operations.
    pub numbered: &'static [Operation],
    /// The kinds of operations without a number. They are possible for every session, at any
    /// moment, any number of times.
    pub unnumbered: &'static [Operation],
    /// The number of grants.
    pub grants: u64,
    /// The TTL of sessions, in ticks.
    pub ttl: u64,
    /// The number of ticks.
    pub ticks: u64,
    /// The number of sessions and claims that a sweep ends.
    pub sweep: u64,
    /// Whether operators break grants: any past grant, at any moment.
    pub breaks: bool,
    /// Whether strangers send requests: they know everything that is public, and no proof.
    pub strangers: bool,
    /// How often the access rules change. If they do, each session has a client with a name, and any of
    /// them, and administrators, set any of some rules at any moment.
    pub revisions: u64,
    /// The transactions that are asked for, by sessions as operations on no claim, and by clients without a
    /// session at any moment.
    pub writes: &'static [Write],
    /// The number of transactions that are done.
    pub versions: u64,
}

/// A claim that sessions ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The indexes of its keys.
    pub keys: &'static [usize],
    /// How much of each lock it takes.
    pub share: Share,
    /// The length that a queue may reach for a request that waits.
    pub max_queue: u32,
    /// Whether an acquire of what is held adds a hold.
    pub reentrant: bool,
    /// The value of the claim, if it has one.
    pub value: Option<&'static str>,
}

/// How much of a lock a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    All,
    /// It takes the lock together with others.
    Shared,
    /// So many permits of so many.
    Permits(u32, u32),
}

/// An operation on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Operation {
    /// Acquire, and wait if it is held.
    Wait,
    /// Acquire, if it is free.
    Try,
    /// Release a grant. A numbered operation names the last grant that its client knows of, or a
    /// token that does not exist if it knows of none; an operation without a number names any past
    /// grant.
    Release,
    /// Drop the claim, held or waiting.
    Withdraw,
    /// Leave the queue, but keep a held lock.
    Leave,
    /// Give a grant another value. The grant is named as by a release.
    Proclaim,
    /// Change records of the store. Each grant is named as by a release; it may be another session's.
    Write,
}

impl Operation {
    /// Operations of every kind.
    pub(crate) const ALL: [Operation; 7] = [
        Operation::Wait,
        Operation::Try,
        Operation::Release,
        Operation::Withdraw,
        Operation::Leave,
        Operation::Proclaim,
        Operation::Write,
    ];
}

/// The value that a grant is given by its holder.
const PROCLAIMED: &str = "new";

/// A client, with its operations in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Client {
    /// The requests that it sent.
    pub sent: Vec<Ref<Payload<Command>>>,
    /// The last grant that it knows of, for each key.
    pub granted: Vec<Option<Token>>,
}

/// A table, its clients, and the time.
#[derive(Clone, PartialEq)]
pub struct State {
    /// The table.
    pub table: Ref<LockTable>,
    /// The clients.
    pub clients: SmallVec<[Ref<Client>; 3]>,
    /// The number of sessions opened so far.
    pub opened: u64,
    /// Cluster time.
    pub now: Stamp,
    /// The greatest token granted so far.
    pub greatest: Token,
    /// The first violation.
    pub violation: Option<&'static Violation>,
}

/// A step of the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A client sends its next operation, on the claim with this index; or the transaction with this index.
    Send(usize, Operation, usize),
    /// An operation that was sent is applied: for the first time, or again.
    Apply(usize, usize),
    /// A request without a number is applied.
    Ask(Request),
    /// One tick passes.
    Tick,
    /// The no-op of an idle leader is applied.
    Noop,
}

/// The model of the lock table.
pub struct Locks {
    /// The limits of the exploration.
    pub bounds: Bounds,
    keys: Vec<Key>,
    /// The claims that sessions ask for.
    wanted: Vec<LockRequest>,
    names: Vec<Renaming>,
    tables: Interner<LockTable>,
    clients: Interner<Client>,
    payloads: Interner<Payload<Command>>,
    requests: Requests,
    entries: Memo<Entry>,
    /// The checks of tables. Many entries lead to the same table.
    checked: Memo<Check>,
}

/// The effect of an entry.
struct Entry {
    table: Ref<LockTable>,
    /// The number of the session that the entry opened.
    opened: Option<u64>,
    outcome: Outcome,
    greatest: Token,
    violation: Option<&'static Violation>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.table.digest(0));
        self.clients.iter().for_each(|client| state.write_u64(client.digest(0)));
        (self.opened, self.now, self.greatest, self.violation.map(|violation| violation.property.name())).hash(state);
    }
}

/// Formats the state as a table.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&show::table(self), f)
    }
}

impl Locks {
    /// Creates the model within these bounds.
    pub fn new(bounds: Bounds) -> Locks {
        let keys: Vec<Key> = writes::LOCKS[..bounds.keys].iter().map(|&key| Key::from(key)).collect();
        let (names, payloads) = (vec![Vec::new()], Interner::default());
        let wanted = requests_for(bounds.wanted, &keys);
        let requests = Requests::new(&bounds, &wanted, |command| payloads.intern(Payload::Command(command), &names));
        // Without numbered operations, few states share a table.
        let entries = Memo::new(if bounds.operations > 0 { 1 << 18 } else { 1 });
        Locks {
            bounds,
            keys,
            wanted,
            names,
            tables: Interner::default(),
            clients: Interner::default(),
            payloads,
            requests,
            entries,
            checked: Memo::new(1 << 18),
        }
    }

    fn entry(&self, state: &State, payload: Ref<Payload<Command>>) -> Arc<Entry> {
        self.entries.get([state.table.key(), payload.key(), state.now.0, state.greatest.0], || {
            let mut table = (*state.table).clone();
            let mut greatest = state.greatest;
            let outcome = execute(&mut table, state.now, &payload);
            let table = if table == *state.table { state.table } else { self.tables.intern(table, &self.names) };
            let execution = Execution::<LockTable>::new(&state.table, state.now, &payload, &outcome, &table);
            let check = |after: &LockTable| (*self.checked.get([table.key(), 0, 0, 0], || after.check_state())).clone();
            let judged = check_lock_entry(&execution, &mut greatest, true, check);
            let violation = judged.err().map(leak);
            let is_new = |id: &&SessionId| state.table.session(**id).is_none();
            let opened = table.sessions().keys().filter(is_new).last().map(|id| id.number);
            Entry { table, opened, outcome, greatest, violation }
        })
    }

    /// The session of a client.
    fn session(client: usize) -> SessionId {
        requests::session(client as u64 + 1)
    }

    /// The command that a client sends.
    fn command(&self, number: usize, client: &Client, operation: Operation, claim: usize) -> Command {
        let (session, sequence) = (Self::session(number), Sequence::new(client.sent.len() as u64 + 1));
        let known = |index: usize| client.granted[index].unwrap_or(Token(u64::MAX));
        if operation == Operation::Write {
            let write = &self.bounds.writes[claim];
            let tokens: Vec<Token> = write.held.iter().map(|index| known(*index)).collect();
            let transaction = write.with(&tokens, write.first_version());
            return Command::Transact { writer: Writer::Session { session, sequence }, transaction };
        }
        let request = self.wanted[claim].clone();
        let token = known(self.key_index(request.keys.first()));
        let keys = request.keys.clone();
        let release = |claim| Command::Release { session, sequence, keys, claim };
        match operation {
            Operation::Proclaim => {
                let (key, value) = (request.keys.first().clone(), PROCLAIMED.into());
                Command::Proclaim { session, sequence, key, token, value }
            }
            Operation::Wait => Command::Acquire { session, sequence, request },
            Operation::Try => Command::Acquire { session, sequence, request: without_wait(&request) },
            Operation::Release => release(Claim::Held(token)),
            Operation::Withdraw => release(Claim::Either),
            Operation::Leave => release(Claim::Waiting),
            Operation::Write => unreachable!("it is no operation on a claim"),
        }
    }

    /// The index of a key of the model.
    fn key_index(&self, key: &Key) -> usize {
        self.keys.iter().position(|known| known == key).expect("a key of the model")
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

    /// Applies an entry, and informs the clients of its grants. Returns `None` beyond the bounds.
    fn apply(&self, state: &State, payload: Ref<Payload<Command>>) -> Option<State> {
        let entry = self.entry(state, payload);
        let mut next = state.clone();
        (next.table, next.greatest, next.violation) = (entry.table, entry.greatest, entry.violation);
        if let Some(number) = entry.opened {
            next.violation = next.violation.or_else(|| numbers_are_new(number, state.opened).err().map(leak));
            next.opened = state.opened.max(number);
        }
        let is_within = next.greatest.0 <= self.bounds.grants
            && next.opened <= self.bounds.opened
            && next.table.access().revision().0 <= self.bounds.revisions
            && next.table.next_version().0 <= self.bounds.versions + 1;
        if !is_within && next.violation.is_none() {
            return None;
        }
        for event in &entry.outcome.events {
            let Event::Granted { key, session, token, .. } = event else { continue };
            let index = self.key_index(key);
            if let Some(number) = usize::try_from(session.number - 1).ok().filter(|&at| at < next.clients.len()) {
                self.change(&mut next, number, |client| client.granted[index] = Some(*token));
            }
        }
        Some(next)
    }
}

/// The requests for these claims, which wait; if there are none, for an exclusive claim on each key.
pub(crate) fn requests_for(wanted: &[Wanted], keys: &[Key]) -> Vec<LockRequest> {
    if wanted.is_empty() {
        return keys.iter().map(|key| LockRequest::exclusive(key.clone(), true)).collect();
    }
    let request = |wanted: &Wanted| {
        let Wanted { keys: indices, share, max_queue, reentrant, value } = *wanted;
        let keys = Keys::new(indices.iter().map(|index| keys[*index].clone()).collect()).expect("each key once");
        LockRequest { keys, mode: share.mode(), max_queue, reentrant, value: value.map(Value::from) }
    };
    wanted.iter().map(request).collect()
}

/// The request, if it cannot be granted at once, for nothing.
fn without_wait(request: &LockRequest) -> LockRequest {
    LockRequest { max_queue: 0, ..request.clone() }
}

/// Whether an operation is one on this claim: one on an existing claim is the same for all claims on the
/// same keys, so it is one on the first of them.
fn is_of(operation: &Operation, claim: usize, wanted: &[LockRequest]) -> bool {
    let is_first = || wanted[..claim].iter().all(|other| other.keys != wanted[claim].keys);
    match operation {
        Operation::Wait | Operation::Try => true,
        Operation::Release | Operation::Withdraw | Operation::Leave | Operation::Proclaim => is_first(),
        Operation::Write => false,
    }
}

impl Share {
    fn mode(self) -> Mode {
        match self {
            Share::All => Mode::EXCLUSIVE,
            Share::Shared => Mode::SHARED,
            Share::Permits(permits, of) => Mode::semaphore(permits, of).expect("as many permits as there are"),
        }
    }
}

/// Checks that a session's number is not reused: otherwise a late request of the earlier session
/// would apply to the later one.
fn numbers_are_new(number: u64, opened: u64) -> Check {
    require!(invariants::Property::ExactlyOnce, number > opened, "session {number} was opened after session {opened}")
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
        // Clients without numbered operations have no state.
        let clients = if self.bounds.operations > 0 { self.bounds.sessions } else { 0 };
        let client = Client { sent: Vec::new(), granted: vec![None; self.bounds.keys] };
        let count = usize::try_from(clients).expect("a number of sessions fits in usize");
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
                for claim in 0..self.wanted.len() {
                    let possible =
                        self.bounds.numbered.iter().filter(|operation| is_of(operation, claim, &self.wanted));
                    actions.extend(possible.map(|&operation| Action::Send(number, operation, claim)));
                }
                if self.bounds.numbered.contains(&Operation::Write) {
                    let all = 0..self.bounds.writes.len();
                    actions.extend(all.map(|write| Action::Send(number, Operation::Write, write)));
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
            Action::Send(number, operation, claim) => {
                let mut next = last.clone();
                let command =
                    self.payload(Payload::Command(self.command(number, &last.clients[number], operation, claim)));
                self.change(&mut next, number, |client| client.sent.push(command));
                next
            }
            Action::Apply(number, operation) => self.apply(last, last.clients[number].sent[operation])?,
            Action::Ask(request) => self.apply(last, request)?,
            Action::Tick => State { now: last.now.plus(1), ..last.clone() },
            Action::Noop => self.apply(last, self.payload(Payload::Noop))?,
        };
        if let Some(violation) = next.violation {
            // Nothing follows a violation, so one that belongs to no property would hide all states
            // behind it.
            let named = self.properties().iter().any(|property| property.name == violation.property.name());
            assert!(named, "no property has the name of the violation {violation}");
        }
        (next != *last).then_some(next)
    }

    fn format_action(&self, action: &Action) -> String {
        self.describe(action)
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        Some(show::table(&self.next_state(last, action)?).since(&show::table(last)).join("\n"))
    }

    fn as_svg(&self, path: Path<State, Action>) -> Option<String> {
        self.draw(&path.into_vec()).map(|diagram| diagram.svg())
    }
}

impl Presentation for Locks {
    /// Ticks weigh more, because in most states hundreds of requests may be applied. Operators'
    /// requests weigh less: most of them name a grant or a revision of the past, and rules that deny
    /// everything would soon be the last ones.
    fn weight(action: &Action) -> u32 {
        match action {
            Action::Tick => 96,
            Action::Send(..) => 32,
            Action::Ask(request) => match &**request {
                Payload::Command(Command::SetAccess { .. }) => 1,
                Payload::Command(Command::Break { .. }) => 2,
                Payload::Command(_) | Payload::Noop | Payload::Members(_) => 8,
            },
            Action::Apply(..) | Action::Noop => 8,
        }
    }

    fn sentence(&self, last: &State, action: &Action) -> String {
        self.describe_in(last, action)
    }

    fn event(&self, last: &State, action: &Action) -> serde_json::Value {
        self.event_json(last, action)
    }

    /// The setting of a cluster of one server, whose log is as perfect as the model's: the server
    /// leads, and every applied entry was proposed to it.
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
