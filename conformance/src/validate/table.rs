//! The committed state: the committed entries, in order, and the lock table that they produce.
//! Every entry's effect is checked once, when the first node applies it; what other nodes apply
//! later must be equal.

use palisade_spec::{require, violated};
use std::collections::BTreeMap;

use palisade::recording::Digest;
use palisade_spec::invariants::{
    Check, Committed, Holders, Property, exactly_once, fifo_order, mutual_exclusion, no_early_expiry, table_is_sound,
    token_monotonicity,
};
use palisade_spec::lock::{Command, LockTable, Outcome, Token};
use palisade_spec::raft::{Entry, Index, Members, Payload, Snapshot, Stamp, StateMachine, Term};

/// Size up to which the whole table is checked after each entry: the sum of its sessions and locks.
/// A table k times as large is checked as a whole every k² entries, so that the cost of an entry
/// falls as the table grows; the events are checked after every entry.
const FULL_CHECK_SIZE: usize = 1_024;

/// The cluster's committed state.
#[derive(Debug)]
pub(super) struct CommittedState {
    pub(super) founders: Members,
    pub(super) entries: Committed<Command>,
    /// The entries that change the members.
    pub(super) changes: Committed<Command>,
    /// Term of the leader that committed an entry: leader completeness is about later terms only.
    pub(super) committed_in: BTreeMap<Index, Term>,
    outcomes: BTreeMap<Index, Digest>,
    /// The table after the last entry.
    last: Index,
    stamp: Stamp,
    table: LockTable,
    holders: Holders,
    token: Token,
    /// Work that may be spent on checking whole tables.
    budget: usize,
    pub(super) tables: u64,
    pub(super) events: u64,
}

impl CommittedState {
    /// The state of a cluster that starts with this snapshot.
    pub(super) fn new(first: &Snapshot<LockTable>) -> CommittedState {
        let held = first.machine.locks().iter();
        CommittedState {
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

    /// The last committed entry.
    pub(super) fn last(&self) -> Index {
        self.last
    }

    /// A node in this term has applied an entry with this outcome.
    pub(super) fn applied(&mut self, entry: &Entry<Command>, term: Term, outcome: &Outcome) -> Check {
        let index = entry.index;
        if index > self.last {
            require!(
                Property::CommitsFollowOneAnother,
                index == self.last.next(),
                "entry {index} is applied, and the last applied entry of all nodes is {}",
                self.last
            )?;
            self.execute(entry)?;
            self.committed_in.insert(index, term);
        }
        if let Some(known) = self.entries.get(&index) {
            require!(
                Property::StateMachineSafety,
                known == entry,
                "{:?} was applied at {index}, where {:?} was applied before",
                entry.payload,
                known.payload
            )?;
        }
        let known = self.outcomes.get(&index);
        require!(
            Property::ReplicaAgreement,
            known.is_none_or(|known| *known == Digest::of(outcome)),
            "entry {index} had outcome {outcome:?}, and another outcome at the first node"
        )
    }

    /// Executes the next entry and checks its effect.
    fn execute(&mut self, entry: &Entry<Command>) -> Check {
        let at = entry.stamp;
        require!(
            Property::StampsOnlyGrow,
            at >= self.stamp,
            "entry {} has stamp {at}, which is before {}",
            entry.index,
            self.stamp
        )?;
        let before = self.table.clone();
        // Not `apply_payload`, because that is one of the functions under test.
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
        self.budget = (self.budget + FULL_CHECK_SIZE * FULL_CHECK_SIZE / cost.max(FULL_CHECK_SIZE))
            .min(cost.max(FULL_CHECK_SIZE));
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

    /// A table as of an earlier entry must become the last table by the entries in between.
    pub(super) fn check_state(&self, index: Index, table: &LockTable) -> Check {
        let mut table = table.clone();
        if index > self.last {
            return violated!(
                Property::CommittedBeforeKept,
                "a node has a state after entry {index}, which no node has applied"
            );
        }
        for entry in self.entries.range(index.next()..).map(|(_, entry)| entry) {
            table.apply_payload(entry.stamp, &entry.payload);
        }
        let first = self.entries.first_key_value().map_or(self.last.next(), |(&first, _)| first);
        // In a cluster restored from another, a server that has received nothing yet has the blank
        // state.
        let reaches = index.next() >= first;
        require!(
            Property::ReplicaAgreement,
            !reaches || table == self.table,
            "a node's state after entry {index} differs from the committed state"
        )
    }
}
