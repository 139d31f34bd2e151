//! An entry's step of the lock table, as the checks see it.

use palisade_spec::lock::{
    Claim, Command, Holder, Key, Keys, LockTable, Mode, Outcome, Sequence, SessionId, Token, Waiter,
};
use palisade_spec::raft::Stamp;

/// An entry, and its effect.
pub(super) struct Step<'a> {
    pub(super) before: &'a LockTable,
    pub(super) at: Stamp,
    pub(super) command: Option<&'a Command>,
    pub(super) outcome: &'a Outcome,
    pub(super) after: &'a LockTable,
    /// The table as the command finds it: `before`, without what time takes from the keys that the
    /// command names.
    pub(super) found: &'a LockTable,
}

impl Step<'_> {
    /// Whether the session can act: a session that is due cannot, whether or not it was swept; nor can one
    /// that ends as time passes, because it was opened for a lock that it is denied now.
    pub(super) fn lives(&self, id: SessionId) -> bool {
        self.found.session(id).is_some_and(|session| session.deadline >= self.at)
    }

    /// Whether the session has done the operation of this number before, or a later one.
    pub(super) fn is_repeated(&self, id: SessionId, sequence: Option<Sequence>) -> bool {
        sequence.is_some() && self.before.session(id).is_some_and(|session| session.last >= sequence)
    }

    /// Whether the session has the claim that a release names, on exactly these keys.
    pub(super) fn has_claim(table: &LockTable, id: SessionId, keys: &Keys, named: Claim) -> bool {
        let Some(claim) = Standing::of(table, id, keys.first()).filter(|claim| claim.keys == keys.as_slice()) else {
            return false;
        };
        match named {
            Claim::Held(token) => claim.token == Some(token),
            Claim::Waiting => claim.token.is_none(),
            Claim::Either => true,
        }
    }
}

/// A session's claim on a key, as the table shows it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing<'a> {
    pub(super) session: SessionId,
    /// The number of its acquire.
    pub(super) sequence: Option<Sequence>,
    pub(super) mode: Mode,
    /// All keys of the claim.
    pub(super) keys: &'a [Key],
    /// The token of a holder; none of a waiter.
    pub(super) token: Option<Token>,
    /// The holds of a holder; 0 of a waiter.
    pub(super) holds: u32,
}

impl<'a> Standing<'a> {
    /// The claim of this session on this key. If a session stands there twice, as a holder and as a
    /// waiter, the grant counts.
    pub(super) fn of(table: &'a LockTable, id: SessionId, key: &'a Key) -> Option<Standing<'a>> {
        Standing::all(table, key).find(|claim| claim.session == id)
    }

    /// The claims on a key: those of the holders in the order of their grants, then those of the waiters
    /// in their order.
    pub(super) fn all(table: &'a LockTable, key: &'a Key) -> impl Iterator<Item = Standing<'a>> {
        let lock = table.lock(key);
        let held = lock.into_iter().flat_map(|lock| lock.holders.iter()).map(|holder| {
            let Holder { session, sequence, mode, token, holds, .. } = *holder;
            Standing { session, sequence, mode, keys: holder.all_keys(key), token: Some(token), holds }
        });
        let waiting = lock.into_iter().flat_map(|lock| lock.queue.iter()).map(|waiter| {
            let Waiter { session, sequence, mode, .. } = *waiter;
            Standing { session, sequence, mode, keys: waiter.all_keys(key), token: None, holds: 0 }
        });
        held.chain(waiting)
    }
}
