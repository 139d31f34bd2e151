//! Models of any type behind one type.
//!
//! What is generic over models is compiled for each of their types: every search, every operation on
//! paths. A model behind [`Erased`] needs only this adapter. Its states and actions are behind pointers,
//! so exploring takes longer. That does not matter for a path, in the Explorer, and in the gallery, whose
//! models are small.

use std::any::Any;
use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use stateright::{Expectation, Model, Property};

use crate::diagram::Diagram;
use crate::presentation::{Presentation, Way};

/// A model of any type.
pub(crate) struct Erased(Box<dyn Operations>);

impl Erased {
    pub(crate) fn new<M: Presentation>(model: Arc<M>) -> Erased {
        let properties = model.properties();
        Erased(Box::new(Typed { model, properties }))
    }

    pub(crate) fn expectations(&self) -> Vec<(Expectation, &'static str)> {
        self.0.expectations()
    }
}

/// The operations on a model, independent of the types of its states and actions.
trait Operations: Send + Sync {
    fn begin(&self) -> Vec<Shape>;
    fn possible(&self, state: &Shape, actions: &mut Vec<Act>);
    fn after(&self, last: &Shape, action: &Act) -> Option<Shape>;
    fn expectations(&self) -> Vec<(Expectation, &'static str)>;
    fn answer(&self, index: usize, state: &Shape) -> bool;
    fn outcome(&self, last: &Shape, action: &Act) -> Option<String>;
    fn outline_of(&self, state: &Shape) -> (u64, u64);
    fn sentence_of(&self, last: &Shape, action: &Act) -> String;
    fn event_of(&self, last: &Shape, action: &Act) -> serde_json::Value;
    fn setting_of(&self, initial: &Shape) -> serde_json::Value;
    fn drawn(&self, way: &Way<Erased>) -> Option<Diagram>;
}

/// A model, and its properties, which are listed once.
struct Typed<M: Presentation> {
    model: Arc<M>,
    properties: Vec<Property<M>>,
}

impl<M: Presentation> Operations for Typed<M> {
    fn begin(&self) -> Vec<Shape> {
        self.model.init_states().into_iter().map(Shape::of).collect()
    }

    fn possible(&self, state: &Shape, actions: &mut Vec<Act>) {
        let mut own = Vec::new();
        self.model.actions(state.state(), &mut own);
        actions.extend(own.into_iter().map(|action| Act(Arc::new(Of::<M>(action)))));
    }

    fn after(&self, last: &Shape, action: &Act) -> Option<Shape> {
        self.model.next_state(last.state(), action.own::<M>().clone()).map(Shape::of)
    }

    fn expectations(&self) -> Vec<(Expectation, &'static str)> {
        self.properties.iter().map(|property| (property.expectation.clone(), property.name)).collect()
    }

    fn answer(&self, index: usize, state: &Shape) -> bool {
        (self.properties[index].condition)(&*self.model, state.state())
    }

    fn outcome(&self, last: &Shape, action: &Act) -> Option<String> {
        self.model.format_step(last.state(), action.own::<M>().clone())
    }

    fn outline_of(&self, state: &Shape) -> (u64, u64) {
        self.model.outline(state.state())
    }

    fn sentence_of(&self, last: &Shape, action: &Act) -> String {
        self.model.sentence(last.state(), action.own::<M>())
    }

    fn event_of(&self, last: &Shape, action: &Act) -> serde_json::Value {
        self.model.event(last.state(), action.own::<M>())
    }

    fn setting_of(&self, initial: &Shape) -> serde_json::Value {
        self.model.setting(initial.state())
    }

    fn drawn(&self, way: &Way<Erased>) -> Option<Diagram> {
        let own = |(state, action): &(Shape, Option<Act>)| {
            (state.state::<M::State>().clone(), action.as_ref().map(|action| action.own::<M>().clone()))
        };
        let way: Vec<_> = way.iter().map(own).collect();
        self.model.diagram(&way)
    }
}

/// A state of any model.
#[derive(Clone)]
pub(crate) struct Shape(Arc<dyn Value>);

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
    pub(crate) fn state<S: Debug + PartialEq + Hash + Send + Sync + 'static>(&self) -> &S {
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

/// An action of any model.
#[derive(Clone)]
pub(crate) struct Act(Arc<dyn AnyAction>);

trait AnyAction: Any + Debug + Send + Sync {
    fn equals(&self, other: &dyn AnyAction) -> bool;
    fn weight(&self) -> u32;
}

/// An action of this model: its type alone would not tell its weight.
struct Of<M: Presentation>(M::Action);

impl<M: Presentation> AnyAction for Of<M> {
    fn equals(&self, other: &dyn AnyAction) -> bool {
        (other as &dyn Any).downcast_ref::<Of<M>>().is_some_and(|other| other.0 == self.0)
    }

    fn weight(&self) -> u32 {
        M::weight(&self.0)
    }
}

impl<M: Presentation> Debug for Of<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Act {
    /// The action, in the model that it belongs to.
    fn own<M: Presentation>(&self) -> &M::Action {
        let action = (&*self.0 as &dyn Any).downcast_ref::<Of<M>>();
        &action.expect("a model is asked about its own actions").0
    }
}

impl PartialEq for Act {
    fn eq(&self, other: &Act) -> bool {
        self.0.equals(&*other.0)
    }
}

impl Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Model for Erased {
    type State = Shape;
    type Action = Act;

    fn init_states(&self) -> Vec<Shape> {
        self.0.begin()
    }

    fn actions(&self, state: &Shape, actions: &mut Vec<Act>) {
        self.0.possible(state, actions);
    }

    fn next_state(&self, last: &Shape, action: Act) -> Option<Shape> {
        self.0.after(last, &action)
    }

    fn format_step(&self, last: &Shape, action: Act) -> Option<String> {
        self.0.outcome(last, &action)
    }

    fn properties(&self) -> Vec<Property<Erased>> {
        properties(self.expectations())
    }
}

impl Presentation for Erased {
    fn weight(action: &Act) -> u32 {
        action.0.weight()
    }

    fn outline(&self, state: &Shape) -> (u64, u64) {
        self.0.outline_of(state)
    }

    fn sentence(&self, last: &Shape, action: &Act) -> String {
        self.0.sentence_of(last, action)
    }

    fn event(&self, last: &Shape, action: &Act) -> serde_json::Value {
        self.0.event_of(last, action)
    }

    fn setting(&self, initial: &Shape) -> serde_json::Value {
        self.0.setting_of(initial)
    }

    fn diagram(&self, way: &Way<Erased>) -> Option<Diagram> {
        self.0.drawn(way)
    }
}

/// An adapter that answers whether the property at an index of the list is true of a state.
pub(crate) trait Answers: Model<State = Shape> {
    fn answer(&self, index: usize, state: &Shape) -> bool;
}

impl Answers for Erased {
    fn answer(&self, index: usize, state: &Shape) -> bool {
        self.0.answer(index, state)
    }
}

/// stateright's conditions are plain functions, which cannot capture the index of a property. So
/// there is one function for each index.
fn condition<A: Answers, const INDEX: usize>(adapter: &A, state: &Shape) -> bool {
    adapter.answer(INDEX, state)
}

/// Maximum number of properties of a model.
pub const MOST: usize = 60;

/// The properties with these expectations and names.
pub(crate) fn properties<A: Answers>(expectations: Vec<(Expectation, &'static str)>) -> Vec<Property<A>> {
    macro_rules! conditions {
        ($($index:literal)*) => { [$(condition::<A, $index>),*] };
    }
    let conditions: [fn(&A, &Shape) -> bool; MOST] = conditions!(
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
        24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51
        52 53 54 55 56 57 58 59
    );
    assert!(expectations.len() <= MOST, "a model that is shown has at most {MOST} properties");
    let expectations = expectations.into_iter().zip(conditions);
    expectations.map(|((expectation, name), condition)| Property { expectation, name, condition }).collect()
}
