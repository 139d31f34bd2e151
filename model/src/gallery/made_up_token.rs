//! A resource that compares fencing tokens, and a client that makes one up: with a resource that
//! believes every number, and with one that verifies the lock service's signature.
//!
//! The service grants the lock to one client at a time, numbers its grants, and never fails. Client
//! B may once write with the greatest number there is, whether it holds the lock or not. It cannot
//! sign: a signature is made with a key that only the service has.

use std::fmt;

use stateright::{Model, Property};

use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// What a resource believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Believes {
    /// Every number that a client presents.
    Numbers,
    /// Numbers that the lock service has signed.
    Signatures,
}

/// The design.
pub struct MadeUpToken {
    /// The rule in force.
    pub believes: Believes,
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
    /// The greatest token that the resource has accepted.
    greatest: u8,
    /// Whether client B has made up a token.
    made_up: bool,
    /// Whether a write of a client whose lease was over was refused.
    late_refused: bool,
    /// Whether a write of the holder was refused.
    holder_refused: bool,
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
    /// Client B writes with a token that it made up.
    MakeUp,
    /// The resource rejects that token.
    RefuseMadeUp,
}

const MOST_GRANTS: u8 = 4;
const MADE_UP: u8 = u8::MAX;

impl Model for MadeUpToken {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let clients = [Stage::Idle; 2];
        let (made_up, late_refused, holder_refused) = (false, false, false);
        vec![State { holder: None, grants: 0, clients, greatest: 0, made_up, late_refused, holder_refused }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.holder.map(Action::Expire));
        for client in Client::TWO {
            match state.clients[client.index()] {
                Stage::Idle if state.holder.is_none() && state.grants < MOST_GRANTS => {
                    actions.push(Action::Grant(client));
                }
                Stage::Idle => {}
                Stage::Granted(token) if token < state.greatest => actions.push(Action::Refuse(client)),
                Stage::Granted(_) => actions.push(Action::Write(client)),
            }
        }
        if !state.made_up {
            actions.push(match self.believes {
                Believes::Numbers => Action::MakeUp,
                Believes::Signatures => Action::RefuseMadeUp,
            });
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
                next.greatest = token;
                next.clients[client.index()] = Stage::Idle;
                next.holder = last.holder.filter(|&holder| holder != client);
            }
            Action::Refuse(client) => {
                let holds = last.holder == Some(client);
                next.holder_refused |= holds;
                next.late_refused |= !holds;
                next.clients[client.index()] = Stage::Idle;
                next.holder = last.holder.filter(|&holder| holder != client);
            }
            Action::MakeUp => (next.made_up, next.greatest) = (true, MADE_UP),
            Action::RefuseMadeUp => next.made_up = true,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<MadeUpToken>> {
        vec![
            Property::always("the holder may write", |_, state: &State| !state.holder_refused),
            Property::sometimes("a client makes up a token while another one holds the lock", |_, state: &State| {
                state.made_up && state.holder == Some(Client::A)
            }),
            Property::sometimes("a client that paused past its time-to-live is refused", |_, state: &State| {
                state.late_refused
            }),
            Property::sometimes("two holders write, one after the other", |_, state: &State| {
                state.greatest == 2 && state.clients == [Stage::Idle; 2] && !state.late_refused
            }),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        match action {
            Action::Grant(client) => format!("client {client:?} asks for the lock and is granted it"),
            Action::Expire(client) => format!("client {client:?} pauses until its lease has run out"),
            Action::Write(client) => format!("client {client:?} writes, as it believes under the lock"),
            Action::Refuse(client) => format!("client {client:?} writes and is refused: its token is too low"),
            Action::MakeUp => "client B writes with the greatest number there is".to_owned(),
            Action::RefuseMadeUp => "client B writes with a number that is not signed, and is refused".to_owned(),
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for MadeUpToken {
    fn diagram(&self, way: &Way<MadeUpToken>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for MadeUpToken {
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
            Action::MakeUp => row.message(Who::Client(Client::B), resource, "write, greatest number"),
            Action::RefuseMadeUp => {
                row.message(Who::Client(Client::B), resource, "write, greatest number");
                row.note(resource, "not signed: refused");
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
        let seen = match self.greatest {
            0 => "no token seen".to_string(),
            MADE_UP => "has seen a token that no grant will reach".to_string(),
            token => format!("has seen token {token}"),
        };
        table.fields("resource", [("", seen)]);
        let refused = match (self.holder_refused, self.made_up) {
            (true, _) => "the holder",
            (false, true) if self.greatest != MADE_UP => "a token that was made up",
            _ => "-",
        };
        table.fields("refused", [("", refused.to_string())]);
        table
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table())
    }
}
