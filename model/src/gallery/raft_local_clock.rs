//! A replicated lock table whose replicas read their own clocks when they apply an entry.
//!
//! Every replica applies the same entries in the same order, each at its own time. The clocks are
//! *perfect*: all show the same time. An acquire finds the lock held unless the holder's lease has
//! expired.

use std::fmt;

use stateright::{Model, Property};

use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// The time of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The replica's clock when it applies the entry.
    WhenApplied,
    /// The leader's clock when it appended the entry, as stored in the entry.
    WhenAppended,
}

/// The design.
pub struct RaftLocalClock {
    /// The rule in force.
    pub time: Time,
}

const REPLICAS: usize = 3;
const TTL: u8 = 1;
const LATEST: u8 = 3;
const LONGEST_LOG: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Entry {
    client: Client,
    stamp: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Replica {
    applied: usize,
    holder: Option<Client>,
    /// The time at which the holder's lease expires.
    deadline: u8,
}

/// The log, the replicas and the time.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    log: Vec<Entry>,
    replicas: [Replica; REPLICAS],
}

/// A step of the model. Replicas are identified by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Time advances, equally for all replicas.
    Tick,
    /// A client requests the lock, and the request is committed.
    Ask(Client),
    /// A replica applies the next entry.
    Apply(usize),
}

impl Model for RaftLocalClock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let replica = Replica { applied: 0, holder: None, deadline: 0 };
        vec![State { now: 0, log: Vec::new(), replicas: [replica; REPLICAS] }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let behind = state.replicas.iter().enumerate().filter(|(_, replica)| replica.applied < state.log.len());
        actions.extend(behind.map(|(index, _)| Action::Apply(index)));
        if state.log.len() < LONGEST_LOG {
            actions.extend(Client::TWO.map(Action::Ask));
        }
        if state.now < LATEST {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Tick => next.now += 1,
            Action::Ask(client) => next.log.push(Entry { client, stamp: last.now }),
            Action::Apply(index) => {
                let replica = &mut next.replicas[index];
                let Entry { client, stamp } = last.log[replica.applied];
                let time = match self.time {
                    Time::WhenApplied => last.now,
                    Time::WhenAppended => stamp,
                };
                if replica.holder.is_none() || replica.deadline <= time {
                    (replica.holder, replica.deadline) = (Some(client), time + TTL);
                }
                replica.applied += 1;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<RaftLocalClock>> {
        vec![
            Property::always("replicas agree", |_, state: &State| {
                let replicas = &state.replicas;
                let agree = |a: &Replica, b: &Replica| a.applied != b.applied || a.holder == b.holder;
                replicas.iter().all(|a| replicas.iter().all(|b| agree(a, b)))
            }),
            Property::sometimes("an acquire finds the lock held", |_, state: &State| {
                let refused = |replica: &Replica| {
                    replica.applied == 2 && state.log[1].client == Client::B && replica.holder == Some(Client::A)
                };
                state.replicas.iter().all(refused)
            }),
            Property::sometimes("a lease runs out and the next client is granted the lock", |_, state: &State| {
                let granted = |replica: &Replica| {
                    replica.applied == 2 && state.log[0].client == Client::A && replica.holder == Some(Client::B)
                };
                state.replicas.iter().all(granted)
            }),
            Property::sometimes("time passes between one replica's apply and another's", |_, state: &State| {
                let behind = |replica: &Replica| replica.applied == 0;
                let late = state.log.first().is_some_and(|entry| entry.stamp + TTL < state.now);
                late && state.replicas.iter().any(behind) && !state.replicas.iter().all(behind)
            }),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        match action {
            Action::Tick => "time passes".to_string(),
            Action::Ask(client) => format!("client {client:?} asks for the lock, and the entry is committed"),
            Action::Apply(index) => format!("replica {} applies its next entry", index + 1),
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for RaftLocalClock {
    fn diagram(&self, way: &Way<RaftLocalClock>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for RaftLocalClock {
    fn servers(&self) -> Vec<String> {
        let replicas = (1..=REPLICAS).map(|number| format!("replica {number}"));
        ["log".to_string()].into_iter().chain(replicas).collect()
    }

    fn draw(&self, _: &State, action: &Action, after: &State, row: &mut Row<'_>) {
        let log = Who::Server(0);
        match *action {
            Action::Tick => row.line(&format!("time: {}", after.now)),
            Action::Ask(client) => row.message(Who::Client(client), log, "acquire"),
            Action::Apply(index) => {
                let Replica { applied, holder, .. } = after.replicas[index];
                row.message(log, Who::Server(1 + index), &format!("entry {applied}"));
                row.good(Who::Server(1 + index), &format!("lock: {}", show::key(holder)));
            }
        }
    }
}

impl ToStateTable for State {
    fn table(&self) -> StateTable {
        let mut table = StateTable::default();
        table.fields("time", [("", self.now.to_string())]);
        table.items("log", self.log.iter().map(|entry| format!("{:?} at {}", entry.client, entry.stamp)));
        for (index, replica) in self.replicas.iter().enumerate() {
            let deadline = replica.holder.map_or(String::new(), |_| replica.deadline.to_string());
            table.fields(
                format!("replica {}", index + 1),
                [("applied", replica.applied.to_string()), ("lock", show::key(replica.holder)), ("until", deadline)],
            );
        }
        table
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table())
    }
}
