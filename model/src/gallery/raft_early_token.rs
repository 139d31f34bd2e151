//! A replicated lock table whose fencing token is read when the request arrives, before its log
//! position is known.
//!
//! The log is perfect: every entry is committed, in order, and applied some time later. The leader
//! reads its table's counter, which reflects the entries applied so far, and writes it into the
//! entry.

use std::fmt;

use stateright::{Model, Property};

use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// The source of a grant's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The entry: the leader wrote its counter into it when the request arrived.
    FromRequest,
    /// The counter when the entry is applied and the lock is granted.
    FromGrant,
}

/// The design.
pub struct RaftEarlyToken {
    /// The rule in force.
    pub token: Token,
}

const MOST_REQUESTS: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    /// With the counter as it was when the request arrived.
    Acquire(Client, u8),
    Release(Client),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    Asked,
    /// With its token.
    Holds(u8),
}

/// The log, the table and the clients.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Entries not applied yet.
    log: Vec<Entry>,
    holder: Option<Client>,
    /// The waiting clients, with the counter at the arrival of each request.
    queue: Vec<(Client, u8)>,
    /// The table's next token.
    counter: u8,
    /// The greatest token granted.
    greatest: u8,
    grants: u8,
    clients: [Stage; 2],
    requests: u8,
    /// Whether a token was not greater than all earlier ones.
    repeated: bool,
}

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A client's request for the lock arrives and is appended to the log.
    Ask(Client),
    /// A client's release is appended to the log.
    Release(Client),
    /// The next entry is applied.
    Apply,
}

impl RaftEarlyToken {
    fn grant(&self, state: &mut State, client: Client, read: u8) {
        let token = match self.token {
            Token::FromRequest => read,
            Token::FromGrant => state.counter,
        };
        state.repeated |= token <= state.greatest;
        state.greatest = state.greatest.max(token);
        state.grants += 1;
        state.counter = token + 1;
        state.holder = Some(client);
        state.clients[client.index()] = Stage::Holds(token);
    }
}

impl Model for RaftEarlyToken {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = [Stage::Idle; 2];
        let (log, queue) = (Vec::new(), Vec::new());
        vec![State {
            log,
            holder: None,
            queue,
            counter: 1,
            greatest: 0,
            grants: 0,
            clients,
            requests: 0,
            repeated: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for client in Client::TWO {
            match state.clients[client.index()] {
                Stage::Idle if state.requests < MOST_REQUESTS => actions.push(Action::Ask(client)),
                Stage::Holds(_) => actions.push(Action::Release(client)),
                Stage::Idle | Stage::Asked => {}
            }
        }
        if !state.log.is_empty() {
            actions.push(Action::Apply);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Ask(client) => {
                next.log.push(Entry::Acquire(client, last.counter));
                next.clients[client.index()] = Stage::Asked;
                next.requests += 1;
            }
            Action::Release(client) => {
                next.log.push(Entry::Release(client));
                next.clients[client.index()] = Stage::Idle;
            }
            Action::Apply => match next.log.remove(0) {
                Entry::Acquire(client, read) if last.holder.is_none() => self.grant(&mut next, client, read),
                Entry::Acquire(client, read) => next.queue.push((client, read)),
                Entry::Release(_) => {
                    next.holder = None;
                    if !next.queue.is_empty() {
                        let (client, read) = next.queue.remove(0);
                        self.grant(&mut next, client, read);
                    }
                }
            },
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<RaftEarlyToken>> {
        vec![
            Property::always("token monotonicity", |_, state: &State| !state.repeated),
            Property::sometimes("two requests are in the log at once", |_, state: &State| {
                state.log.iter().filter(|entry| matches!(entry, Entry::Acquire(..))).count() == 2
            }),
            Property::sometimes("a client waits in the queue", |_, state: &State| !state.queue.is_empty()),
            Property::sometimes("the lock is granted three times", |_, state: &State| state.grants == 3),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        match action {
            Action::Ask(client) => {
                format!("client {client:?} asks for the lock, and the request is appended to the log")
            }
            Action::Release(client) => format!("client {client:?} gives the lock back, which is appended to the log"),
            Action::Apply => "the next entry is committed and applied".to_string(),
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for RaftEarlyToken {
    fn diagram(&self, way: &Way<RaftEarlyToken>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for RaftEarlyToken {
    fn servers(&self) -> Vec<String> {
        vec!["leader".to_string()]
    }

    fn draw(&self, before: &State, action: &Action, after: &State, row: &mut Row<'_>) {
        let leader = Who::Server(0);
        match *action {
            Action::Ask(client) => {
                row.message(Who::Client(client), leader, "acquire");
                row.note(leader, &format!("reads {}", before.counter));
            }
            Action::Release(client) => row.message(Who::Client(client), leader, "release"),
            Action::Apply => {
                row.note(leader, "applies an entry");
                for client in Client::TWO {
                    let stage = after.clients[client.index()];
                    if let (Stage::Holds(token), true) = (stage, stage != before.clients[client.index()]) {
                        row.message(leader, Who::Client(client), "granted");
                        row.good(Who::Client(client), &format!("token {token}"));
                    }
                }
            }
        }
    }
}

impl ToStateTable for State {
    fn table(&self) -> StateTable {
        let mut table = StateTable::default();
        let entry = |entry: &Entry| match entry {
            Entry::Acquire(client, read) => format!("acquire {client:?} (read {read})"),
            Entry::Release(client) => format!("release {client:?}"),
        };
        let queue = self.queue.iter().map(|(client, _)| format!("{client:?}")).collect::<Vec<_>>().join(", ");
        table.items("log", self.log.iter().map(entry));
        table.fields(
            "table",
            [("lock", show::key(self.holder)), ("queue", queue), ("next token", self.counter.to_string())],
        );
        for client in Client::TWO {
            let does = match self.clients[client.index()] {
                Stage::Idle => "idle".to_string(),
                Stage::Asked => "waits".to_string(),
                Stage::Holds(token) => format!("holds the lock with token {token}"),
            };
            table.fields(client.name(), [("", does)]);
        }
        table
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table())
    }
}
