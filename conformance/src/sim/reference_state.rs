//! What the cluster has agreed on, as somebody sees who sees everything: the committed entries, what they did, and what
//! clients were promised of it.
//!
//! The ghost executes each entry once, when the first node commits it, and judges it by the invariants of `spec`. What a
//! node does later is compared with that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use palisade_spec::invariants::{
    Check, Committed, Holders, Violation, exactly_once, fifo_order, members_survive_compaction, mutual_exclusion,
    no_early_expiry, table_is_sound, token_monotonicity,
};
use palisade_spec::lock::{Command, Event, Key, LockTable, Outcome, SessionId, Token};
use palisade_spec::raft::{Entry, Index, Members, Node, Payload, Snapshot, StateMachine, Term};

/// How many entries are remembered. A node that lags more than that is sent a snapshot long before.
const WINDOW: usize = 8192;

/// A broken promise.
pub(super) fn broken(property: &'static str, detail: String) -> Check {
    Err(Violation { property, detail })
}

/// What is agreed on.
#[derive(Debug)]
pub(super) struct ReferenceState {
    founders: Members,
    /// The last entries, by their indexes.
    pub(super) committed: Committed<Command>,
    /// Of all entries, those that changed the members.
    changes: Committed<Command>,
    past: VecDeque<Past>,
    last: Index,
    machine: LockTable,
    holders: Holders,
    greatest: Token,
    grants: BTreeMap<Token, Grant>,
    /// The line at each key after each entry that changed it: the holder first.
    lines: BTreeMap<Key, VecDeque<(Index, Line)>>,
    /// From when on the lease of each session counts that its client was told of.
    leases: BTreeMap<SessionId, Lease>,
    /// The random numbers of all openings that are committed, and of those that a client was told were not done.
    opened: BTreeSet<u64>,
    refused: BTreeSet<u64>,
    pub(super) told: Told,
}

/// What was seen of the cluster's work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    pub(super) entries: u64,
    pub(super) grants: u64,
    pub(super) expiries: u64,
}

#[derive(Debug)]
struct Past {
    outcome: Outcome,
    /// The state after the entry; it shares what it can with its neighbours.
    machine: LockTable,
    /// The term of the first node that committed it.
    term: Term,
}

#[derive(Debug)]
struct Grant {
    key: Key,
    session: SessionId,
    /// The entry that ended it.
    ended: Option<Index>,
}

/// A client's own view of a session.
#[derive(Clone, Copy, Debug)]
struct Lease {
    from: Duration,
    ttl: Duration,
}

/// Who holds a lock, and who waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
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
            lines: BTreeMap::new(),
            leases: BTreeMap::new(),
            opened: BTreeSet::new(),
            refused: BTreeSet::new(),
            told: Told::default(),
        }
    }

    /// The last entry that some node has committed.
    pub(super) fn last(&self) -> Index {
        self.last
    }

    /// A node commits an entry in its present term; it was made at the moment `born`. Says what it did, if that is remembered.
    pub(super) fn commit(&mut self, entry: &Entry<Command>, term: Term, born: Duration) -> Check {
        if entry.index <= self.last {
            return match self.committed.get(&entry.index) {
                Some(known) if known != entry => {
                    broken("state machine safety", format!("{entry:?} is committed, where {known:?} was before"))
                }
                _ => Ok(()),
            };
        }
        if entry.index != self.last.next() {
            return broken("state machine safety", format!("entry {} follows {} at once", entry.index, self.last));
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
        // No-ops that did nothing are the most.
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
            self.is_undone(opening.nonce)?;
        }
        self.last = entry.index;
        self.told.entries += 1;
        for event in events {
            self.note(event, born)?;
        }
        let keys = events.iter().filter_map(key_of).chain(command.and_then(Command::key));
        for key in keys.cloned().collect::<Vec<Key>>() {
            self.note_line(key);
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

    fn note(&mut self, event: &Event, born: Duration) -> Check {
        match event {
            Event::Granted { key, session, token } => {
                self.told.grants += 1;
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
                self.told.expiries += 1;
                if let Some(Lease { from, ttl }) = self.leases.remove(session)
                    && born < from + ttl
                {
                    let detail = format!("session {session} was due at {born:?}, and lives until {:?}", from + ttl);
                    return broken("leases are honoured", detail);
                }
            }
            Event::Closed { session } => drop(self.leases.remove(session)),
            Event::Withdrawn { .. } => {}
        }
        Ok(())
    }

    fn note_line(&mut self, key: Key) {
        let line = self.machine.lock(&key).map_or_else(Line::default, |lock| Line {
            holder: Some((lock.holder.session, lock.holder.token)),
            queue: lock.queue.iter().map(|waiter| waiter.session).collect(),
        });
        let lines = self.lines.entry(key).or_default();
        if lines.back().is_none_or(|(_, last)| *last != line) {
            lines.push_back((self.last, line));
            if lines.len() > WINDOW {
                lines.pop_front();
            }
        }
    }

    /// What a leader must have, as far as it is still in its log: all that was committed before its term.
    pub(super) fn due<S: StateMachine>(&self, leader: &Node<S>) -> Committed<Command> {
        let entries = self.committed.range(leader.log().base().index.next()..);
        let is_due = |index: &Index| self.at(*index).is_some_and(|past| past.term < leader.term());
        entries.filter(|(index, _)| is_due(index)).map(|(index, entry)| (*index, entry.clone())).collect()
    }

    /// A node says what an entry did.
    pub(super) fn compare_outcome(&self, index: Index, outcome: &Outcome) -> Check {
        match self.at(index) {
            Some(past) if past.outcome != *outcome => {
                broken("state machine safety", format!("entry {index} did {outcome:?}, and {:?} before", past.outcome))
            }
            _ => Ok(()),
        }
    }

    /// A node's state after an entry.
    pub(super) fn compare_machine(&self, index: Index, machine: &LockTable) -> Check {
        if index > self.last {
            return broken("state machine safety", format!("there is a state after entry {index}, not committed yet"));
        }
        match self.at(index) {
            Some(past) if past.machine != *machine => {
                broken("state machine safety", format!("two nodes differ in their states after entry {index}"))
            }
            _ => Ok(()),
        }
    }

    /// A snapshot that some node has.
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

    /// A client is told that there is no leader, or another one: what it asked for was not done, and never will be. It was
    /// to open a session with this random number.
    pub(super) fn told_refusal(&mut self, nonce: u64) -> Check {
        self.refused.insert(nonce);
        self.is_undone(nonce)
    }

    fn is_undone(&self, nonce: u64) -> Check {
        if self.opened.contains(&nonce) && self.refused.contains(&nonce) {
            let detail =
                format!("the session of nonce {nonce} is opened, and its client was told that nothing was done");
            return broken("rejected requests have no effect", detail);
        }
        Ok(())
    }

    /// A client is told that it holds a lock.
    pub(super) fn told_grant(&self, key: &Key, session: SessionId, token: Token) -> Check {
        match self.grants.get(&token) {
            Some(grant) if (&grant.key, grant.session) == (key, session) => Ok(()),
            other => broken(
                "reply after commit",
                format!("session {session} was told that it holds {key} with {token}, and that is {other:?}"),
            ),
        }
    }

    /// A client is told that it gave a lock back.
    pub(super) fn told_release(&self, key: &Key, token: Token) -> Check {
        match self.grants.get(&token) {
            Some(grant) if grant.ended.is_none() => {
                broken("reply after commit", format!("{key} was said to be given back with {token}, and is held"))
            }
            _ => Ok(()),
        }
    }

    /// A client is told who stands at a key; when it asked, everything up to `since` was committed.
    pub(super) fn told_line(&self, key: &Key, since: Index, line: &Line) -> Check {
        let none = VecDeque::new();
        let lines = self.lines.get(key).unwrap_or(&none);
        let first = lines.partition_point(|(index, _)| *index <= since).checked_sub(1);
        // It was free before its first line, unless earlier ones were forgotten: then it may have been anything.
        let is_older = first.is_none() && (*line == Line::default() || lines.len() >= WINDOW);
        if is_older || lines.iter().skip(first.unwrap_or(0)).any(|(_, then)| then == line) {
            return Ok(());
        }
        broken("linearizable reads", format!("a read of {key} saw {line:?}, which it never was after entry {since}"))
    }

    /// A client was told that its session lives: for its TTL from when it asked, less what the fastest of the allowed
    /// clocks and the client's own rounding take off.
    pub(super) fn told_lease(&mut self, session: SessionId, asked: Duration, ttl: Duration) {
        let lease = Lease { from: asked, ttl };
        if self.machine.session(session).is_some() {
            let known = self.leases.entry(session).or_insert(lease);
            known.from = known.from.max(asked);
        }
    }

    /// Who waits for any lock.
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
