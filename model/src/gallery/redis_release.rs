//! Release of a key: `GET`, a comparison of the value, and `DEL`, against one script that does both
//! atomically.
//!
//! The server never fails, and a lease expires for the client when it does for the server. Time
//! passes between `GET` and `DEL`, and a lease may expire in between.

use std::fmt;

use stateright::{Model, Property};

use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// How a client releases the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The client gets the value, and sends a `DEL` if the value is its own.
    GetThenDel,
    /// The client sends a script that deletes the key if the value is its own, atomically.
    CompareAndDelete,
}

/// The design.
pub struct RedisRelease {
    /// The rule in force.
    pub release: Release,
}

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    Holds,
    /// Its lease expired before the release, which it will still send.
    Late,
    /// It has read its own value and has sent the `DEL`.
    Deleting,
}

/// The key and the clients.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    key: Option<Client>,
    clients: [Stage; 2],
}

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The key is free and a client sets it.
    Set(Client),
    /// The key's time-to-live expires.
    Expire(Client),
    /// A client gets the value, which is its own.
    GetOwn(Client),
    /// A client gets the value, which is another client's.
    GetOther(Client),
    /// A client's `DEL` arrives.
    Del(Client),
    /// A client's script runs.
    Script(Client),
}

impl Model for RedisRelease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { key: None, clients: [Stage::Idle; 2] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.key.map(Action::Expire));
        for client in Client::TWO {
            match (state.clients[client.index()], self.release) {
                (Stage::Idle, _) if state.key.is_none() => actions.push(Action::Set(client)),
                (Stage::Idle, _) => {}
                (Stage::Holds | Stage::Late, Release::CompareAndDelete) => actions.push(Action::Script(client)),
                (Stage::Holds | Stage::Late, Release::GetThenDel) => {
                    let own = state.key == Some(client);
                    actions.push(if own { Action::GetOwn(client) } else { Action::GetOther(client) });
                }
                (Stage::Deleting, _) => actions.push(Action::Del(client)),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        let mut becomes = |client: Client, stage| next.clients[client.index()] = stage;
        match action {
            Action::Set(client) => {
                becomes(client, Stage::Holds);
                next.key = Some(client);
            }
            Action::Expire(client) => {
                if last.clients[client.index()] == Stage::Holds {
                    becomes(client, Stage::Late);
                }
                next.key = None;
            }
            Action::GetOwn(client) => becomes(client, Stage::Deleting),
            Action::GetOther(client) => becomes(client, Stage::Idle),
            Action::Del(client) => {
                becomes(client, Stage::Idle);
                next.key = None;
            }
            Action::Script(client) => {
                becomes(client, Stage::Idle);
                next.key = last.key.filter(|&holder| holder != client);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<RedisRelease>> {
        vec![
            Property::always("mutual exclusion", |_, state: &State| {
                state.clients.iter().filter(|&&stage| stage == Stage::Holds).count() <= 1
            }),
            Property::sometimes("a lease runs out before the lock is given back", |_, state: &State| {
                state.clients.contains(&Stage::Late)
            }),
            Property::sometimes("a client gives the lock back while another one holds it", |_, state: &State| {
                state.clients.contains(&Stage::Late) && state.clients.contains(&Stage::Holds)
            }),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        match action {
            Action::Set(client) => format!("client {client:?} asks for the lock and is granted it"),
            Action::Expire(client) => format!("the lease of client {client:?} runs out"),
            Action::GetOwn(client) => {
                format!("client {client:?} gets the value, sees that it is its own, and sends DEL")
            }
            Action::GetOther(client) => format!("client {client:?} gets the value, which is not its own"),
            Action::Del(client) => format!("the DEL of client {client:?} arrives"),
            Action::Script(client) => {
                format!("client {client:?}'s script deletes the key if its value is that client's")
            }
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for RedisRelease {
    fn diagram(&self, way: &Way<RedisRelease>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for RedisRelease {
    fn servers(&self) -> Vec<String> {
        vec!["server".to_string()]
    }

    fn draw(&self, _: &State, action: &Action, _: &State, row: &mut Row<'_>) {
        let server = Who::Server(0);
        match *action {
            Action::Set(client) => {
                row.message(Who::Client(client), server, "SET NX PX");
                row.good(Who::Client(client), "holds the lock");
            }
            Action::Expire(_) => row.note(server, "the key expires"),
            Action::GetOwn(client) => {
                row.message(Who::Client(client), server, "GET: its own");
                row.sends(Who::Client(client));
            }
            Action::GetOther(client) => row.message(Who::Client(client), server, "GET: not its own"),
            Action::Del(client) => row.message(Who::Client(client), server, "DEL"),
            Action::Script(client) => row.message(Who::Client(client), server, "compare and delete"),
        }
    }
}

impl ToStateTable for State {
    fn table(&self) -> StateTable {
        let mut table = StateTable::default();
        table.fields("key", [("", show::key(self.key))]);
        for client in Client::TWO {
            let does = match self.clients[client.index()] {
                Stage::Idle => "idle",
                Stage::Holds => "holds the lock",
                Stage::Late => "late",
                Stage::Deleting => "deletes",
            };
            table.fields(client.name(), [("", does.to_string())]);
        }
        table
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table())
    }
}
