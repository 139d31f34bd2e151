//! stateright's Explorer in a browser, over a model whose actions tell what they mean where they are taken.
//!
//! The Explorer asks a model for an action's sentence without saying in which state it is taken. So it is not given the
//! model itself, but one whose actions have their state with them.

use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use stateright::{Model, Path, Property};

use crate::readable::Readable;

/// An address at which nobody listens yet.
///
/// # Errors
/// If there is none: somebody does, or it is not an address of this machine.
pub fn free_address(address: impl ToSocketAddrs) -> std::io::Result<SocketAddr> {
    TcpListener::bind(address)?.local_addr()
}

/// Serves the Explorer of a model, for as long as the process lives.
///
/// # Panics
/// If somebody listens at the address.
pub fn serve<M: Readable>(model: M, address: SocketAddr) {
    Shown(model).checker().serve(address);
}

/// Where the Explorer shows a path: its part of the page's address.
pub(crate) fn place<M: Readable>(model: &M, way: &[(M::State, Option<M::Action>)]) -> String {
    let (first, _) = way.first().expect("a path has a beginning");
    let begin = model.init_states().iter().position(|state| state == first);
    let steps = way.iter().filter_map(|(state, action)| {
        let action = action.as_ref()?;
        model.next_steps(state).iter().position(|(known, _)| known == action)
    });
    begin.into_iter().chain(steps).map(|index| format!("/{index}")).collect()
}

/// A model that is shown.
struct Shown<M>(M);

/// An action, and the state in which it is taken.
struct Taken<M: Model> {
    last: M::State,
    action: M::Action,
}

impl<M: Readable> Clone for Taken<M> {
    fn clone(&self) -> Taken<M> {
        Taken { last: self.last.clone(), action: self.action.clone() }
    }
}

impl<M: Readable> PartialEq for Taken<M> {
    fn eq(&self, other: &Taken<M>) -> bool {
        self.action == other.action && self.last == other.last
    }
}

impl<M: Readable> fmt::Debug for Taken<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.action.fmt(f)
    }
}

impl<M: Readable> Model for Shown<M> {
    type State = M::State;
    type Action = Taken<M>;

    fn init_states(&self) -> Vec<M::State> {
        self.0.init_states()
    }

    /// Only what changes something: the Explorer would show the rest as ignored.
    fn actions(&self, state: &M::State, actions: &mut Vec<Taken<M>>) {
        let steps = self.0.next_steps(state).into_iter();
        actions.extend(steps.map(|(action, _)| Taken { last: state.clone(), action }));
    }

    fn next_state(&self, last: &M::State, taken: Taken<M>) -> Option<M::State> {
        self.0.next_state(last, taken.action)
    }

    fn format_action(&self, taken: &Taken<M>) -> String {
        self.0.sentence(&taken.last, &taken.action)
    }

    fn format_step(&self, last: &M::State, taken: Taken<M>) -> Option<String> {
        self.0.format_step(last, taken.action)
    }

    fn as_svg(&self, path: Path<M::State, Taken<M>>) -> Option<String> {
        let way = path.into_vec().into_iter();
        let way: Vec<_> = way.map(|(state, taken)| (state, taken.map(|taken| taken.action))).collect();
        self.0.diagram(&way).map(|diagram| diagram.svg())
    }

    fn properties(&self) -> Vec<Property<Shown<M>>> {
        let properties = self.0.properties();
        assert!(properties.len() <= MOST, "a model that is shown has at most {MOST} properties");
        let shown = properties.into_iter().zip(conditions::<M>());
        shown
            .map(|(property, condition)| Property { expectation: property.expectation, name: property.name, condition })
            .collect()
    }
}

/// A property is a plain function: it cannot remember which property of the model it asks. So there is one for each
/// place in the list.
type Condition<M> = fn(&Shown<M>, &<M as Model>::State) -> bool;

fn condition<M: Readable, const PLACE: usize>(shown: &Shown<M>, state: &M::State) -> bool {
    (shown.0.properties()[PLACE].condition)(&shown.0, state)
}

macro_rules! conditions {
    ($($place:literal)*) => { [$(condition::<M, $place>),*] };
}

const MOST: usize = 48;

fn conditions<M: Readable>() -> [Condition<M>; MOST] {
    conditions!(
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
        24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47
    )
}

#[cfg(test)]
mod tests {
    use stateright::Checker;

    use super::*;
    use crate::models::models;
    use crate::raft::{Proposals, Tape};
    use crate::trace::shortest;
    use crate::world::{Bounds, World};

    fn world() -> World<Proposals> {
        let bounds = Bounds { terms: 1, log: 1, ..Bounds::default() };
        World::new(bounds, Tape::default(), Proposals::new(0, 0))
    }

    #[test]
    fn what_is_shown_is_the_model_and_its_properties_are_its_own() {
        let plain = world().checker().spawn_bfs().join();
        let shown = Shown(world()).checker().spawn_bfs().join();
        assert_eq!(shown.unique_state_count(), plain.unique_state_count());
        let names = |found: Vec<&'static str>| found.into_iter().collect::<std::collections::BTreeSet<_>>();
        let met = names(shown.discoveries().into_keys().collect());
        assert_eq!(met, names(plain.discoveries().into_keys().collect()));
        assert!(met.contains("a leader is elected") && !met.contains("two logs conflict"), "{met:?}");
    }

    #[test]
    fn a_trace_says_where_the_explorer_shows_it() {
        let trace = shortest(world(), "a leader is elected").unwrap();
        let shown = Shown(world());
        let mut indices = trace.place.split('/').skip(1).map(|index| index.parse::<usize>().unwrap());
        let mut state = shown.init_states().swap_remove(indices.next().unwrap());
        for (index, step) in indices.zip(&trace.steps) {
            let mut actions = Vec::new();
            shown.actions(&state, &mut actions);
            let taken = actions.swap_remove(index);
            assert_eq!(shown.format_action(&taken), step.action);
            state = shown.next_state(&state, taken).unwrap();
        }
        assert!(state.servers.iter().any(|seat| seat.node.is_leader()));
    }

    #[test]
    fn every_model_can_be_shown() {
        for model in models() {
            assert!(model.model.properties().len() <= MOST, "{}", model.name);
        }
    }
}
