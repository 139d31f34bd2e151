//! Safety properties of the protocol, one property a file.
//!
//! Properties are functions over plain states: the model checks them in every state it reaches,
//! live tests check them on recorded states, and a node asserts its own part after every step of a
//! debug build. The names are the dissertation's where it has one (figure 3.2). A property of one
//! state takes that state; a property of a step takes the state before, what happened, and the
//! state after.

mod acknowledgement_matches_log;
mod breaks_are_reported;
mod changes_have_events;
mod claims_are_as_asked;
mod clock_monotonicity;
mod commit_only_grows;
mod committed_by_a_majority;
mod deadlines_follow_signs_of_life;
mod elected_by_a_majority;
mod election_safety;
mod entry_step;
mod events_match_holders;
mod exactly_once;
mod fifo_order;
mod holds_are_counted;
mod leader_append_only;
mod leader_completeness;
mod log_matching;
mod members_follow_the_log;
mod members_survive_compaction;
mod memory_matches_disk;
mod mutual_exclusion;
mod no_deadlock;
mod no_denied_grant;
mod no_early_expiry;
mod no_foreign_change;
mod no_needless_wait;
mod node_is_sound;
mod one_change_at_a_time;
mod persist_before_send;
mod property;
mod release_by_holder_only;
mod removed_leader_steps_down;
mod replies_match_store;
mod replies_match_table;
mod replies_name_entries;
mod replies_name_requests;
mod sequences_are_recorded;
mod sessions_are_constant;
mod snapshot_matches_log;
mod state_machine_safety;
#[cfg(test)]
pub(crate) mod states;
mod store_is_fenced;
mod table_is_sound;
mod token_monotonicity;
mod transactions_are_whole;
mod values_are_kept;
mod votes_stand;

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::string::String;
use core::{fmt, iter};

use crate::lock::{Claim, Command, Key, Keys, Lock, LockTable, Proof, SessionId, SharedMap};
use crate::raft::{Stamp, StateMachine};
pub use acknowledgement_matches_log::acknowledgement_matches_log;
pub use breaks_are_reported::breaks_are_reported;
pub use changes_have_events::changes_have_events;
pub use claims_are_as_asked::claims_are_as_asked;
pub use clock_monotonicity::clock_monotonicity;
pub use commit_only_grows::commit_only_grows;
pub use committed_by_a_majority::committed_by_a_majority;
pub use deadlines_follow_signs_of_life::deadlines_follow_signs_of_life;
pub use elected_by_a_majority::elected_by_a_majority;
pub use election_safety::{Leaders, election_safety};
pub use entry_step::{ClaimView, EntryStep};
pub use events_match_holders::events_match_holders;
pub use exactly_once::exactly_once;
pub use fifo_order::fifo_order;
pub use holds_are_counted::holds_are_counted;
pub use leader_append_only::leader_append_only;
pub use leader_completeness::leader_completeness;
pub use log_matching::log_matching;
pub use members_follow_the_log::members_follow_the_log;
pub use members_survive_compaction::members_survive_compaction;
pub use memory_matches_disk::memory_matches_disk;
pub use mutual_exclusion::{Holders, mutual_exclusion};
pub use no_deadlock::no_deadlock;
pub use no_denied_grant::{no_denied_grant, permitted};
use no_early_expiry::ending_cost;
pub use no_early_expiry::no_early_expiry;
pub use no_foreign_change::no_foreign_change;
pub use no_needless_wait::no_needless_wait;
pub use node_is_sound::node_is_sound;
pub use one_change_at_a_time::one_change_at_a_time;
pub use persist_before_send::persist_before_send;
pub use property::Property;
pub use release_by_holder_only::release_by_holder_only;
pub use removed_leader_steps_down::removed_leader_steps_down;
pub use replies_match_table::replies_match_table;
pub use replies_name_entries::replies_name_entries;
pub use replies_name_requests::{open_reads, replies_name_requests};
pub use sequences_are_recorded::sequences_are_recorded;
pub use sessions_are_constant::sessions_are_constant;
pub use snapshot_matches_log::snapshot_matches_log;
pub use state_machine_safety::{Committed, state_machine_safety};
pub use store_is_fenced::store_is_fenced;
pub use table_is_sound::table_is_sound;
pub use token_monotonicity::token_monotonicity;
pub use transactions_are_whole::transactions_are_whole;
pub use values_are_kept::values_are_kept;
pub use votes_stand::votes_stand;

/// The keys that a command acquires or releases. Deliberately independent of [`Command::keys`]: a check must not
/// rely on the code it checks.
pub fn keys_asked_for(command: &Command) -> &[Key] {
    match command {
        Command::Acquire { request, .. } | Command::AcquireOnce { request, .. } => request.keys.as_slice(),
        Command::Release { keys, .. } => keys.as_slice(),
        Command::Open { .. }
        | Command::Close { .. }
        | Command::KeepAlive { .. }
        | Command::Proclaim { .. }
        | Command::Break { .. }
        | Command::SetAccess { .. }
        | Command::Transact { .. } => &[],
    }
}

/// What is at each key in one map and in another, in the order of the keys.
pub fn side_by_side<'a, K: Ord, V>(
    before: &'a SharedMap<K, V>,
    after: &'a SharedMap<K, V>,
) -> impl Iterator<Item = (&'a K, Option<&'a V>, Option<&'a V>)> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    iter::from_fn(move || {
        let key = match (before.peek(), after.peek()) {
            (Some((was, _)), Some((is, _))) => *was.min(is),
            (one, other) => one.or(other)?.0,
        };
        let [was, is] = [&mut before, &mut after].map(|entries| entries.next_if(|(next, _)| *next == key));
        Some((key, was.map(|(_, value)| value), is.map(|(_, value)| value)))
    })
}

/// The table after what time does at a command about keys, whatever the command asks for.
///
/// The due holders of these keys end as if their sessions were closed, in the order of their grants,
/// until that was the work of a sweep. Where no claim is on several keys, that is all. Otherwise it is
/// the effect of a request about the same keys by a session that never existed: a waiter for several keys
/// may be the first at a free lock, and lose its positions there.
pub fn time_passed<'a>(before: &'a LockTable, at: Stamp, command: &Command) -> Cow<'a, LockTable> {
    let asked = keys_asked_for(command);
    let is_due = |id: &SessionId| before.session(*id).is_some_and(|session| session.deadline < at);
    // A holder may be due; a waiter may be due or denied, and it may be its turn.
    let may_change = |lock: &Lock| !lock.queue.is_empty() || lock.holders.iter().any(|holder| is_due(&holder.session));
    if !asked.iter().filter_map(|key| before.lock(key)).any(may_change) {
        return Cow::Borrowed(before);
    }
    let mut table = Cow::Borrowed(before);
    let is_on_one = |(key, lock): (&Key, &Lock)| {
        lock.holders.iter().all(|holder| holder.all_keys(key).len() == 1)
            && lock.queue.iter().all(|waiter| waiter.all_keys(key).len() == 1)
    };
    if !before.locks().iter().all(is_on_one) {
        if let Some(keys) = Keys::new(asked.to_vec()) {
            let session = SessionId { number: 0, proof: Proof::default() };
            table.to_mut().apply(at, &Command::Release { session, sequence: None, keys, claim: Claim::Either });
        }
        return table;
    }
    let holders = asked.iter().filter_map(|key| before.lock(key)).flat_map(|lock| lock.holders.iter());
    // A session may hold several of the keys.
    let mut seen = BTreeSet::new();
    let mut work = 0;
    for session in holders.map(|holder| holder.session).filter(|id| is_due(id) && seen.insert(*id)) {
        if work < before.sweep_cost().max(1) {
            work += ending_cost(before, session);
            table.to_mut().apply(at, &Command::Close { session });
        }
    }
    table
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
    use alloc::vec::Vec;

    use super::{Check, Property, SharedMap, side_by_side};

    #[test]
    fn maps_side_by_side_show_every_key_of_both_once() {
        let map = |entries: &[(u32, u32)]| {
            let mut map = SharedMap::new();
            for &(key, value) in entries {
                map.insert(key, value);
            }
            map
        };
        let (before, after) = (map(&[(1, 10), (2, 20), (4, 40)]), map(&[(2, 21), (3, 30)]));
        let seen: Vec<_> =
            side_by_side(&before, &after).map(|(key, was, is)| (*key, was.copied(), is.copied())).collect();
        assert_eq!(seen, [(1, Some(10), None), (2, Some(20), Some(21)), (3, None, Some(30)), (4, Some(40), None)]);
    }

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
