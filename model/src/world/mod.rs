//! A cluster of servers as the checker sees it: real nodes, real messages, disks that crash, and an environment.

/// Properties that must always hold, by the names of the violations.
macro_rules! always {
    ($($name:literal),* $(,)?) => {
        [$(stateright::Property::always($name, |_, state: &$crate::world::State<_>| {
            !$crate::world::violates(state.violation, $name)
        })),*]
    };
}
pub(crate) use always;

mod action;
mod adversary;
pub mod bounds;
pub mod digest;
mod driver;
pub mod environment;
mod event;
pub mod ghost;
mod inputs;
pub mod intern;
mod judge;
mod kept;
mod members;
pub mod memo;
mod model;
mod network;
mod outline;
mod picture;
pub mod seat;
mod show;
pub mod state;
mod step;
mod tell;
mod turns;
mod words;

pub use action::{Action, Fault};
pub use bounds::{Answers, Bounds, Delivery, Elections, Repeats};
pub use driver::{Answer, Applied};
pub(crate) use driver::{hears_or_is_heard, panic_text};
pub use environment::{Asked, Environment, Machine};
pub use ghost::Ghost;
pub use intern::Ref;
pub use model::World;
pub use seat::{Seat, Stimulus};
pub use show::{Shown, Told};
pub use state::State;
pub use words::Legible;
pub(crate) use words::{entries, message};

use palisade_spec::invariants::Violation;

/// Whether what went wrong, if anything did, is that `property` does not hold.
pub fn violates(violation: Option<&Violation>, property: &str) -> bool {
    violation.is_some_and(|violation| violation.property == property)
}
