//! A lock as a key on a Redis server with two replicas: `SET key value NX PX ttl`, and a failover.
//!
//! A key that is set is copied to the replicas some time later. A failover promotes a replica; the
//! old primary may be dead, or only cut off from its replicas, and then still answers clients that
//! reach it. No lease expires in this model, and clients release a lock by a correct
//! compare-and-delete, so timing does not cause the violation.

use std::fmt;

use stateright::{Model, Property};

use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// When a client learns of its grant, and which replica is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// At once; either replica is promoted.
    Asynchronous,
    /// When a replica has copied the key, as with `WAIT 1`; either replica is promoted.
    WaitForOne,
    /// When a majority of the servers has the key; the replica that has copied more is promoted, so
    /// any two majorities share a server that knows every confirmed grant. A failover needs both
    /// replicas.
    Majority,
}

/// The design.
pub struct RedisFailover {
    /// The rule in force.
    pub rule: Rule,
}

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Data {
    /// Number of writes that it has received: the replication offset.
    offset: u8,
    key: Option<Client>,
}

/// A client's knowledge. Servers are identified by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// The key is set, and the client has no answer yet; whether a replica has acknowledged the
    /// key.
    Pending {
        server: usize,
        offset: u8,
        copied: bool,
    },
    Holds {
        server: usize,
        offset: u8,
    },
}

/// The servers and the clients.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    servers: [Data; 3],
    /// The primary since the last failover. Server 1 considers itself the primary for ever.
    primary: usize,
    clients: [Stage; 2],
}

/// A step of the model. Servers are identified by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A client requests the lock from a server without the key, which sets it.
    Set(Client, usize),
    /// A replica copies the primary's state.
    Copy(usize),
    /// A server confirms a client's grant.
    Tell(Client),
    /// A client releases the lock at a server.
    Delete(Client, usize),
    /// A replica is promoted.
    Failover(usize),
}

const MOST_WRITES: u8 = 4;

impl State {
    fn holders(&self) -> usize {
        self.clients.iter().filter(|stage| matches!(stage, Stage::Holds { .. })).count()
    }

    fn serves(&self, server: usize) -> bool {
        server == 0 || server == self.primary
    }

    fn failed_over(&self) -> bool {
        self.primary != 0
    }
}

impl RedisFailover {
    fn may_promote(&self, state: &State, replica: usize) -> bool {
        let newest = state.servers[1].offset.max(state.servers[2].offset);
        !state.failed_over() && (self.rule != Rule::Majority || state.servers[replica].offset == newest)
    }
}

impl Model for RedisFailover {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { servers: [Data { offset: 0, key: None }; 3], primary: 0, clients: [Stage::Idle; 2] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for client in Client::TWO {
            let stage = state.clients[client.index()];
            for server in (0..3).filter(|&server| state.serves(server)) {
                let Data { offset, key } = state.servers[server];
                if stage == Stage::Idle && key.is_none() && offset < MOST_WRITES {
                    actions.push(Action::Set(client, server));
                }
                if matches!(stage, Stage::Holds { .. }) {
                    actions.push(Action::Delete(client, server));
                }
            }
            if matches!(stage, Stage::Pending { copied: true, .. }) {
                actions.push(Action::Tell(client));
            }
        }
        for replica in [1, 2] {
            if replica != state.primary && state.servers[replica] != state.servers[state.primary] {
                actions.push(Action::Copy(replica));
            }
            if self.may_promote(state, replica) {
                actions.push(Action::Failover(replica));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Set(client, server) => {
                let offset = last.servers[server].offset + 1;
                next.servers[server] = Data { offset, key: Some(client) };
                next.clients[client.index()] = match self.rule {
                    Rule::Asynchronous => Stage::Holds { server, offset },
                    Rule::WaitForOne | Rule::Majority => Stage::Pending { server, offset, copied: false },
                };
            }
            Action::Copy(replica) => {
                next.servers[replica] = last.servers[last.primary];
                for stage in &mut next.clients {
                    if let Stage::Pending { server, copied, .. } = stage {
                        *copied |= *server == last.primary;
                    }
                }
            }
            Action::Tell(client) => {
                let stage = &mut next.clients[client.index()];
                if let Stage::Pending { server, offset, .. } = *stage {
                    *stage = Stage::Holds { server, offset };
                }
            }
            Action::Delete(client, server) => {
                next.clients[client.index()] = Stage::Idle;
                let data = &mut next.servers[server];
                if data.key == Some(client) {
                    *data = Data { offset: data.offset + 1, key: None };
                }
            }
            Action::Failover(replica) => next.primary = replica,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<RedisFailover>> {
        vec![
            Property::always("mutual exclusion", |_, state: &State| state.holders() <= 1),
            Property::sometimes("the lock is granted again after it was given back", |_, state: &State| {
                state.clients.iter().any(|stage| matches!(stage, Stage::Holds { offset: 3.., .. }))
            }),
            Property::sometimes("a failover happens while the lock is held", |_, state: &State| {
                state.failed_over() && state.clients.iter().any(|stage| matches!(stage, Stage::Holds { server: 0, .. }))
            }),
            Property::sometimes("the new primary grants the lock", |_, state: &State| {
                state.failed_over()
                    && state.clients.iter().any(|stage| matches!(stage, Stage::Holds { server: 1.., .. }))
            }),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        match *action {
            Action::Set(client, server) => {
                let then = match self.rule {
                    Rule::Asynchronous => "grants it",
                    Rule::WaitForOne | Rule::Majority => "sets the key and waits for a replica",
                };
                format!("client {client:?} asks server {} for the lock, which {then}", server + 1)
            }
            Action::Copy(replica) => format!("server {} copies what the primary has", replica + 1),
            Action::Tell(client) => format!("client {client:?} is told that it holds the lock"),
            Action::Delete(client, server) => format!("client {client:?} gives the lock back at server {}", server + 1),
            Action::Failover(replica) => {
                format!("server 1 does not answer the replicas any more: server {} is promoted", replica + 1)
            }
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for RedisFailover {
    fn diagram(&self, way: &Way<RedisFailover>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for RedisFailover {
    fn servers(&self) -> Vec<String> {
        (1..=3).map(|number| format!("server {number}")).collect()
    }

    fn draw(&self, before: &State, action: &Action, after: &State, row: &mut Row<'_>) {
        match *action {
            Action::Set(client, server) => {
                row.message(Who::Client(client), Who::Server(server), "SET NX");
                if matches!(after.clients[client.index()], Stage::Holds { .. }) {
                    row.good(Who::Client(client), "holds the lock");
                }
            }
            Action::Copy(replica) => row.message(Who::Server(before.primary), Who::Server(replica), "copy"),
            Action::Tell(client) => {
                if let Stage::Pending { server, .. } = before.clients[client.index()] {
                    row.message(Who::Server(server), Who::Client(client), "granted");
                    row.good(Who::Client(client), "holds the lock");
                }
            }
            Action::Delete(client, server) => row.message(Who::Client(client), Who::Server(server), "delete"),
            Action::Failover(replica) => {
                row.bad(Who::Server(0), "gone, or cut off");
                row.note(Who::Server(replica), "promoted");
            }
        }
    }
}

impl ToStateTable for State {
    fn table(&self) -> StateTable {
        let mut table = StateTable::default();
        for (index, data) in self.servers.iter().enumerate() {
            let role = match index {
                0 if self.failed_over() => "old primary",
                index if index == self.primary => "primary",
                _ => "replica",
            };
            table.fields(format!("server {}", index + 1), [("", role.to_string()), ("key", show::key(data.key))]);
        }
        for client in Client::TWO {
            let does = match self.clients[client.index()] {
                Stage::Idle => "idle".to_string(),
                Stage::Pending { server, copied: false, .. } => format!("waits for server {}", server + 1),
                Stage::Pending { server, copied: true, .. } => format!("waits for server {}, copied", server + 1),
                Stage::Holds { .. } => "holds the lock".to_string(),
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
