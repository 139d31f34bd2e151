//! Redlock over five instances with correct clocks that never fail, and a client that pauses.
//!
//! Before it writes, a client checks its clock and continues only if its lease is still valid. It
//! may pause after that, for any time. The repair is a resource that checks tokens. The token comes
//! from a counter outside of Redlock, because instances with counters of their own do not agree on
//! the next number. The client fetches the token *before* it checks the clock, so that the counter
//! issued it while the client held the lock.

use std::fmt;

use stateright::{Model, Property};

use super::Resource;
use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// The design.
pub struct RedlockPause {
    /// The rule in force.
    pub resource: Resource,
}

const INSTANCES: usize = 5;
const MAJORITY: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Collecting keys, with their number.
    Asks(u8),
    HasToken,
    /// It has checked its clock and found its lease valid.
    Valid,
    Wrote,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    stage: Stage,
    /// Whether its lease is over.
    over: bool,
    /// Its turn as holder of the lock: the first, the second.
    turn: u8,
    token: u8,
}

/// The instances, the clients, the counter and the resource.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    instances: [Option<Client>; INSTANCES],
    clients: [Attempt; 2],
    /// Number of past and present holders.
    turns: u8,
    /// The counter.
    tokens: u8,
    /// The greatest token that the resource has seen.
    seen: u8,
    /// The greatest turn among the clients that have written.
    latest: u8,
    /// Whether a write came after that of a later holder.
    stale: bool,
}

/// A step of the model. Instances are identified by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A free instance sets the key for a client.
    Set(Client, usize),
    /// A client with a majority fetches a token.
    Fetch(Client),
    /// A client checks its clock: its lease is valid.
    Look(Client),
    /// A client's lease expires.
    Over(Client),
    /// An instance drops a key whose lease is over.
    Expire(usize),
    /// A client's write arrives and is accepted.
    Write(Client),
    /// A client's write arrives and is rejected.
    Refuse(Client),
}

impl Attempt {
    fn holds(&self) -> bool {
        !self.over && !matches!(self.stage, Stage::Asks(..MAJORITY))
    }
}

impl RedlockPause {
    fn attempt(&self, state: &State, client: Client, actions: &mut Vec<Action>) {
        let Attempt { stage, over, token, .. } = state.clients[client.index()];
        if matches!(stage, Stage::Asks(_)) && !over {
            let free = (0..INSTANCES).filter(|&index| state.instances[index].is_none());
            actions.extend(free.map(|index| Action::Set(client, index)));
        }
        actions.extend(match (stage, self.resource) {
            (Stage::Asks(MAJORITY..), Resource::ChecksTokens) => Some(Action::Fetch(client)),
            (Stage::Asks(MAJORITY..) | Stage::HasToken, _) if !over => Some(Action::Look(client)),
            (Stage::Valid, Resource::ChecksTokens) if token < state.seen => Some(Action::Refuse(client)),
            (Stage::Valid, _) => Some(Action::Write(client)),
            _ => None,
        });
        if !over {
            actions.push(Action::Over(client));
        }
    }
}

impl Model for RedlockPause {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let attempt = Attempt { stage: Stage::Asks(0), over: false, turn: 0, token: 0 };
        let instances = [None; INSTANCES];
        vec![State { instances, clients: [attempt; 2], turns: 0, tokens: 0, seen: 0, latest: 0, stale: false }]
    }

    /// Ordered for readable traces: the second client acts after the events of the first.
    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let [first, second] = Client::TWO;
        self.attempt(state, first, actions);
        for (index, key) in state.instances.iter().enumerate() {
            if key.is_some_and(|client| state.clients[client.index()].over) {
                actions.push(Action::Expire(index));
            }
        }
        self.attempt(state, second, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Set(client, index) => {
                let attempt = &mut next.clients[client.index()];
                let Stage::Asks(keys) = &mut attempt.stage else { return None };
                *keys += 1;
                if *keys == MAJORITY {
                    next.turns += 1;
                    attempt.turn = next.turns;
                }
                next.instances[index] = Some(client);
            }
            Action::Fetch(client) => {
                next.tokens += 1;
                let attempt = &mut next.clients[client.index()];
                (attempt.stage, attempt.token) = (Stage::HasToken, next.tokens);
            }
            Action::Look(client) => next.clients[client.index()].stage = Stage::Valid,
            Action::Over(client) => next.clients[client.index()].over = true,
            Action::Expire(index) => next.instances[index] = None,
            Action::Write(client) => {
                let attempt = &mut next.clients[client.index()];
                attempt.stage = Stage::Wrote;
                next.stale |= attempt.turn < last.latest;
                next.latest = last.latest.max(attempt.turn);
                next.seen = last.seen.max(attempt.token);
            }
            Action::Refuse(client) => next.clients[client.index()].stage = Stage::Refused,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<RedlockPause>> {
        let mut all = vec![
            Property::always("no stale write", |_, state: &State| !state.stale),
            Property::always("mutual exclusion", |_, state: &State| {
                state.clients.iter().filter(|client| client.holds()).count() <= 1
            }),
            Property::sometimes("both clients write, one after the other", |_, state: &State| {
                !state.stale && state.clients.iter().all(|client| client.stage == Stage::Wrote)
            }),
            Property::sometimes(
                "a client pauses until its lease is over and another one has written",
                |_, state: &State| {
                    let paused = state.clients.iter().any(|client| client.over && client.stage == Stage::Valid);
                    paused && state.clients.iter().any(|client| client.stage == Stage::Wrote)
                },
            ),
        ];
        if self.resource == Resource::ChecksTokens {
            all.push(Property::sometimes("a write is refused", |_, state: &State| {
                state.clients.iter().any(|client| client.stage == Stage::Refused)
            }));
        }
        all
    }

    fn format_action(&self, action: &Action) -> String {
        match *action {
            Action::Set(client, index) => format!("instance {} sets the key for client {client:?}", index + 1),
            Action::Fetch(client) => format!("client {client:?} has a majority and fetches a token"),
            Action::Look(client) => format!("client {client:?} looks at its clock: its lease is valid"),
            Action::Over(client) => format!("the lease of client {client:?} is over"),
            Action::Expire(index) => format!("instance {} drops the key", index + 1),
            Action::Write(client) => format!("the write of client {client:?} arrives and is done"),
            Action::Refuse(client) => format!("the write of client {client:?} arrives and is refused"),
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for RedlockPause {
    fn diagram(&self, way: &Way<RedlockPause>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for RedlockPause {
    fn servers(&self) -> Vec<String> {
        let instances = (1..=INSTANCES).map(|number| format!("instance {number}"));
        instances.chain(["counter".to_string(), "resource".to_string()]).collect()
    }

    fn draw(&self, _: &State, action: &Action, after: &State, row: &mut Row<'_>) {
        let (counter, resource) = (Who::Server(INSTANCES), Who::Server(INSTANCES + 1));
        match *action {
            Action::Set(client, index) => {
                row.message(Who::Client(client), Who::Server(index), "SET NX PX");
                if after.clients[client.index()].holds() {
                    row.good(Who::Client(client), "holds the lock");
                }
            }
            Action::Fetch(client) => {
                row.message(counter, Who::Client(client), &format!("token {}", after.tokens));
            }
            Action::Look(client) => {
                row.note(Who::Client(client), "lease valid");
                row.sends(Who::Client(client));
            }
            Action::Over(client) => row.note(Who::Client(client), "lease over"),
            Action::Expire(index) => row.note(Who::Server(index), "drops the key"),
            Action::Write(client) => row.message(Who::Client(client), resource, "write"),
            Action::Refuse(client) => {
                row.message(Who::Client(client), resource, "write");
                row.note(resource, "refused");
            }
        }
    }
}

impl ToStateTable for State {
    fn table(&self) -> StateTable {
        let mut table = StateTable::default();
        for (index, key) in self.instances.iter().enumerate() {
            table.fields(format!("instance {}", index + 1), [("", show::key(*key))]);
        }
        for client in Client::TWO {
            let attempt = self.clients[client.index()];
            let does = match attempt.stage {
                Stage::Asks(keys) if keys < MAJORITY => format!("{keys} of {INSTANCES}"),
                Stage::Asks(_) => "has a majority".to_string(),
                Stage::HasToken => format!("has token {}", attempt.token),
                Stage::Valid => "about to write".to_string(),
                Stage::Wrote => "has written".to_string(),
                Stage::Refused => "was refused".to_string(),
            };
            let lease = if attempt.over { "over" } else { "runs" };
            table.fields(client.name(), [("", does), ("lease", lease.to_string())]);
        }
        let written = match (self.latest, self.stale) {
            (0, _) => "untouched".to_string(),
            (latest, false) => format!("written by holder {latest}"),
            (latest, true) => format!("written by holder {latest}, then by holder 1"),
        };
        let seen = if self.seen == 0 { String::new() } else { self.seen.to_string() };
        table.fields("resource", [("", written), ("greatest token", seen)]);
        table
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table())
    }
}
