//! A model of consensus with one optimization disabled, to measure what each gains.

use std::hash::{Hash, Hasher};
use std::hint::black_box;
use std::time::{Duration, Instant};

use palisade_model::check::exhaust;
use palisade_model::raft::{Proposals, Tape};
use palisade_model::world::digest::{digest, renamings};
use palisade_model::world::{Action, Answers, Bounds, Delivery, History, Repeats, Replica, State, World};
use palisade_spec::raft::Message;
use stateright::{Checker, Model, Property};

/// The disabled optimization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    /// None.
    Nothing,
    /// Shared parts: each new state is a copy of all its servers, messages and history.
    Sharing,
    /// Cached digests: of each new state all parts are digested, under every renaming.
    Caches,
    /// Memoization: every step is computed anew.
    Memory,
    /// Symmetry: states that differ in the servers' names are different states.
    Symmetry,
    /// Symmetry and an order of the network that depends on what is in it alone: states that differ
    /// in the order in which messages were sent are different states, too.
    Order,
}

/// Result of a run.
pub(crate) struct Run {
    /// States that were generated, and how many of them were different.
    pub(crate) states: (usize, usize),
    pub(crate) elapsed: Duration,
}

/// A model of consensus, without something. It has one property, which costs next to nothing.
struct Laborious {
    world: World<Proposals>,
    without: Without,
}

/// A state, with its own copies of its parts if it does not share them, and the messages' digests
/// in the order in which they were sent if that counts.
#[derive(Clone)]
struct Laboured {
    state: State<Proposals>,
    _own: Option<Parts>,
    sent: Vec<u64>,
}

type Parts = (Vec<Replica<Tape>>, Vec<Message<Tape>>, History<Tape>);

impl PartialEq for Laboured {
    fn eq(&self, other: &Laboured) -> bool {
        self.state == other.state && self.sent == other.sent
    }
}

impl Hash for Laboured {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state.hash(state);
        if !self.sent.is_empty() {
            self.sent.hash(state);
        }
    }
}

impl std::fmt::Debug for Laboured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

impl Laborious {
    fn labour(&self, sent_before: &[u64], state: State<Proposals>) -> Laboured {
        if self.without == Without::Caches {
            for names in &renamings(self.world.bounds.servers, self.world.bounds.joiners) {
                state.servers.iter().for_each(|replica| _ = black_box(digest(&**replica, names)));
                state.network.iter().for_each(|message| _ = black_box(digest(&**message, names)));
                black_box(digest(&*state.history, names));
            }
        }
        let own = (self.without == Without::Sharing).then(|| {
            let servers = state.servers.iter().map(|replica| (**replica).clone()).collect();
            let network = state.network.iter().map(|message| (**message).clone()).collect();
            (servers, network, (*state.history).clone())
        });
        let mut sent = Vec::new();
        if self.without == Without::Order {
            let mut new: Vec<u64> = state.network.iter().map(|message| message.digest(0)).collect();
            for &before in sent_before {
                if let Some(index) = new.iter().position(|&message| message == before) {
                    sent.push(new.remove(index));
                }
            }
            sent.extend(new);
        }
        Laboured { state, _own: own, sent }
    }
}

impl Model for Laborious {
    type State = Laboured;
    type Action = Action<Proposals>;

    fn init_states(&self) -> Vec<Laboured> {
        self.world.init_states().into_iter().map(|state| self.labour(&[], state)).collect()
    }

    fn actions(&self, state: &Laboured, actions: &mut Vec<Action<Proposals>>) {
        self.world.actions(&state.state, actions);
    }

    fn next_state(&self, last: &Laboured, action: Action<Proposals>) -> Option<Laboured> {
        self.world.next_state(&last.state, action).map(|state| self.labour(&last.sent, state))
    }

    fn properties(&self) -> Vec<Property<Laborious>> {
        vec![Property::always("nothing is violated", |_, state: &Laboured| state.state.violation.is_none())]
    }
}

/// The models `raft` and `raft-repeats`, as they are in the list of models.
fn raft(symmetry: bool) -> World<Proposals> {
    world(Bounds { crashes: 1, delivery: late(2), symmetry, ..Bounds::default() })
}

fn raft_repeats() -> World<Proposals> {
    world(Bounds { delivery: late(3), repeats: Repeats::Unlimited, symmetry: true, ..Bounds::default() })
}

fn late(most: usize) -> Delivery {
    Delivery::AnyTime { most, answers: Answers::Messages }
}

fn world(bounds: Bounds) -> World<Proposals> {
    let log = bounds.log;
    World::new(bounds, Tape::default(), Proposals::new(log, 0))
}

/// Explores the model `raft` to its end.
pub(crate) fn explore(without: Without, threads: usize) -> Run {
    let symmetry = !matches!(without, Without::Symmetry | Without::Order);
    let mut world = raft(symmetry);
    if without == Without::Memory {
        world.forget_steps();
    }
    let least = |laboured: &Laboured| Laboured { state: World::representative(&laboured.state), ..laboured.clone() };
    let verdict = exhaust(Laborious { world, without }, symmetry.then_some(least), threads);
    assert!(verdict.passes(), "it must be explored to its end: {verdict}");
    Run { states: verdict.states, elapsed: verdict.elapsed }
}

/// Explores the model `raft-repeats` with stateright's own search, which looks at each property by
/// itself.
pub(crate) fn one_by_one(threads: usize) -> Run {
    let checker = raft_repeats().checker().threads(threads).symmetry_fn(World::representative);
    let begun = Instant::now();
    let checker = checker.spawn_dfs().join();
    Run { states: (checker.state_count(), checker.unique_state_count()), elapsed: begun.elapsed() }
}
