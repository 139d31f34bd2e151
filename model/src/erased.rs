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
        Erased(Box::new(TypedModel { model, properties }))
    }

    pub(crate) fn expectations(&self) -> Vec<(Expectation, &'static str)> {
        self.0.expectations()
    }
}

/// The operations on a model, independent of the types of its states and actions.
trait Operations: Send + Sync {
    fn init_states(&self) -> Vec<ErasedState>;
    fn actions(&self, state: &ErasedState, actions: &mut Vec<ErasedAction>);
    fn next_state(&self, last: &ErasedState, action: &ErasedAction) -> Option<ErasedState>;
    fn expectations(&self) -> Vec<(Expectation, &'static str)>;
    fn answer(&self, index: usize, state: &ErasedState) -> bool;
    fn format_step(&self, last: &ErasedState, action: &ErasedAction) -> Option<String>;
    fn outline(&self, state: &ErasedState) -> (u64, u64);
    fn sentence(&self, last: &ErasedState, action: &ErasedAction) -> String;
    fn event(&self, last: &ErasedState, action: &ErasedAction) -> serde_json::Value;
    fn setting(&self, initial: &ErasedState) -> serde_json::Value;
    fn diagram(&self, way: &Way<Erased>) -> Option<Diagram>;
}

/// A model, and its properties, which are listed once.
struct TypedModel<M: Presentation> {
    model: Arc<M>,
    properties: Vec<Property<M>>,
}

impl<M: Presentation> Operations for TypedModel<M> {
    fn init_states(&self) -> Vec<ErasedState> {
        self.model.init_states().into_iter().map(ErasedState::new).collect()
    }

    fn actions(&self, state: &ErasedState, actions: &mut Vec<ErasedAction>) {
        let mut own = Vec::new();
        self.model.actions(state.state(), &mut own);
        actions.extend(own.into_iter().map(|action| ErasedAction(Arc::new(TypedAction::<M>(action)))));
    }

    fn next_state(&self, last: &ErasedState, action: &ErasedAction) -> Option<ErasedState> {
        self.model.next_state(last.state(), action.own::<M>().clone()).map(ErasedState::new)
    }

    fn expectations(&self) -> Vec<(Expectation, &'static str)> {
        self.properties.iter().map(|property| (property.expectation.clone(), property.name)).collect()
    }

    fn answer(&self, index: usize, state: &ErasedState) -> bool {
        (self.properties[index].condition)(&*self.model, state.state())
    }

    fn format_step(&self, last: &ErasedState, action: &ErasedAction) -> Option<String> {
        self.model.format_step(last.state(), action.own::<M>().clone())
    }

    fn outline(&self, state: &ErasedState) -> (u64, u64) {
        self.model.outline(state.state())
    }

    fn sentence(&self, last: &ErasedState, action: &ErasedAction) -> String {
        self.model.sentence(last.state(), action.own::<M>())
    }

    fn event(&self, last: &ErasedState, action: &ErasedAction) -> serde_json::Value {
        self.model.event(last.state(), action.own::<M>())
    }

    fn setting(&self, initial: &ErasedState) -> serde_json::Value {
        self.model.setting(initial.state())
    }

    fn diagram(&self, way: &Way<Erased>) -> Option<Diagram> {
        let own = |(state, action): &(ErasedState, Option<ErasedAction>)| {
            (state.state::<M::State>().clone(), action.as_ref().map(|action| action.own::<M>().clone()))
        };
        let way: Vec<_> = way.iter().map(own).collect();
        self.model.diagram(&way)
    }
}

/// A state of any model.
#[derive(Clone)]
pub(crate) struct ErasedState(Arc<dyn AnyState>);

trait AnyState: Any + Debug + Send + Sync {
    fn equals(&self, other: &dyn AnyState) -> bool;
    fn feed(&self, hasher: &mut dyn Hasher);
}

impl<S: Debug + PartialEq + Hash + Send + Sync + 'static> AnyState for S {
    fn equals(&self, other: &dyn AnyState) -> bool {
        (other as &dyn Any).downcast_ref::<S>() == Some(self)
    }

    fn feed(&self, mut hasher: &mut dyn Hasher) {
        self.hash(&mut hasher);
    }
}

impl ErasedState {
    fn new<S: AnyState>(state: S) -> ErasedState {
        ErasedState(Arc::new(state))
    }

    /// The state, in a model whose states have this type.
    pub(crate) fn state<S: Debug + PartialEq + Hash + Send + Sync + 'static>(&self) -> &S {
        (&*self.0 as &dyn Any).downcast_ref().expect("a model is asked about its own states")
    }
}

impl PartialEq for ErasedState {
    fn eq(&self, other: &ErasedState) -> bool {
        self.0.equals(&*other.0)
    }
}

impl Hash for ErasedState {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.feed(hasher);
    }
}

impl Debug for ErasedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An action of any model.
#[derive(Clone)]
pub(crate) struct ErasedAction(Arc<dyn AnyAction>);

trait AnyAction: Any + Debug + Send + Sync {
    fn equals(&self, other: &dyn AnyAction) -> bool;
    fn weight(&self) -> u32;
}

/// An action of this model: its type alone would not tell its weight.
struct TypedAction<M: Presentation>(M::Action);

impl<M: Presentation> AnyAction for TypedAction<M> {
    fn equals(&self, other: &dyn AnyAction) -> bool {
        (other as &dyn Any).downcast_ref::<TypedAction<M>>().is_some_and(|other| other.0 == self.0)
    }

    fn weight(&self) -> u32 {
        M::weight(&self.0)
    }
}

impl<M: Presentation> Debug for TypedAction<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ErasedAction {
    /// The action, in the model that it belongs to.
    fn own<M: Presentation>(&self) -> &M::Action {
        let action = (&*self.0 as &dyn Any).downcast_ref::<TypedAction<M>>();
        &action.expect("a model is asked about its own actions").0
    }
}

impl PartialEq for ErasedAction {
    fn eq(&self, other: &ErasedAction) -> bool {
        self.0.equals(&*other.0)
    }
}

impl Debug for ErasedAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Model for Erased {
    type State = ErasedState;
    type Action = ErasedAction;

    fn init_states(&self) -> Vec<ErasedState> {
        self.0.init_states()
    }

    fn actions(&self, state: &ErasedState, actions: &mut Vec<ErasedAction>) {
        self.0.actions(state, actions);
    }

    fn next_state(&self, last: &ErasedState, action: ErasedAction) -> Option<ErasedState> {
        self.0.next_state(last, &action)
    }

    fn format_step(&self, last: &ErasedState, action: ErasedAction) -> Option<String> {
        self.0.format_step(last, &action)
    }

    fn properties(&self) -> Vec<Property<Erased>> {
        properties(self.expectations())
    }
}

impl Presentation for Erased {
    fn weight(action: &ErasedAction) -> u32 {
        action.0.weight()
    }

    fn outline(&self, state: &ErasedState) -> (u64, u64) {
        self.0.outline(state)
    }

    fn sentence(&self, last: &ErasedState, action: &ErasedAction) -> String {
        self.0.sentence(last, action)
    }

    fn event(&self, last: &ErasedState, action: &ErasedAction) -> serde_json::Value {
        self.0.event(last, action)
    }

    fn setting(&self, initial: &ErasedState) -> serde_json::Value {
        self.0.setting(initial)
    }

    fn diagram(&self, way: &Way<Erased>) -> Option<Diagram> {
        self.0.diagram(way)
    }
}

/// An adapter that answers whether the property at an index of the list is true of a state.
pub(crate) trait Answers: Model<State = ErasedState> {
    fn answer(&self, index: usize, state: &ErasedState) -> bool;
}

impl Answers for Erased {
    fn answer(&self, index: usize, state: &ErasedState) -> bool {
        self.0.answer(index, state)
    }
}

/// stateright's conditions are plain functions, which cannot capture the index of a property. So
/// there is one function for each index.
fn condition<A: Answers, const INDEX: usize>(adapter: &A, state: &ErasedState) -> bool {
    adapter.answer(INDEX, state)
}

/// Maximum number of properties of a model.
pub const MOST: usize = 60;

/// The properties with these expectations and names.
pub(crate) fn properties<A: Answers>(expectations: Vec<(Expectation, &'static str)>) -> Vec<Property<A>> {
    macro_rules! conditions {
        ($($index:literal)*) => { [$(condition::<A, $index>),*] };
    }
    let conditions: [fn(&A, &ErasedState) -> bool; MOST] = conditions!(
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
        24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51
        52 53 54 55 56 57 58 59
    );
    assert!(expectations.len() <= MOST, "an erased model has at most {MOST} properties");
    let expectations = expectations.into_iter().zip(conditions);
    expectations.map(|((expectation, name), condition)| Property { expectation, name, condition }).collect()
}
