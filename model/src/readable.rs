//! What people and programs read of a model: sentences for its actions, tables for its states, diagrams for its paths.
//!
//! The sentences are [`Model::format_action`] and [`Model::format_step`], the tables the states' `Debug`, the diagrams
//! [`Model::as_svg`]: stateright's Explorer shows them, and so does `palisade-model trace`.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::Model;

/// The state that stands for all that differ from it in names only.
pub type Representative<S> = fn(&S) -> S;

/// A model that can be explored, traced and shown.
pub trait Readable:
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

    /// What an action does to a state, for programs. The sentence by itself, if there is nothing more exact to say.
    fn event(&self, _last: &Self::State, action: &Self::Action) -> serde_json::Value {
        serde_json::json!({ "action": self.format_action(action) })
    }
}
