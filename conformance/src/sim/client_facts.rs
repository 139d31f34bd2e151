//! Compares the answers that clients received with the committed log: a node reports only committed
//! grants and releases, reads are linearizable, leases are honoured, and a rejected request has no
//! effect.
//!
//! The checker executes each entry once; this reads the effects. The answers are compared in `answers`.

mod answers;
mod seen;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use palisade_spec::checker::{Agreed, Reference};
use palisade_spec::invariants::{Check, Property};
use palisade_spec::lock::{
    Command, Event, Key, Keys, LockTable, Mode, Proof, Reply, Revision, Rules, Sequence, SessionId, Token, Transaction,
    Value,
};
use palisade_spec::raft::{Index, Payload, Stamp};
use palisade_spec::violated;

pub(super) use self::seen::{HolderState, LockState, RecordState, WaiterState};

/// Number of committed entries kept, with their states. A node that lags further is sent a snapshot
/// long before.
pub(super) const WINDOW: usize = 8192;

/// The effects of the committed entries, and what clients know of them.
#[derive(Debug, Default)]
pub(super) struct ClientFacts {
    /// The last entry whose effects are known here.
    last: Index,
    /// The stamp of that entry.
    stamp: Stamp,
    grants: BTreeMap<Token, Grant>,
    /// The holders and the queue of each key after each entry that changed them.
    lock_states: BTreeMap<Key, VecDeque<(Index, LockState)>>,
    /// Each record after each entry that changed it; `None` after a deletion.
    record_states: BTreeMap<Key, VecDeque<(Index, Option<RecordState>)>>,
    /// The transactions that were done, and their entries, by their versions.
    written: BTreeMap<u64, (Index, Transaction)>,
    /// The lease of each session, as its client was told.
    leases: BTreeMap<SessionId, Lease>,
    /// The sessions that a client has asked to close.
    close_asked: BTreeSet<SessionId>,
    /// The proofs of all committed openings, and of those that a client was told were not done.
    opened: BTreeSet<Proof>,
    refused: BTreeSet<Proof>,
    /// The replies to acquires that were queued, or refused because of another claim, by session and number.
    acquires: BTreeMap<(SessionId, Sequence), Acquired>,
    /// The last entry at which a waiter of a session was denied the lock.
    denied: BTreeMap<SessionId, Index>,
    /// The changes of the access rules, in order.
    rules_set: VecDeque<RulesSet>,
    pub(super) counts: Counts,
}

/// Counts of committed effects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) grants: u64,
    /// Of them, grants of a lock that others held.
    pub(super) grants_beside_others: u64,
    pub(super) expiries: u64,
}

#[derive(Debug)]
struct Grant {
    /// One key or several, in order.
    keys: Vec<Key>,
    session: SessionId,
    mode: Mode,
    /// The value that it has now.
    value: Option<Value>,
    /// The entry that ended the grant.
    ended: Option<Index>,
    /// Whether an operator ended it.
    is_broken: bool,
}

/// A change of the access rules that was done, or found them as they were to be.
#[derive(Debug)]
struct RulesSet {
    entry: Index,
    rules: Option<Arc<Rules>>,
    revision: Revision,
}

/// The reply to an acquire, as far as its client's answer must agree with it.
#[derive(Clone, Copy, Debug)]
enum Acquired {
    /// So many were ahead of it, in the longest of its queues.
    Queued(u64),
    /// The lock has another size, or the session another claim.
    OtherClaim,
}

/// A client's view of its session's lease.
#[derive(Clone, Copy, Debug)]
struct Lease {
    from: Duration,
    ttl: Duration,
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
        (self.last, self.stamp) = (agreed.entry.index, agreed.entry.stamp);
        if let Some(Command::Open { opening } | Command::AcquireOnce { opening, .. }) = command {
            self.opened.insert(opening.proof);
            self.check_refusal(opening.proof)?;
        }
        if let Some(Command::Close { session }) = command {
            self.check_close(*session)?;
        }
        if let Some(Command::Acquire { session, sequence: Some(sequence), .. }) = command {
            let reply = match agreed.outcome.reply {
                Some(Reply::Queued { ahead, .. }) => Some(Acquired::Queued(ahead)),
                Some(Reply::OtherSize { .. } | Reply::OtherClaim { .. }) => Some(Acquired::OtherClaim),
                _ => None,
            };
            if let Some(reply) = reply {
                // A repetition finds the position of the first.
                self.acquires.entry((*session, *sequence)).or_insert(reply);
                if self.acquires.len() > WINDOW {
                    self.acquires.pop_first();
                }
            }
        }
        if let (Some(Command::SetAccess { rules, .. }), Some(Reply::AccessSet { revision })) =
            (command, &agreed.outcome.reply)
        {
            self.rules_set.push_back(RulesSet { entry: self.last, rules: rules.clone(), revision: *revision });
            if self.rules_set.len() > WINDOW {
                self.rules_set.pop_front();
            }
        }
        if let (Some(Command::Transact { transaction, .. }), Some(Reply::Written { version })) =
            (command, &agreed.outcome.reply)
        {
            // A repetition is answered with the version of the first.
            self.written.entry(version.0).or_insert_with(|| (self.last, transaction.clone()));
            if self.written.len() > WINDOW {
                self.written.pop_first();
            }
        }
        for event in &agreed.outcome.events {
            self.record_event(event, agreed.born.unwrap_or(now))?;
        }
        let table = agreed.machine().expect("the states of the last entries are kept");
        let asked = command.and_then(Command::keys).into_iter().flat_map(Keys::iter);
        for key in agreed.outcome.events.iter().filter_map(key_of).chain(asked) {
            self.record_lock_state(table, key.clone());
        }
        for event in &agreed.outcome.events {
            if let Event::Put { key, .. } | Event::Deleted { key, .. } = event {
                self.record_record_state(table, key);
            }
            if let Event::Granted { key, token, .. } = event
                && table.lock(key).is_some_and(|lock| lock.holders.len() > 1)
                && self.grants.get(token).is_some_and(|grant| grant.keys.first() == Some(key))
            {
                self.counts.grants_beside_others += 1;
            }
        }
        Ok(())
    }

    fn record_event(&mut self, event: &Event, born: Duration) -> Check {
        match event {
            Event::Granted { key, session, token, mode, value, .. } => {
                let (session, mode, value) = (*session, *mode, value.clone());
                let new = || Grant { keys: Vec::new(), session, mode, value, ended: None, is_broken: false };
                let grant = self.grants.entry(*token).or_insert_with(new);
                self.counts.grants += u64::from(grant.keys.is_empty());
                grant.keys.push(key.clone());
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
            Event::Denied { session, .. } => {
                self.denied.insert(*session, self.last);
                if self.denied.len() > WINDOW {
                    self.denied.pop_first();
                }
            }
            Event::Proclaimed { token, value, .. } => {
                if let Some(grant) = self.grants.get_mut(token) {
                    grant.value = Some(value.clone());
                }
            }
            Event::Withdrawn { .. }
            | Event::Queued { .. }
            | Event::Overdue { .. }
            | Event::Put { .. }
            | Event::Deleted { .. } => {}
        }
        Ok(())
    }

    fn record_lock_state(&mut self, table: &LockTable, key: Key) {
        let state = table.lock(&key).map(|lock| LockState::of(lock, &key)).unwrap_or_default();
        let states = self.lock_states.entry(key).or_default();
        if states.back().is_none_or(|(_, last)| *last != state) {
            states.push_back((self.last, state));
            if states.len() > WINDOW {
                states.pop_front();
            }
        }
    }

    fn record_record_state(&mut self, table: &LockTable, key: &Key) {
        let state = table.record(key).map(|record| RecordState {
            version: record.version.0,
            fence: record.fence.map(|fence| fence.0),
            content: record.bytes.as_slice().to_vec(),
        });
        let states = self.record_states.entry(key.clone()).or_default();
        states.push_back((self.last, state));
        if states.len() > WINDOW {
            states.pop_front();
        }
    }
}

fn key_of(event: &Event) -> Option<&Key> {
    match event {
        Event::Granted { key, .. }
        | Event::Released { key, .. }
        | Event::Proclaimed { key, .. }
        | Event::Broken { key, .. }
        | Event::Withdrawn { key, .. }
        | Event::Denied { key, .. }
        | Event::Queued { key, .. }
        | Event::Overdue { key, .. } => Some(key),
        Event::Expired { .. } | Event::Closed { .. } | Event::Put { .. } | Event::Deleted { .. } => None,
    }
}
