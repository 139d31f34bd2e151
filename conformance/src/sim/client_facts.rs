//! What clients were told, and what was agreed: grants and releases are told only when they are
//! committed, reads are linearizable, leases are honoured, and what was rejected has no effect.
//!
//! The checker executes each entry once; this reads the effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use palisade_spec::checker::{Agreed, Reference};
use palisade_spec::invariants::{Check, Property};
use palisade_spec::lock::{Command, Event, Key, LockTable, Proof, SessionId, Token};
use palisade_spec::raft::{Index, Payload};
use palisade_spec::violated;

use super::judge::WINDOW;

/// The effects of the committed entries, and what clients know of them.
#[derive(Debug, Default)]
pub(super) struct ClientFacts {
    /// The last entry whose effects are known here.
    last: Index,
    grants: BTreeMap<Token, Grant>,
    /// The holder and the queue of each key after each entry that changed them.
    lock_states: BTreeMap<Key, VecDeque<(Index, LockState)>>,
    /// The lease of each session, as its client was told.
    leases: BTreeMap<SessionId, Lease>,
    /// The proofs of all committed openings, and of those that a client was told were not done.
    opened: BTreeSet<Proof>,
    refused: BTreeSet<Proof>,
    pub(super) counts: Counts,
}

/// Counts of committed effects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) grants: u64,
    pub(super) expiries: u64,
}

#[derive(Debug)]
struct Grant {
    key: Key,
    session: SessionId,
    /// The entry that ended the grant.
    ended: Option<Index>,
    /// Whether an operator ended it.
    is_broken: bool,
}

/// A client's view of its session's lease.
#[derive(Clone, Copy, Debug)]
struct Lease {
    from: Duration,
    ttl: Duration,
}

/// A lock's holder and its queue, as every client may see them: sessions by their public numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockState {
    pub(super) holder: Option<(u64, Token)>,
    pub(super) queue: Vec<u64>,
}

impl ClientFacts {
    /// Records the effects of the entries that were agreed on since; an entry whose first write is
    /// not known was written by `now`.
    pub(super) fn observe(&mut self, agreed: &Reference<LockTable>, now: Duration) -> Check {
        for entry in agreed.entries_after(self.last) {
            self.record(entry, now)?;
        }
        Ok(())
    }

    fn record(&mut self, agreed: &Agreed<LockTable>, now: Duration) -> Check {
        let command = match &agreed.entry.payload {
            Payload::Command(command) => Some(command),
            Payload::Noop | Payload::Members(_) => None,
        };
        self.last = agreed.entry.index;
        if let Some(Command::Open { opening } | Command::AcquireOnce { opening, .. }) = command {
            self.opened.insert(opening.proof);
            self.check_refusal(opening.proof)?;
        }
        for event in &agreed.outcome.events {
            self.record_event(event, agreed.born.unwrap_or(now))?;
        }
        let table = agreed.machine().expect("the states of the last entries are kept");
        for key in agreed.outcome.events.iter().filter_map(key_of).chain(command.and_then(Command::key)) {
            self.record_lock_state(table, key.clone());
        }
        Ok(())
    }

    fn record_event(&mut self, event: &Event, born: Duration) -> Check {
        match event {
            Event::Granted { key, session, token } => {
                self.counts.grants += 1;
                self.grants
                    .insert(*token, Grant { key: key.clone(), session: *session, ended: None, is_broken: false });
                if self.grants.len() > WINDOW {
                    self.grants.pop_first();
                }
            }
            Event::Released { token, .. } => {
                if let Some(grant) = self.grants.get_mut(token) {
                    grant.ended = Some(self.last);
                }
            }
            Event::Expired { session, .. } => {
                self.counts.expiries += 1;
                if let Some(Lease { from, ttl }) = self.leases.remove(session)
                    && born < from + ttl
                {
                    let detail =
                        format!("session {session} expired at {born:?}, and its lease lasts until {:?}", from + ttl);
                    return violated!(Property::LeasesAreHonoured, "{detail}");
                }
            }
            Event::Closed { session } => drop(self.leases.remove(session)),
            Event::Broken { token, .. } => {
                if let Some(grant) = self.grants.get_mut(token) {
                    grant.is_broken = true;
                }
            }
            Event::Withdrawn { .. } | Event::Denied { .. } => {}
        }
        Ok(())
    }

    fn record_lock_state(&mut self, table: &LockTable, key: Key) {
        let state = table.lock(&key).map_or_else(LockState::default, |lock| LockState {
            holder: Some((lock.holder.session.number, lock.holder.token)),
            queue: lock.queue.iter().map(|waiter| waiter.session.number).collect(),
        });
        let states = self.lock_states.entry(key).or_default();
        if states.back().is_none_or(|(_, last)| *last != state) {
            states.push_back((self.last, state));
            if states.len() > WINDOW {
                states.pop_front();
            }
        }
    }

    /// A client is told that the node is not the leader, or that there is no leader: its request to
    /// open a session with this proof was not done, and never will be.
    pub(super) fn client_refused(&mut self, proof: Proof) -> Check {
        self.refused.insert(proof);
        self.check_refusal(proof)
    }

    fn check_refusal(&self, proof: Proof) -> Check {
        if self.opened.contains(&proof) && self.refused.contains(&proof) {
            let detail = format!(
                "the session with proof {proof:x} was opened although its client was told that nothing was done"
            );
            return violated!(Property::RejectedRequestsHaveNoEffect, "{detail}");
        }
        Ok(())
    }

    /// A client is told that it holds a lock.
    pub(super) fn client_granted(&self, key: &Key, session: SessionId, token: Token) -> Check {
        match self.grants.get(&token) {
            Some(grant) if (&grant.key, grant.session) == (key, session) => Ok(()),
            other => violated!(
                Property::ReplyAfterCommit,
                "session {session} was told that it holds {key} with token {token}; the grant of that token is {other:?}"
            ),
        }
    }

    /// A client is told that it released a lock.
    pub(super) fn client_released(&self, key: &Key, token: Token) -> Check {
        match self.grants.get(&token) {
            Some(grant) if grant.ended.is_none() => violated!(
                Property::ReplyAfterCommit,
                "the client was told that {key} is released with token {token}, and it is still held"
            ),
            _ => Ok(()),
        }
    }

    /// A client is told that it has broken the grant of a session.
    pub(super) fn client_broke(&self, key: &Key, session: u64, token: Token) -> Check {
        match self.grants.get(&token) {
            Some(grant)
                if !grant.is_broken
                    || grant.ended.is_none()
                    || (&grant.key, grant.session.number) != (key, session) =>
            {
                violated!(
                    Property::ReplyAfterCommit,
                    "the client was told that the grant of {key} with token {token} to session {session} is broken; the \
                     grant of that token is {grant:?}"
                )
            }
            _ => Ok(()),
        }
    }

    /// A client's read returns a lock's holder and queue; when the client sent it, entries up to
    /// `since` were committed.
    pub(super) fn client_read(&self, key: &Key, since: Index, state: &LockState) -> Check {
        let none = VecDeque::new();
        let states = self.lock_states.get(key).unwrap_or(&none);
        let first = states.partition_point(|(index, _)| *index <= since).checked_sub(1);
        // The lock was free before its first record, unless earlier records were dropped: then any
        // state is possible.
        let is_older = first.is_none() && (*state == LockState::default() || states.len() >= WINDOW);
        if is_older || states.iter().skip(first.unwrap_or(0)).any(|(_, then)| then == state) {
            return Ok(());
        }
        violated!(
            Property::LinearizableReads,
            "a read of {key} returned {state:?}, which it has not been since entry {since}"
        )
    }

    /// A client was told that its session lives: for the time-to-live from its request, less what
    /// the fastest allowed clock and the client's rounding take off.
    pub(super) fn client_leased(
        &mut self,
        agreed: Option<&Reference<LockTable>>,
        session: SessionId,
        asked: Duration,
        ttl: Duration,
    ) {
        let lease = Lease { from: asked, ttl };
        if agreed.is_some_and(|agreed| agreed.machine().session(session).is_some()) {
            let known = self.leases.entry(session).or_insert(lease);
            known.from = known.from.max(asked);
        }
    }
}

fn key_of(event: &Event) -> Option<&Key> {
    match event {
        Event::Granted { key, .. }
        | Event::Released { key, .. }
        | Event::Broken { key, .. }
        | Event::Withdrawn { key, .. }
        | Event::Denied { key, .. } => Some(key),
        Event::Expired { .. } | Event::Closed { .. } => None,
    }
}
