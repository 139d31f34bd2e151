//! A replicated lock whose holder is in the log, and whose queue is only in the leader's memory.
//!
//! Each step is one committed entry: replicated state survives a change of leader. A waiter repeats
//! its request when it finds that the new leader does not know it.

use std::fmt;

use stateright::{Model, Property};

use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// Where the queue is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// In the leader's memory.
    InMemory,
    /// In the replicated state, like the holder.
    Replicated,
}

/// The design.
pub struct RaftQueueInMemory {
    /// The rule in force.
    pub queue: Queue,
}

const LEADERS: u8 = 3;

/// The lock, the leader and the clients.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    leader: u8,
    holder: Option<Client>,
    queue: Vec<Client>,
    /// The clients that still wait, in the order in which each was first told to wait.
    waiting: Vec<Client>,
    /// Whether a client was granted the lock before an older waiter.
    overtook: bool,
}

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A client requests the lock, which is free and has no waiters.
    Grant(Client),
    /// A client requests the lock and is told to wait.
    Wait(Client),
    /// The holder releases the lock, and the queue is empty.
    Free(Client),
    /// The holder releases the lock, which is granted to the first waiter.
    Pass(Client, Client),
    /// The leader crashes and another server takes over.
    Crash(u8),
}

impl State {
    fn grant(&mut self, client: Client) {
        self.overtook |= self.waiting.first().is_some_and(|&first| first != client);
        self.waiting.retain(|&waits| waits != client);
        self.queue.retain(|&waits| waits != client);
        self.holder = Some(client);
    }
}

impl Model for RaftQueueInMemory {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { leader: 1, holder: None, queue: Vec::new(), waiting: Vec::new(), overtook: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let others = Client::THREE.into_iter().filter(|&client| state.holder != Some(client));
        match state.holder {
            None => actions.extend(others.map(Action::Grant)),
            Some(holder) => {
                actions.extend(others.filter(|client| !state.queue.contains(client)).map(Action::Wait));
                actions.push(match state.queue.first() {
                    Some(&next) => Action::Pass(holder, next),
                    None => Action::Free(holder),
                });
            }
        }
        if state.leader < LEADERS {
            actions.push(Action::Crash(state.leader));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Grant(client) | Action::Pass(_, client) => next.grant(client),
            Action::Wait(client) => {
                next.queue.push(client);
                if !last.waiting.contains(&client) {
                    next.waiting.push(client);
                }
            }
            Action::Free(_) => next.holder = None,
            Action::Crash(_) => {
                next.leader += 1;
                if self.queue == Queue::InMemory {
                    next.queue.clear();
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<RaftQueueInMemory>> {
        vec![
            Property::always("FIFO order", |_, state: &State| !state.overtook),
            Property::sometimes("two wait", |_, state: &State| state.queue.len() == 2),
            Property::sometimes("the leader changes while two wait", |_, state: &State| {
                state.leader > 1 && state.waiting.len() == 2
            }),
            Property::sometimes("a later leader grants the lock in the order of the queue", |_, state: &State| {
                state.leader > 1 && state.holder == Some(Client::B) && state.queue == [Client::C]
            }),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        match action {
            Action::Grant(client) => format!("client {client:?} asks for the lock and is granted it"),
            Action::Wait(client) => format!("client {client:?} asks for the lock and is told to wait"),
            Action::Free(holder) => format!("client {holder:?} gives the lock back"),
            Action::Pass(holder, next) => {
                format!("client {holder:?} gives the lock back, and client {next:?} is granted it")
            }
            Action::Crash(leader) => format!("server {leader} crashes, and server {} leads", leader + 1),
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for RaftQueueInMemory {
    fn diagram(&self, way: &Way<RaftQueueInMemory>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for RaftQueueInMemory {
    const CLIENTS: usize = 3;

    fn servers(&self) -> Vec<String> {
        (1..=LEADERS).map(|number| format!("server {number}")).collect()
    }

    fn draw(&self, before: &State, action: &Action, _: &State, row: &mut Row<'_>) {
        let leader = Who::Server(usize::from(before.leader) - 1);
        match *action {
            Action::Grant(client) => {
                row.message(Who::Client(client), leader, "acquire");
                row.good(Who::Client(client), "holds the lock");
            }
            Action::Wait(client) => {
                row.message(Who::Client(client), leader, "acquire");
                row.note(Who::Client(client), "waits");
            }
            Action::Free(holder) => row.message(Who::Client(holder), leader, "release"),
            Action::Pass(holder, next) => {
                row.message(Who::Client(holder), leader, "release");
                row.message(leader, Who::Client(next), "granted");
                row.good(Who::Client(next), "holds the lock");
            }
            Action::Crash(_) => {
                row.bad(leader, "crashes");
                row.note(Who::Server(usize::from(before.leader)), "leads");
            }
        }
    }
}

impl ToStateTable for State {
    fn table(&self) -> StateTable {
        let mut table = StateTable::default();
        let list =
            |clients: &[Client]| clients.iter().map(|client| format!("{client:?}")).collect::<Vec<_>>().join(", ");
        table.fields("leader", [("", format!("server {}", self.leader))]);
        table.fields("lock", [("", show::key(self.holder))]);
        table.fields("queue", [("", format!("[{}]", list(&self.queue)))]);
        table.fields("was told to wait", [("", format!("[{}]", list(&self.waiting)))]);
        table
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table())
    }
}
