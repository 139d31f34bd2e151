//! The lock table's own invariants, entry by entry.

use alloc::vec::Vec;

use super::machine::{Checked, Execution};
use crate::invariants::{
    Check, EntryStep, Holders, breaks_are_reported, changes_have_events, claims_are_as_asked,
    deadlines_follow_signs_of_life, events_match_holders, exactly_once, fifo_order, holds_are_counted,
    mutual_exclusion, no_deadlock, no_denied_grant, no_early_expiry, no_foreign_change, no_needless_wait,
    release_by_holder_only, replies_match_table, sequences_are_recorded, sessions_are_constant, store_is_fenced,
    table_is_sound, token_monotonicity, transactions_are_whole, values_are_kept,
};
use crate::lock::{Lock, LockTable, Mode, SessionId, Token};

/// The holders and the greatest token, according to the events alone.
#[derive(Clone, Debug)]
pub struct Observer {
    holders: Holders,
    greatest: Token,
}

fn grants(lock: &Lock) -> Vec<(SessionId, Token, Mode)> {
    lock.holders.iter().map(|holder| (holder.session, holder.token, holder.mode)).collect()
}

impl Checked for LockTable {
    type Observer = Observer;

    fn observer(&self) -> Observer {
        let held = self.locks().iter();
        Observer {
            holders: held.map(|(key, lock)| (key.clone(), grants(lock))).filter(|(_, held)| !held.is_empty()).collect(),
            greatest: Token(self.next_token().0 - 1),
        }
    }

    fn size(&self) -> usize {
        self.sessions().len() + self.locks().len() + self.records().len()
    }

    fn check_entry(observer: &mut Observer, entry: &Execution<'_, LockTable>, whole: bool) -> Check {
        mutual_exclusion(&mut observer.holders, &entry.outcome.events)?;
        check_lock_entry(entry, &mut observer.greatest, whole, LockTable::check_state)
    }

    fn check_state(&self) -> Check {
        table_is_sound(self)?;
        no_needless_wait(self)?;
        no_deadlock(self)
    }
}

/// Checks what one entry did to a lock table: every property of a step, and of the table after it. The
/// [`ClusterChecker`] and the models judge by this function.
///
/// `greatest` is the greatest token that was ever granted before; `whole` if the whole tables may be compared.
/// `check_state` checks the table after the entry ([`Checked::check_state`]), also one that the entry has not
/// changed: an earlier entry may have spoilt it, after which the whole tables were not compared.
///
/// # Errors
/// The first violation.
///
/// [`ClusterChecker`]: super::ClusterChecker
pub fn check_lock_entry(
    entry: &Execution<'_, LockTable>,
    greatest: &mut Token,
    whole: bool,
    check_state: impl FnOnce(&LockTable) -> Check,
) -> Check {
    let Execution { before, at, command, outcome, after } = *entry;
    let step = &EntryStep::new(before, at, command, outcome, after);
    token_monotonicity(greatest, &outcome.events)?;
    no_denied_grant(step)?;
    breaks_are_reported(step)?;
    exactly_once(step)?;
    no_foreign_change(step)?;
    if !whole {
        return Ok(());
    }
    events_match_holders(step)?;
    release_by_holder_only(step)?;
    sequences_are_recorded(step)?;
    fifo_order(step)?;
    no_early_expiry(step)?;
    holds_are_counted(step)?;
    values_are_kept(step)?;
    store_is_fenced(step)?;
    transactions_are_whole(step)?;
    changes_have_events(step)?;
    deadlines_follow_signs_of_life(step)?;
    check_state(after)?;
    sessions_are_constant(step)?;
    claims_are_as_asked(step)?;
    replies_match_table(step)
}

#[cfg(test)]
mod tests;
