//! Redlock over five instances, one of which loses a key: because its clock jumps, or because it
//! crashes before the key is on its disk.
//!
//! A client asks the instances in any order, holds the lock with three of them, and counts its
//! lease from before its first request. So all of its keys outlive its lease while clocks run
//! correctly. A client that releases the lock or gives up counts as one whose lease is over: its
//! keys are dropped at any time after that. Each client tries once.

use std::fmt;

use stateright::{Model, Property};

use super::sequence_diagram::{self, Pictured, Row, Who};
use super::show::{self, Client, ToStateTable};
use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};
use crate::state_table::StateTable;

/// The fault, which happens once, and the rule for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The wall clock of an instance is set forward by more than the time-to-live.
    ClockJump(Clock),
    /// An instance crashes. It had not synced its file.
    Crash(Restart),
}

/// The clock by which keys expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The wall clock, which can be set.
    Wall,
    /// The monotonic clock, which cannot be set.
    Monotonic,
}

/// When a crashed instance serves again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Immediately after its restart.
    AtOnce,
    /// When the longest time-to-live has passed since the crash, so that no lease runs any more
    /// whose key it lost.
    Delayed,
}

/// The design.
pub struct Redlock {
    /// The fault and the rule in force.
    pub fault: Fault,
}

const INSTANCES: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Instance {
    Up(Option<Client>),
    /// With the key that it had.
    Down(Option<Client>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    /// The instances that have set the client's key.
    granted: [bool; INSTANCES],
    /// Whether its lease is over.
    over: bool,
}

/// The instances and the clients.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    instances: [Instance; INSTANCES],
    clients: [Attempt; 2],
    /// Whether the fault has happened.
    struck: bool,
}

/// A step of the model. Instances are identified by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// A free instance sets the key for a client.
    Set(Client, usize),
    /// A client's lease expires, or the client releases the lock or gives up.
    Over(Client),
    /// An instance drops a key whose lease is over.
    Expire(usize),
    /// The wall clock of an instance is set forward.
    Jump(usize),
    /// An instance crashes.
    Crash(usize),
    /// A crashed instance serves again.
    Restart(usize),
}

impl Attempt {
    fn has_majority(&self) -> bool {
        self.granted.iter().filter(|granted| **granted).count() > INSTANCES / 2
    }

    fn holds(&self) -> bool {
        self.has_majority() && !self.over
    }
}

impl State {
    fn is_over(&self, client: Client) -> bool {
        self.clients[client.index()].over
    }

    fn holders(&self) -> usize {
        self.clients.iter().filter(|client| client.holds()).count()
    }
}

impl Redlock {
    fn attempt(state: &State, client: Client, actions: &mut Vec<Action>) {
        let Attempt { granted, over } = state.clients[client.index()];
        if !over {
            let free = (0..INSTANCES).filter(|&index| state.instances[index] == Instance::Up(None) && !granted[index]);
            actions.extend(free.map(|index| Action::Set(client, index)));
            actions.push(Action::Over(client));
        }
    }

    fn may_restart(&self, state: &State, lost: Option<Client>) -> bool {
        self.fault != Fault::Crash(Restart::Delayed) || lost.is_none_or(|client| state.is_over(client))
    }
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let attempt = Attempt { granted: [false; INSTANCES], over: false };
        vec![State { instances: [Instance::Up(None); INSTANCES], clients: [attempt; 2], struck: false }]
    }

    /// Ordered for readable traces: the second client acts after the events of the first.
    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let [first, second] = Client::TWO;
        Redlock::attempt(state, first, actions);
        for (index, instance) in state.instances.iter().enumerate() {
            match *instance {
                Instance::Up(Some(client)) if state.is_over(client) => actions.push(Action::Expire(index)),
                Instance::Down(lost) if self.may_restart(state, lost) => actions.push(Action::Restart(index)),
                Instance::Up(_) | Instance::Down(_) => {}
            }
            if !state.struck {
                actions.push(match self.fault {
                    Fault::ClockJump(_) => Action::Jump(index),
                    Fault::Crash(_) => Action::Crash(index),
                });
            }
        }
        Redlock::attempt(state, second, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Set(client, index) => {
                next.instances[index] = Instance::Up(Some(client));
                next.clients[client.index()].granted[index] = true;
            }
            Action::Over(client) => next.clients[client.index()].over = true,
            Action::Expire(index) | Action::Restart(index) => next.instances[index] = Instance::Up(None),
            Action::Jump(index) => {
                next.struck = true;
                if self.fault == Fault::ClockJump(Clock::Wall) {
                    next.instances[index] = Instance::Up(None);
                }
            }
            Action::Crash(index) => {
                next.struck = true;
                let (Instance::Up(key) | Instance::Down(key)) = last.instances[index];
                next.instances[index] = Instance::Down(key);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Redlock>> {
        vec![
            Property::always("mutual exclusion", |_, state: &State| state.holders() <= 1),
            Property::sometimes("both clients hold the lock, one after the other", |_, state: &State| {
                state.holders() == 1 && state.clients.iter().any(|client| client.over && client.has_majority())
            }),
            Property::sometimes("one client holds the lock, and the other one has given up", |_, state: &State| {
                state.holders() == 1 && state.clients.iter().any(|client| client.over && !client.has_majority())
            }),
            Property::sometimes(
                "the fault strikes while the lock is held, and the next client gets it",
                |_, state: &State| {
                    let [first, second] = state.clients;
                    state.struck && first.has_majority() && first.over && second.holds()
                },
            ),
        ]
    }

    fn format_action(&self, action: &Action) -> String {
        match *action {
            Action::Set(client, index) => format!("instance {} sets the key for client {client:?}", index + 1),
            Action::Over(client) => format!("the lease of client {client:?} is over"),
            Action::Expire(index) => format!("instance {} drops the key", index + 1),
            Action::Jump(index) => match self.fault {
                Fault::ClockJump(Clock::Wall) => {
                    format!("the clock of instance {} jumps ahead: for it, the time-to-live has passed", index + 1)
                }
                _ => format!("the wall clock of instance {} jumps ahead, by which no key expires", index + 1),
            },
            Action::Crash(index) => format!("instance {} crashes before it has synced its file", index + 1),
            Action::Restart(index) => format!("instance {} serves again, without any key", index + 1),
        }
    }

    fn format_step(&self, last: &State, action: Action) -> Option<String> {
        self.next_state(last, action).map(|next| show::changes(last, &next))
    }
}

impl Presentation for Redlock {
    fn diagram(&self, way: &Way<Redlock>) -> Option<Diagram> {
        sequence_diagram::diagram(self, way)
    }
}

impl Pictured for Redlock {
    fn servers(&self) -> Vec<String> {
        (1..=INSTANCES).map(|number| format!("instance {number}")).collect()
    }

    fn draw(&self, _: &State, action: &Action, after: &State, row: &mut Row<'_>) {
        match *action {
            Action::Set(client, index) => {
                row.message(Who::Client(client), Who::Server(index), "SET NX PX");
                if after.clients[client.index()].holds() {
                    row.good(Who::Client(client), "holds the lock");
                }
            }
            Action::Over(client) => row.note(Who::Client(client), "lease over"),
            Action::Expire(index) => row.note(Who::Server(index), "drops the key"),
            Action::Jump(index) => row.bad(Who::Server(index), "the clock jumps"),
            Action::Crash(index) => row.bad(Who::Server(index), "crashes"),
            Action::Restart(index) => row.note(Who::Server(index), "serves again"),
        }
    }
}

impl ToStateTable for State {
    fn table(&self) -> StateTable {
        let mut table = StateTable::default();
        for (index, instance) in self.instances.iter().enumerate() {
            let content = match *instance {
                Instance::Up(key) => show::key(key),
                Instance::Down(_) => "down".to_string(),
            };
            table.fields(format!("instance {}", index + 1), [("", content)]);
        }
        for client in Client::TWO {
            let attempt = &self.clients[client.index()];
            let count = attempt.granted.iter().filter(|granted| **granted).count();
            let does = match (attempt.holds(), attempt.over) {
                (true, _) => "holds the lock".to_string(),
                (false, true) => "done".to_string(),
                (false, false) => format!("{count} of {INSTANCES}"),
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
