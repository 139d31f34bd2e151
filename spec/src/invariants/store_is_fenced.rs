//! The store is fenced: no client changes what a holder has written, unless it holds a lock itself.

use super::{Check, EntryStep, Property};
use crate::lock::{Command, Condition, Key, LockTable, Record, Token};
use crate::raft::Stamp;
use crate::require;

const NAME: Property = Property::StoreIsFenced;

/// Compares the records before and after an entry. A record that is fenced before or after it
/// changes only by a transaction that names a grant, and that grant is held by a session that has not
/// reached its deadline. A record that was fenced stays so, until it is deleted; and its fence is the token
/// of a grant that was held at that very entry.
pub fn store_is_fenced(step: &EntryStep<'_>) -> Check {
    let EntryStep { before, at, command, after, .. } = *step;
    let changed = |key: &&Key| before.record(key) != after.record(key);
    let gone = before.records().keys().filter(|key| after.record(key).is_none());
    for key in gone.chain(after.records().keys()).filter(changed) {
        let (was, is) = (fence(before.record(key)), fence(after.record(key)));
        if was.is_none() && is.is_none() {
            continue;
        }
        let held = held(before, at, command);
        require!(NAME, held.is_some(), "{key} is fenced, and {command:?} changed it without a grant that was held")?;
        let is_by_holder = after.record(key).is_none() || is.is_some_and(|token| is_held(before, at, token));
        require!(NAME, is_by_holder, "{key} has the fence {is:?}, which is no grant that was held, and had {was:?}")?;
    }
    Ok(())
}

fn fence(record: Option<&Record>) -> Option<Token> {
    record.and_then(|record| record.fence)
}

/// A grant that the command names, and that is held by a session that could act.
fn held(before: &LockTable, at: Stamp, command: Option<&Command>) -> Option<Token> {
    let Some(Command::Transact { transaction, .. }) = command else { return None };
    transaction.conditions.iter().find_map(|condition| match condition {
        Condition::Held { lock, token } => is_held_at(before, at, lock, *token).then_some(*token),
        Condition::Version { .. } => None,
    })
}

/// Whether a session that could act held any lock with this token.
fn is_held(before: &LockTable, at: Stamp, token: Token) -> bool {
    before.locks().keys().any(|key| is_held_at(before, at, key, token))
}

/// Whether a session that could act held this lock with this token.
pub(super) fn is_held_at(before: &LockTable, at: Stamp, key: &Key, token: Token) -> bool {
    let holders = before.lock(key).into_iter().flat_map(|lock| lock.holders.iter());
    let mut holders = holders.filter(|holder| holder.token == token);
    holders.any(|holder| before.session(holder.session).is_some_and(|session| at <= session.deadline))
}

#[cfg(test)]
mod tests {
    use super::{EntryStep, store_is_fenced};
    use crate::invariants::states::{acquire, complaint, delete, id, put, table, transact, under, written};
    use crate::lock::{Command, LockTable, Outcome, Token, Transaction};
    use crate::raft::{Stamp, StateMachine};

    /// Session 1 holds k with token 1; r is fenced, s is not.
    fn stored() -> LockTable {
        let mut table = table(2);
        table.apply(Stamp(0), &acquire(1, 0, "k"));
        written(&mut table, 0, under(&[put("r", "x")], &[("k", 1)]));
        written(&mut table, 0, under(&[put("s", "x")], &[]));
        table
    }

    /// The detail of the violation if the entry had made `after` of `before`.
    fn detail(before: &LockTable, at: u64, command: Option<&Command>, after: &LockTable) -> alloc::string::String {
        let outcome = Outcome { reply: None, events: [].into() };
        complaint(store_is_fenced(&EntryStep::new(before, Stamp(at), command, &outcome, after)))
    }

    /// The detail of the violation if `asked` were executed as `done`.
    fn judge(asked: &Transaction, done: &Transaction, at: u64) -> alloc::string::String {
        let (before, mut after) = (stored(), stored());
        // What is done is done at a moment at which it is permitted.
        written(&mut after, 0, done.clone());
        detail(&before, at, Some(&transact(asked.clone())), &after)
    }

    #[test]
    fn change_without_a_grant_is_seen() {
        let held = under(&[put("r", "y")], &[("k", 1)]);
        assert_eq!(judge(&held, &held, 100), "");
        for (asked, at) in [
            (under(&[put("r", "y")], &[]), 0),
            (under(&[put("r", "y")], &[("k", 2)]), 0),
            (under(&[put("r", "y")], &[("l", 1)]), 0),
            (held.clone(), 101),
        ] {
            assert!(judge(&asked, &held, at).contains("without a grant that was held"), "{asked:?} at {at}");
        }
        let before = stored();
        for command in [None, Some(&acquire(1, 0, "l")), Some(&Command::Close { session: id(1) })] {
            let mut after = before.clone();
            written(&mut after, 0, held.clone());
            assert!(detail(&before, 0, command, &after).contains("without a grant"));
        }
    }

    #[test]
    fn record_that_is_not_fenced_may_change_without_one() {
        let open = under(&[put("s", "y")], &[]);
        assert_eq!(judge(&open, &open, 101), "");
    }

    #[test]
    fn deletion_and_first_write_under_a_token_are_changes() {
        let delete = under(&[delete("r")], &[("k", 1)]);
        let fence = under(&[put("s", "y")], &[("k", 1)]);
        for done in [&delete, &fence] {
            assert_eq!(judge(done, done, 0), "");
            let without = Transaction { conditions: [].into(), ..done.clone() };
            assert!(judge(&without, done, 0).contains("without a grant that was held"), "{done:?}");
        }
    }

    #[test]
    fn fence_that_is_lost_or_made_up_is_seen() {
        let before = stored();
        let command = transact(under(&[put("r", "y")], &[("k", 1)]));
        for fence in [None, Some(Token(2))] {
            let mut after = before.clone();
            after.apply(Stamp(0), &command);
            after.store_parts().record("r").fence = fence;
            let complaint = detail(&before, 0, Some(&command), &after);
            assert!(complaint.contains("which is no grant that was held"), "{complaint}");
        }
    }
}
