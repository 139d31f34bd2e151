//! A lock table replicated by Raft, whose followers apply an entry when they receive it, and answer
//! the client.
//!
//! Each client is answered by the server that it is connected to.

use std::fmt;

use stateright::{Model, Property};

use super::coarse_raft::{Command, Entry, Raft, SERVERS, Server};
use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// When a follower applies an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// On receipt.
    AtReceipt,
    /// When the follower knows that the entry is committed.
    AtCommit,
}

/// The design.
pub struct RaftEarlyApply {
    /// The rule in force.
    pub apply: Apply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    Asked,
    Holds,
    Done,
}

/// The servers and the clients.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    raft: Raft,
    clients: [Stage; 2],
}

/// A step of the model. Servers are identified by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A server is elected, with the votes of these two.
    Elect(usize, [usize; 2]),
    /// A client requests the lock from a leader, which appends the request to its log.
    Ask(Client, usize),
    /// A client releases the lock at a leader, which appends the release to its log.
    Release(Client, usize),
    /// A follower receives the log of a leader.
    Receive(usize, usize),
    /// A leader counts the servers that have its log, and commits it.
    Commit(usize),
    /// A server that has applied the client's granted request answers the client.
    Tell(usize, Client),
}

/// Whether a log grants the lock to a client, at any of its entries.
fn grants(log: &[Entry], client: Client) -> bool {
    let mut holder = None;
    log.iter().any(|entry| {
        match entry.command {
            Command::Acquire(asks) => holder = holder.or(Some(asks)),
            Command::Release(gives) => holder = holder.filter(|&holder| holder != gives),
        }
        entry.command == Command::Acquire(client) && holder == Some(client)
    })
}

impl RaftEarlyApply {
    /// The entries that a server may have applied.
    fn applied<'a>(&self, raft: &'a Raft, server: usize) -> &'a [Entry] {
        match self.apply {
            Apply::AtReceipt if !raft.servers[server].leads => &raft.servers[server].log,
            Apply::AtReceipt | Apply::AtCommit => raft.known(server),
        }
    }
}

impl Model for RaftEarlyApply {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { raft: Raft::new(), clients: [Stage::Idle; 2] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let raft = &state.raft;
        for index in 0..SERVERS {
            for client in Client::TWO {
                match state.clients[client.index()] {
                    Stage::Idle if raft.accepts(index) => actions.push(Action::Ask(client, index)),
                    Stage::Asked if grants(self.applied(raft, index), client) => {
                        actions.push(Action::Tell(index, client));
                    }
                    Stage::Holds if raft.accepts(index) => actions.push(Action::Release(client, index)),
                    _ => {}
                }
            }
            if raft.servers[index].leads {
                actions.extend(raft.followers(index).into_iter().map(|follower| Action::Receive(follower, index)));
                if raft.may_commit(index) {
                    actions.push(Action::Commit(index));
                }
            }
            actions.extend(raft.elections(index).into_iter().map(|voters| Action::Elect(index, voters)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Elect(candidate, voters) => next.raft.elect(candidate, voters),
            Action::Ask(client, leader) => {
                next.raft.append(leader, Command::Acquire(client));
                next.clients[client.index()] = Stage::Asked;
            }
            Action::Release(client, leader) => {
                next.raft.append(leader, Command::Release(client));
                next.clients[client.index()] = Stage::Done;
            }
            Action::Receive(follower, leader) => next.raft.receive(follower, leader),
            Action::Commit(leader) => next.raft.commit(leader),
            Action::Tell(_, client) => next.clients[client.index()] = Stage::Holds,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<RaftEarlyApply>> {
        vec![
            Property::always("mutual exclusion", |_, state: &State| {
                state.clients.iter().filter(|&&stage| stage == Stage::Holds).count() <= 1
            }),
            Property::sometimes("both clients hold the lock, one after the other", |_, state: &State| {
                state.clients.contains(&Stage::Done) && state.clients.contains(&Stage::Holds)
            }),
            Property::sometimes("the leader changes while the lock is held", |_, state: &State| {
                let later = state.raft.servers.iter().any(|server| server.leads && server.term > 1);
                later && state.clients.contains(&Stage::Holds)
            }),
            Property::sometimes("an entry that a follower has received is overwritten", |_, state: &State| {
                let entry = |server: &Server| server.log.first().copied();
                let lost = |server: &Server| server.term > 1 && entry(server).is_some_and(|entry| entry.term > 1);
                let kept = |server: &Server| !server.leads && entry(server).is_some_and(|entry| entry.term == 1);
                state.raft.servers.iter().any(lost) && state.raft.servers.iter().any(kept)
            }),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        match *action {
            Action::Elect(candidate, [first, second]) => {
                let (candidate, first, second) = (candidate + 1, first + 1, second + 1);
                format!("server {candidate} is elected with the votes of servers {first} and {second}")
            }
            Action::Ask(client, leader) => {
                format!("client {client:?} asks server {} for the lock, which appends that to its log", leader + 1)
            }
            Action::Release(client, leader) => {
                format!("client {client:?} gives the lock back at server {}, which appends that", leader + 1)
            }
            Action::Receive(follower, leader) => {
                let then = if self.apply == Apply::AtReceipt { " and applies it" } else { "" };
                format!("server {} receives the log of server {}{then}", follower + 1, leader + 1)
            }
            Action::Commit(leader) => {
                format!("server {} sees that a majority has its log: it is committed", leader + 1)
            }
            Action::Tell(server, client) => {
                format!("server {} tells client {client:?} that it holds the lock", server + 1)
            }
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for RaftEarlyApply {
    fn diagram(&self, way: &Way<RaftEarlyApply>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for RaftEarlyApply {
    fn servers(&self) -> Vec<String> {
        (1..=SERVERS).map(|number| format!("server {number}")).collect()
    }

    fn draw(&self, _: &State, action: &Action, after: &State, row: &mut Row<'_>) {
        match *action {
            Action::Elect(candidate, voters) => {
                for voter in voters {
                    row.message(Who::Server(voter), Who::Server(candidate), "vote");
                }
                row.good(Who::Server(candidate), &format!("leads term {}", after.raft.servers[candidate].term));
            }
            Action::Ask(client, leader) => row.message(Who::Client(client), Who::Server(leader), "acquire"),
            Action::Release(client, leader) => row.message(Who::Client(client), Who::Server(leader), "release"),
            Action::Receive(follower, leader) => {
                row.message(Who::Server(leader), Who::Server(follower), "append");
            }
            Action::Commit(leader) => row.good(Who::Server(leader), "committed"),
            Action::Tell(server, client) => {
                row.message(Who::Server(server), Who::Client(client), "granted");
                row.good(Who::Client(client), "holds the lock");
            }
        }
    }
}

impl ToStateTable for State {
    fn table(&self) -> StateTable {
        let mut table = StateTable::default();
        for (index, server) in self.raft.servers.iter().enumerate() {
            let entry = |entry: &Entry| match entry.command {
                Command::Acquire(client) => format!("acquire {client:?} @{}", entry.term),
                Command::Release(client) => format!("release {client:?} @{}", entry.term),
            };
            let log = server.log.iter().map(entry).collect::<Vec<_>>().join(", ");
            let role = if server.leads { "leader" } else { "follower" };
            let term = server.term.to_string();
            table.fields(
                format!("server {}", index + 1),
                [("", role.to_string()), ("term", term), ("log", format!("[{log}]"))],
            );
        }
        table.fields("committed", [("", self.raft.committed.len().to_string())]);
        for client in Client::TWO {
            let does = match self.clients[client.index()] {
                Stage::Idle => "idle",
                Stage::Asked => "waits",
                Stage::Holds => "holds the lock",
                Stage::Done => "done",
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
