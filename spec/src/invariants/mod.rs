//! Safety properties of the protocol, one property a file.
//!
//! Properties are functions over plain states: the model checks them in every state it reaches,
//! live tests check them on recorded states, and a node asserts its own part after every step of a
//! debug build. The names are the dissertation's where it has one (figure 3.2). A property of one
//! state takes that state; a property of a step takes the state before, what happened, and the
//! state after.

mod breaks_are_reported;
mod clock_monotonicity;
mod committed_by_a_majority;
mod elected_by_a_majority;
mod election_safety;
mod exactly_once;
mod fifo_order;
mod leader_append_only;
mod leader_completeness;
mod log_matching;
mod members_follow_the_log;
mod members_survive_compaction;
mod mutual_exclusion;
mod no_denied_grant;
mod no_early_expiry;
mod no_foreign_change;
mod node_is_sound;
mod one_change_at_a_time;
mod persisted_before_send;
mod property;
mod removed_leader_steps_down;
mod replies_name_entries;
mod replies_name_requests;
mod snapshot_matches_log;
mod state_machine_safety;
#[cfg(test)]
pub(crate) mod states;
mod table_is_sound;
mod token_monotonicity;
mod votes_stand;

use alloc::string::String;
use core::fmt;

use crate::lock::{Command, Key};
pub use breaks_are_reported::breaks_are_reported;
pub use clock_monotonicity::clock_monotonicity;
pub use committed_by_a_majority::committed_by_a_majority;
pub use elected_by_a_majority::elected_by_a_majority;
pub use election_safety::{Leaders, election_safety};
pub use exactly_once::exactly_once;
pub use fifo_order::fifo_order;
pub use leader_append_only::leader_append_only;
pub use leader_completeness::leader_completeness;
pub use log_matching::log_matching;
pub use members_follow_the_log::members_follow_the_log;
pub use members_survive_compaction::members_survive_compaction;
pub use mutual_exclusion::{Holders, mutual_exclusion};
pub use no_denied_grant::{no_denied_grant, permitted};
pub use no_early_expiry::no_early_expiry;
pub use no_foreign_change::no_foreign_change;
pub use node_is_sound::node_is_sound;
pub use one_change_at_a_time::one_change_at_a_time;
pub use persisted_before_send::persisted_before_send;
pub use property::Property;
pub use removed_leader_steps_down::removed_leader_steps_down;
pub use replies_name_entries::replies_name_entries;
pub use replies_name_requests::{open_reads, replies_name_requests};
pub use snapshot_matches_log::snapshot_matches_log;
pub use state_machine_safety::{Committed, state_machine_safety};
pub use table_is_sound::table_is_sound;
pub use token_monotonicity::token_monotonicity;
pub use votes_stand::votes_stand;

/// The key that a command acquires or releases. Deliberately independent of [`Command::key`]: a check must not
/// rely on the code it checks.
pub fn key_asked_for(command: &Command) -> Option<&Key> {
    match command {
        Command::Acquire { key, .. } | Command::AcquireOnce { key, .. } | Command::Release { key, .. } => Some(key),
        Command::Open { .. }
        | Command::Close { .. }
        | Command::KeepAlive { .. }
        | Command::Break { .. }
        | Command::SetAccess { .. } => None,
    }
}

/// A violated property, with the evidence.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation {
    /// The property.
    pub property: Property,
    /// The evidence.
    pub detail: String,
}

impl Violation {
    /// A violation with formatted evidence; used by [`require!`](crate::require) and
    /// [`violated!`](crate::violated).
    pub fn new(property: Property, detail: fmt::Arguments<'_>) -> Violation {
        Violation { property, detail: alloc::fmt::format(detail) }
    }
}

/// The result of checking a property.
pub type Check = Result<(), Violation>;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is violated: {}", self.property, self.detail)
    }
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A [`Check`]: fails with the [`Property`] and a formatted detail unless the condition holds.
#[macro_export]
macro_rules! require {
    ($property:expr, $holds:expr, $($detail:tt)+) => {
        if $holds { Ok(()) } else { $crate::violated!($property, $($detail)+) }
    };
}

/// A failed [`Check`]: the [`Property`] is violated, with a formatted detail.
#[macro_export]
macro_rules! violated {
    ($property:expr, $($detail:tt)+) => {
        Err($crate::invariants::Violation::new($property, format_args!($($detail)+)))
    };
}

#[cfg(test)]
mod tests {
    use super::{Check, Property};

    #[test]
    fn violation_says_which_property_and_what_was_seen() {
        let check = |number: u32| -> Check {
            require!(Property::History("evenness"), number.is_multiple_of(2), "{number} is odd")
        };
        assert_eq!(check(4), Ok(()));
        let violation = check(7).unwrap_err();
        assert_eq!(alloc::format!("{violation}"), "evenness is violated: 7 is odd");
        assert_eq!(alloc::format!("{violation:?}"), "evenness is violated: 7 is odd");
    }
}
