//! A model's output for people and programs: sentences for its actions, tables for its states,
//! diagrams for its paths.
//!
//! [`Model::format_action`] receives the action only. Its meaning (the server and term of a
//! candidate's request, the writes of a server before its crash) depends on the state in which the
//! action is taken. So [`Presentation::sentence`] receives both; traces and the Explorer show that
//! sentence.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use rand::Rng;
use rand::rngs::StdRng;
use stateright::Model;

use crate::diagram::Diagram;

/// Maps a state to the representative of all states that differ from it in names only.
pub type Representative<S> = fn(&S) -> S;

/// The states of a path, each with the action taken in it; the last state has none.
pub type Way<M> = [(<M as Model>::State, Option<<M as Model>::Action>)];

/// A model that can be explored, traced and shown.
pub trait Presentation:
    Model<
        State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
        Action: Clone + Debug + PartialEq + Send + Sync + 'static,
    > + Send
    + Sync
    + Sized
    + 'static
{
    /// The representative function, if states that differ in names only count as one.
    const REPRESENTATIVE: Option<Representative<Self::State>> = None;

    /// The relative weight of an action in a random walk; at least 1.
    fn weight(_action: &Self::Action) -> u32 {
        1
    }

    /// Two coarse pictures of a state, for [guided search](crate::guided), as hashes: its class,
    /// which many states share, and a finer one, which is the same for states that differ only in
    /// details. By default there is one class, and each state has a picture of its own.
    fn outline(&self, state: &Self::State) -> (u64, u64) {
        let mut outline = DefaultHasher::new();
        state.hash(&mut outline);
        (0, outline.finish())
    }

    /// The effect of an action taken in a state, as a sentence.
    fn sentence(&self, _last: &Self::State, action: &Self::Action) -> String {
        self.format_action(action)
    }

    /// The effect of an action on a state, for programs. By default, the sentence.
    fn event(&self, last: &Self::State, action: &Self::Action) -> serde_json::Value {
        serde_json::json!({ "action": self.sentence(last, action) })
    }

    /// The start of a path, for programs.
    fn setting(&self, _initial: &Self::State) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// The path as a sequence diagram.
    fn diagram(&self, _way: &Way<Self>) -> Option<Diagram> {
        None
    }
}

/// The index of one of the actions, drawn by weight.
pub(crate) fn by_weight<'a, A: 'a>(
    random: &mut StdRng,
    mut actions: impl Iterator<Item = &'a A> + Clone,
    weight: impl Fn(&A) -> u32,
) -> usize {
    let mut left = random.random_range(0..actions.clone().map(&weight).sum());
    let chosen = actions.position(|action| {
        let weight = weight(action);
        let found = left < weight;
        left = left.saturating_sub(weight);
        found
    });
    chosen.expect("the weights add up")
}
