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

use std::any::Any;
use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::net::TcpListener;
use std::sync::Arc;
use std::{io, thread};

use stateright::{Expectation, Model, Path, Property};

use crate::presentation::Presentation;
use crate::trace::Trace;

pub use self::browser::open;

/// Serves the Explorer of a model until the process ends.
///
/// # Errors
/// If the listener fails, or no other port is free for stateright.
pub fn serve<M: Presentation>(model: M, name: &str, listener: TcpListener) -> io::Result<()> {
    // stateright takes an address and no listener: the port is freed again for it.
    let explorer = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    thread::spawn(move || Shown(Box::new(model)).checker().serve(explorer));
    proxy::serve(listener, explorer, name)
}

/// What follows the address of an Explorer's page: the path to a state, or to the first initial
/// state.
pub fn fragment(trace: Option<&Trace>) -> String {
    format!("#/steps{}", trace.map_or("/0", |trace| &trace.explorer_path))
}

/// The adapter of a model for the Explorer.
struct Shown(Box<dyn Show>);

/// The operations that the adapter needs, independent of the type of the model's states.
trait Show: Send + Sync {
    fn begin(&self) -> Vec<Shape>;
    /// Only actions that change the state: the Explorer would show the others as ignored.
    fn taken(&self, last: &Shape) -> Vec<Taken>;
    fn sentence_of(&self, taken: &Taken) -> String;
    fn outcome(&self, taken: &Taken) -> Option<String>;
    fn drawn(&self, way: Vec<(Shape, Option<Taken>)>) -> Option<String>;
    fn expectations(&self) -> Vec<(Expectation, &'static str)>;
    /// Whether the property at this index of the list is true of a state.
    fn answer(&self, index: usize, state: &Shape) -> bool;
}

/// A state of any model, with its type erased.
#[derive(Clone)]
struct Shape(Arc<dyn Value>);

trait Value: Any + Debug + Send + Sync {
    fn equals(&self, other: &dyn Value) -> bool;
    fn feed(&self, hasher: &mut dyn Hasher);
}

impl<S: Debug + PartialEq + Hash + Send + Sync + 'static> Value for S {
    fn equals(&self, other: &dyn Value) -> bool {
        (other as &dyn Any).downcast_ref::<S>() == Some(self)
    }

    fn feed(&self, mut hasher: &mut dyn Hasher) {
        self.hash(&mut hasher);
    }
}

impl Shape {
    fn of<S: Value>(state: S) -> Shape {
        Shape(Arc::new(state))
    }

    /// The state, in a model whose states have this type.
    fn state<S: Value>(&self) -> &S {
        (&*self.0 as &dyn Any).downcast_ref().expect("a model is asked about its own states")
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Shape) -> bool {
        self.0.equals(&*other.0)
    }
}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.feed(hasher);
    }
}

impl Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An action with its state and its successor.
#[derive(Clone)]
struct Taken {
    last: Shape,
    /// Index among the actions that change this state.
    index: usize,
    action: Arc<dyn Act>,
    next: Shape,
}

trait Act: Any + Debug + Send + Sync {}

impl<A: Any + Debug + Send + Sync> Act for A {}

impl Taken {
    fn action<A: Clone + 'static>(&self) -> A {
        let action = (&*self.action as &dyn Any).downcast_ref::<A>();
        action.expect("a model is asked about its own actions").clone()
    }
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

impl<M: Presentation> Show for M {
    fn begin(&self) -> Vec<Shape> {
        self.init_states().into_iter().map(Shape::of).collect()
    }

    fn taken(&self, last: &Shape) -> Vec<Taken> {
        let taken = |(index, (action, next))| {
            let (action, next): (Arc<dyn Act>, Shape) = (Arc::<M::Action>::new(action), Shape::of::<M::State>(next));
            Taken { last: last.clone(), index, action, next }
        };
        self.next_steps(last.state()).into_iter().enumerate().map(taken).collect()
    }

    fn sentence_of(&self, taken: &Taken) -> String {
        self.sentence(taken.last.state(), &taken.action())
    }

    fn outcome(&self, taken: &Taken) -> Option<String> {
        self.format_step(taken.last.state(), taken.action())
    }

    fn drawn(&self, way: Vec<(Shape, Option<Taken>)>) -> Option<String> {
        let own = |(state, taken): (Shape, Option<Taken>)| {
            (state.state::<M::State>().clone(), taken.map(|taken| taken.action()))
        };
        let way: Vec<_> = way.into_iter().map(own).collect();
        self.diagram(&way).map(|diagram| diagram.svg())
    }

    fn expectations(&self) -> Vec<(Expectation, &'static str)> {
        self.properties().into_iter().map(|property| (property.expectation, property.name)).collect()
    }

    fn answer(&self, index: usize, state: &Shape) -> bool {
        (self.properties()[index].condition)(self, state.state())
    }
}

impl Model for Shown {
    type State = Shape;
    type Action = Taken;

    fn init_states(&self) -> Vec<Shape> {
        self.0.begin()
    }

    fn actions(&self, state: &Shape, actions: &mut Vec<Taken>) {
        actions.extend(self.0.taken(state));
    }

    fn next_state(&self, _: &Shape, taken: Taken) -> Option<Shape> {
        Some(taken.next)
    }

    fn format_action(&self, taken: &Taken) -> String {
        self.0.sentence_of(taken)
    }

    fn format_step(&self, _: &Shape, taken: Taken) -> Option<String> {
        self.0.outcome(&taken)
    }

    fn as_svg(&self, path: Path<Shape, Taken>) -> Option<String> {
        self.0.drawn(path.into_vec())
    }

    fn properties(&self) -> Vec<Property<Shown>> {
        let expectations = self.0.expectations();
        assert!(expectations.len() <= MOST, "a model that is shown has at most {MOST} properties");
        let expectations = expectations.into_iter().zip(CONDITIONS);
        expectations.map(|((expectation, name), condition)| Property { expectation, name, condition }).collect()
    }
}

/// stateright's conditions are plain functions, which cannot capture the index of a property. So
/// there is one function for each index.
type Condition = fn(&Shown, &Shape) -> bool;

fn condition<const INDEX: usize>(shown: &Shown, state: &Shape) -> bool {
    shown.0.answer(INDEX, state)
}

macro_rules! conditions {
    ($($index:literal)*) => { [$(condition::<$index>),*] };
}

/// Maximum number of properties of a model that can be shown.
pub const MOST: usize = 60;

const CONDITIONS: [Condition; MOST] = conditions!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
    24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51
    52 53 54 55 56 57 58 59
);

#[cfg(test)]
mod tests {
    use stateright::Checker;

    use super::*;
    use crate::raft::{Proposals, Tape};
    use crate::trace::shortest;
    use crate::world::{Bounds, World};

    fn world() -> World<Proposals> {
        let bounds = Bounds { terms: 1, log: 1, ..Bounds::default() };
        World::new(bounds, Tape::default(), Proposals::new(0, 0))
    }

    #[test]
    fn adapter_has_the_states_and_properties_of_the_model() {
        let plain = world().checker().spawn_bfs().join();
        let shown = Shown(Box::new(world())).checker().spawn_bfs().join();
        assert_eq!(shown.unique_state_count(), plain.unique_state_count());
        let names = |found: Vec<&'static str>| found.into_iter().collect::<std::collections::BTreeSet<_>>();
        let met = names(shown.discoveries().into_keys().collect());
        assert_eq!(met, names(plain.discoveries().into_keys().collect()));
        assert!(met.contains("a leader is elected") && !met.contains("two logs conflict"), "{met:?}");
    }

    #[test]
    fn trace_path_leads_to_its_steps_in_the_explorer() {
        let trace = shortest(world(), "a leader is elected").unwrap();
        let shown = Shown(Box::new(world()));
        let mut indices = trace.explorer_path.split('/').skip(1).map(|index| index.parse::<usize>().unwrap());
        let mut state = shown.init_states().swap_remove(indices.next().unwrap());
        for (index, step) in indices.zip(&trace.steps) {
            let mut actions = Vec::new();
            shown.actions(&state, &mut actions);
            let taken = actions.swap_remove(index);
            assert_eq!(shown.format_action(&taken), step.action);
            assert!(
                !format!("{taken:?}").contains("Shape"),
                "the action only: the page shows its debug text at every step"
            );
            state = shown.next_state(&state, taken).unwrap();
        }
        let state: &<World<Proposals> as Model>::State = state.state();
        assert!(state.servers.iter().any(|replica| replica.node.is_leader()));
    }
}
