//! Runs stateright's Explorer in a browser, with sentences that depend on the state, under the
//! model's name.
//!
//! The Explorer formats an action without its state. So it gets an adapter of the model, whose
//! actions carry their state.
//!
//! One adapter type serves all models: the Explorer includes a web server and a checker, and
//! compiling those for every model took as long as the rest of this crate.

mod browser;
mod proxy;

use std::fmt::{self, Debug};
use std::net::TcpListener;
use std::{io, thread};

use stateright::{Model, Path, Property};

pub use crate::erased::MOST;
use crate::erased::{Answers, Erased, ErasedAction, ErasedState, properties};
use crate::presentation::Presentation;
use crate::trace::Trace;

pub use self::browser::open;

/// Serves the Explorer of a model until the process ends.
///
/// # Errors
/// If the listener fails, or no other port is free for stateright.
pub(crate) fn serve(model: Erased, name: &str, listener: TcpListener) -> io::Result<()> {
    // stateright takes an address and no listener: the port is freed again for it.
    let explorer = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    thread::spawn(move || Shown(model).checker().serve(explorer));
    proxy::serve(listener, explorer, name)
}

/// What follows the address of an Explorer's page: the path to a state, or to the first initial
/// state.
pub fn fragment(trace: Option<&Trace>) -> String {
    format!("#/steps{}", trace.map_or("/0", |trace| &trace.explorer_path))
}

/// The adapter of a model for the Explorer.
struct Shown(Erased);

/// An action with its state and its successor.
#[derive(Clone)]
struct Taken {
    last: ErasedState,
    /// Index among the actions that change this state.
    index: usize,
    action: ErasedAction,
    next: ErasedState,
}

impl PartialEq for Taken {
    fn eq(&self, other: &Taken) -> bool {
        self.index == other.index && self.last == other.last
    }
}

impl Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.action.fmt(f)
    }
}

impl Model for Shown {
    type State = ErasedState;
    type Action = Taken;

    fn init_states(&self) -> Vec<ErasedState> {
        self.0.init_states()
    }

    /// Only actions that change the state: the Explorer would show the others as ignored.
    fn actions(&self, state: &ErasedState, actions: &mut Vec<Taken>) {
        let taken = |(index, (action, next))| Taken { last: state.clone(), index, action, next };
        actions.extend(self.0.next_steps(state).into_iter().enumerate().map(taken));
    }

    fn next_state(&self, _: &ErasedState, taken: Taken) -> Option<ErasedState> {
        Some(taken.next)
    }

    fn format_action(&self, taken: &Taken) -> String {
        self.0.sentence(&taken.last, &taken.action)
    }

    fn format_step(&self, _: &ErasedState, taken: Taken) -> Option<String> {
        self.0.format_step(&taken.last, taken.action)
    }

    fn as_svg(&self, path: Path<ErasedState, Taken>) -> Option<String> {
        let way = path.into_vec().into_iter().map(|(state, taken)| (state, taken.map(|taken| taken.action)));
        let way: Vec<_> = way.collect();
        self.0.diagram(&way).map(|diagram| diagram.svg())
    }

    fn properties(&self) -> Vec<Property<Shown>> {
        properties(self.0.expectations())
    }
}

impl Answers for Shown {
    fn answer(&self, index: usize, state: &ErasedState) -> bool {
        self.0.answer(index, state)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stateright::Checker;

    use super::*;
    use crate::raft::{Proposals, Tape};
    use crate::trace::shortest;
    use crate::world::{Bounds, World};

    fn world() -> World<Proposals> {
        let bounds = Bounds { terms: 1, log: 1, ..Bounds::default() };
        World::new(bounds, Tape::default(), Proposals::new(0, 0))
    }

    fn shown(world: World<Proposals>) -> Shown {
        Shown(Erased::new(Arc::new(world)))
    }

    #[test]
    fn adapter_has_the_states_and_properties_of_the_model() {
        let plain = world().checker().spawn_bfs().join();
        let shown = shown(world()).checker().spawn_bfs().join();
        assert_eq!(shown.unique_state_count(), plain.unique_state_count());
        let names = |found: Vec<&'static str>| found.into_iter().collect::<std::collections::BTreeSet<_>>();
        let met = names(shown.discoveries().into_keys().collect());
        assert_eq!(met, names(plain.discoveries().into_keys().collect()));
        assert!(met.contains("a leader is elected") && !met.contains("two logs conflict"), "{met:?}");
    }

    #[test]
    fn trace_path_leads_to_its_steps_in_the_explorer() {
        let trace = shortest(world(), "a leader is elected").unwrap();
        let shown = shown(world());
        let mut indices = trace.explorer_path.split('/').skip(1).map(|index| index.parse::<usize>().unwrap());
        let mut state = shown.init_states().swap_remove(indices.next().unwrap());
        for (index, step) in indices.zip(&trace.steps) {
            let mut actions = Vec::new();
            shown.actions(&state, &mut actions);
            let taken = actions.swap_remove(index);
            assert_eq!(shown.format_action(&taken), step.action);
            let debug = format!("{taken:?}");
            assert_eq!(debug, format!("{:?}", taken.action), "the page shows this text at every step");
            state = shown.next_state(&state, taken).unwrap();
        }
        let state: &<World<Proposals> as Model>::State = state.state();
        assert!(state.servers.iter().any(|replica| replica.node.is_leader()));
    }
}
