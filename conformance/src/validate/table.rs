//! What is agreed on: the committed entries, in order, and the lock table that they lead to. Every entry's effect is judged
//! once, when the first node applies it; whatever any node has applied later must be the same.

use std::collections::BTreeMap;

use palisade::recording::Digest;
use palisade_spec::invariants::{
    Check, Committed, Holders, exactly_once, fifo_order, mutual_exclusion, no_early_expiry, table_is_sound,
    token_monotonicity,
};
use palisade_spec::lock::{Command, LockTable, Outcome, Token};
use palisade_spec::raft::{Entry, Index, Members, Payload, Snapshot, Stamp, StateMachine, Term};

use super::{broken, require};

/// The table is judged as a whole after each entry while it has no more sessions and locks than this. One that is k times as
/// large is judged as a whole every k² entries, so that what an entry costs falls as the table grows; the events are at
/// every one.
const WHOLE: usize = 1_024;

/// What the cluster has agreed on.
#[derive(Debug)]
pub(super) struct Agreed {
    pub(super) founders: Members,
    pub(super) entries: Committed<Command>,
    /// Those of them that change the members.
    pub(super) changes: Committed<Command>,
    /// The term of the leader that committed an entry: leader completeness speaks of later ones only.
    pub(super) committed_in: BTreeMap<Index, Term>,
    outcomes: BTreeMap<Index, Digest>,
    /// The table after the last of them.
    last: Index,
    stamp: Stamp,
    table: LockTable,
    holders: Holders,
    token: Token,
    /// What may be spent on judging tables as a whole.
    budget: usize,
    pub(super) tables: u64,
    pub(super) events: u64,
}

impl Agreed {
    /// A cluster that begins with this.
    pub(super) fn new(first: &Snapshot<LockTable>) -> Agreed {
        let held = first.machine.locks().iter();
        Agreed {
            founders: (*first.members).clone(),
            entries: Committed::new(),
            changes: Committed::new(),
            committed_in: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            last: first.last.index,
            stamp: first.stamp,
            table: first.machine.clone(),
            holders: held.map(|(key, lock)| (key.clone(), (lock.holder.session, lock.holder.token))).collect(),
            token: Token(first.machine.next_token().0 - 1),
            budget: 0,
            tables: 0,
            events: 0,
        }
    }

    /// The last entry that is committed.
    pub(super) fn last(&self) -> Index {
        self.last
    }

    /// A node in this term has applied an entry, and it did this.
    pub(super) fn applied(&mut self, entry: &Entry<Command>, term: Term, outcome: &Outcome) -> Check {
        let index = entry.index;
        if index > self.last {
            require("commits follow one another", index == self.last.next(), || {
                format!("entry {index} is applied, and the last one that anybody had applied is {}", self.last)
            })?;
            self.execute(entry)?;
            self.committed_in.insert(index, term);
        }
        if let Some(known) = self.entries.get(&index) {
            require("state machine safety", known == entry, || {
                format!("{:?} was applied at {index}, where {:?} was applied before", entry.payload, known.payload)
            })?;
        }
        let known = self.outcomes.get(&index);
        require("replica agreement", known.is_none_or(|known| *known == Digest::of(outcome)), || {
            format!("entry {index} did {outcome:?}, and something else elsewhere")
        })
    }

    /// The next entry's effect.
    fn execute(&mut self, entry: &Entry<Command>) -> Check {
        let at = entry.stamp;
        require("stamps only grow", at >= self.stamp, || {
            format!("entry {} happened at {at}, after {}", entry.index, self.stamp)
        })?;
        let before = self.table.clone();
        // Not by `apply_payload`: that is one of the things that are judged.
        let (outcome, command) = match &entry.payload {
            Payload::Noop | Payload::Members(_) => (self.table.advance(at), None),
            Payload::Command(command) => (self.table.apply(at, command), Some(command)),
        };
        let (events, after) = (&outcome.events, &self.table);
        self.events += events.len() as u64;
        mutual_exclusion(&mut self.holders, events)?;
        token_monotonicity(&mut self.token, events)?;
        if let Some(command) = command {
            exactly_once(&before, at, command, after)?;
        }
        let cost = before.sessions().len().max(after.sessions().len()) + before.locks().len().max(after.locks().len());
        self.budget = (self.budget + WHOLE * WHOLE / cost.max(WHOLE)).min(cost.max(WHOLE));
        if self.budget >= cost {
            self.budget -= cost;
            self.tables += 1;
            fifo_order(&before, at, command, events, after)?;
            no_early_expiry(&before, at, command, events, after)?;
            table_is_sound(after)?;
        }
        self.outcomes.insert(entry.index, Digest::of(&outcome));
        if let Payload::Members(_) = entry.payload {
            self.changes.insert(entry.index, entry.clone());
        }
        self.entries.insert(entry.index, entry.clone());
        (self.last, self.stamp) = (entry.index, at);
        Ok(())
    }

    /// A table as of an entry must be everybody's: it becomes the same as the last one by the entries in between.
    pub(super) fn is_everybodys(&self, index: Index, table: &LockTable) -> Check {
        let mut table = table.clone();
        if index > self.last {
            return broken(
                "committed before it is kept",
                format!("there is a state after {index}, which nobody applied"),
            );
        }
        for entry in self.entries.range(index.next()..).map(|(_, entry)| entry) {
            table.apply_payload(entry.stamp, &entry.payload);
        }
        let first = self.entries.first_key_value().map_or(self.last.next(), |(&first, _)| first);
        // A server that has heard nothing yet has the blank state, in a cluster that was restored from another.
        let reaches = index.next() >= first;
        require("replica agreement", !reaches || table == self.table, || {
            format!("a state after {index} is not everybody's")
        })
    }
}
