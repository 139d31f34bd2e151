//! The lock table's own invariants, entry by entry.

use super::machine::{Applied, Checked};
use crate::invariants::{
    Check, Holders, breaks_are_reported, exactly_once, fifo_order, mutual_exclusion, no_denied_grant, no_early_expiry,
    no_foreign_change, table_is_sound, token_monotonicity,
};
use crate::lock::{LockTable, Token};

/// The holders and the greatest token, according to the events alone.
#[derive(Clone, Debug)]
pub struct Observer {
    holders: Holders,
    greatest: Token,
}

impl Checked for LockTable {
    type Observer = Observer;

    fn observer(&self) -> Observer {
        let held = self.locks().iter();
        Observer {
            holders: held.map(|(key, lock)| (key.clone(), (lock.holder.session, lock.holder.token))).collect(),
            greatest: Token(self.next_token().0 - 1),
        }
    }

    fn size(&self) -> usize {
        self.sessions().len() + self.locks().len()
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
            table_is_sound(after)?;
        }
        Ok(())
    }

    fn check_state(&self) -> Check {
        table_is_sound(self)
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
