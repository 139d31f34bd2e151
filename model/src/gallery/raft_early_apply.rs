//! A lock table replicated by Raft, whose followers apply an entry when they receive it, and tell the client.
//!
//! Five servers, each with a log; a leader for each term; clients that are told by whichever server they are connected
//! to. An election is one step, with the votes of as many servers as it needs. A leader sends a follower the whole of
//! its log, and what a follower acknowledged counts at once.

use std::fmt;

use stateright::{Model, Property};

use super::show::{self, Client, Parts};
use crate::readable::Readable;

/// When a follower applies an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// When it receives it.
    AtReceipt,
    /// When it knows that it is committed.
    AtCommit,
}

/// The design.
pub struct RaftEarlyApply {
    /// Which rule is in force.
    pub apply: Apply,
}

const SERVERS: usize = 5;
const MAJORITY: usize = 3;
const TERMS: u8 = 2;
const LONGEST_LOG: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Command {
    Acquire(Client),
    Release(Client),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    term: u8,
    command: Command,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Server {
    term: u8,
    leads: bool,
    log: Vec<Entry>,
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
    servers: [Server; SERVERS],
    /// What is committed. A server may come to know of it at any time.
    committed: Vec<Entry>,
    clients: [Stage; 2],
}

/// What happens. Servers are named by their places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A server is elected, with the votes of these two.
    Elect(usize, [usize; 2]),
    /// A client asks a leader for the lock, which appends that to its log.
    Ask(Client, usize),
    /// A client gives the lock back at a leader, which appends that to its log.
    Release(Client, usize),
    /// A follower receives the log of a leader.
    Receive(usize, usize),
    /// A leader counts the servers that have its log.
    Commit(usize),
    /// A server has applied the client's request, which was granted, and tells it.
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

impl State {
    /// How up to date a server's log is (dissertation, §3.6.1).
    fn progress(&self, server: usize) -> (u8, usize) {
        let log = &self.servers[server].log;
        (log.last().map_or(0, |entry| entry.term), log.len())
    }

    fn append(&mut self, leader: usize, command: Command) {
        let server = &mut self.servers[leader];
        server.log.push(Entry { term: server.term, command });
    }

    fn may_commit(&self, leader: usize) -> bool {
        let Server { term, log, .. } = &self.servers[leader];
        let have = self.servers.iter().filter(|server| server.log.starts_with(log)).count();
        let own_term = log.last().is_some_and(|entry| entry.term == *term);
        own_term && have >= MAJORITY && !self.committed.starts_with(log)
    }
}

impl RaftEarlyApply {
    /// What a server has applied, at most.
    fn applied<'a>(&self, state: &'a State, server: usize) -> &'a [Entry] {
        let Server { leads, log, .. } = &state.servers[server];
        let committed = log.iter().zip(&state.committed).take_while(|(mine, known)| mine == known).count();
        match self.apply {
            Apply::AtReceipt if !leads => log,
            Apply::AtReceipt | Apply::AtCommit => &log[..committed],
        }
    }

    fn elections(state: &State, candidate: usize, actions: &mut Vec<Action>) {
        let term = state.servers[candidate].term + 1;
        let votes = |voter: &usize| {
            *voter != candidate
                && state.servers[*voter].term < term
                && state.progress(*voter) <= state.progress(candidate)
        };
        let voters: Vec<usize> = (0..SERVERS).filter(votes).collect();
        for (place, &first) in voters.iter().enumerate() {
            actions.extend(voters[place + 1..].iter().map(|&second| Action::Elect(candidate, [first, second])));
        }
    }
}

impl Model for RaftEarlyApply {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut servers = std::array::from_fn(|_| Server { term: 1, leads: false, log: Vec::new() });
        servers[0].leads = true;
        vec![State { servers, committed: Vec::new(), clients: [Stage::Idle; 2] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for place in 0..SERVERS {
            let Server { term, leads, ref log } = state.servers[place];
            for client in Client::TWO {
                match state.clients[client.place()] {
                    Stage::Idle if leads && log.len() < LONGEST_LOG => actions.push(Action::Ask(client, place)),
                    Stage::Asked if grants(self.applied(state, place), client) => {
                        actions.push(Action::Tell(place, client));
                    }
                    Stage::Holds if leads && log.len() < LONGEST_LOG => actions.push(Action::Release(client, place)),
                    _ => {}
                }
            }
            if leads {
                let behind = |&other: &usize| {
                    let follower = &state.servers[other];
                    follower.term < term || (follower.term == term && follower.log != *log)
                };
                let followers = (0..SERVERS).filter(|other| *other != place).filter(behind);
                actions.extend(followers.map(|follower| Action::Receive(follower, place)));
                if state.may_commit(place) {
                    actions.push(Action::Commit(place));
                }
            } else if term < TERMS {
                RaftEarlyApply::elections(state, place, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Elect(candidate, voters) => {
                let term = last.servers[candidate].term + 1;
                for voter in voters {
                    let server = &mut next.servers[voter];
                    (server.term, server.leads) = (term, false);
                }
                let leader = &mut next.servers[candidate];
                (leader.term, leader.leads) = (term, true);
            }
            Action::Ask(client, leader) => {
                next.append(leader, Command::Acquire(client));
                next.clients[client.place()] = Stage::Asked;
            }
            Action::Release(client, leader) => {
                next.append(leader, Command::Release(client));
                next.clients[client.place()] = Stage::Done;
            }
            Action::Receive(follower, leader) => {
                next.servers[follower] = Server { leads: false, ..last.servers[leader].clone() };
            }
            Action::Commit(leader) => next.committed.clone_from(&last.servers[leader].log),
            Action::Tell(_, client) => next.clients[client.place()] = Stage::Holds,
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
                let later = state.servers.iter().any(|server| server.leads && server.term > 1);
                later && state.clients.contains(&Stage::Holds)
            }),
            Property::sometimes("an entry that a follower has received is overwritten", |_, state: &State| {
                let entry = |server: &Server| server.log.first().copied();
                let lost = |server: &Server| server.term > 1 && entry(server).is_some_and(|entry| entry.term > 1);
                let kept = |server: &Server| !server.leads && entry(server).is_some_and(|entry| entry.term == 1);
                state.servers.iter().any(lost) && state.servers.iter().any(kept)
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

impl Readable for RaftEarlyApply {}

impl Parts for State {
    fn parts(&self) -> Vec<String> {
        let server = |(place, server): (usize, &Server)| {
            let role = if server.leads { "leads" } else { "in" };
            let entry = |entry: &Entry| match entry.command {
                Command::Acquire(client) => format!("acquire {client:?} @{}", entry.term),
                Command::Release(client) => format!("release {client:?} @{}", entry.term),
            };
            let log = server.log.iter().map(entry).collect::<Vec<_>>().join(", ");
            format!("server {} {role} term {}: [{log}]", place + 1, server.term)
        };
        let clients = Client::TWO.map(|client| {
            let does = match self.clients[client.place()] {
                Stage::Idle => "idle",
                Stage::Asked => "waits",
                Stage::Holds => "holds the lock",
                Stage::Done => "is done",
            };
            format!("{client:?} {does}")
        });
        let committed = format!("committed: {}", self.committed.len());
        self.servers.iter().enumerate().map(server).chain([committed]).chain(clients).collect()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show::write(self, f)
    }
}
