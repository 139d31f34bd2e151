//! A cluster of servers under the model checker: real nodes, real messages, disks that survive
//! crashes, and an environment.

/// Properties that must always hold, named like their violations.
macro_rules! always {
    ($($name:ident),* $(,)?) => {
        [$(stateright::Property::always(
            palisade_spec::invariants::Property::$name.name(),
            |_, state: &$crate::world::State<_>| {
                !$crate::world::violates(state.violation, palisade_spec::invariants::Property::$name)
            },
        )),*]
    };
}
pub(crate) use always;

mod action;
mod action_parts;
mod adversary;
pub mod bounds;
mod caches;
#[cfg(test)]
mod checker_agreement;
mod describe;
pub mod digest;
mod driver;
pub mod environment;
mod event;
pub mod history;
pub mod intern;
mod judge;
mod members;
pub mod memo;
mod model;
mod network;
mod notation;
pub mod replica;
mod search_class;
mod sentences;
mod sequence_diagram;
mod setup;
mod show;
pub mod state;
mod step;

pub use action::{Action, Fault};
pub use bounds::{Answers, Bounds, Delivery, Elections, Repeats};
pub(crate) use caches::leak;
pub use describe::{DescribeEnvironment, DescribeMove};
pub(crate) use driver::timeout_is_redundant;
pub use driver::{Answer, Applied, panicked};
pub use environment::{Environment, Machine, ServerRequest};
pub use history::History;
pub use intern::Ref;
pub use notation::Notation;
pub(crate) use notation::{entries, message};
pub use replica::{Replica, Stimulus};
pub use setup::World;
pub use state::State;

use palisade_spec::invariants::{Property, Violation};

/// Whether a violation of `property` has occurred.
pub fn violates(violation: Option<&Violation>, property: Property) -> bool {
    violation.is_some_and(|violation| violation.property == property)
}
