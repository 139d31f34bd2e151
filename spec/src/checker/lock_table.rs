//! The lock table's own invariants, entry by entry.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::machine::{Applied, Checked};
use crate::invariants::{
    Check, Holders, breaks_are_reported, changes_are_told, exactly_once, fifo_order, holds_are_counted,
    mutual_exclusion, no_deadlock, no_denied_grant, no_early_expiry, no_foreign_change, no_needless_wait,
    store_is_fenced, table_is_sound, time_passed, token_monotonicity, transactions_are_whole, values_are_kept,
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

    fn check_entry(observer: &mut Observer, entry: &Applied<'_, LockTable>, whole: bool) -> Check {
        let Applied { before, at, command, outcome, after } = *entry;
        let events = &outcome.events;
        mutual_exclusion(&mut observer.holders, events)?;
        token_monotonicity(&mut observer.greatest, events)?;
        breaks_are_reported(before, command, outcome)?;
        no_denied_grant(before, at, command, outcome, after)?;
        if let Some(command) = command {
            exactly_once(before, at, command, after)?;
            no_foreign_change(before, at, command, after)?;
        }
        if whole {
            fifo_order(before, at, command, events, after)?;
            no_early_expiry(before, at, command, events, after)?;
            let found = command.map_or(Cow::Borrowed(before), |command| time_passed(before, at, command));
            holds_are_counted(before, &found, command, outcome, after)?;
            values_are_kept(before, command, outcome, after)?;
            store_is_fenced(before, at, command, after)?;
            transactions_are_whole(before, at, command, outcome, after)?;
            changes_are_told(before, events, after)?;
            after.check_state()?;
        }
        Ok(())
    }

    fn check_state(&self) -> Check {
        table_is_sound(self)?;
        no_needless_wait(self)?;
        no_deadlock(self)
    }
}

#[cfg(test)]
mod tests {
    use crate::checker::{Applied, Checked};
    use crate::invariants::Property;
    use crate::invariants::states::{acquire, key, table};
    use crate::lock::{Command, LockTable, Outcome, Principal, Token};
    use crate::raft::{Stamp, StateMachine};

    #[test]
    fn break_that_is_not_reported_is_seen_in_tables_of_any_size() {
        let mut before = table(1);
        before.apply(Stamp(0), &acquire(1, 0, "k"));
        let (at, mut after) = (Stamp(0), before.clone());
        let command = Command::Break { key: key("k"), token: Token(1), principal: Principal::default() };
        let right = after.apply(at, &command);
        for whole in [true, false] {
            let judge = |outcome: &Outcome| {
                let entry = Applied { before: &before, at, command: Some(&command), outcome, after: &after };
                LockTable::check_entry(&mut before.observer(), &entry, whole).map_err(|violation| violation.property)
            };
            assert_eq!(judge(&right), Ok(()));
            let mut wrong = right.clone();
            wrong.events.remove(0);
            assert_eq!(judge(&wrong), Err(Property::BreaksAreReported));
        }
    }
}
