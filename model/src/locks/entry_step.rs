//! An entry's step of the lock table, as the checks see it.

use palisade_spec::lock::{Claim, Command, Key, LockTable, Outcome, Sequence, SessionId};
use palisade_spec::raft::Stamp;

/// An entry, and its effect.
pub(super) struct Step<'a> {
    pub(super) before: &'a LockTable,
    pub(super) at: Stamp,
    pub(super) command: Option<&'a Command>,
    pub(super) outcome: &'a Outcome,
    pub(super) after: &'a LockTable,
    /// The table as the command finds it: `before`, without the holder of the command's key if that
    /// session is due.
    pub(super) found: &'a LockTable,
}

impl Step<'_> {
    /// Whether the session can act: a session that is due cannot, whether or not it was swept.
    pub(super) fn lives(&self, id: SessionId) -> bool {
        self.before.session(id).is_some_and(|session| session.deadline >= self.at)
    }

    /// Whether the session has done the operation of this number before, or a later one.
    pub(super) fn is_repeated(&self, id: SessionId, sequence: Option<Sequence>) -> bool {
        sequence.is_some() && self.before.session(id).is_some_and(|session| session.last >= sequence)
    }

    /// Whether the session has the claim that a release names.
    pub(super) fn has_claim(table: &LockTable, id: SessionId, key: &Key, claim: Claim) -> bool {
        let Some(lock) = table.lock(key) else { return false };
        match claim {
            Claim::Held(token) => (lock.holder.session, lock.holder.token) == (id, token),
            Claim::Waiting => lock.queue_position(id).is_some(),
            Claim::Either => lock.holder.session == id || lock.queue_position(id).is_some(),
        }
    }
}
