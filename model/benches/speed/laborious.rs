//! The models of consensus without one of the things that make them fast: what each gains.

use std::hash::{Hash, Hasher};
use std::hint::black_box;

use palisade_model::check::{Verdict, exhaust};
use palisade_model::raft::{Proposals, Tape};
use palisade_model::world::digest::{digest, renamings};
use palisade_model::world::{Action, Bounds, Ghost, Seat, State, World};
use palisade_spec::raft::Message;
use stateright::{Model, Property};

/// What is done without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    /// Nothing.
    Nothing,
    /// Shared parts: each new state is a copy of all its servers, messages and history.
    Sharing,
    /// Cached digests: of each new state all parts are digested, under every renaming.
    Caches,
    /// Memory: every step is taken anew.
    Memory,
    /// Symmetry: states that differ in the servers' names are different states.
    Symmetry,
}

/// A model of consensus, without something.
struct Laborious {
    world: World<Proposals>,
    without: Without,
    servers: u16,
}

/// A state, and its own copies of its parts if it does not share them.
#[derive(Clone)]
struct Laboured {
    state: State<Proposals>,
    _own: Option<Parts>,
}

type Parts = (Vec<Seat<Tape>>, Vec<Message<u8>>, Ghost<Tape>);

impl PartialEq for Laboured {
    fn eq(&self, other: &Laboured) -> bool {
        self.state == other.state
    }
}

impl Hash for Laboured {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state.hash(state);
    }
}

impl std::fmt::Debug for Laboured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

impl Laborious {
    fn labour(&self, state: State<Proposals>) -> Laboured {
        if self.without == Without::Caches {
            for names in &renamings(self.servers) {
                state.servers.iter().for_each(|seat| _ = black_box(digest(&**seat, names)));
                state.network.iter().for_each(|message| _ = black_box(digest(&**message, names)));
                black_box(digest(&*state.ghost, names));
            }
        }
        let own = (self.without == Without::Sharing).then(|| {
            let servers = state.servers.iter().map(|seat| (**seat).clone()).collect();
            let network = state.network.iter().map(|message| (**message).clone()).collect();
            (servers, network, (*state.ghost).clone())
        });
        Laboured { state, _own: own }
    }
}

impl Model for Laborious {
    type State = Laboured;
    type Action = Action<Proposals>;

    fn init_states(&self) -> Vec<Laboured> {
        self.world.init_states().into_iter().map(|state| self.labour(state)).collect()
    }

    fn actions(&self, state: &Laboured, actions: &mut Vec<Action<Proposals>>) {
        self.world.actions(&state.state, actions);
    }

    fn next_state(&self, last: &Laboured, action: Action<Proposals>) -> Option<Laboured> {
        self.world.next_state(&last.state, action).map(|state| self.labour(state))
    }

    fn properties(&self) -> Vec<Property<Laborious>> {
        vec![Property::always("nothing is violated", |_, state: &Laboured| state.state.violation.is_none())]
    }
}

/// Explores the cluster within these bounds to its end.
pub(crate) fn explore(bounds: Bounds, without: Without, threads: usize) -> Verdict {
    let symmetry = bounds.symmetry && without != Without::Symmetry;
    let proposals = Proposals::new(bounds.log, 0);
    let servers = bounds.servers;
    let mut world = World::new(Bounds { symmetry, ..bounds }, Tape::default(), proposals);
    if without == Without::Memory {
        world.forget_steps();
    }
    let least = |laboured: &Laboured| Laboured { state: World::representative(&laboured.state), _own: None };
    exhaust(Laborious { world, without, servers }, symmetry.then_some(least), threads)
}
