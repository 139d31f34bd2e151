//! A cluster of servers as the checker sees it: real nodes, real messages, disks that crash, and an environment.

/// Properties that must always hold, by the names of the violations.
macro_rules! always {
    ($($name:literal),* $(,)?) => {
        [$(stateright::Property::always($name, |world: &$crate::world::World<_>, state| !world.violates(state, $name))),*]
    };
}
pub(crate) use always;

pub mod bounds;
pub mod digest;
pub mod environment;
pub mod ghost;
pub mod intern;
pub mod memo;
mod model;
pub mod seat;
pub mod state;

pub use bounds::{Answers, Bounds, Elections, Repeats};
pub use environment::{Asked, Environment, Machine};
pub use ghost::Ghost;
pub use intern::Ref;
pub use model::{Action, World};
pub use seat::{Applied, Seat, Stimulus};
pub use state::State;

use std::sync::atomic::{AtomicBool, Ordering};

use palisade_spec::invariants::Violation;

/// Whether a violation has been shown already. A checker that goes on after it has found one must not replace the
/// shortest path to it by a later one.
#[derive(Debug, Default)]
pub struct Shown(AtomicBool);

impl Shown {
    /// Whether `violation` is of `property`; says so once.
    pub fn violates(&self, violation: Option<&Violation>, property: &str) -> bool {
        violation.is_some_and(|violation| violation.property == property) && !self.0.swap(true, Ordering::Relaxed)
    }
}
