//! The reference state: the committed entries, their effects, and what clients were told about
//! them.
//!
//! It executes each entry once, when the first node commits it, and checks it by the invariants of
//! `spec`. What a node does later is compared with it.

use palisade_spec::violated;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use palisade_spec::invariants::{
    Check, Committed, Holders, Property, exactly_once, fifo_order, members_survive_compaction, mutual_exclusion,
    no_early_expiry, table_is_sound, token_monotonicity,
};
use palisade_spec::lock::{Command, Event, Key, LockTable, Outcome, SessionId, Token};
use palisade_spec::raft::{Entry, Index, Members, Node, Payload, Snapshot, StateMachine, Term};

/// Number of entries kept. A node that lags further is sent a snapshot long before.
const WINDOW: usize = 8192;

/// The cluster's committed state.
#[derive(Debug)]
pub(super) struct ReferenceState {
    founders: Members,
    /// The last entries, by index.
    pub(super) committed: Committed<Command>,
    /// All entries that changed the members.
    changes: Committed<Command>,
    past: VecDeque<Past>,
    last: Index,
    machine: LockTable,
    holders: Holders,
    greatest: Token,
    grants: BTreeMap<Token, Grant>,
    /// The holder and the queue of each key after each entry that changed them.
    lock_states: BTreeMap<Key, VecDeque<(Index, LockState)>>,
    /// The lease of each session, as its client was told.
    leases: BTreeMap<SessionId, Lease>,
    /// The nonces of all committed openings, and of those that a client was told were not done.
    opened: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    pub(super) counts: Counts,
}

/// Counts of committed effects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) entries: u64,
    pub(super) grants: u64,
    pub(super) expiries: u64,
}

#[derive(Debug)]
struct Past {
    outcome: Outcome,
    /// The state after the entry; it shares structure with its neighbours.
    machine: LockTable,
    /// The term of the first node that committed it.
    term: Term,
}

#[derive(Debug)]
struct Grant {
    key: Key,
    session: SessionId,
    /// The entry that ended the grant.
    ended: Option<Index>,
}

/// A client's view of its session's lease.
#[derive(Clone, Copy, Debug)]
struct Lease {
    from: Duration,
    ttl: Duration,
}

/// A lock's holder and its queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockState {
    pub(super) holder: Option<(SessionId, Token)>,
    pub(super) queue: Vec<SessionId>,
}

impl ReferenceState {
    pub(super) fn new(founders: Members) -> ReferenceState {
        ReferenceState {
            founders,
            committed: Committed::new(),
            changes: Committed::new(),
            past: VecDeque::new(),
            last: Index(0),
            machine: LockTable::default(),
            holders: Holders::new(),
            greatest: Token(0),
            grants: BTreeMap::new(),
            lock_states: BTreeMap::new(),
            leases: BTreeMap::new(),
            opened: BTreeSet::new(),
            refused: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// The last entry that any node has committed.
    pub(super) fn last(&self) -> Index {
        self.last
    }

    /// A node commits an entry in its present term; the entry was created at `born`. A new entry is
    /// executed, a known one compared.
    pub(super) fn commit(&mut self, entry: &Entry<Command>, term: Term, born: Duration) -> Check {
        if entry.index <= self.last {
            return match self.committed.get(&entry.index) {
                Some(known) if known != entry => violated!(
                    Property::StateMachineSafety,
                    "{entry:?} is committed at the index where {known:?} was committed before"
                ),
                _ => Ok(()),
            };
        }
        if entry.index != self.last.next() {
            return violated!(
                Property::StateMachineSafety,
                "entry {} is committed right after entry {}",
                entry.index,
                self.last
            );
        }
        self.execute(entry, term, born)
    }

    fn execute(&mut self, entry: &Entry<Command>, term: Term, born: Duration) -> Check {
        let before = self.machine.clone();
        let outcome = self.machine.apply_payload(entry.stamp, &entry.payload);
        let (at, events, after) = (entry.stamp, &outcome.events, &self.machine);
        let command = match &entry.payload {
            Payload::Command(command) => Some(command),
            Payload::Noop | Payload::Members(_) => None,
        };
        mutual_exclusion(&mut self.holders, events)?;
        token_monotonicity(&mut self.greatest, events)?;
        // Most entries are no-ops without events.
        if command.is_some() || !events.is_empty() {
            fifo_order(&before, at, command, events, after)?;
            no_early_expiry(&before, at, command, events, after)?;
            table_is_sound(after)?;
        }
        if let Some(command) = command {
            exactly_once(&before, at, command, after)?;
        }
        if let Some(Command::Open { opening } | Command::AcquireOnce { opening, .. }) = command {
            self.opened.insert(opening.nonce);
            self.check_refusal(opening.nonce)?;
        }
        self.last = entry.index;
        self.counts.entries += 1;
        for event in events {
            self.record_event(event, born)?;
        }
        let keys = events.iter().filter_map(key_of).chain(command.and_then(Command::key));
        for key in keys.cloned().collect::<Vec<Key>>() {
            self.record_lock_state(key);
        }
        self.committed.insert(entry.index, entry.clone());
        if let Payload::Members(_) = entry.payload {
            self.changes.insert(entry.index, entry.clone());
        }
        self.past.push_back(Past { outcome, machine: self.machine.clone(), term });
        if self.past.len() > WINDOW {
            self.past.pop_front();
            self.committed.pop_first();
        }
        Ok(())
    }

    fn record_event(&mut self, event: &Event, born: Duration) -> Check {
        match event {
            Event::Granted { key, session, token } => {
                self.counts.grants += 1;
                self.grants.insert(*token, Grant { key: key.clone(), session: *session, ended: None });
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
            Event::Withdrawn { .. } => {}
        }
        Ok(())
    }

    fn record_lock_state(&mut self, key: Key) {
        let state = self.machine.lock(&key).map_or_else(LockState::default, |lock| LockState {
            holder: Some((lock.holder.session, lock.holder.token)),
            queue: lock.queue.iter().map(|waiter| waiter.session).collect(),
        });
        let states = self.lock_states.entry(key).or_default();
        if states.back().is_none_or(|(_, last)| *last != state) {
            states.push_back((self.last, state));
            if states.len() > WINDOW {
                states.pop_front();
            }
        }
    }

    /// The entries that a leader must have, as far as they are above its log's base: all that were
    /// committed in earlier terms.
    pub(super) fn required_entries<S: StateMachine>(&self, leader: &Node<S>) -> Committed<Command> {
        let entries = self.committed.range(leader.log().base().index.next()..);
        let is_due = |index: &Index| self.at(*index).is_some_and(|past| past.term < leader.term());
        entries.filter(|(index, _)| is_due(index)).map(|(index, entry)| (*index, entry.clone())).collect()
    }

    /// Compares a node's outcome of an entry.
    pub(super) fn compare_outcome(&self, index: Index, outcome: &Outcome) -> Check {
        match self.at(index) {
            Some(past) if past.outcome != *outcome => violated!(
                Property::StateMachineSafety,
                "entry {index} had outcome {outcome:?}, and {:?} at the first node",
                past.outcome
            ),
            _ => Ok(()),
        }
    }

    /// Compares a node's state after an entry.
    pub(super) fn compare_machine(&self, index: Index, machine: &LockTable) -> Check {
        if index > self.last {
            return violated!(
                Property::StateMachineSafety,
                "a node has a state after entry {index}, which is not committed"
            );
        }
        match self.at(index) {
            Some(past) if past.machine != *machine => violated!(
                Property::StateMachineSafety,
                "a node's state after entry {index} differs from the reference state"
            ),
            _ => Ok(()),
        }
    }

    /// Compares a node's snapshot.
    pub(super) fn compare_snapshot(&self, snapshot: &Snapshot<LockTable>) -> Check {
        if snapshot.last.index == Index(0) {
            return Ok(());
        }
        self.compare_machine(snapshot.last.index, &snapshot.machine)?;
        members_survive_compaction(snapshot.last.index, &snapshot.members, &self.founders, &self.changes)
    }

    fn at(&self, index: Index) -> Option<&Past> {
        let first = self.last.0 + 1 - self.past.len() as u64;
        self.past.get(usize::try_from(index.0.checked_sub(first)?).ok()?)
    }

    /// A client is told that the node is not the leader, or that there is no leader: its request to
    /// open a session with this nonce was not done, and never will be.
    pub(super) fn client_refused(&mut self, nonce: u64) -> Check {
        self.refused.insert(nonce);
        self.check_refusal(nonce)
    }

    fn check_refusal(&self, nonce: u64) -> Check {
        if self.opened.contains(&nonce) && self.refused.contains(&nonce) {
            let detail =
                format!("the session with nonce {nonce} was opened although its client was told that nothing was done");
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
    pub(super) fn client_leased(&mut self, session: SessionId, asked: Duration, ttl: Duration) {
        let lease = Lease { from: asked, ttl };
        if self.machine.session(session).is_some() {
            let known = self.leases.entry(session).or_insert(lease);
            known.from = known.from.max(asked);
        }
    }

    /// Number of waiters at all locks.
    pub(super) fn waiters(&self) -> usize {
        self.machine.locks().values().map(|lock| lock.queue.len()).sum()
    }
}

fn key_of(event: &Event) -> Option<&Key> {
    match event {
        Event::Granted { key, .. } | Event::Released { key, .. } | Event::Withdrawn { key, .. } => Some(key),
        Event::Expired { .. } | Event::Closed { .. } => None,
    }
}
