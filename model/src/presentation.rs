//! What people and programs read of a model: sentences for its actions, tables for its states, diagrams for its paths.
//!
//! [`Model::format_action`] sees an action only. What it means, whom a candidate asks for which term, or what a server
//! had written when it crashed, depends on the state in which it is taken; so [`Presentation::sentence`] sees both, and
//! that is what traces and the Explorer show.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::Model;

use crate::diagram::Diagram;

/// The state that stands for all that differ from it in names only.
pub type Representative<S> = fn(&S) -> S;

/// The states that were passed through, each with the action that was taken in it; the last one has none.
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
    /// How it counts states that differ in names only as one, if it does.
    const REPRESENTATIVE: Option<Representative<Self::State>> = None;

    /// How likely an action is in a random walk, beside the others that are possible. More than nothing.
    fn weight(_action: &Self::Action) -> u32 {
        1
    }

    /// Two coarse pictures of a state, for [guided search](crate::guided): its class, which few states do not share with many
    /// others, and one in which only states look alike that differ in details. Unless a model says otherwise, there is
    /// one class, and no two states look alike.
    fn outline(&self, state: &Self::State) -> (u64, u64) {
        let mut outline = DefaultHasher::new();
        state.hash(&mut outline);
        (0, outline.finish())
    }

    /// What happens when an action is taken in a state, as a sentence.
    fn sentence(&self, _last: &Self::State, action: &Self::Action) -> String {
        self.format_action(action)
    }

    /// What an action does to a state, for programs. The sentence by itself, if there is nothing more exact to say.
    fn event(&self, last: &Self::State, action: &Self::Action) -> serde_json::Value {
        serde_json::json!({ "action": self.sentence(last, action) })
    }

    /// How a path begins, for programs.
    fn setting(&self, _initial: &Self::State) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// What went on, as a sequence diagram.
    fn diagram(&self, _way: &Way<Self>) -> Option<Diagram> {
        None
    }
}
