//! The reference state: the committed entries, in order, and what they do.
//!
//! Each entry is executed and judged once, when the first server may have applied it. What other
//! servers apply later must be equal.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::machine::{Checked, Execution, execute};
use crate::invariants::{Check, Committed, Property, members_survive_compaction, snapshot_matches_log};
use crate::raft::{Entry, Index, Log, Members, Node, Payload, Position, Snapshot, Stamp, StateMachine, Term};
use crate::{require, violated};

/// The committed state of a cluster.
#[derive(Debug)]
pub struct Reference<S: Checked> {
    founders: Members,
    /// The entry before the first of `entries`.
    base: Index,
    entries: VecDeque<Agreed<S>>,
    /// All entries that changed the members.
    changes: Committed<S::Command>,
    stamp: Stamp,
    machine: S,
    observer: S::Observer,
    /// The work that may be spent on checking whole states.
    budget: usize,
    /// How many entries were judged, and how many of them by their whole states.
    executed: (u64, u64),
}

/// A committed entry.
#[derive(Clone, Debug)]
pub struct Agreed<S: StateMachine> {
    /// The entry.
    pub entry: Entry<S::Command>,
    /// The term of the first node that committed it.
    pub term: Term,
    /// When it was first written, if that is known.
    pub born: Option<Duration>,
    /// Its effect.
    pub outcome: S::Outcome,
    /// The state after it, if that is kept.
    machine: Option<S>,
}

impl<S: StateMachine> Agreed<S> {
    /// The state after the entry, if it is kept.
    pub fn machine(&self) -> Option<&S> {
        self.machine.as_ref()
    }
}

impl<S: Checked> Reference<S> {
    /// The state of a cluster that starts with this snapshot.
    pub(super) fn new(first: &Snapshot<S>) -> Reference<S> {
        Reference {
            founders: (*first.members).clone(),
            base: first.last.index,
            entries: VecDeque::new(),
            changes: Committed::new(),
            stamp: first.stamp,
            machine: first.machine.clone(),
            observer: first.machine.observer(),
            budget: 0,
            executed: (0, 0),
        }
    }

    /// The members with which the cluster started.
    pub fn founders(&self) -> &Members {
        &self.founders
    }

    /// The last entry that any server has committed.
    pub fn last(&self) -> Index {
        Index(self.base.0 + self.entries.len() as u64)
    }

    /// The state after that entry.
    pub fn machine(&self) -> &S {
        &self.machine
    }

    /// The committed entries that are kept, in order.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Agreed<S>> {
        self.entries.iter()
    }

    /// The committed entries after this one, as far as they are kept.
    pub fn entries_after(&self, index: Index) -> impl DoubleEndedIterator<Item = &Agreed<S>> {
        self.entries.iter().skip(usize::try_from(index.0.saturating_sub(self.base.0)).unwrap_or(usize::MAX))
    }

    /// How many entries were judged, and how many of them by the whole states before and after.
    pub fn executed(&self) -> (u64, u64) {
        self.executed
    }

    /// The committed entry at an index, if it is kept.
    pub fn get(&self, index: Index) -> Option<&Agreed<S>> {
        self.entries.get(usize::try_from(index.0.checked_sub(self.base.0 + 1)?).ok()?)
    }

    /// Compares an entry that a node has committed with the agreed one, if there is one.
    pub(super) fn compare(&self, entry: &Entry<S::Command>) -> Check {
        let Some(agreed) = self.get(entry.index) else { return Ok(()) };
        let known = &agreed.entry;
        require!(Property::StateMachineSafety, known == entry, "{entry:?} is committed, where {known:?} was committed")
    }

    /// Compares the outcome that a node reports of an entry.
    pub(super) fn compare_outcome(&self, index: Index, outcome: &S::Outcome) -> Check {
        let Some(Agreed { outcome: known, .. }) = self.get(index) else { return Ok(()) };
        require!(
            Property::ReplicaAgreement,
            known == outcome,
            "entry {index} had outcome {known:?}, and now {outcome:?}"
        )
    }

    /// A node in this term may have executed the `Applied` of an entry. A new entry is executed and
    /// judged, a known one compared.
    pub(super) fn agree(
        &mut self,
        entry: &Entry<S::Command>,
        term: Term,
        outcome: &S::Outcome,
        born: Option<Duration>,
        (kept, states, whole_up_to): (usize, usize, usize),
    ) -> Check {
        if entry.index > self.last() {
            let (index, last) = (entry.index, self.last());
            require!(
                Property::CommitsFollowOneAnother,
                index == last.next(),
                "entry {index} is committed after {last}"
            )?;
            self.execute(entry, term, born, whole_up_to)?;
            if let Some(old) = self.entries.len().checked_sub(states.saturating_add(1)) {
                self.entries[old].machine = None;
            }
            if self.entries.len() > kept {
                self.entries.pop_front();
                self.base = self.base.next();
            }
        }
        self.compare(entry)?;
        self.compare_outcome(entry.index, outcome)
    }

    fn execute(&mut self, entry: &Entry<S::Command>, term: Term, born: Option<Duration>, whole_up_to: usize) -> Check {
        let (at, was) = (entry.stamp, self.stamp);
        require!(Property::StampsOnlyGrow, at >= was, "entry {} has stamp {at}, after {was}", entry.index)?;
        let before = self.machine.clone();
        let outcome = execute(&mut self.machine, at, &entry.payload);
        let execution = Execution::new(&before, at, &entry.payload, &outcome, &self.machine);
        let cost = before.size().max(self.machine.size());
        let least = cost.max(whole_up_to);
        self.budget = (self.budget + whole_up_to.saturating_mul(whole_up_to) / least.max(1)).min(least);
        let whole = self.budget >= cost;
        self.budget -= if whole { cost } else { 0 };
        S::check_entry(&mut self.observer, &execution, whole)?;
        self.executed = (self.executed.0 + 1, self.executed.1 + u64::from(whole));
        if let Payload::Members(_) = entry.payload {
            self.changes.insert(entry.index, entry.clone());
        }
        self.stamp = at;
        let machine = Some(self.machine.clone());
        self.entries.push_back(Agreed { entry: entry.clone(), term, born, outcome, machine });
        Ok(())
    }

    /// The entries above its log's base that a leader must have: those committed in earlier terms.
    pub(super) fn required_entries(&self, leader: &Node<S>) -> impl Iterator<Item = &Entry<S::Command>> {
        let entries = self.entries_after(leader.log().base().index);
        let term = leader.term();
        entries.filter(move |agreed| agreed.term < term).map(|agreed| &agreed.entry)
    }

    /// Compares a state after an entry with the agreed one. A server that has received nothing yet
    /// may have an earlier state than that with which the cluster started.
    pub(super) fn compare_machine(&self, index: Index, machine: &S) -> Check {
        let last = self.last();
        require!(
            Property::CommittedBeforeKept,
            index <= last,
            "a state is as of entry {index}, after the last, {last}"
        )?;
        let Some(done) = index.0.checked_sub(self.base.0).and_then(|done| usize::try_from(done).ok()) else {
            return Ok(());
        };
        let kept = done.checked_sub(1).and_then(|position| self.entries[position].machine.as_ref());
        let same = match kept {
            Some(kept) => kept == machine,
            None => {
                // The entries that follow must lead to the first state that is kept.
                let mut machine = machine.clone();
                let mut following = self.entries.iter().skip(done);
                let next = following.find_map(|agreed| {
                    execute(&mut machine, agreed.entry.stamp, &agreed.entry.payload);
                    agreed.machine.as_ref()
                });
                *next.unwrap_or(&self.machine) == machine
            }
        };
        require!(Property::ReplicaAgreement, same, "the state after entry {index} differs from that of other nodes")
    }

    /// Compares a snapshot with what was agreed.
    pub(super) fn compare_snapshot(&self, snapshot: &Snapshot<S>) -> Check {
        let last = snapshot.last.index;
        self.compare_machine(last, &snapshot.machine)?;
        self.compare_last(snapshot.last, snapshot.stamp)?;
        members_survive_compaction(last, &snapshot.members, &self.founders, &self.changes)
    }

    /// Compares the last entry of a snapshot, or the base of a log, unless it is too old to be
    /// known.
    fn compare_last(&self, last: Position, stamp: Stamp) -> Check {
        let committed = self.get(last.index).map(|agreed| &agreed.entry);
        if last.index <= self.base { Ok(()) } else { snapshot_matches_log(last, stamp, committed) }
    }

    /// Compares the base of a log with what was agreed.
    pub(super) fn compare_base(&self, log: &Log<S::Command>) -> Check {
        let base = log.base();
        self.compare_last(base, log.base_stamp())?;
        members_survive_compaction(base.index, log.members_at(base.index), &self.founders, &self.changes)
    }

    /// Fails if a node has committed entries that no server may have applied.
    pub(super) fn compare_commit(&self, node: &Node<S>) -> Check {
        for entry in node.log().entries().iter().take_while(|entry| entry.index <= node.commit()) {
            self.compare(entry)?;
        }
        if node.commit() > self.last() {
            return violated!(
                Property::CommitsFollowOneAnother,
                "node {} has committed entry {}, and the last that any node has applied is {}",
                node.id(),
                node.commit(),
                self.last()
            );
        }
        Ok(())
    }
}
