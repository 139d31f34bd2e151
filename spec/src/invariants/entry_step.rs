//! An entry's step of the lock table, as the checks see it.

use alloc::borrow::Cow;
use core::cell::OnceCell;

use super::{side_by_side, time_passed};
use crate::lock::{
    Claim, Command, Holder, Key, Keys, LockTable, Mode, Outcome, Sequence, Session, SessionId, Token, Value, Waiter,
};
use crate::raft::Stamp;

/// An entry that a lock table executes, and its effect.
#[derive(Debug)]
pub struct EntryStep<'a> {
    /// The table before.
    pub before: &'a LockTable,
    /// The entry's stamp.
    pub at: Stamp,
    /// The entry's command; `None` for an entry that only lets time pass.
    pub command: Option<&'a Command>,
    /// The effect.
    pub outcome: &'a Outcome,
    /// The table after.
    pub after: &'a LockTable,
    found: OnceCell<Cow<'a, LockTable>>,
}

impl<'a> EntryStep<'a> {
    /// The step from one table to another.
    pub fn new(
        before: &'a LockTable,
        at: Stamp,
        command: Option<&'a Command>,
        outcome: &'a Outcome,
        after: &'a LockTable,
    ) -> EntryStep<'a> {
        EntryStep { before, at, command, outcome, after, found: OnceCell::new() }
    }

    /// The table as the command finds it ([`time_passed`]): `before`, without what time takes from the keys
    /// that the command names. Made when a check first asks for it, because it may cost a look at all locks.
    pub fn found(&self) -> &LockTable {
        let EntryStep { before, at, command, .. } = *self;
        self.found.get_or_init(|| command.map_or(Cow::Borrowed(before), |command| time_passed(before, at, command)))
    }

    /// The sessions after the entry, each with what it was before, if it existed.
    pub(super) fn sessions_after(&self) -> impl Iterator<Item = (SessionId, Option<&'a Session>, &'a Session)> {
        let sessions = side_by_side(self.before.sessions(), self.after.sessions());
        sessions.filter_map(|(&id, was, is)| Some((id, was, is?)))
    }

    /// Whether the session can act: a session that is due cannot, whether or not it was swept; nor can one
    /// that ends as time passes, because it was opened for a lock that it is denied now.
    pub(super) fn lives(&self, id: SessionId) -> bool {
        self.found().session(id).is_some_and(|session| session.deadline >= self.at)
    }

    /// Whether the session has done the operation of this number before, or a later one.
    pub(super) fn is_repeated(&self, id: SessionId, sequence: Option<Sequence>) -> bool {
        sequence.is_some() && self.before.session(id).is_some_and(|session| session.last >= sequence)
    }

    /// Whether the session has the claim that a release names, on exactly these keys.
    pub(super) fn has_claim(table: &LockTable, id: SessionId, keys: &Keys, named: Claim) -> bool {
        let Some(claim) = ClaimView::of(table, id, keys.first()).filter(|claim| claim.keys == keys.as_slice()) else {
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
pub struct ClaimView<'a> {
    /// The session.
    pub session: SessionId,
    /// The number of its acquire.
    pub sequence: Option<Sequence>,
    /// The mode in which it claims the key.
    pub mode: Mode,
    /// All keys of the claim.
    pub keys: &'a [Key],
    /// The token of a holder; none of a waiter.
    pub token: Option<Token>,
    /// The holds of a holder; 0 of a waiter.
    pub holds: u32,
    /// Its value.
    pub value: Option<&'a Value>,
}

impl<'a> ClaimView<'a> {
    /// The claim of this session on this key. If a session stands there twice, as a holder and as a
    /// waiter, the grant counts.
    pub fn of(table: &'a LockTable, id: SessionId, key: &'a Key) -> Option<ClaimView<'a>> {
        ClaimView::all(table, key).find(|claim| claim.session == id)
    }

    /// The claims on a key: those of the holders in the order of their grants, then those of the waiters
    /// in their order.
    pub fn all(table: &'a LockTable, key: &'a Key) -> impl Iterator<Item = ClaimView<'a>> {
        let lock = table.lock(key);
        let held = lock.into_iter().flat_map(|lock| lock.holders.iter()).map(|holder| {
            let Holder { session, sequence, mode, token, holds, .. } = *holder;
            let (keys, value) = (holder.all_keys(key), holder.value());
            ClaimView { session, sequence, mode, keys, token: Some(token), holds, value }
        });
        let waiting = lock.into_iter().flat_map(|lock| lock.queue.iter()).map(|waiter| {
            let Waiter { session, sequence, mode, .. } = *waiter;
            let (keys, value) = (waiter.all_keys(key), waiter.value());
            ClaimView { session, sequence, mode, keys, token: None, holds: 0, value }
        });
        held.chain(waiting)
    }
}
