//! A lock with a time-to-live at a correct service, and clients that pause: with a resource that
//! accepts every write, and with one that compares fencing tokens.
//!
//! The service grants the lock to one client at a time, numbers its grants, and never fails. A
//! lease expires for the client when it does for the service. A paused client does not notice, and
//! writes when it resumes.

use std::fmt;

use stateright::{Model, Property};

use super::Resource;
use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// The design.
pub struct Fencing {
    /// The rule in force.
    pub resource: Resource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// Granted, with its token. The client has not written yet.
    Granted(u8),
}

/// The service, the clients and the resource.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The client whose lease runs.
    holder: Option<Client>,
    /// Number of grants: the token of the latest.
    grants: u8,
    clients: [Stage; 2],
    /// The token of the latest holder that has written.
    latest: u8,
    /// Whether a write came after that of a later holder.
    stale: bool,
    /// Whether a write was refused.
    refused: bool,
}

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// The lock is free and a client is granted it.
    Grant(Client),
    /// The holder's lease expires.
    Expire(Client),
    /// A client writes, and releases the lock if it still holds it.
    Write(Client),
    /// The resource rejects a client's write.
    Refuse(Client),
}

const MOST_GRANTS: u8 = 4;

impl Model for Fencing {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = [Stage::Idle; 2];
        vec![State { holder: None, grants: 0, clients, latest: 0, stale: false, refused: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.holder.map(Action::Expire));
        for client in Client::TWO {
            match state.clients[client.index()] {
                Stage::Idle if state.holder.is_none() && state.grants < MOST_GRANTS => {
                    actions.push(Action::Grant(client));
                }
                Stage::Idle => {}
                Stage::Granted(token) if self.resource == Resource::ChecksTokens && token < state.latest => {
                    actions.push(Action::Refuse(client));
                }
                Stage::Granted(_) => actions.push(Action::Write(client)),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Grant(client) => {
                next.holder = Some(client);
                next.grants += 1;
                next.clients[client.index()] = Stage::Granted(next.grants);
            }
            Action::Expire(_) => next.holder = None,
            Action::Write(client) => {
                let Stage::Granted(token) = last.clients[client.index()] else { return None };
                next.stale |= token < last.latest;
                next.latest = last.latest.max(token);
                next.clients[client.index()] = Stage::Idle;
                next.holder = last.holder.filter(|&holder| holder != client);
            }
            Action::Refuse(client) => {
                next.refused = true;
                next.clients[client.index()] = Stage::Idle;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Fencing>> {
        let mut all = vec![
            Property::always("no stale write", |_, state: &State| !state.stale),
            Property::sometimes(
                "a client pauses past its time-to-live while another one holds the lock",
                |_, state: &State| {
                    state.holder.is_some() && state.clients.iter().all(|stage| matches!(stage, Stage::Granted(_)))
                },
            ),
            Property::sometimes("two holders write, one after the other", |_, state: &State| {
                state.latest == 2 && state.clients == [Stage::Idle; 2] && !state.stale && !state.refused
            }),
        ];
        if self.resource == Resource::ChecksTokens {
            all.push(Property::sometimes("a write is refused", |_, state: &State| state.refused));
        }
        all
    }

    fn format_action(&self, action: &Action) -> String {
        match action {
            Action::Grant(client) => format!("client {client:?} asks for the lock and is granted it"),
            Action::Expire(client) => format!("client {client:?} pauses until its lease has run out"),
            Action::Write(client) => format!("client {client:?} writes, as it believes under the lock"),
            Action::Refuse(client) => format!("client {client:?} writes and is refused: its token is too old"),
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for Fencing {
    fn diagram(&self, way: &Way<Fencing>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for Fencing {
    fn servers(&self) -> Vec<String> {
        ["lock service", "resource"].map(String::from).into()
    }

    fn draw(&self, _: &State, action: &Action, after: &State, row: &mut Row<'_>) {
        let (service, resource) = (Who::Server(0), Who::Server(1));
        match *action {
            Action::Grant(client) => {
                row.message(Who::Client(client), service, "acquire");
                row.good(Who::Client(client), &format!("grant {}", after.grants));
            }
            Action::Expire(client) => {
                row.note(service, "the lease is over");
                row.sends(Who::Client(client));
            }
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
        table.fields("lock", [("", show::key(self.holder))]);
        for client in Client::TWO {
            let does = match self.clients[client.index()] {
                Stage::Idle => "idle".to_string(),
                Stage::Granted(token) if self.holder == Some(client) => format!("holds grant {token}"),
                Stage::Granted(token) => format!("believes in grant {token}"),
            };
            table.fields(client.name(), [("", does)]);
        }
        let written = match (self.latest, self.stale) {
            (_, true) => "overwritten by an earlier holder".to_string(),
            (0, false) => "untouched".to_string(),
            (latest, false) => format!("written under grant {latest}"),
        };
        table.fields("resource", [("", written)]);
        table
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table())
    }
}
